//! The machine's limits: int8 dot products and reading memory, with the threads that a model runs on.

use std::time::Duration;

use midstream_kernels::{Isa, ReadBuffer, Team, multiply_burst};
use serde::Serialize;

use crate::clock::monotonic;

/// Runs of which the best counts: a limit is what is possible, and everything else on the machine only slows down.
const RUNS: usize = 7;
/// A burst of products is made at least this long, so that starting it does not count.
const BURST_DURATION_MIN: Duration = Duration::from_millis(20);
/// What is read, at least and at most: more than the last cache holds, but no memory that the machine may not have.
const READ_BYTES_MIN: usize = 256 << 20;
const READ_BYTES_MAX: usize = 1 << 30;
/// Times the last cache: what is left in it of the last run must not count.
const READ_CACHES: usize = 4;

/// What the machine can do at most.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Limits {
    /// Multiplications and additions of int8 dot products.
    pub(super) int8_operations_per_second: f64,
    /// Bytes of anonymous memory, streamed once.
    pub(super) read_bytes_per_second: f64,
}

/// Measures both.
pub(super) fn measure(team: &Team, isa: Isa) -> anyhow::Result<Limits> {
    let buffer = ReadBuffer::new((READ_CACHES * last_cache_bytes()).clamp(READ_BYTES_MIN, READ_BYTES_MAX))?;
    let read = fastest(|| {
        // The sum keeps the reading from being left out.
        std::hint::black_box(buffer.read(team, isa));
    });
    let mut rounds = 1;
    let operations = loop {
        let begin = monotonic();
        let burst = std::hint::black_box(multiply_burst(team, isa, rounds));
        if begin.elapsed() >= BURST_DURATION_MIN {
            break burst.operations;
        }
        rounds *= 2;
    };
    let burst = fastest(|| {
        std::hint::black_box(multiply_burst(team, isa, rounds));
    });
    Ok(Limits {
        int8_operations_per_second: operations as f64 / burst,
        read_bytes_per_second: buffer.bytes() as f64 / read,
    })
}

/// Seconds of the shortest run.
fn fastest(mut run: impl FnMut()) -> f64 {
    let once = |_| {
        let begin = monotonic();
        run();
        begin.elapsed().as_secs_f64()
    };
    (0..RUNS).map(once).fold(f64::INFINITY, f64::min)
}

/// Bytes of the largest cache that the first processor sees; 0 where the system does not say.
fn last_cache_bytes() -> usize {
    let size = |index: usize| {
        let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")).ok()?;
        cache_bytes(&text)
    };
    (0..8).filter_map(size).max().unwrap_or(0)
}

/// A size as the system writes it, such as `32768K`.
fn cache_bytes(text: &str) -> Option<usize> {
    let text = text.trim();
    let (number, unit) = match text.strip_suffix('K') {
        Some(number) => (number, 1 << 10),
        None => text.strip_suffix('M').map_or((text, 1), |number| (number, 1 << 20)),
    };
    number.parse::<usize>().ok()?.checked_mul(unit)
}

/// How many processes wanted to run in the last minute, where the system says: a busy machine measures too little.
pub(super) fn load_average() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_sizes_are_read_as_the_system_writes_them() {
        assert_eq!(cache_bytes("8192K\n"), Some(8 << 20));
        assert_eq!(cache_bytes("1M"), Some(1 << 20));
        assert_eq!(cache_bytes("512"), Some(512));
        for text in ["", "K", "lots", "99999999999999999999K"] {
            assert_eq!(cache_bytes(text), None, "{text}");
        }
    }
}
