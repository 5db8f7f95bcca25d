//! A weight matrix, packed for the kernels when it is loaded.
//! It must never keep the file's bytes, nor read any twice: the file may change when it is loaded.

use std::io;
use std::sync::{Mutex, PoisonError};

use crate::layout::{PANEL, panel_bytes};
use crate::memory::{ALIGN, WeightBytes, WeightMemory};
use crate::pack::{pack_row, unpack_row};
use crate::{Error, Format, Isa, Team};

/// Bytes of a file that are read and packed at a time: they stay in the nearest caches in between.
const READ_BYTES: usize = 64 << 10;

/// What there is to know of a tensor before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightShape {
    /// How its values are stored in the file.
    pub format: Format,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
}

/// Sizes that follow from a shape.
struct Sizes {
    /// Bytes of one row in the file.
    row: usize,
    /// Bytes of the whole tensor in the file.
    file: usize,
    /// Bytes of one packed panel.
    panel: usize,
    /// Bytes of all panels.
    packed: usize,
}

impl WeightShape {
    /// Bytes that the tensor takes of a [`WeightMemory`].
    pub fn memory_bytes(self) -> Result<usize, Error> {
        let shape = Error::Shape { rows: self.rows, cols: self.cols };
        self.sizes()?.packed.checked_next_multiple_of(ALIGN).ok_or(shape)
    }

    fn sizes(self) -> Result<Sizes, Error> {
        let Self { format, rows, cols } = self;
        let block_len = format.block_len();
        if rows > 0 && cols > 0 && !cols.is_multiple_of(block_len) {
            return Err(Error::PartialBlock { format, len: cols, block_len });
        }
        let sizes = || {
            let row = (cols / block_len).checked_mul(format.block_bytes())?;
            let panel = panel_bytes(format, cols)?;
            rows.checked_mul(cols)?;
            let (file, packed) = (rows.checked_mul(row)?, rows.div_ceil(PANEL).checked_mul(panel)?);
            Some(Sizes { row, file, panel, packed }).filter(|_| rows > 0 && cols > 0)
        };
        sizes().ok_or(Error::Shape { rows, cols })
    }
}

/// Weights of `rows` outputs by `cols` inputs.
pub struct WeightMatrix {
    isa: Isa,
    shape: WeightShape,
    panel_bytes: usize,
    packed: WeightBytes,
}

impl std::fmt::Debug for WeightMatrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let WeightShape { format, rows, cols } = self.shape;
        write!(f, "WeightMatrix({format:?}, {rows} x {cols}, {})", self.isa.name())
    }
}

impl WeightMatrix {
    /// Copies a tensor of a file (`rows` rows of `cols` values, row after row) into the kernels' layout.
    pub fn new(isa: Isa, format: Format, rows: usize, cols: usize, bytes: &[u8]) -> Result<Self, Error> {
        let shape = WeightShape { format, rows, cols };
        let expected = shape.sizes()?.file;
        if bytes.len() != expected {
            return Err(Error::ByteCount { format, values: rows * cols, expected, found: bytes.len() });
        }
        Self::read(isa, shape, &mut WeightMemory::default(), &Team::new(1), &|at, part| {
            part.copy_from_slice(&bytes[at..at + part.len()]);
            Ok(())
        })
    }

    /// Reads a tensor of a file into the kernels' layout, on all threads of the team. `read` fills a buffer with the
    /// tensor's bytes from an offset on; each is asked for once.
    pub fn read(
        isa: Isa,
        shape: WeightShape,
        memory: &mut WeightMemory,
        team: &Team,
        read: &(dyn Fn(usize, &mut [u8]) -> io::Result<()> + Sync),
    ) -> Result<Self, Error> {
        let sizes = shape.sizes()?;
        let mut packed = memory.take(sizes.packed)?;
        let panels = (READ_BYTES / (PANEL * sizes.row)).max(1);
        let failed = Mutex::new(None);
        team.run_chunks(packed.as_mut_slice(), panels * sizes.panel, |index, packed| {
            let rows = index * panels * PANEL..((index + 1) * panels * PANEL).min(shape.rows);
            let mut bytes = vec![0; rows.len() * sizes.row];
            if let Err(error) = read(rows.start * sizes.row, &mut bytes) {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                return;
            }
            for (panel, rows) in packed.chunks_exact_mut(sizes.panel).zip(bytes.chunks(PANEL * sizes.row)) {
                for (lane, row) in rows.chunks_exact(sizes.row).enumerate() {
                    pack_row(shape.format, row, lane, panel);
                }
            }
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(Error::Read(error)),
            None => Ok(Self { isa, shape, panel_bytes: sizes.panel, packed }),
        }
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.shape.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.shape.cols
    }

    /// The format the weights came in and are kept in.
    pub fn format(&self) -> Format {
        self.shape.format
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
        assert_eq!(out.len(), self.shape.cols, "one value per column");
        if row >= self.shape.rows {
            return Err(Error::RowOutside { row, rows: self.shape.rows });
        }
        unpack_row(self.shape.format, self.panel(row / PANEL), row % PANEL, out);
        Ok(())
    }

    pub(crate) fn panels(&self) -> usize {
        self.shape.rows.div_ceil(PANEL)
    }

    pub(crate) fn panel(&self, index: usize) -> &[u8] {
        &self.packed.as_slice()[index * self.panel_bytes..(index + 1) * self.panel_bytes]
    }
}
