//! How fast each pair of a head turns: the base, and the schemes that stretch a model's context.

use std::f64::consts::PI;

use super::keys::Keys;
use super::tensors::Tensors;
use super::{Architecture, ModelError, TensorRef};

/// How heads are turned by their position.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rope {
    /// Radians per position, one per pair of values.
    pub(crate) frequencies: Vec<f64>,
    /// What cosine and sine are multiplied with.
    pub(crate) magnitude: f64,
    /// What the frequencies are divided by, where the file has such a tensor.
    pub(crate) factors: Option<TensorRef>,
}

impl Rope {
    /// The rotation that a file's keys and tensors describe.
    pub(super) fn read(
        keys: &Keys<'_>,
        tensors: &Tensors<'_>,
        architecture: Architecture,
        head_dim: usize,
    ) -> Result<Self, ModelError> {
        let dims = dims(keys, head_dim)?;
        let base = f64::from(keys.float_or("rope.freq_base", 10_000.0)?);
        let factors = tensors.optional("rope_freqs.weight", |name| tensors.vector(name, dims / 2))?;
        let plain = Self { frequencies: frequencies(base, dims), magnitude: 1.0, factors };
        match keys.string("rope.scaling.type")? {
            None => Ok(plain.slowed(keys.float_or("rope.scale_linear", 1.0)?)),
            Some("none") => Ok(plain),
            Some("linear") => Ok(plain.slowed(keys.float_or("rope.scaling.factor", 1.0)?)),
            Some("yarn") => plain.yarn(keys, base, architecture.whole_yarn_pairs),
            Some("longrope") => plain.longrope(keys, tensors),
            Some(other) => Err(ModelError::Unsupported(format!("rope scaling of type {other:?}"))),
        }
    }

    /// The rotation of layers that see only a window: it has a base of its own, and nothing stretches it.
    pub(super) fn read_local(keys: &Keys<'_>, head_dim: usize) -> Result<Self, ModelError> {
        let base = f64::from(keys.float_or("rope.freq_base_swa", 10_000.0)?);
        Ok(Self { frequencies: frequencies(base, dims(keys, head_dim)?), magnitude: 1.0, factors: None })
    }

    fn slowed(mut self, divisor: f32) -> Self {
        self.frequencies.iter_mut().for_each(|frequency| *frequency /= f64::from(divisor));
        self
    }

    /// Pairs that turn often within the original context stay as they are, those that turn seldom are slowed down by
    /// the factor, and between the two the share of slowing rises evenly.
    fn yarn(mut self, keys: &Keys<'_>, base: f64, whole_pairs: bool) -> Result<Self, ModelError> {
        for key in ["rope.scaling.yarn_ext_factor", "rope.scaling.yarn_log_multiplier"] {
            if keys.float(key)?.is_some() {
                return Err(ModelError::Unsupported(format!("yarn with {key}")));
            }
        }
        let factor = f64::from(keys.float_or("rope.scaling.factor", 1.0)?);
        let original = original_context(keys)?;
        let pairs = self.frequencies.len() as f64;
        // Where in the order of pairs the one is that turns so often within the original context.
        let turning = |turns: f32| pairs * (original / (f64::from(turns) * 2.0 * PI)).ln() / base.ln();
        let mut first = turning(keys.float_or("rope.scaling.yarn_beta_fast", 32.0)?);
        let mut last = turning(keys.float_or("rope.scaling.yarn_beta_slow", 1.0)?);
        if whole_pairs {
            (first, last) = (first.floor(), last.ceil());
        }
        let (first, last) = (first.max(0.0), last.min(2.0 * pairs - 1.0));
        for (pair, frequency) in self.frequencies.iter_mut().enumerate() {
            let slowed = ((pair as f64 - first) / (last - first).max(0.001)).clamp(0.0, 1.0);
            *frequency *= 1.0 - slowed + slowed / factor;
        }
        let attention = keys.float_or("rope.scaling.attn_factor", 1.0)?;
        let attention = attention * keys.float_or("rope.scaling.yarn_attn_factor", 1.0)?;
        self.magnitude = f64::from(attention) * (1.0 + 0.1 * factor.max(1.0).ln());
        Ok(self)
    }

    /// Every pair has its own divisor. A file has two lists of them; the one for long contexts is for models that were
    /// made for more than their original context.
    fn longrope(mut self, keys: &Keys<'_>, tensors: &Tensors<'_>) -> Result<Self, ModelError> {
        let original = original_context(keys)?;
        let stretch = keys.positive("context_length")? as f64 / original;
        let name = if stretch > 1.0 { "rope_factors_long.weight" } else { "rope_factors_short.weight" };
        self.factors = Some(tensors.vector(name, self.frequencies.len())?);
        self.magnitude = match keys.float("rope.scaling.attn_factor")? {
            Some(factor) => f64::from(factor),
            None => (1.0 + stretch.max(1.0).ln() / original.ln()).sqrt(),
        };
        Ok(self)
    }
}

/// Values of a head that are turned.
fn dims(keys: &Keys<'_>, head_dim: usize) -> Result<usize, ModelError> {
    let dims = keys.positive_if_any("rope.dimension_count")?.unwrap_or(head_dim);
    if dims > head_dim || !dims.is_multiple_of(2) {
        return Err(keys.impossible("rope.dimension_count", dims, "it must be even and fit into a head"));
    }
    Ok(dims)
}

fn frequencies(base: f64, dims: usize) -> Vec<f64> {
    let pairs = dims / 2;
    (0..pairs).map(|pair| base.powf(-(pair as f64) / pairs as f64)).collect()
}

/// Positions that the model was first trained for.
fn original_context(keys: &Keys<'_>) -> Result<f64, ModelError> {
    let key = "rope.scaling.original_context_length";
    let found = keys.positive_if_any(key)?.map_or_else(|| keys.positive("context_length"), Ok)?;
    if found < 2 {
        return Err(keys.impossible(key, found, "it must be at least 2"));
    }
    Ok(found as f64)
}
