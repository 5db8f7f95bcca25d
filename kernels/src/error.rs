//! The errors of this crate: what a file or the environment can get wrong.
//! It must never carry programmer errors: those are asserted where they happen.

use crate::Format;

/// Why an input from outside cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The environment names an instruction set that does not exist.
    #[error("MIDSTREAM_ISA is {0:?}: use scalar, avx2, avx512 or neon, or leave it unset")]
    UnknownIsa(String),
    /// The named instruction set exists, but this processor lacks it.
    #[error("this processor cannot run {wanted}: it can run {available}; leave MIDSTREAM_ISA unset to take the best")]
    UnsupportedIsa {
        /// The instruction set asked for.
        wanted: &'static str,
        /// Those that would work, comma-separated.
        available: String,
    },
    /// A matrix has no elements, or more than memory can address.
    #[error("a matrix of {rows} rows and {cols} columns cannot be held")]
    Shape {
        /// Rows asked for.
        rows: usize,
        /// Columns asked for.
        cols: usize,
    },
    /// A row does not divide into the format's blocks.
    #[error("{len} values do not divide into {format:?} blocks of {block_len}")]
    PartialBlock {
        /// The block format.
        format: Format,
        /// Values in the row or slice.
        len: usize,
        /// Values in one block.
        block_len: usize,
    },
    /// The bytes given are not as many as the shape needs.
    #[error("{format:?} data for {values} values must have {expected} bytes, not {found}")]
    ByteCount {
        /// The block format.
        format: Format,
        /// Values the bytes should hold.
        values: usize,
        /// Bytes needed.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// A row index outside the matrix, for example a token id outside the embedding.
    #[error("row {row} is outside a matrix of {rows} rows")]
    RowOutside {
        /// The row asked for.
        row: usize,
        /// Rows there are.
        rows: usize,
    },
    /// The operating system refused memory.
    #[error("cannot allocate {bytes} bytes for weights")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// A file could not be read.
    #[error("{0}")]
    Read(std::io::Error),
}
