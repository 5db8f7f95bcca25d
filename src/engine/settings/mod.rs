//! What a request may ask of the generation of its answer. Pure data: it is recorded with the response, so that the
//! answer goes on in the same way after a restart.

mod constraint;
mod price;
mod sampling;

pub use constraint::{CallRule, Callable, Constraint, INPUT, InputRule, TextRule};
pub use price::{Price, units};
pub use sampling::{Dry, Mirostat, Penalties, Sampling, SamplingDefaults, Shaping, Step, Xtc};
