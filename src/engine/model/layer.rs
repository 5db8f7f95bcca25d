//! One layer as data: what its parts are and where their weights lie.

use super::keys::Keys;
use super::tensors::Tensors;
use super::{Architecture, ModelError, Sizes, TensorRef};

/// A matrix and the bias that may be added to its products.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Linear {
    /// The matrix.
    pub(crate) weight: TensorRef,
    /// The bias.
    pub(crate) bias: Option<TensorRef>,
}

/// Attention of one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attention {
    pub(crate) query: Linear,
    pub(crate) key: Linear,
    pub(crate) value: Linear,
    pub(crate) output: Linear,
    /// Norms of single heads, before they are turned.
    pub(crate) query_norm: Option<TensorRef>,
    pub(crate) key_norm: Option<TensorRef>,
    /// Which of the model's rotations turns the heads; none: they know no position.
    pub(crate) rope: Option<usize>,
    /// How many of the last positions are seen; none: all.
    pub(crate) window: Option<usize>,
}

/// A gated feed-forward part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FeedForward {
    pub(crate) gate: TensorRef,
    pub(crate) up: TensorRef,
    pub(crate) down: TensorRef,
}

/// One layer: two branches, each normed at its beginning, some at their end too, and added to the residual stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layer {
    pub(crate) attention_norm: TensorRef,
    pub(crate) attention: Attention,
    pub(crate) attention_post_norm: Option<TensorRef>,
    pub(crate) feed_forward_norm: TensorRef,
    pub(crate) feed_forward: FeedForward,
    pub(crate) feed_forward_post_norm: Option<TensorRef>,
}

impl Layer {
    /// All weights.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &TensorRef> {
        let Attention { query, key, value, output, query_norm, key_norm, .. } = &self.attention;
        let FeedForward { gate, up, down } = &self.feed_forward;
        let linears = [query, key, value, output].into_iter().flat_map(|linear| {
            let Linear { weight, bias } = linear;
            std::iter::once(weight).chain(bias)
        });
        let post_norms = self.attention_post_norm.iter().chain(&self.feed_forward_post_norm);
        let norms = [&self.attention_norm, &self.feed_forward_norm].into_iter().chain(post_norms);
        norms.chain(query_norm).chain(key_norm).chain(linears).chain([gate, up, down])
    }
}

/// Reads layers of one model.
pub(super) struct Layers<'a> {
    pub(super) keys: &'a Keys<'a>,
    pub(super) tensors: &'a Tensors<'a>,
    pub(super) sizes: &'a Sizes,
    pub(super) architecture: Architecture,
    /// What layers that do not see everything see.
    pub(super) window: Option<Window>,
}

/// Which layers see only the last positions, and how many.
#[derive(Clone, Debug)]
pub(super) struct Window {
    len: usize,
    pattern: Pattern,
}

#[derive(Clone, Debug)]
enum Pattern {
    /// The last of every so many layers sees everything.
    FullEvery(usize),
    /// Whether each layer has the window.
    Each(Vec<bool>),
}

impl Window {
    /// The window of a file whose architecture has one.
    pub(super) fn read(keys: &Keys<'_>, architecture: Architecture) -> Result<Option<Self>, ModelError> {
        let Some(full_every) = architecture.full_every else { return Ok(None) };
        let key = "attention.sliding_window_pattern";
        let pattern = match keys.bools(key) {
            Some(each) => Pattern::Each(each.to_vec()),
            None => Pattern::FullEvery(keys.positive_if_any(key)?.unwrap_or(full_every)),
        };
        Ok(Some(Self { len: keys.positive("attention.sliding_window")?, pattern }))
    }

    /// How many positions the layer with that number sees.
    fn of(&self, layer: usize) -> Option<usize> {
        let has = match &self.pattern {
            Pattern::FullEvery(every) => !(layer + 1).is_multiple_of(*every),
            Pattern::Each(each) => each.get(layer).copied().unwrap_or(false),
        };
        has.then_some(self.len)
    }
}

impl Layers<'_> {
    /// The layer with that number.
    pub(super) fn read(&self, number: usize, warnings: &mut Vec<String>) -> Result<Layer, ModelError> {
        let vector = |part: &str| self.tensors.vector(&name(number, part), self.sizes.embedding);
        let post_norm = |part: &str| self.architecture.post_norms.then(|| vector(part)).transpose();
        Ok(Layer {
            attention_norm: vector("attn_norm.weight")?,
            attention: self.attention(number)?,
            attention_post_norm: post_norm("post_attention_norm.weight")?,
            feed_forward_norm: vector("ffn_norm.weight")?,
            feed_forward: self.feed_forward(number, warnings)?,
            feed_forward_post_norm: post_norm("post_ffw_norm.weight")?,
        })
    }

    fn attention(&self, number: usize) -> Result<Attention, ModelError> {
        let Sizes { embedding, heads, kv_heads, head_dim, .. } = *self.sizes;
        let (query, kv) = (heads * head_dim, kv_heads * head_dim);
        let bias = self.architecture.qkv_bias;
        let window = self.window.as_ref().and_then(|window| window.of(number));
        let rope = usize::from(self.architecture.local_rope && window.is_some());
        let head_norm = |part: &str| {
            let read = || self.tensors.vector(&name(number, part), head_dim);
            self.architecture.head_norms.then(read).transpose()
        };
        Ok(Attention {
            query: self.linear(number, "attn_q", [query, embedding], bias)?,
            key: self.linear(number, "attn_k", [kv, embedding], bias)?,
            value: self.linear(number, "attn_v", [kv, embedding], bias)?,
            output: self.linear(number, "attn_output", [embedding, query], false)?,
            query_norm: head_norm("attn_q_norm.weight")?,
            key_norm: head_norm("attn_k_norm.weight")?,
            rope: self.architecture.turns(number).then_some(rope),
            window,
        })
    }

    fn linear(
        &self,
        number: usize,
        part: &str,
        [rows, cols]: [usize; 2],
        bias_required: bool,
    ) -> Result<Linear, ModelError> {
        let bias = name(number, &format!("{part}.bias"));
        Ok(Linear {
            weight: self.tensors.matrix(&name(number, &format!("{part}.weight")), Some(rows), Some(cols))?,
            bias: if bias_required {
                Some(self.tensors.vector(&bias, rows)?)
            } else {
                self.tensors.optional(&bias, |name| self.tensors.vector(name, rows))?
            },
        })
    }

    fn feed_forward(&self, number: usize, warnings: &mut Vec<String>) -> Result<FeedForward, ModelError> {
        let width = self.sizes.embedding;
        let up = self.tensors.matrix(&name(number, "ffn_up.weight"), None, Some(width))?;
        let inner = up.rows;
        let said = self.keys.of_layer("feed_forward_length", number)?;
        self.keys.compare("feed_forward_length", said, inner, warnings);
        Ok(FeedForward {
            gate: self.tensors.matrix(&name(number, "ffn_gate.weight"), Some(inner), Some(width))?,
            up,
            down: self.tensors.matrix(&name(number, "ffn_down.weight"), Some(width), Some(inner))?,
        })
    }
}

/// The name of a tensor in a layer.
pub(super) fn name(layer: usize, part: &str) -> String {
    format!("blk.{layer}.{part}")
}
