//! A decoder's weights in the kernels' layout. The file's bytes are not needed any more once this is built.

use midstream_kernels::{Isa, WeightMatrix, dequantise};

use super::super::super::model::{Description, LayerTensors, Linear, ModelError, TensorRef};

/// A matrix with its bias.
pub(super) struct Projection {
    pub(super) weight: WeightMatrix,
    pub(super) bias: Option<Vec<f32>>,
}

/// One layer.
pub(super) struct Layer {
    pub(super) attn_norm: Vec<f32>,
    pub(super) query: Projection,
    pub(super) key: Projection,
    pub(super) value: Projection,
    pub(super) attn_output: Projection,
    pub(super) ffn_norm: Vec<f32>,
    pub(super) gate: WeightMatrix,
    pub(super) up: WeightMatrix,
    pub(super) down: WeightMatrix,
}

/// The whole decoder.
pub(super) struct Weights {
    pub(super) embedding: WeightMatrix,
    pub(super) layers: Vec<Layer>,
    pub(super) output_norm: Vec<f32>,
    /// None when the embedding serves as output matrix too.
    pub(super) output: Option<WeightMatrix>,
    /// Divisors of the rotary angles, scaling included.
    pub(super) rope_factors: Option<Vec<f32>>,
}

impl Weights {
    pub(super) fn load(description: &Description, file: &[u8], isa: Isa) -> Result<Self, ModelError> {
        let source = Source { file, isa };
        let divisor = description.sizes.rope_divisor;
        let mut rope_factors = description.rope_factors.as_ref().map(|tensor| source.vector(tensor)).transpose()?;
        if rope_factors.is_none() && (divisor - 1.0).abs() > f32::EPSILON {
            rope_factors = Some(vec![1.0; description.sizes.rope_dims / 2]);
        }
        for factor in rope_factors.iter_mut().flatten() {
            *factor *= divisor;
        }
        Ok(Self {
            embedding: source.matrix(&description.embedding)?,
            layers: description.layers.iter().map(|layer| source.layer(layer)).collect::<Result<_, _>>()?,
            output_norm: source.vector(&description.output_norm)?,
            output: description.output.as_ref().map(|tensor| source.matrix(tensor)).transpose()?,
            rope_factors,
        })
    }
}

/// The file, and what its weights are packed for.
struct Source<'a> {
    file: &'a [u8],
    isa: Isa,
}

impl Source<'_> {
    fn bytes(&self, tensor: &TensorRef) -> Result<&[u8], ModelError> {
        self.file.get(tensor.range.clone()).ok_or_else(|| refused(tensor, &"its data is not in the file"))
    }

    fn matrix(&self, tensor: &TensorRef) -> Result<WeightMatrix, ModelError> {
        let bytes = self.bytes(tensor)?;
        WeightMatrix::new(self.isa, tensor.format, tensor.rows, tensor.cols, bytes)
            .map_err(|reason| refused(tensor, &reason))
    }

    fn vector(&self, tensor: &TensorRef) -> Result<Vec<f32>, ModelError> {
        let mut values = vec![0.0; tensor.rows * tensor.cols];
        dequantise(tensor.format, self.bytes(tensor)?, &mut values).map_err(|reason| refused(tensor, &reason))?;
        Ok(values)
    }

    fn projection(&self, linear: &Linear) -> Result<Projection, ModelError> {
        let bias = linear.bias.as_ref().map(|tensor| self.vector(tensor)).transpose()?;
        Ok(Projection { weight: self.matrix(&linear.weight)?, bias })
    }

    fn layer(&self, tensors: &LayerTensors) -> Result<Layer, ModelError> {
        Ok(Layer {
            attn_norm: self.vector(&tensors.attn_norm)?,
            query: self.projection(&tensors.query)?,
            key: self.projection(&tensors.key)?,
            value: self.projection(&tensors.value)?,
            attn_output: self.projection(&tensors.attn_output)?,
            ffn_norm: self.vector(&tensors.ffn_norm)?,
            gate: self.matrix(&tensors.gate)?,
            up: self.matrix(&tensors.up)?,
            down: self.matrix(&tensors.down)?,
        })
    }
}

fn refused(tensor: &TensorRef, reason: &dyn std::fmt::Display) -> ModelError {
    ModelError::Weights { name: tensor.name.clone(), reason: reason.to_string() }
}
