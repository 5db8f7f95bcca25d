//! The `midstream` binary: turns one result into an exit code.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    midstream::cli::main()
}
