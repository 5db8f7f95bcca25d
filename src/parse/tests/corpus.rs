//! The outputs that the fuzzer begins with, or that it found something with: each is checked as the fuzzer does it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::parse::{ToolFormat, checks};

#[test]
fn every_output_that_is_kept_is_read_as_promised_and_every_family_has_one() {
    let mut missing: BTreeSet<&str> = ToolFormat::all().map(ToolFormat::name).collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/parse");
    for file in fs::read_dir(folder).unwrap() {
        let input = fs::read(file.unwrap().path()).unwrap();
        checks::check(&input);
        let head = String::from_utf8_lossy(&input);
        missing.remove(head.split(' ').next().unwrap());
    }
    assert_eq!(missing, BTreeSet::new());
}
