//! One layer as data: what its parts are and where their weights lie.

use std::ops::{Range, RangeInclusive};

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
    /// One score per query head that takes part in the softmax and has no value.
    pub(crate) sinks: Option<TensorRef>,
    /// Which of the model's rotations turns the heads; none: they know no position.
    pub(crate) rope: Option<usize>,
    /// How many of the last positions are seen; none: all.
    pub(crate) window: Option<usize>,
}

/// A gated convolution over the last few positions, channel by channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShortConvolution {
    /// Gives what the inputs are multiplied with, what the results are multiplied with, and the inputs.
    pub(crate) input: Linear,
    /// A weight per channel and position, the position itself last.
    pub(crate) kernel: TensorRef,
    pub(crate) output: Linear,
}

/// How a layer mixes positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mixer {
    Attention(Box<Attention>),
    ShortConvolution(Box<ShortConvolution>),
}

/// A gated feed-forward part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gated {
    pub(crate) gate: Linear,
    pub(crate) up: Linear,
    pub(crate) down: Linear,
}

/// Several gated parts, of which each row takes some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Experts {
    /// Scores the experts.
    pub(crate) router: Linear,
    pub(crate) parts: Vec<Gated>,
    /// How many a row takes: those with the highest scores, weighted by the softmax of these scores.
    pub(crate) used: usize,
}

/// The feed-forward part of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FeedForward {
    Dense(Box<Gated>),
    Experts(Experts),
}

/// One layer: two branches, each normed at its beginning, some at their end too, and added to the residual stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layer {
    pub(crate) mixer_norm: TensorRef,
    pub(crate) mixer: Mixer,
    pub(crate) mixer_post_norm: Option<TensorRef>,
    pub(crate) feed_forward_norm: TensorRef,
    pub(crate) feed_forward: FeedForward,
    pub(crate) feed_forward_post_norm: Option<TensorRef>,
}

impl Layer {
    /// All weights.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &TensorRef> {
        let post_norms = self.mixer_post_norm.iter().chain(&self.feed_forward_post_norm);
        let norms = [&self.mixer_norm, &self.feed_forward_norm].into_iter().chain(post_norms);
        norms.chain(self.mixer.vectors()).chain(self.linears().flat_map(Linear::tensors))
    }

    /// All matrices that are multiplied with, and their biases.
    pub(super) fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.mixer.linears().into_iter().chain(self.feed_forward.linears())
    }
}

impl Mixer {
    fn linears(&self) -> Vec<&Linear> {
        match self {
            Self::Attention(attention) => {
                let Attention { query, key, value, output, .. } = &**attention;
                vec![query, key, value, output]
            }
            Self::ShortConvolution(convolution) => vec![&convolution.input, &convolution.output],
        }
    }

    fn vectors(&self) -> impl Iterator<Item = &TensorRef> {
        let vectors = match self {
            Self::Attention(attention) => {
                let Attention { query_norm, key_norm, sinks, .. } = &**attention;
                [query_norm.as_ref(), key_norm.as_ref(), sinks.as_ref()]
            }
            Self::ShortConvolution(convolution) => [Some(&convolution.kernel), None, None],
        };
        vectors.into_iter().flatten()
    }
}

impl FeedForward {
    fn linears(&self) -> impl Iterator<Item = &Linear> {
        let (router, parts) = match self {
            Self::Dense(gated) => (None, std::slice::from_ref(&**gated)),
            Self::Experts(Experts { router, parts, .. }) => (Some(router), &parts[..]),
        };
        router.into_iter().chain(parts.iter().flat_map(|Gated { gate, up, down }| [gate, up, down]))
    }

    /// The widest that a row becomes between its matrices.
    pub(crate) fn inner_max(&self) -> usize {
        self.linears().map(|linear| linear.weight.cols).max().unwrap_or(0)
    }
}

impl Linear {
    fn tensors(&self) -> impl Iterator<Item = &TensorRef> {
        std::iter::once(&self.weight).chain(&self.bias)
    }
}

/// Positions that a short convolution may reach over: more than itself, and all inside one KV block before its own.
const TAPS: RangeInclusive<usize> = 2..=9;

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
            mixer_norm: vector("attn_norm.weight")?,
            mixer: self.mixer(number, warnings)?,
            mixer_post_norm: post_norm("post_attention_norm.weight")?,
            feed_forward_norm: vector(self.architecture.feed_forward_norm)?,
            feed_forward: self.feed_forward(number, warnings)?,
            feed_forward_post_norm: post_norm("post_ffw_norm.weight")?,
        })
    }

    fn mixer(&self, number: usize, warnings: &mut Vec<String>) -> Result<Mixer, ModelError> {
        if self.architecture.short_convolutions && self.tensors.has(&name(number, "shortconv.in_proj.weight")) {
            return self.short_convolution(number, warnings).map(Box::new).map(Mixer::ShortConvolution);
        }
        Ok(Mixer::Attention(Box::new(self.attention(number)?)))
    }

    fn short_convolution(&self, number: usize, warnings: &mut Vec<String>) -> Result<ShortConvolution, ModelError> {
        let width = self.sizes.embedding;
        let kernel = self.tensors.matrix(&name(number, "shortconv.conv.weight"), Some(width), None)?;
        if !TAPS.contains(&kernel.cols) {
            return Err(ModelError::Unsupported(format!("a short convolution over {} positions", kernel.cols)));
        }
        let key = "shortconv.l_cache";
        self.keys.compare(key, self.keys.positive_if_any(key)?, kernel.cols, warnings);
        Ok(ShortConvolution {
            input: self.linear(number, "shortconv.in_proj", [3 * width, width], false)?,
            kernel,
            output: self.linear(number, "shortconv.out_proj", [width, width], false)?,
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
        let sinks = || self.tensors.vector(&name(number, "attn_sinks.weight"), heads);
        let [query_part, key, value] = if self.tensors.has(&name(number, "attn_qkv.weight")) {
            let all = self.linear(number, "attn_qkv", [query + 2 * kv, embedding], bias)?;
            [0..query, query..query + kv, query + kv..query + 2 * kv].map(|rows| all.rows(rows))
        } else {
            [
                self.linear(number, "attn_q", [query, embedding], bias)?,
                self.linear(number, "attn_k", [kv, embedding], bias)?,
                self.linear(number, "attn_v", [kv, embedding], bias)?,
            ]
        };
        Ok(Attention {
            query: query_part,
            key,
            value,
            output: self.linear(number, "attn_output", [embedding, query], false)?,
            query_norm: head_norm("attn_q_norm.weight")?,
            key_norm: head_norm("attn_k_norm.weight")?,
            sinks: self.architecture.sinks.then(sinks).transpose()?,
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
        if self.tensors.has(&name(number, "ffn_gate_inp.weight")) {
            return self.experts(number, warnings).map(FeedForward::Experts);
        }
        let width = self.sizes.embedding;
        let inner = self.tensors.matrix(&name(number, "ffn_up.weight"), None, Some(width))?.rows;
        let said = self.keys.of_layer("feed_forward_length", number)?;
        self.keys.compare("feed_forward_length", said, inner, warnings);
        Ok(FeedForward::Dense(Box::new(Gated {
            gate: self.linear(number, "ffn_gate", [inner, width], false)?,
            up: self.linear(number, "ffn_up", [inner, width], false)?,
            down: self.linear(number, "ffn_down", [width, inner], false)?,
        })))
    }

    fn experts(&self, number: usize, warnings: &mut Vec<String>) -> Result<Experts, ModelError> {
        let width = self.sizes.embedding;
        let count = self.tensors.matrix(&name(number, "ffn_gate_inp.weight"), None, Some(width))?.rows;
        self.keys.compare("expert_count", self.keys.positive_if_any("expert_count")?, count, warnings);
        let used = self.keys.positive("expert_used_count")?;
        if used > count {
            return Err(self.keys.impossible("expert_used_count", used, &format!("there are {count} experts")));
        }
        let down = self.expert_parts(number, "ffn_down_exps", [None, Some(width), Some(count)])?;
        let inner = down.first().map_or(0, |down| down.weight.cols);
        let said = self.keys.positive_if_any("expert_feed_forward_length")?;
        self.keys.compare("expert_feed_forward_length", said, inner, warnings);
        let shape = [Some(width), Some(inner), Some(count)];
        let (gate, up) = if self.tensors.has(&name(number, "ffn_gate_up_exps.weight")) {
            let both = self.expert_parts(number, "ffn_gate_up_exps", [Some(width), Some(2 * inner), Some(count)])?;
            let half = |rows: Range<usize>| both.iter().map(|both| both.rows(rows.clone())).collect();
            (half(0..inner), half(inner..2 * inner))
        } else {
            (self.expert_parts(number, "ffn_gate_exps", shape)?, self.expert_parts(number, "ffn_up_exps", shape)?)
        };
        let parts = gate.into_iter().zip(up).zip(down);
        Ok(Experts {
            router: self.linear(number, "ffn_gate_inp", [count, width], false)?,
            parts: parts.map(|((gate, up), down)| Gated { gate, up, down }).collect(),
            used,
        })
    }

    /// One matrix of every expert, and its bias.
    fn expert_parts(&self, number: usize, part: &str, shape: [Option<usize>; 3]) -> Result<Vec<Linear>, ModelError> {
        let weights = self.tensors.stack(&name(number, &format!("{part}.weight")), shape)?;
        let rows = weights.first().map_or(0, |weight| weight.rows);
        let bias = self.tensors.optional(&name(number, &format!("{part}.bias")), |name| {
            self.tensors.matrix(name, Some(weights.len()), Some(rows))
        })?;
        let biases =
            weights.iter().enumerate().map(|(expert, _)| bias.as_ref().map(|all| all.rows(expert..expert + 1)));
        Ok(weights.iter().cloned().zip(biases).map(|(weight, bias)| Linear { weight, bias }).collect())
    }
}

impl Linear {
    /// Some of the outputs, as a matrix of their own.
    fn rows(&self, rows: Range<usize>) -> Self {
        let values = |bias: &TensorRef| {
            let value_bytes = bias.range.len() / bias.cols;
            let range = bias.range.start + rows.start * value_bytes..bias.range.start + rows.end * value_bytes;
            TensorRef { cols: rows.len(), range, ..bias.clone() }
        };
        Self { bias: self.bias.as_ref().map(values), weight: self.weight.rows(rows) }
    }
}

/// The name of a tensor in a layer.
pub(super) fn name(layer: usize, part: &str) -> String {
    format!("blk.{layer}.{part}")
}
