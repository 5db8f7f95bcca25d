//! Reads a decoder's description from a GGUF file and checks it.

use std::collections::HashSet;

use midstream_kernels::HEAD_DIM_MAX;

use super::super::gguf::Gguf;
use super::keys::{Keys, require};
use super::layer::{Layers, Window, name};
use super::tensors::Tensors;
use super::{Architecture, Layer, Mixer, ModelError, Rope, TensorRef};

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
    /// Rows of the embedding: how many logits there are.
    pub(crate) vocabulary: usize,
    /// Positions the model was made for.
    pub(crate) context_length: usize,
    /// Added to the mean square in norms.
    pub(crate) rms_epsilon: f32,
    /// What attention's scores are multiplied with.
    pub(crate) attention_scale: f32,
    /// What embeddings are multiplied with.
    pub(crate) embedding_scale: Option<f32>,
}

/// A decoder that a backend can load.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Description {
    pub(crate) architecture: Architecture,
    pub(crate) sizes: Sizes,
    pub(crate) embedding: TensorRef,
    /// The rotations that the layers name by their place here.
    pub(crate) ropes: Vec<Rope>,
    pub(crate) layers: Vec<Layer>,
    pub(crate) output_norm: TensorRef,
    /// None when the embedding serves as output matrix too.
    pub(crate) output: Option<TensorRef>,
    /// What was doubtful about the file, for the log.
    pub(crate) warnings: Vec<String>,
}

impl Description {
    /// Reads the description and checks that every weight is there, in the right shape and a known format.
    pub(crate) fn read(gguf: &Gguf) -> Result<Self, ModelError> {
        let architecture = Architecture::named(require(gguf.string("general.architecture"), "general.architecture")?)?;
        let keys = Keys { gguf, architecture: architecture.name };
        let tensors = Tensors { gguf };
        let mut warnings = Vec::new();
        let embedding = tensors.matrix("token_embd.weight", None, None)?;
        let layer_count = keys.positive("block_count")?;
        let sizes = sizes(&keys, &tensors, &embedding, layer_count, architecture, &mut warnings)?;
        let mut ropes = vec![Rope::read(&keys, &tensors, architecture, sizes.head_dim)?];
        if architecture.local_rope {
            ropes.push(Rope::read_local(&keys, sizes.head_dim)?);
        }
        let window = Window::read(&keys, architecture)?;
        let reader = Layers { keys: &keys, tensors: &tensors, sizes: &sizes, architecture, window };
        let layers =
            (0..layer_count).map(|number| reader.read(number, &mut warnings)).collect::<Result<Vec<_>, _>>()?;
        let has_own = tensors.has(architecture.output_norm);
        let output_norm = if has_own { architecture.output_norm } else { "output_norm.weight" };
        let description = Self {
            architecture,
            output_norm: tensors.vector(output_norm, sizes.embedding)?,
            output: tensors.optional("output.weight", |name| {
                tensors.matrix(name, Some(sizes.vocabulary), Some(sizes.embedding))
            })?,
            embedding,
            ropes,
            layers,
            sizes,
            warnings,
        };
        description.refuse_unused(gguf)?;
        Ok(description)
    }

    /// All weights.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &TensorRef> {
        let layers = self.layers.iter().flat_map(Layer::tensors);
        let factors = self.ropes.iter().filter_map(|rope| rope.factors.as_ref());
        [&self.embedding, &self.output_norm].into_iter().chain(&self.output).chain(factors).chain(layers)
    }

    /// The weights that are matrices: embedding, output, and what layers multiply with.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &TensorRef> {
        let layers = self.layers.iter().flat_map(Layer::linears).map(|linear| &linear.weight);
        std::iter::once(&self.embedding).chain(&self.output).chain(layers)
    }

    /// Whether there is a layer that remembers its last inputs instead of keys and values.
    pub(crate) fn has_convolutions(&self) -> bool {
        self.layers.iter().any(|layer| matches!(layer.mixer, Mixer::ShortConvolution(_)))
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

/// The sizes as the tensors have them. Where keys say something else, the tensors are right.
fn sizes(
    keys: &Keys<'_>,
    tensors: &Tensors<'_>,
    embedding: &TensorRef,
    layers: usize,
    architecture: Architecture,
    warnings: &mut Vec<String>,
) -> Result<Sizes, ModelError> {
    refuse_unknown(keys)?;
    let width = embedding.cols;
    let first = first_attention(tensors, layers);
    let rows_of = |part: &str| Ok::<_, ModelError>(tensors.matrix(&name(first, part), None, Some(width))?.rows);
    let heads = keys.uniform("attention.head_count", layers)?.ok_or_else(|| keys.missing("attention.head_count"))?;
    let (query, kv) = if tensors.has(&name(first, "attn_qkv.weight")) {
        let query = heads.saturating_mul(keys.positive_if_any("attention.key_length")?.unwrap_or(width / heads));
        (query, rows_of("attn_qkv.weight")?.saturating_sub(query) / 2)
    } else {
        (rows_of("attn_q.weight")?, rows_of("attn_k.weight")?)
    };
    let head_dim = query / heads;
    if head_dim == 0 || kv == 0 || !query.is_multiple_of(heads) || !kv.is_multiple_of(head_dim) {
        let reason = format!("queries have {query} values, keys {kv}");
        return Err(keys.impossible("attention.head_count", heads, &reason));
    }
    let kv_heads = kv / head_dim;
    if !heads.is_multiple_of(kv_heads) {
        return Err(keys.impossible("attention.head_count", heads, &format!("there are {kv_heads} key-value heads")));
    }
    if head_dim > HEAD_DIM_MAX || heads / kv_heads > HEADS_PER_KV_MAX {
        return Err(ModelError::Unsupported(format!("{heads} heads of {head_dim} values over {kv_heads}")));
    }
    let said = keys.uniform("attention.head_count_kv", layers)?.unwrap_or(heads);
    keys.compare("attention.head_count_kv", Some(said), kv_heads, warnings);
    let plain = [
        ("embedding_length", width),
        ("vocab_size", embedding.rows),
        ("attention.key_length", head_dim),
        ("attention.value_length", head_dim),
    ];
    for (key, found) in plain {
        keys.compare(key, keys.positive_if_any(key)?, found, warnings);
    }
    Ok(Sizes {
        embedding: width,
        heads,
        kv_heads,
        head_dim,
        vocabulary: embedding.rows,
        context_length: keys.positive("context_length")?,
        rms_epsilon: keys.float_or("attention.layer_norm_rms_epsilon", 1e-5)?,
        attention_scale: match keys.float("attention.scale")? {
            Some(scale) => scale,
            // The 27B model alone has another scale, and its file does not say so.
            None if architecture.name == "gemma3" && layers == GEMMA3_27B_LAYERS => {
                1.0 / (width as f32 / heads as f32).sqrt()
            }
            None => 1.0 / (head_dim as f32).sqrt(),
        },
        embedding_scale: architecture.scaled_embedding.then(|| (width as f32).sqrt()),
    })
}

/// The number of the first layer with attention; 0 when there is none.
fn first_attention(tensors: &Tensors<'_>, layers: usize) -> usize {
    let has = |layer: &usize| ["attn_qkv.weight", "attn_k.weight"].iter().any(|part| tensors.has(&name(*layer, part)));
    // Every layer has tensors, so a huge count of layers costs nothing.
    (0..layers.min(tensors.gguf.tensors().len())).find(has).unwrap_or(0)
}

/// Refuses what would change the numbers and is not implemented.
fn refuse_unknown(keys: &Keys<'_>) -> Result<(), ModelError> {
    // 1 and 3 are the softmax over all experts, weights made to sum to one, and the softmax over those taken: the same.
    if let Some(gating) = keys.number("expert_gating_func")?.filter(|gating| !matches!(gating, 1 | 3)) {
        return Err(ModelError::Unsupported(format!("the gating function {gating} for experts")));
    }
    if keys.any_float("expert_weights_scale")?.is_some_and(|scale| scale != 0.0 && (scale - 1.0).abs() > f32::EPSILON) {
        return Err(ModelError::Unsupported("a scale for the experts' weights".to_owned()));
    }
    for key in ["attn_logit_softcapping", "final_logit_softcapping", "logit_scale", "embedding_scale", "residual_scale"]
    {
        if keys.any_float(key)?.is_some_and(|value| value != 0.0) {
            return Err(ModelError::Unsupported(format!("the metadata key {key}")));
        }
    }
    Ok(())
}

/// Layers of Gemma 3 27B.
const GEMMA3_27B_LAYERS: usize = 62;

/// Query heads that the attention kernel takes per key-value head.
const HEADS_PER_KV_MAX: usize = 64;
