//! The hyperparameters of a file, read under its architecture's name and checked.

use super::super::gguf::{self, Gguf};
use super::ModelError;

/// The hyperparameters of one architecture.
pub(super) struct Keys<'a> {
    pub(super) gguf: &'a Gguf,
    pub(super) architecture: &'a str,
}

/// What a file must have.
pub(super) fn require<T>(value: Result<Option<T>, gguf::Error>, key: &str) -> Result<T, ModelError> {
    value?.ok_or_else(|| gguf::Error::MissingKey(key.to_owned()).into())
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    pub(super) fn impossible(&self, key: &str, found: impl std::fmt::Display, reason: &str) -> ModelError {
        ModelError::Hyperparameter { key: self.name(key), found: found.to_string(), reason: reason.to_owned() }
    }

    pub(super) fn missing(&self, key: &str) -> ModelError {
        gguf::Error::MissingKey(self.name(key)).into()
    }

    pub(super) fn positive(&self, key: &str) -> Result<usize, ModelError> {
        self.positive_if_any(key)?.ok_or_else(|| self.missing(key))
    }

    pub(super) fn positive_if_any(&self, key: &str) -> Result<Option<usize>, ModelError> {
        self.number(key)?.map(|found| self.checked_positive(key, found)).transpose()
    }

    /// A whole number, if it is there.
    pub(super) fn number(&self, key: &str) -> Result<Option<u32>, ModelError> {
        Ok(self.gguf.u32(&self.name(key))?)
    }

    fn checked_positive(&self, key: &str, found: u32) -> Result<usize, ModelError> {
        if found == 0 {
            return Err(self.impossible(key, found, "it must be at least 1"));
        }
        Ok(found as usize)
    }

    /// A number that may be given per layer, but is the same for all of them, apart from layers that have none of it.
    pub(super) fn uniform(&self, key: &str, layers: usize) -> Result<Option<usize>, ModelError> {
        let name = self.name(key);
        let is_array = matches!(self.gguf.get(&name), Some(gguf::Value::Array(_)));
        // Not expanded for a plain number: the layer count is not checked yet.
        let values = if is_array {
            let mut values = self.gguf.u32_per_layer(&name, layers)?.unwrap_or_default();
            values.retain(|value| *value != 0);
            values
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

    /// A number of one layer, if it is there: given once for all layers, or for each.
    pub(super) fn of_layer(&self, key: &str, layer: usize) -> Result<Option<usize>, ModelError> {
        let name = self.name(key);
        if !matches!(self.gguf.get(&name), Some(gguf::Value::Array(_))) {
            return Ok(self.gguf.u32(&name)?.map(|found| found as usize));
        }
        Ok(self.gguf.u32s(&name)?.and_then(|values| values.get(layer).map(|found| *found as usize)))
    }

    /// An array of truth values, if the key holds one.
    pub(super) fn bools(&self, key: &str) -> Option<&[bool]> {
        self.gguf.get(&self.name(key)).and_then(gguf::Value::as_bools)
    }

    pub(super) fn string(&self, key: &str) -> Result<Option<&str>, ModelError> {
        Ok(self.gguf.string(&self.name(key))?)
    }

    /// Any number, if it is there.
    pub(super) fn any_float(&self, key: &str) -> Result<Option<f32>, ModelError> {
        Ok(self.gguf.f32(&self.name(key))?)
    }

    /// A positive number, if it is there.
    pub(super) fn float(&self, key: &str) -> Result<Option<f32>, ModelError> {
        let found = self.any_float(key)?;
        match found.filter(|found| !found.is_finite() || *found <= 0.0) {
            Some(found) => Err(self.impossible(key, found, "it must be a positive number")),
            None => Ok(found),
        }
    }

    pub(super) fn float_or(&self, key: &str, default: f32) -> Result<f32, ModelError> {
        Ok(self.float(key)?.unwrap_or(default))
    }

    /// Notes where a key says something else than the tensors, which are right.
    pub(super) fn compare(&self, key: &str, said: Option<usize>, found: usize, warnings: &mut Vec<String>) {
        if let Some(said) = said.filter(|said| *said != found) {
            let name = self.name(key);
            let text = format!("the metadata key {name:?} is {said}, but the tensors say {found}; they are believed");
            // Once, where every layer says the same.
            if warnings.last() != Some(&text) {
                warnings.push(text);
            }
        }
    }
}
