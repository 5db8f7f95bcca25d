//! The tensors of a file, looked up with the shape they must have.

use std::ops::Range;

use midstream_kernels::{Format, WeightShape};

use super::super::gguf::{self, Gguf};
use super::ModelError;

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
    /// The file it lies in, where the model is in several.
    pub(crate) part: usize,
    /// Its bytes in the file.
    pub(crate) range: Range<usize>,
}

impl TensorRef {
    /// What kernels are told of it.
    pub(crate) fn shape(&self) -> WeightShape {
        WeightShape { format: self.format, rows: self.rows, cols: self.cols }
    }

    /// Some of its rows as a tensor of their own.
    pub(super) fn rows(&self, rows: Range<usize>) -> Self {
        let row_bytes = self.cols / self.format.block_len() * self.format.block_bytes();
        let start = self.range.start;
        let range = start + rows.start * row_bytes..start + rows.end * row_bytes;
        Self { rows: rows.len(), range, ..self.clone() }
    }

    /// Cuts the rows into parts of equal height.
    pub(super) fn cut(&self, height: usize) -> impl Iterator<Item = Self> {
        (0..self.rows / height).map(move |part| self.rows(part * height..(part + 1) * height))
    }
}

/// The file's tensors.
pub(super) struct Tensors<'a> {
    pub(super) gguf: &'a Gguf,
}

impl Tensors<'_> {
    pub(super) fn matrix(&self, name: &str, rows: Option<usize>, cols: Option<usize>) -> Result<TensorRef, ModelError> {
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

    /// Matrices of equal shape on top of each other, given as `[cols, rows, count]`. None is a length that is free.
    pub(super) fn stack(
        &self,
        name: &str,
        [cols, rows, count]: [Option<usize>; 3],
    ) -> Result<Vec<TensorRef>, ModelError> {
        let tensor = self.gguf.require_tensor(name)?;
        let found = match tensor.shape[..] {
            [cols, rows, count] => Some([cols, rows, count]),
            _ => None,
        };
        let expected = [cols, rows, count];
        let fits = |found: &[usize; 3]| {
            found.iter().zip(expected).all(|(found, expected)| expected.is_none_or(|length| length == *found))
        };
        match found.filter(fits) {
            Some([_, rows, _]) => Ok(Self::reference(tensor)?.cut(rows).collect()),
            None => Err(ModelError::Shape {
                name: name.to_owned(),
                found: tensor.shape.clone(),
                expected: expected.into_iter().flatten().collect(),
            }),
        }
    }

    /// Whether the file has the tensor.
    pub(super) fn has(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
    }

    pub(super) fn vector(&self, name: &str, length: usize) -> Result<TensorRef, ModelError> {
        let tensor = self.gguf.require_tensor(name)?;
        if tensor.row_len() != length || tensor.rows() != 1 {
            let (found, expected) = (tensor.shape.clone(), vec![length]);
            return Err(ModelError::Shape { name: name.to_owned(), found, expected });
        }
        Self::reference(tensor)
    }

    pub(super) fn optional(
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
            part: tensor.part,
            range: tensor.range.clone(),
        })
    }
}
