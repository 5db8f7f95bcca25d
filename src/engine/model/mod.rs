//! What a GGUF file says about a decoder: its architecture, its sizes, and where each weight lies.
//!
//! A backend takes the description, copies the weights into its own layout and computes. Nothing here computes
//! with weights. Everything a file claims is checked against its tensors: the tensors are what is really there.

mod architecture;
mod description;
mod error;
mod keys;
mod layer;
mod rope;
mod tensors;
mod work;

pub(crate) use architecture::Architecture;
pub(crate) use description::{Description, Sizes};
pub use error::ModelError;
pub(crate) use layer::{Attention, Experts, FeedForward, Gated, Layer, Linear, Mixer, ShortConvolution};
pub(crate) use rope::Rope;
pub(crate) use tensors::TensorRef;
pub use work::Work;

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod tiny;
