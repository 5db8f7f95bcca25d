//! The architectures: what sets each decoder apart from the others.

use midstream_kernels::{Activation, RopeStyle};

use super::ModelError;

/// What a decoder of llama's family does in its own way.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(clippy::struct_excessive_bools, reason = "a table of properties that have nothing to do with each other")]
pub(crate) struct Architecture {
    /// The value of `general.architecture`, and the prefix of the hyperparameters.
    pub(crate) name: &'static str,
    /// Which values of a head are turned together.
    pub(crate) rope: RopeStyle,
    /// How the gate of a feed-forward part opens.
    pub(crate) activation: Activation,
    /// Whether query, key and value have biases that must be there.
    pub(super) qkv_bias: bool,
    /// Whether each head of query and key is normed before it is turned.
    pub(super) head_norms: bool,
    /// The tensor that norms the stream before the feed-forward part.
    pub(super) feed_forward_norm: &'static str,
    /// The tensor that norms the stream behind the last layer, where the file has it; else it has the usual name.
    pub(super) output_norm: &'static str,
    /// Whether layers may mix positions by a short convolution instead of attention.
    pub(super) short_convolutions: bool,
    /// Whether every head has a sink: a score without a value.
    pub(super) sinks: bool,
    /// Whether a branch is normed once more before it is added.
    pub(super) post_norms: bool,
    /// Whether embeddings are multiplied with the root of their width.
    pub(super) scaled_embedding: bool,
    /// The last of every so many layers turns nothing.
    pub(super) unturned_every: Option<usize>,
    /// The last of every so many layers sees everything, the others what lies in the file's window.
    pub(super) full_every: Option<usize>,
    /// Whether layers with a window have a rotation of their own.
    pub(super) local_rope: bool,
    /// Whether yarn's range of pairs is widened to whole pairs.
    pub(super) whole_yarn_pairs: bool,
}

/// llama (also `SmolLM`, Mistral): the converter has permuted the rows of query and key for the `Norm` order.
const LLAMA: Architecture = Architecture {
    name: "llama",
    rope: RopeStyle::Norm,
    activation: Activation::Silu,
    qkv_bias: false,
    head_norms: false,
    feed_forward_norm: "ffn_norm.weight",
    output_norm: "output_norm.weight",
    short_convolutions: false,
    sinks: false,
    post_norms: false,
    scaled_embedding: false,
    unturned_every: None,
    full_every: None,
    local_rope: false,
    whole_yarn_pairs: true,
};
/// qwen2 (also Qwen2.5).
const QWEN2: Architecture = Architecture { name: "qwen2", rope: RopeStyle::Neox, qkv_bias: true, ..LLAMA };
/// qwen3, the dense ones.
const QWEN3: Architecture = Architecture { name: "qwen3", rope: RopeStyle::Neox, head_norms: true, ..LLAMA };
/// qwen3moe: qwen3 with experts.
const QWEN3MOE: Architecture = Architecture { name: "qwen3moe", ..QWEN3 };
/// `SmolLM3`: llama with layers that know no position. The file does not say which; it is every fourth.
const SMOLLM3: Architecture = Architecture { name: "smollm3", unturned_every: Some(4), ..LLAMA };
/// gemma3, its text part. The converter has added the 1 to the norms' weights.
const GEMMA3: Architecture = Architecture {
    name: "gemma3",
    rope: RopeStyle::Neox,
    activation: Activation::Gelu,
    head_norms: true,
    post_norms: true,
    scaled_embedding: true,
    full_every: Some(6),
    local_rope: true,
    ..LLAMA
};

/// gpt-oss: sinks, experts whose gates are clamped, a window in every other layer.
const GPT_OSS: Architecture = Architecture {
    name: "gpt-oss",
    rope: RopeStyle::Neox,
    activation: Activation::ClampedSilu { slope: 1.702, limit: 7.0 },
    qkv_bias: true,
    feed_forward_norm: "post_attention_norm.weight",
    sinks: true,
    full_every: Some(2),
    whole_yarn_pairs: false,
    ..LLAMA
};

/// lfm2: most layers are short convolutions.
const LFM2: Architecture = Architecture {
    name: "lfm2",
    rope: RopeStyle::Neox,
    head_norms: true,
    output_norm: "token_embd_norm.weight",
    short_convolutions: true,
    ..LLAMA
};

pub(super) const ALL: [Architecture; 8] = [LLAMA, QWEN2, QWEN3, QWEN3MOE, SMOLLM3, GEMMA3, GPT_OSS, LFM2];

impl Architecture {
    /// The architecture with this name.
    pub(super) fn named(name: &str) -> Result<Self, ModelError> {
        ALL.into_iter().find(|known| known.name == name).ok_or_else(|| ModelError::Architecture {
            found: name.to_owned(),
            supported: ALL.map(|known| known.name).join(", "),
        })
    }

    /// Whether the layer with that number turns its heads by their position.
    pub(super) fn turns(self, layer: usize) -> bool {
        self.unturned_every.is_none_or(|every| !(layer + 1).is_multiple_of(every))
    }
}
