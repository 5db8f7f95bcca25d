//! The GGUF container: metadata, and where each tensor lies in the file.
//!
//! Reads bytes that may come from anywhere, so every count and length is checked against what is left of the file
//! before it is believed; memory stays proportional to the file. Knows nothing about architectures, never computes
//! with weights and never does I/O: a [`Source`] reads the files.

mod error;
mod read;
mod source;
mod split;
mod tensor_type;
mod value;
mod writer;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

pub use error::Error;
pub use source::Source;
pub use split::part_names;
pub use tensor_type::TensorType;
pub use value::{Array, Value};
pub use writer::Writer;

/// The first four bytes of every file.
const MAGIC: [u8; 4] = *b"GGUF";
/// The key that sets the alignment of tensor data.
const ALIGNMENT_KEY: &str = "general.alignment";
/// The alignment of files that do not name one.
const ALIGNMENT_DEFAULT: u64 = 32;
/// Tensor names are shorter than this.
const TENSOR_NAME_BYTES_MAX: usize = 64;
/// Tensors have at most this many dimensions.
const DIMENSIONS_MAX: usize = 4;

/// One tensor's shape, type and place in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Unique in the file.
    pub name: String,
    /// Lengths; the first is the row length, contiguous in memory.
    pub shape: Vec<usize>,
    /// How values are packed.
    pub kind: TensorType,
    /// The file it lies in, where a model is in several: 0 for the first.
    pub part: usize,
    /// Where the data lies, in bytes from the start of the file.
    pub range: Range<usize>,
}

impl Tensor {
    /// Values in one row.
    pub fn row_len(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Rows, over all further dimensions.
    pub fn rows(&self) -> usize {
        self.shape.iter().skip(1).product()
    }
}

/// A checked file: its metadata and tensor table. Does not hold the bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gguf {
    version: u32,
    metadata: BTreeMap<String, Value>,
    tensors: Vec<Tensor>,
    by_name: HashMap<String, usize>,
}

impl Gguf {
    /// Reads and checks the header, the metadata and the tensor table of a model in one file.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        Self::read(&[bytes])
    }

    /// Reads and checks a model in one or several files. Of the weights nothing is read.
    pub fn read(files: &dyn Source) -> Result<Self, Error> {
        let lengths = files.lengths().into_iter().enumerate();
        split::join(lengths.map(|(part, length)| read::parse(files, part, length)).collect::<Result<_, _>>()?)
    }

    /// The container's version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// All metadata, ordered by key.
    pub fn metadata(&self) -> &BTreeMap<String, Value> {
        &self.metadata
    }

    /// All tensors in file order.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.by_name.get(name).map(|&index| &self.tensors[index])
    }

    /// The tensor with this name, which the model cannot do without.
    pub fn require_tensor(&self, name: &str) -> Result<&Tensor, Error> {
        self.tensor(name).ok_or_else(|| Error::MissingTensor(name.to_owned()))
    }

    /// The value under `key`, whatever its type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// The value under `key`, which the model cannot do without.
    pub fn require(&self, key: &str) -> Result<&Value, Error> {
        self.get(key).ok_or_else(|| Error::MissingKey(key.to_owned()))
    }

    /// A text, if the key is there.
    pub fn string(&self, key: &str) -> Result<Option<&str>, Error> {
        self.typed(key, "a string", Value::as_str)
    }

    /// A whole number of any stored width that fits, if the key is there.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, Error> {
        self.typed(key, "a number between 0 and 4294967295", |value| value.as_u64()?.try_into().ok())
    }

    /// A number, if the key is there.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, Error> {
        self.typed(key, "a floating-point number", Value::as_f32)
    }

    /// A truth value, if the key is there.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.typed(key, "a boolean", Value::as_bool)
    }

    /// An array of texts, if the key is there.
    pub fn strings(&self, key: &str) -> Result<Option<&[String]>, Error> {
        self.typed(key, "an array of strings", Value::as_strings)
    }

    /// An array of 32-bit floats, if the key is there.
    pub fn f32s(&self, key: &str) -> Result<Option<&[f32]>, Error> {
        self.typed(key, "an array of 32-bit floats", Value::as_f32s)
    }

    /// An array of truth values, if the key is there.
    pub fn bools(&self, key: &str) -> Result<Option<&[bool]>, Error> {
        self.typed(key, "an array of booleans", Value::as_bools)
    }

    /// An array of whole numbers of any stored width, if the key is there.
    pub fn u32s(&self, key: &str) -> Result<Option<Vec<u32>>, Error> {
        self.typed(key, "an array of numbers between 0 and 4294967295", Value::to_u32s)
    }

    /// A value that is one number for all layers or an array with one per layer: always `layers` numbers.
    pub fn u32_per_layer(&self, key: &str, layers: usize) -> Result<Option<Vec<u32>>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        if !matches!(value, Value::Array(_)) {
            return Ok(self.u32(key)?.map(|number| vec![number; layers]));
        }
        let numbers = self.u32s(key)?.unwrap_or_default();
        if numbers.len() == layers {
            Ok(Some(numbers))
        } else {
            Err(Error::WrongLength { key: key.to_owned(), found: numbers.len(), expected: layers })
        }
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| Error::WrongType {
            key: key.to_owned(),
            found: value.describe(),
            expected,
        })
    }
}
