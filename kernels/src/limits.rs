//! What the machine can do at most: int8 dot products from registers and the first cache, and reading memory.
//! Both only work and say how much; callers take the time. It must never be part of a model's computation.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256i, __m512i, _MM_HINT_T0, _mm_prefetch, _mm256_add_epi16, _mm256_add_epi32, _mm256_loadu_si256,
    _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_setzero_si256,
    _mm256_storeu_si256, _mm512_dpbusd_epi32, _mm512_loadu_si512, _mm512_reduce_add_epi32, _mm512_set1_epi32,
    _mm512_setzero_si512,
};
use std::hint::black_box;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::isa::{Kind, for_each_isa};
use crate::memory::{WeightBytes, WeightMemory};
use crate::simd::Simd;
use crate::{Error, Isa, Team};

/// Bytes of weights that a burst multiplies again and again: they stay in the first cache.
const WEIGHT_BYTES: usize = 4096;
/// Rows of activations that share each load of weights, as in a register tile.
const TILE: usize = 12;
/// Rows of a tile that AVX2's sixteen registers hold.
#[cfg(target_arch = "x86_64")]
const AVX2_TILE: usize = 4;
/// Registers of products that an i16 can sum up: 8 * 2 * 15 * 127 is below its limit.
#[cfg(target_arch = "x86_64")]
const AVX2_RUN: usize = 8;

/// What a burst of products did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Multiplications and additions, each counted as one.
    pub operations: u64,
    /// The sum of all products, wrapping: the same on every instruction set, so that none can skip its work.
    pub sum: i32,
}

/// Multiplies 4-bit weights with int8 activations `rounds` times on every thread of the team, as fast as the
/// instruction set can: everything is in registers and the first cache, and nothing is scaled or stored.
pub fn multiply_burst(team: &Team, isa: Isa, rounds: usize) -> Burst {
    let weights: [u8; WEIGHT_BYTES] = std::array::from_fn(|index| (index * 7 % 16) as u8);
    let rows: [[i8; 4]; TILE] =
        std::array::from_fn(|row| std::array::from_fn(|column| (37 * row + 11 * column) as i8 | 1));
    let sum = AtomicI32::new(0);
    team.run(|_| {
        let (weights, rows) = (black_box(&weights), black_box(&rows));
        sum.fetch_add(multiply(isa, weights, rows, rounds), Ordering::Relaxed);
    });
    let products = rounds * WEIGHT_BYTES * TILE * team.size();
    Burst { operations: 2 * products as u64, sum: sum.into_inner() }
}

/// The sum of every weight's product with the activation in the same place of four, over all rows and rounds.
fn multiply(isa: Isa, weights: &[u8; WEIGHT_BYTES], rows: &[[i8; 4]; TILE], rounds: usize) -> i32 {
    match isa.kind() {
        Kind::Scalar => multiply_scalar(weights, rows, rounds),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this kind exists only where the processor has these features.
        Kind::Avx2 => unsafe { multiply_avx2(weights, rows, rounds) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this kind exists only where the processor has these features.
        Kind::Avx512 => unsafe { multiply_avx512(weights, rows, rounds) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: an `Isa` of this kind exists only where the processor has these features.
        Kind::Neon => unsafe { multiply_neon(weights, rows, rounds) },
    }
}

fn multiply_scalar(weights: &[u8; WEIGHT_BYTES], rows: &[[i8; 4]; TILE], rounds: usize) -> i32 {
    let mut total = 0_i32;
    for _ in 0..rounds {
        // Looked at anew each round, so that no round is computed once for all.
        for row in black_box(rows) {
            let mut sums = [0_i32; 4];
            for quad in weights.as_chunks::<4>().0 {
                for i in 0..4 {
                    sums[i] += i32::from(quad[i]) * i32::from(row[i]);
                }
            }
            total = sums.iter().fold(total, |total, sum| total.wrapping_add(*sum));
        }
    }
    total
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn multiply_avx2(weights: &[u8; WEIGHT_BYTES], rows: &[[i8; 4]; TILE], rounds: usize) -> i32 {
    let load = |bytes: &[u8; 32]| -> __m256i {
        // SAFETY: 32 bytes; the load needs no alignment.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    };
    let mut total = 0_i32;
    for rows in rows.as_chunks::<AVX2_TILE>().0 {
        let mut values = [_mm256_setzero_si256(); AVX2_TILE];
        for r in 0..AVX2_TILE {
            values[r] = _mm256_set1_epi32(quad(rows[r]));
        }
        let mut sums = [_mm256_setzero_si256(); AVX2_TILE];
        for _ in 0..rounds {
            for run in weights.as_chunks::<32>().0.as_chunks::<AVX2_RUN>().0 {
                let mut pairs = [_mm256_setzero_si256(); AVX2_TILE];
                for bytes in run {
                    let loaded = load(bytes);
                    for r in 0..AVX2_TILE {
                        pairs[r] = _mm256_add_epi16(pairs[r], _mm256_maddubs_epi16(loaded, values[r]));
                    }
                }
                for r in 0..AVX2_TILE {
                    let widened = _mm256_madd_epi16(pairs[r], _mm256_set1_epi16(1));
                    sums[r] = _mm256_add_epi32(sums[r], widened);
                }
            }
        }
        for sum in sums {
            let mut lanes = [0_i32; 8];
            // SAFETY: the array has eight elements.
            unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sum) };
            total = lanes.iter().fold(total, |total, lane| total.wrapping_add(*lane));
        }
    }
    total
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vnni")]
fn multiply_avx512(weights: &[u8; WEIGHT_BYTES], rows: &[[i8; 4]; TILE], rounds: usize) -> i32 {
    let load = |bytes: &[u8; 64]| -> __m512i {
        // SAFETY: 64 bytes; the load needs no alignment.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    };
    let mut values = [_mm512_setzero_si512(); TILE];
    for r in 0..TILE {
        values[r] = _mm512_set1_epi32(quad(rows[r]));
    }
    let mut sums = [_mm512_setzero_si512(); TILE];
    for _ in 0..rounds {
        for bytes in weights.as_chunks::<64>().0 {
            let loaded = load(bytes);
            for r in 0..TILE {
                sums[r] = _mm512_dpbusd_epi32(sums[r], loaded, values[r]);
            }
        }
    }
    sums.into_iter().fold(0, |total: i32, sum| total.wrapping_add(_mm512_reduce_add_epi32(sum)))
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon,dotprod")]
fn multiply_neon(weights: &[u8; WEIGHT_BYTES], rows: &[[i8; 4]; TILE], rounds: usize) -> i32 {
    use std::arch::aarch64::{vaddvq_s32, vdupq_n_s32, vld1q_s8, vreinterpretq_s8_s32};
    let mut values = [vreinterpretq_s8_s32(vdupq_n_s32(0)); TILE];
    for r in 0..TILE {
        values[r] = vreinterpretq_s8_s32(vdupq_n_s32(quad(rows[r])));
    }
    let mut sums = [vdupq_n_s32(0); TILE];
    for _ in 0..rounds {
        for bytes in weights.as_chunks::<16>().0 {
            // SAFETY: 16 bytes; the load needs no alignment.
            let loaded = unsafe { vld1q_s8(bytes.as_ptr().cast()) };
            for r in 0..TILE {
                sums[r] = crate::matmul::neon::add_dots(sums[r], loaded, values[r]);
            }
        }
    }
    sums.into_iter().fold(0, |total: i32, sum| total.wrapping_add(vaddvq_s32(sum)))
}

/// Four activations as the products take them.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn quad(values: [i8; 4]) -> i32 {
    i32::from_le_bytes(values.map(i8::cast_unsigned))
}

/// Anonymous memory, in huge pages where the system gives them, as weights lie in.
pub struct ReadBuffer(WeightBytes);

impl ReadBuffer {
    /// `bytes` of memory that is really there, rounded up to whole pieces of what one thread reads at a time.
    pub fn new(bytes: usize) -> Result<Self, Error> {
        let len = bytes.max(1).checked_next_multiple_of(PIECE_BYTES).ok_or(Error::OutOfMemory { bytes })?;
        let mut memory = WeightMemory::default().take(len)?;
        memory.as_mut_slice().fill(1);
        Ok(Self(memory))
    }

    /// How many bytes there are.
    pub fn bytes(&self) -> usize {
        self.0.as_slice().len()
    }

    /// Reads all of it once, the threads of the team together, and gives the wrapping sum of its 64-bit words.
    pub fn read(&self, team: &Team, isa: Isa) -> u64 {
        let total = AtomicU64::new(0);
        let pieces = self.0.as_slice().as_chunks::<PIECE_BYTES>().0;
        team.run_each(pieces.len(), |index| {
            let mut sum = 0;
            sum_words(isa, &pieces[index], &mut sum);
            total.fetch_add(sum, Ordering::Relaxed);
        });
        total.into_inner()
    }
}

impl std::fmt::Debug for ReadBuffer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "ReadBuffer({} bytes)", self.bytes())
    }
}

/// What a thread reads before it takes the next piece.
const PIECE_BYTES: usize = 1 << 20;

/// How far ahead memory is asked for, as the products do: the processor's own prefetching stops at every page.
#[cfg(target_arch = "x86_64")]
const AHEAD_BYTES: usize = 8192;

for_each_isa! {
    /// The wrapping sum of the 64-bit words of whole cache lines.
    fn sum_words(bytes: &[u8], total: &mut u64) = sum_words_body;
}

#[inline(always)]
fn sum_words_body<S: Simd>(bytes: &[u8], total: &mut u64) {
    let mut sums = [0_u64; 8];
    for line in bytes.as_chunks::<64>().0 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch changes nothing the program sees and may have any address.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_add(AHEAD_BYTES).cast());
        }
        for (sum, word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*word));
        }
    }
    *total = sums.iter().fold(0, |total: u64, sum| total.wrapping_add(*sum));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_multiplies_what_it_is_counted_for() {
        let one = multiply_burst(&Team::new(1), Isa::SCALAR, 1);
        // From the definition of weights and rows.
        let mut expected = 0_i32;
        for index in 0..WEIGHT_BYTES {
            for row in 0..TILE {
                let value = (37 * row + 11 * (index % 4)) as i8 | 1;
                expected = expected.wrapping_add((index * 7 % 16) as i32 * i32::from(value));
            }
        }
        assert_eq!(one, Burst { operations: 2 * (WEIGHT_BYTES * TILE) as u64, sum: expected });
        for isa in Isa::available() {
            for (threads, rounds) in [(1, 1), (1, 3), (2, 5)] {
                let found = multiply_burst(&Team::new(threads), isa, rounds);
                let times = threads * rounds;
                assert_eq!(found.operations, one.operations * times as u64);
                assert_eq!(found.sum, one.sum.wrapping_mul(times as i32), "{} x {times}", isa.name());
            }
        }
    }

    #[test]
    fn every_byte_is_read_on_every_instruction_set() {
        let buffer = ReadBuffer::new(PIECE_BYTES * 5 / 2).unwrap();
        assert_eq!(buffer.bytes(), 3 * PIECE_BYTES);
        let words = 3 * PIECE_BYTES as u64 / 8;
        for isa in Isa::available() {
            for threads in [1, 2] {
                let sum = buffer.read(&Team::new(threads), isa);
                assert_eq!(sum, words.wrapping_mul(0x0101_0101_0101_0101), "{}", isa.name());
            }
        }
    }

    #[test]
    fn memory_that_no_machine_has_is_an_error() {
        assert!(matches!(ReadBuffer::new(usize::MAX), Err(Error::OutOfMemory { .. })));
    }
}
