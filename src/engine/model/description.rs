//! Reads a decoder's description from a GGUF file and checks it.

use std::collections::HashSet;
use std::ops::Range;

use midstream_kernels::{Format, HEAD_DIM_MAX};

use super::super::gguf::{self, Gguf};
use super::{Architecture, ModelError};

/// Where one weight lies in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorRef {
    /// Its name.
    pub(crate) name: String,
    /// Its block format.
    pub(crate) format: Format,
    /// Outputs; 1 for a vector.
    pub(crate) rows: usize,
    /// Inputs.
    pub(crate) cols: usize,
    /// Its bytes in the file.
    pub(crate) range: Range<usize>,
}

/// A matrix and the bias that may be added to its products.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Linear {
    /// The matrix.
    pub(crate) weight: TensorRef,
    /// The bias.
    pub(crate) bias: Option<TensorRef>,
}

/// The weights of one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LayerTensors {
    pub(crate) attn_norm: TensorRef,
    pub(crate) query: Linear,
    pub(crate) key: Linear,
    pub(crate) value: Linear,
    pub(crate) attn_output: Linear,
    pub(crate) ffn_norm: TensorRef,
    pub(crate) gate: TensorRef,
    pub(crate) up: TensorRef,
    pub(crate) down: TensorRef,
}

/// A decoder's numbers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sizes {
    /// Width of the residual stream.
    pub(crate) embedding: usize,
    /// Query heads.
    pub(crate) heads: usize,
    /// Key-value heads.
    pub(crate) kv_heads: usize,
    /// Values in a head.
    pub(crate) head_dim: usize,
    /// Width of the feed-forward layer.
    pub(crate) feed_forward: usize,
    /// Rows of the embedding: how many logits there are.
    pub(crate) vocabulary: usize,
    /// Positions the model was made for.
    pub(crate) context_length: usize,
    /// Added to the mean square in norms.
    pub(crate) rms_epsilon: f32,
    /// Base of the rotary angles.
    pub(crate) rope_base: f32,
    /// Values of a head that are turned.
    pub(crate) rope_dims: usize,
    /// All rotary angles are divided by this.
    pub(crate) rope_divisor: f32,
}

/// A decoder that a backend can load.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Description {
    pub(crate) architecture: Architecture,
    pub(crate) sizes: Sizes,
    pub(crate) embedding: TensorRef,
    pub(crate) layers: Vec<LayerTensors>,
    pub(crate) output_norm: TensorRef,
    /// None when the embedding serves as output matrix too.
    pub(crate) output: Option<TensorRef>,
    /// Divisors of the single rotary angles.
    pub(crate) rope_factors: Option<TensorRef>,
}

impl Description {
    /// Reads the description and checks that every weight is there, in the right shape and a known format.
    pub(crate) fn read(gguf: &Gguf) -> Result<Self, ModelError> {
        let architecture = Architecture::named(require(gguf.string("general.architecture"), "general.architecture")?)?;
        let keys = Keys { gguf, architecture: architecture.name };
        let tensors = Tensors { gguf };
        let embedding = tensors.matrix("token_embd.weight", None, None)?;
        let layer_count = keys.positive("block_count")?;
        let sizes = sizes(&keys, &tensors, &embedding, layer_count)?;
        let layers = (0..layer_count)
            .map(|number| layer(&tensors, number, &sizes, architecture))
            .collect::<Result<Vec<_>, _>>()?;
        let description = Self {
            architecture,
            output_norm: tensors.vector("output_norm.weight", sizes.embedding)?,
            output: tensors.optional("output.weight", |name| {
                tensors.matrix(name, Some(sizes.vocabulary), Some(sizes.embedding))
            })?,
            rope_factors: tensors.optional("rope_freqs.weight", |name| tensors.vector(name, sizes.rope_dims / 2))?,
            embedding,
            layers,
            sizes,
        };
        description.refuse_unused(gguf)?;
        Ok(description)
    }

    /// All weights.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &TensorRef> {
        let layers = self.layers.iter().flat_map(|layer| {
            let linears = [&layer.query, &layer.key, &layer.value, &layer.attn_output];
            let others = [&layer.attn_norm, &layer.ffn_norm, &layer.gate, &layer.up, &layer.down];
            linears.into_iter().flat_map(|linear| std::iter::once(&linear.weight).chain(&linear.bias)).chain(others)
        });
        [&self.embedding, &self.output_norm].into_iter().chain(&self.output).chain(&self.rope_factors).chain(layers)
    }

    /// A weight of a layer that is not used means that this is not the decoder we take it for.
    fn refuse_unused(&self, gguf: &Gguf) -> Result<(), ModelError> {
        let used: HashSet<&str> = self.tensors().map(|tensor| tensor.name.as_str()).collect();
        // Old converters wrote the rotary frequencies of every layer; they follow from the base.
        let harmless = |name: &str| name.ends_with(".attn_rot_embd") || name.ends_with(".rot_embd");
        let mut names = gguf.tensors().iter().map(|tensor| tensor.name.as_str());
        match names.find(|name| name.starts_with("blk.") && !used.contains(name) && !harmless(name)) {
            Some(name) => Err(ModelError::UnusedTensor(name.to_owned())),
            None => Ok(()),
        }
    }
}

fn require<T>(value: Result<Option<T>, gguf::Error>, key: &str) -> Result<T, ModelError> {
    value?.ok_or_else(|| gguf::Error::MissingKey(key.to_owned()).into())
}

/// The hyperparameters of one architecture.
struct Keys<'a> {
    gguf: &'a Gguf,
    architecture: &'a str,
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn impossible(&self, key: &str, found: impl std::fmt::Display, reason: &str) -> ModelError {
        ModelError::Hyperparameter { key: self.name(key), found: found.to_string(), reason: reason.to_owned() }
    }

    fn positive(&self, key: &str) -> Result<usize, ModelError> {
        let name = self.name(key);
        self.checked_positive(key, require(self.gguf.u32(&name), &name)?)
    }

    fn positive_or(&self, key: &str, default: usize) -> Result<usize, ModelError> {
        match self.gguf.u32(&self.name(key))? {
            Some(found) => self.checked_positive(key, found),
            None => Ok(default),
        }
    }

    fn checked_positive(&self, key: &str, found: u32) -> Result<usize, ModelError> {
        if found == 0 {
            return Err(self.impossible(key, found, "it must be at least 1"));
        }
        Ok(found as usize)
    }

    /// A number that may be given per layer, but is the same for all of them.
    fn uniform(&self, key: &str, layers: usize) -> Result<Option<usize>, ModelError> {
        let name = self.name(key);
        let is_array = matches!(self.gguf.get(&name), Some(gguf::Value::Array(_)));
        // Not expanded for a plain number: the layer count is not checked yet.
        let values = if is_array {
            self.gguf.u32_per_layer(&name, layers)?.unwrap_or_default()
        } else {
            self.gguf.u32(&name)?.into_iter().collect()
        };
        let Some(first) = values.first().copied() else {
            return Ok(None);
        };
        if values.iter().any(|value| *value != first) {
            return Err(ModelError::Unsupported(format!("a {key} that differs between layers")));
        }
        self.checked_positive(key, first).map(Some)
    }

    fn float_or(&self, key: &str, default: f32) -> Result<f32, ModelError> {
        let found = self.gguf.f32(&self.name(key))?.unwrap_or(default);
        if !found.is_finite() || found <= 0.0 {
            return Err(self.impossible(key, found, "it must be a positive number"));
        }
        Ok(found)
    }

    fn rope_divisor(&self) -> Result<f32, ModelError> {
        let kind = self.gguf.string(&self.name("rope.scaling.type"))?;
        match kind {
            None => self.float_or("rope.scale_linear", 1.0),
            Some("none") => Ok(1.0),
            Some("linear") => self.float_or("rope.scaling.factor", 1.0),
            Some(other) => Err(ModelError::Unsupported(format!("rope scaling of type {other:?}"))),
        }
    }
}

fn sizes(keys: &Keys<'_>, tensors: &Tensors<'_>, embedding: &TensorRef, layers: usize) -> Result<Sizes, ModelError> {
    if keys.gguf.u32(&keys.name("expert_count"))?.unwrap_or(0) > 0 {
        return Err(ModelError::Unsupported("a mixture of experts".to_owned()));
    }
    // Where keys and tensors disagree, the tensors are right.
    let width = embedding.cols;
    let missing = |key: &str| ModelError::File(gguf::Error::MissingKey(keys.name(key)));
    let heads = keys.uniform("attention.head_count", layers)?.ok_or_else(|| missing("attention.head_count"))?;
    let kv_heads = keys.uniform("attention.head_count_kv", layers)?.unwrap_or(heads);
    if !heads.is_multiple_of(kv_heads) || heads > width {
        return Err(keys.impossible("attention.head_count", heads, &format!("there are {kv_heads} key-value heads")));
    }
    let head_dim = keys.positive_or("attention.key_length", width / heads)?;
    if head_dim > HEAD_DIM_MAX || heads / kv_heads > HEADS_PER_KV_MAX {
        return Err(ModelError::Unsupported(format!("{heads} heads of {head_dim} values over {kv_heads}")));
    }
    if keys.positive_or("attention.value_length", head_dim)? != head_dim {
        return Err(ModelError::Unsupported("keys and values of different lengths".to_owned()));
    }
    let rope_dims = keys.positive_or("rope.dimension_count", head_dim)?;
    if rope_dims > head_dim || !rope_dims.is_multiple_of(2) {
        return Err(keys.impossible("rope.dimension_count", rope_dims, "it must be even and fit into a head"));
    }
    Ok(Sizes {
        embedding: width,
        heads,
        kv_heads,
        head_dim,
        feed_forward: tensors.matrix("blk.0.ffn_up.weight", None, Some(width))?.rows,
        vocabulary: embedding.rows,
        context_length: keys.positive("context_length")?,
        rms_epsilon: keys.float_or("attention.layer_norm_rms_epsilon", 1e-5)?,
        rope_base: keys.float_or("rope.freq_base", 10_000.0)?,
        rope_dims,
        rope_divisor: keys.rope_divisor()?,
    })
}

/// Query heads that the attention kernel takes per key-value head.
const HEADS_PER_KV_MAX: usize = 64;

fn layer(
    tensors: &Tensors<'_>,
    number: usize,
    sizes: &Sizes,
    architecture: Architecture,
) -> Result<LayerTensors, ModelError> {
    let name = |part: &str| format!("blk.{number}.{part}");
    let width = sizes.embedding;
    let (query, kv) = (sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim);
    let linear = |part: &str, rows: usize, cols: usize, bias_required: bool| {
        let bias_name = name(&format!("{part}.bias"));
        Ok::<_, ModelError>(Linear {
            weight: tensors.matrix(&name(&format!("{part}.weight")), Some(rows), Some(cols))?,
            bias: if bias_required {
                Some(tensors.vector(&bias_name, rows)?)
            } else {
                tensors.optional(&bias_name, |name| tensors.vector(name, rows))?
            },
        })
    };
    let bias = architecture.qkv_bias;
    Ok(LayerTensors {
        attn_norm: tensors.vector(&name("attn_norm.weight"), width)?,
        query: linear("attn_q", query, width, bias)?,
        key: linear("attn_k", kv, width, bias)?,
        value: linear("attn_v", kv, width, bias)?,
        attn_output: linear("attn_output", width, query, false)?,
        ffn_norm: tensors.vector(&name("ffn_norm.weight"), width)?,
        gate: tensors.matrix(&name("ffn_gate.weight"), Some(sizes.feed_forward), Some(width))?,
        up: tensors.matrix(&name("ffn_up.weight"), Some(sizes.feed_forward), Some(width))?,
        down: tensors.matrix(&name("ffn_down.weight"), Some(width), Some(sizes.feed_forward))?,
    })
}

/// The file's tensors, looked up with the shape they must have.
struct Tensors<'a> {
    gguf: &'a Gguf,
}

impl Tensors<'_> {
    fn matrix(&self, name: &str, rows: Option<usize>, cols: Option<usize>) -> Result<TensorRef, ModelError> {
        let tensor = self.gguf.require_tensor(name)?;
        let found = Self::reference(tensor)?;
        let fits = tensor.shape.len() <= 2
            && rows.is_none_or(|rows| rows == found.rows)
            && cols.is_none_or(|cols| cols == found.cols);
        if !fits {
            return Err(ModelError::Shape {
                name: name.to_owned(),
                found: tensor.shape.clone(),
                expected: vec![cols.unwrap_or(found.cols), rows.unwrap_or(found.rows)],
            });
        }
        Ok(found)
    }

    fn vector(&self, name: &str, length: usize) -> Result<TensorRef, ModelError> {
        let tensor = self.gguf.require_tensor(name)?;
        if tensor.row_len() != length || tensor.rows() != 1 {
            let (found, expected) = (tensor.shape.clone(), vec![length]);
            return Err(ModelError::Shape { name: name.to_owned(), found, expected });
        }
        Self::reference(tensor)
    }

    fn optional(
        &self,
        name: &str,
        read: impl Fn(&str) -> Result<TensorRef, ModelError>,
    ) -> Result<Option<TensorRef>, ModelError> {
        self.gguf.tensor(name).map(|_| read(name)).transpose()
    }

    fn reference(tensor: &gguf::Tensor) -> Result<TensorRef, ModelError> {
        let format = u32::try_from(tensor.kind.id()).ok().and_then(Format::from_gguf_type);
        let format = format
            .ok_or_else(|| ModelError::Format { name: tensor.name.clone(), format: tensor.kind.name().to_owned() })?;
        Ok(TensorRef {
            name: tensor.name.clone(),
            format,
            rows: tensor.rows(),
            cols: tensor.row_len(),
            range: tensor.range.clone(),
        })
    }
}
