//! The block formats weights come in: names, block sizes, GGUF type numbers, tables of values.
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
    /// 5 bits, a scale and a minimum per 32.
    Q5_1,
    /// 8 bits, a scale per 32.
    Q8_0,
    /// 2 bits, a 4-bit scale and minimum per 16, two scales of those per 256.
    Q2_K,
    /// 3 bits, a 6-bit scale per 16, a scale of those per 256.
    Q3_K,
    /// 4 bits, a 6-bit scale and minimum per 32, two scales of those per 256.
    Q4_K,
    /// 5 bits, a 6-bit scale and minimum per 32, two scales of those per 256.
    Q5_K,
    /// 6 bits, an 8-bit scale per 16, a scale of those per 256.
    Q6_K,
    /// 4 bits that stand for unevenly spaced values, a scale per 32.
    IQ4_NL,
    /// The same values, a 6-bit scale per 32, a scale of those per 256.
    IQ4_XS,
    /// The upper halves of 32-bit floats.
    BF16,
    /// 4-bit floats, a power of two per 32.
    MXFP4,
}

/// What the codes of IQ4_NL and IQ4_XS stand for.
pub(crate) const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// What the codes of MXFP4 stand for, doubled: a sign, two bits of exponent, one of mantissa.
pub(crate) const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

impl Format {
    /// Every format, for tests and tables.
    pub const ALL: [Self; 16] = [
        Self::F32,
        Self::F16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ4_NL,
        Self::IQ4_XS,
        Self::BF16,
        Self::MXFP4,
    ];

    /// The format with that GGUF tensor type number, if there are kernels for it.
    pub fn from_gguf_type(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            10 => Self::Q2_K,
            11 => Self::Q3_K,
            12 => Self::Q4_K,
            13 => Self::Q5_K,
            14 => Self::Q6_K,
            20 => Self::IQ4_NL,
            23 => Self::IQ4_XS,
            30 => Self::BF16,
            39 => Self::MXFP4,
            _ => return None,
        })
    }

    /// Values in one block.
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 | Self::IQ4_NL | Self::MXFP4 => 32,
            Self::Q2_K | Self::Q3_K | Self::Q4_K | Self::Q5_K | Self::Q6_K | Self::IQ4_XS => 256,
        }
    }

    /// Bytes of one block in a file.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::MXFP4 => 17,
            Self::Q4_0 | Self::IQ4_NL => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2_K => 84,
            Self::Q3_K => 110,
            Self::IQ4_XS => 136,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
        }
    }
}
