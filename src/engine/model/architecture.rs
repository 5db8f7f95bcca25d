//! The architectures: what sets each decoder apart from the others.

use midstream_kernels::RopeStyle;

use super::ModelError;

/// What a decoder of llama's family does in its own way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Architecture {
    /// The value of `general.architecture`, and the prefix of the hyperparameters.
    pub(crate) name: &'static str,
    /// Which values of a head are turned together.
    pub(crate) rope: RopeStyle,
    /// Whether query, key and value have biases that must be there.
    pub(crate) qkv_bias: bool,
}

/// llama (also `SmolLM`, Mistral): the converter has permuted the rows of query and key for the `Norm` order.
const LLAMA: Architecture = Architecture { name: "llama", rope: RopeStyle::Norm, qkv_bias: false };
/// qwen2 (also Qwen2.5).
const QWEN2: Architecture = Architecture { name: "qwen2", rope: RopeStyle::Neox, qkv_bias: true };

const ALL: [Architecture; 2] = [LLAMA, QWEN2];

impl Architecture {
    /// The architecture with this name.
    pub(super) fn named(name: &str) -> Result<Self, ModelError> {
        ALL.into_iter().find(|known| known.name == name).ok_or_else(|| ModelError::Architecture {
            found: name.to_owned(),
            supported: ALL.map(|known| known.name).join(", "),
        })
    }
}
