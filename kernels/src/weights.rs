//! A weight matrix, packed for the kernels when it is loaded.
//! It must never keep the file's bytes: they belong to a mapping that goes away.

use crate::layout::{PANEL, panel_bytes};
use crate::memory::AlignedBytes;
use crate::pack::{pack_row, unpack_row};
use crate::{Error, Format, Isa};

/// Weights of `rows` outputs by `cols` inputs.
pub struct WeightMatrix {
    isa: Isa,
    format: Format,
    rows: usize,
    cols: usize,
    panel_bytes: usize,
    packed: AlignedBytes,
}

impl std::fmt::Debug for WeightMatrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WeightMatrix({:?}, {} x {}, {})", self.format, self.rows, self.cols, self.isa.name())
    }
}

impl WeightMatrix {
    /// Copies a tensor of a file (`rows` rows of `cols` values, row after row) into the kernels' layout.
    pub fn new(isa: Isa, format: Format, rows: usize, cols: usize, bytes: &[u8]) -> Result<Self, Error> {
        let shape = Error::Shape { rows, cols };
        let block_len = format.block_len();
        if rows == 0 || cols == 0 {
            return Err(shape);
        }
        if !cols.is_multiple_of(block_len) {
            return Err(Error::PartialBlock { format, len: cols, block_len });
        }
        let Some(row_bytes) = (cols / block_len).checked_mul(format.block_bytes()) else {
            return Err(shape);
        };
        let (Some(values), Some(expected)) = (rows.checked_mul(cols), rows.checked_mul(row_bytes)) else {
            return Err(shape);
        };
        if bytes.len() != expected {
            return Err(Error::ByteCount { format, values, expected, found: bytes.len() });
        }
        let Some(panel_bytes) = panel_bytes(format, cols) else {
            return Err(shape);
        };
        let Some(total) = rows.div_ceil(PANEL).checked_mul(panel_bytes) else {
            return Err(shape);
        };
        let mut packed = AlignedBytes::zeroed(total)?;
        let file_panels = bytes.chunks(PANEL * row_bytes);
        for (panel, file_rows) in packed.as_mut_slice().chunks_exact_mut(panel_bytes).zip(file_panels) {
            for (lane, row) in file_rows.chunks_exact(row_bytes).enumerate() {
                pack_row(format, row, lane, panel);
            }
        }
        Ok(Self { isa, format, rows, cols, panel_bytes, packed })
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The format the weights came in and are kept in.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The instruction set products with this matrix run on.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Bytes of memory the packed weights take.
    pub fn packed_bytes(&self) -> usize {
        self.packed.as_slice().len()
    }

    /// The values of one row, bit for bit those of [`crate::dequantise`] (an embedding lookup). Panics when `out` does
    /// not have `cols` elements.
    pub fn dequantise_row(&self, row: usize, out: &mut [f32]) -> Result<(), Error> {
        assert_eq!(out.len(), self.cols, "one value per column");
        if row >= self.rows {
            return Err(Error::RowOutside { row, rows: self.rows });
        }
        unpack_row(self.format, self.panel(row / PANEL), row % PANEL, out);
        Ok(())
    }

    pub(crate) fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL)
    }

    pub(crate) fn panel(&self, index: usize) -> &[u8] {
        &self.packed.as_slice()[index * self.panel_bytes..(index + 1) * self.panel_bytes]
    }
}
