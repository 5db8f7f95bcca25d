//! The block formats weights come in: names, block sizes, GGUF type numbers.
//! It must never decode a block: `dequant.rs` does.

/// A weight format of a GGUF file that there are kernels for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, reason = "the formats' own names, as files and tools write them")]
pub enum Format {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// 4 bits, a scale per 32.
    Q4_0,
    /// 4 bits, a scale and a minimum per 32.
    Q4_1,
    /// 5 bits, a scale per 32.
    Q5_0,
    /// 8 bits, a scale per 32.
    Q8_0,
    /// 4 bits, a 6-bit scale and minimum per 32, two scales of those per 256.
    Q4_K,
    /// 6 bits, an 8-bit scale per 16, a scale of those per 256.
    Q6_K,
}

impl Format {
    /// Every format, for tests and tables.
    pub const ALL: [Self; 8] =
        [Self::F32, Self::F16, Self::Q4_0, Self::Q4_1, Self::Q5_0, Self::Q8_0, Self::Q4_K, Self::Q6_K];

    /// The format with that GGUF tensor type number, if there are kernels for it.
    pub fn from_gguf_type(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            8 => Self::Q8_0,
            12 => Self::Q4_K,
            14 => Self::Q6_K,
            _ => return None,
        })
    }

    /// Values in one block.
    pub fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q8_0 => 32,
            Self::Q4_K | Self::Q6_K => 256,
        }
    }

    /// Bytes of one block in a file.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q8_0 => 34,
            Self::Q4_K => 144,
            Self::Q6_K => 210,
        }
    }
}
