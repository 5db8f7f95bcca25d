//! From a conversation to prompt tokens, with the model's own chat template.
//!
//! Pure: no clock, no I/O, no server types. [`Message`] is what a template sees; [`ChatTemplate`] renders; [`build`]
//! makes tokens and keeps those that are already held.

mod adapt;
mod arguments;
mod bounds;
mod build;
mod builtin;
mod call_ids;
#[cfg(any(test, fuzzing))]
pub mod checks;
mod delimiters;
mod effort;
mod environment;
mod format;
mod guard;
mod hermes;
mod json;
mod message;
mod meter;
mod methods;
mod preamble;
mod probe;
mod replay;
mod report;
mod template;
mod time;
mod values;
mod vet;

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod report_tests;
#[cfg(test)]
mod template_tests;
#[cfg(test)]
mod tests;

pub use build::{Built, Known, build, build_within};
pub use builtin::{builtin_template, builtin_template_names};
pub use delimiters::missing_marks;
pub use effort::{Effort, Efforts};
pub use message::{Message, PromptEnd, Role, Thought, ToolCall, ToolDefinition};
pub use preamble::strip_preamble;
pub use probe::{Capabilities, TOOL as PROBED_TOOL};
pub use replay::{template_kwargs, with_effort};
pub use report::{Cause, Difference, PrefixReport, Side, compare};
pub use template::{ChatTemplate, Rendering, TemplateError};
