//! The `midstream` binary: turns one result into an exit code.
#![forbid(unsafe_code)]

fn main() {}
