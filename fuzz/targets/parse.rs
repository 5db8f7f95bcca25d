//! Outputs of models in every format: nothing panics, nothing is lost, no cut changes anything, work is linear.
#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use midstream::parse::checks;

fuzz_target!(|input: &[u8]| checks::check(input));

// Marks are long and would be hit upon seldom, so every other change puts one in whole.
fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let marks = checks::marks(&data[..size]);
    let seed = seed as usize;
    let mark = marks.get((seed >> 1) % marks.len().max(1)).map_or(&[][..], |mark| mark.as_bytes());
    if seed % 2 == 0 || mark.is_empty() || size + mark.len() > max_size {
        return fuzzer_mutate(data, size, max_size);
    }
    let at = (seed >> 8) % (size + 1);
    data.copy_within(at..size, at + mark.len());
    data[at..at + mark.len()].copy_from_slice(mark);
    size + mark.len()
});
