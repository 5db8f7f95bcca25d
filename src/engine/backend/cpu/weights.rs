//! A decoder's weights in the kernels' layout. The files are not needed any more once this is built.

use midstream_kernels::{Isa, Team, WeightMatrix, WeightMemory, dequantise};

use super::super::super::gguf::Source;
use super::super::super::model::{self, Description, Linear, ModelError, TensorRef};

/// A matrix with its bias.
pub(super) struct Projection {
    pub(super) weight: WeightMatrix,
    pub(super) bias: Option<Vec<f32>>,
}

/// Attention of one layer.
pub(super) struct Attention {
    pub(super) query: Projection,
    pub(super) key: Projection,
    pub(super) value: Projection,
    pub(super) output: Projection,
    pub(super) query_norm: Option<Vec<f32>>,
    pub(super) key_norm: Option<Vec<f32>>,
    pub(super) sinks: Option<Vec<f32>>,
    /// Which of the rotations turns the heads.
    pub(super) rope: Option<usize>,
    /// How many of the last positions are seen.
    pub(super) window: Option<usize>,
}

/// A gated convolution over the last few positions.
pub(super) struct ShortConvolution {
    pub(super) input: Projection,
    /// A weight per channel for each position before, oldest first, and for the position itself.
    pub(super) earlier: Vec<Vec<f32>>,
    pub(super) current: Vec<f32>,
    pub(super) output: Projection,
}

/// How a layer mixes positions.
pub(super) enum Mixer {
    Attention(Box<Attention>),
    ShortConvolution(Box<ShortConvolution>),
}

/// A gated feed-forward part.
pub(super) struct Gated {
    pub(super) gate: Projection,
    pub(super) up: Projection,
    pub(super) down: Projection,
}

/// Several gated parts, of which each row takes some.
pub(super) struct Experts {
    pub(super) router: Projection,
    pub(super) parts: Vec<Gated>,
    pub(super) used: usize,
}

/// The feed-forward part of one layer.
pub(super) enum FeedForward {
    Dense(Box<Gated>),
    Experts(Experts),
}

/// One layer.
pub(super) struct Layer {
    pub(super) mixer_norm: Vec<f32>,
    pub(super) mixer: Mixer,
    /// Its place among the layers with the same kind of mixer: where its pages are.
    pub(super) place: usize,
    pub(super) mixer_post_norm: Option<Vec<f32>>,
    pub(super) feed_forward_norm: Vec<f32>,
    pub(super) feed_forward: FeedForward,
    pub(super) feed_forward_post_norm: Option<Vec<f32>>,
}

/// How heads are turned by their position.
pub(super) struct Rope {
    /// Radians per position, one per pair of values.
    pub(super) frequencies: Vec<f64>,
    /// What cosine and sine are multiplied with.
    pub(super) magnitude: f64,
}

/// The whole decoder.
pub(super) struct Weights {
    pub(super) embedding: WeightMatrix,
    pub(super) ropes: Vec<Rope>,
    pub(super) layers: Vec<Layer>,
    pub(super) output_norm: Vec<f32>,
    /// None when the embedding serves as output matrix too.
    pub(super) output: Option<WeightMatrix>,
}

impl Weights {
    pub(super) fn load(
        description: &Description,
        files: &dyn Source,
        isa: Isa,
        team: &Team,
    ) -> Result<Self, ModelError> {
        let memory =
            WeightMemory::new(matrix_bytes(description)?).map_err(|reason| refused(&description.embedding, &reason))?;
        let mut source = Loader { files, isa, team, memory };
        let mut layers = Vec::with_capacity(description.layers.len());
        let mut places = [0, 0];
        for layer in &description.layers {
            let place = &mut places[usize::from(matches!(layer.mixer, model::Mixer::ShortConvolution(_)))];
            layers.push(source.layer(layer, *place)?);
            *place += 1;
        }
        Ok(Self {
            embedding: source.matrix(&description.embedding)?,
            ropes: description.ropes.iter().map(|rope| source.rope(rope)).collect::<Result<_, _>>()?,
            layers,
            output_norm: source.vector(&description.output_norm)?,
            output: description.output.as_ref().map(|tensor| source.matrix(tensor)).transpose()?,
        })
    }
}

/// Bytes of all weights in memory.
pub(super) fn weight_bytes(description: &Description) -> Result<usize, ModelError> {
    let values = |tensor: &TensorRef| tensor.rows.saturating_mul(tensor.cols);
    let all = description.tensors().map(values).fold(0, usize::saturating_add);
    let in_matrices = description.matrices().map(values).fold(0, usize::saturating_add);
    let vectors = all.saturating_sub(in_matrices).saturating_mul(size_of::<f32>());
    Ok(matrix_bytes(description)?.saturating_add(vectors))
}

/// Bytes of those that are packed.
fn matrix_bytes(description: &Description) -> Result<usize, ModelError> {
    description.matrices().try_fold(0_usize, |sum, tensor| {
        let bytes = tensor.shape().memory_bytes().map_err(|reason| refused(tensor, &reason))?;
        Ok(sum.saturating_add(bytes))
    })
}

/// Reads a model's files into memory.
struct Loader<'a> {
    files: &'a dyn Source,
    isa: Isa,
    team: &'a Team,
    memory: WeightMemory,
}

impl Loader<'_> {
    fn matrix(&mut self, tensor: &TensorRef) -> Result<WeightMatrix, ModelError> {
        let Self { files, isa, team, memory } = self;
        let start = tensor.range.start as u64;
        let read = |at: usize, into: &mut [u8]| files.read(tensor.part, start + at as u64, into);
        WeightMatrix::read(*isa, tensor.shape(), memory, team, &read).map_err(|reason| refused(tensor, &reason))
    }

    fn vector(&self, tensor: &TensorRef) -> Result<Vec<f32>, ModelError> {
        let mut bytes = vec![0; tensor.range.len()];
        let read = self.files.read(tensor.part, tensor.range.start as u64, &mut bytes);
        read.map_err(|reason| refused(tensor, &reason))?;
        let mut values = vec![0.0; tensor.rows * tensor.cols];
        dequantise(tensor.format, &bytes, &mut values).map_err(|reason| refused(tensor, &reason))?;
        Ok(values)
    }

    fn optional(&self, tensor: Option<&TensorRef>) -> Result<Option<Vec<f32>>, ModelError> {
        tensor.map(|tensor| self.vector(tensor)).transpose()
    }

    fn projection(&mut self, linear: &Linear) -> Result<Projection, ModelError> {
        Ok(Projection { weight: self.matrix(&linear.weight)?, bias: self.optional(linear.bias.as_ref())? })
    }

    fn rope(&self, rope: &model::Rope) -> Result<Rope, ModelError> {
        let mut frequencies = rope.frequencies.clone();
        for (frequency, factor) in frequencies.iter_mut().zip(self.optional(rope.factors.as_ref())?.unwrap_or_default())
        {
            *frequency /= f64::from(factor);
        }
        Ok(Rope { frequencies, magnitude: rope.magnitude })
    }

    fn layer(&mut self, layer: &model::Layer, place: usize) -> Result<Layer, ModelError> {
        Ok(Layer {
            mixer_norm: self.vector(&layer.mixer_norm)?,
            mixer: match &layer.mixer {
                model::Mixer::Attention(attention) => Mixer::Attention(Box::new(self.attention(attention)?)),
                model::Mixer::ShortConvolution(conv) => {
                    Mixer::ShortConvolution(Box::new(self.short_convolution(conv)?))
                }
            },
            place,
            mixer_post_norm: self.optional(layer.mixer_post_norm.as_ref())?,
            feed_forward_norm: self.vector(&layer.feed_forward_norm)?,
            feed_forward: self.feed_forward(&layer.feed_forward)?,
            feed_forward_post_norm: self.optional(layer.feed_forward_post_norm.as_ref())?,
        })
    }

    fn attention(&mut self, attention: &model::Attention) -> Result<Attention, ModelError> {
        Ok(Attention {
            query: self.projection(&attention.query)?,
            key: self.projection(&attention.key)?,
            value: self.projection(&attention.value)?,
            output: self.projection(&attention.output)?,
            query_norm: self.optional(attention.query_norm.as_ref())?,
            key_norm: self.optional(attention.key_norm.as_ref())?,
            sinks: self.optional(attention.sinks.as_ref())?,
            rope: attention.rope,
            window: attention.window,
        })
    }

    fn short_convolution(&mut self, conv: &model::ShortConvolution) -> Result<ShortConvolution, ModelError> {
        let kernel = self.vector(&conv.kernel)?;
        let before = conv.kernel.cols - 1;
        let tap = |tap: usize| kernel.iter().skip(tap).step_by(conv.kernel.cols).copied().collect();
        Ok(ShortConvolution {
            input: self.projection(&conv.input)?,
            earlier: (0..before).map(tap).collect(),
            current: tap(before),
            output: self.projection(&conv.output)?,
        })
    }

    fn feed_forward(&mut self, feed_forward: &model::FeedForward) -> Result<FeedForward, ModelError> {
        Ok(match feed_forward {
            model::FeedForward::Dense(gated) => FeedForward::Dense(Box::new(self.gated(gated)?)),
            model::FeedForward::Experts(model::Experts { router, parts, used }) => FeedForward::Experts(Experts {
                router: self.projection(router)?,
                parts: parts.iter().map(|part| self.gated(part)).collect::<Result<_, _>>()?,
                used: *used,
            }),
        })
    }

    fn gated(&mut self, gated: &model::Gated) -> Result<Gated, ModelError> {
        Ok(Gated {
            gate: self.projection(&gated.gate)?,
            up: self.projection(&gated.up)?,
            down: self.projection(&gated.down)?,
        })
    }
}

fn refused(tensor: &TensorRef, reason: &dyn std::fmt::Display) -> ModelError {
    ModelError::Weights { name: tensor.name.clone(), reason: reason.to_string() }
}
