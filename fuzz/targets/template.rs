//! Chat templates of any kind: each is loaded, tried out and rendered in bounded time, memory and stack.
#![no_main]

use libfuzzer_sys::fuzz_target;
use midstream::prompt::checks;

// The engine may panic, which fails a rendering; the fuzzer's own hook would abort there.
fuzz_target!(init: drop(std::panic::take_hook()), |input: &[u8]| checks::check(&String::from_utf8_lossy(input)));
