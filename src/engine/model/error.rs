//! Why a file is not a model that can be run. The texts are for the person who chose the file.

use midstream_kernels::Format;

use super::super::gguf;

/// Why a model cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// The container is broken, or a key or tensor is missing.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// An architecture that is not implemented.
    #[error("the architecture {found:?} is not supported; supported are {supported}")]
    Architecture {
        /// What the file says.
        found: String,
        /// What there is.
        supported: String,
    },
    /// A property of the model that is not implemented.
    #[error("the model uses {0}, which is not supported")]
    Unsupported(String),
    /// A hyperparameter cannot be right.
    #[error("the metadata key {key:?} is {found}, which is not possible: {reason}")]
    Hyperparameter {
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// Why it cannot be.
        reason: String,
    },
    /// A tensor has another shape than the model's sizes demand.
    #[error("the tensor {name:?} has shape {found:?}, not {expected:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape it must have.
        expected: Vec<usize>,
    },
    /// A tensor's block format has no kernels.
    #[error("the tensor {name:?} has the block format {format}, which is not supported; supported are {}", formats())]
    Format {
        /// The tensor.
        name: String,
        /// Its format.
        format: String,
    },
    /// A weight of a layer that the architecture has no use for: running without it would give wrong text.
    #[error("the tensor {0:?} has no place in this architecture; the file may need a newer version")]
    UnusedTensor(String),
    /// The kernels cannot take a weight.
    #[error("the tensor {name:?} cannot be loaded: {reason}")]
    Weights {
        /// The tensor.
        name: String,
        /// Why.
        reason: String,
    },
}

/// The names of the block formats there are kernels for.
fn formats() -> String {
    Format::ALL.map(|format| format!("{format:?}")).join(", ")
}
