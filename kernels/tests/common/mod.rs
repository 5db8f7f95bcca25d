//! What the integration tests share: reproducible numbers and weights in every format.
//! It must never use the code under test to make expectations, other than `dequantise`, which has its own tests.

#![allow(dead_code, reason = "not every test binary uses all of it")]

use midstream_kernels::{Format, f32_to_f16};

/// A small reproducible generator.
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn bits(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u32
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.bits() as usize % bound
    }

    /// Between -1 and 1.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.bits() >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn units(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.unit()).collect()
    }
}

/// A tensor's bytes as a file holds them: random quants, scales of a sensible size.
pub(crate) fn file_bytes(format: Format, values: usize, numbers: &mut Numbers) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..values / format.block_len() {
        let mut block: Vec<u8> = (0..format.block_bytes()).map(|_| numbers.bits() as u8).collect();
        let mut put_half = |at: usize, value: f32| {
            block[at..at + 2].copy_from_slice(&f32_to_f16(value).to_le_bytes());
        };
        match format {
            Format::F32 => block.copy_from_slice(&numbers.unit().to_le_bytes()),
            Format::BF16 => block.copy_from_slice(&numbers.unit().to_le_bytes()[2..]),
            Format::F16 => put_half(0, numbers.unit()),
            Format::Q4_0 | Format::Q5_0 | Format::Q8_0 => put_half(0, numbers.unit() * 0.02),
            Format::Q4_1 | Format::Q5_1 | Format::Q4_K | Format::Q5_K => {
                put_half(0, numbers.unit() * 0.02);
                put_half(2, numbers.unit() * 0.1);
            }
            Format::Q2_K => {
                put_half(80, numbers.unit() * 0.02);
                put_half(82, numbers.unit() * 0.02);
            }
            Format::Q3_K => put_half(108, numbers.unit() * 0.01),
            Format::Q6_K => put_half(208, numbers.unit() * 0.001),
            Format::IQ4_NL => put_half(0, numbers.unit() * 0.01),
            Format::IQ4_XS => put_half(0, numbers.unit() * 0.001),
            Format::MXFP4 => block[0] = 118 + block[0] % 8,
        }
        bytes.extend(block);
    }
    bytes
}
