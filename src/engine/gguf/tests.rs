//! The container's promises: what was written is read back, and no file makes the reader panic or allocate wildly.

use proptest::prelude::*;

use super::{Array, Error, Gguf, Source, TensorType, Value, Writer, part_names};

fn small() -> Writer {
    Writer::new()
        .entry("general.architecture", Value::String("llama".to_owned()))
        .entry("a.u32", Value::U32(7))
        .entry("a.i64", Value::I64(-7))
        .entry("a.f32", Value::F32(0.5))
        .entry("a.bool", Value::Bool(true))
        .entry("a.strings", Value::Array(Array::String(vec!["x".to_owned(), String::new()])))
        .entry("a.numbers", Value::Array(Array::I32(vec![1, 2, 3])))
        .tensor("t.one", &[32, 2], TensorType::Q4_1, vec![1; 40])
        .tensor("t.two", &[3], TensorType::F32, vec![2; 12])
}

/// The file with the bytes of `from` at their only place replaced by `to`.
fn patched(from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut bytes = small().finish();
    let at: Vec<_> = (0..=bytes.len() - from.len()).filter(|&at| bytes[at..].starts_with(from)).collect();
    assert_eq!(at.len(), 1, "the pattern must be unique");
    bytes.splice(at[0]..at[0] + from.len(), to.iter().copied());
    bytes
}

fn tensor_entry(name: &str, shape: &[u64], kind: i32, offset: u64) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.extend((shape.len() as u32).to_le_bytes());
    for length in shape {
        bytes.extend(length.to_le_bytes());
    }
    bytes.extend(kind.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes
}

#[test]
fn what_was_written_is_read_back() {
    let bytes = small().finish();
    let gguf = Gguf::parse(&bytes).unwrap();
    assert_eq!(gguf.string("general.architecture"), Ok(Some("llama")));
    assert_eq!(gguf.u32("a.u32"), Ok(Some(7)));
    assert_eq!(gguf.f32("a.f32"), Ok(Some(0.5)));
    assert_eq!(gguf.bool("a.bool"), Ok(Some(true)));
    assert_eq!(gguf.u32s("a.numbers"), Ok(Some(vec![1, 2, 3])));
    assert_eq!(gguf.u32_per_layer("a.u32", 2), Ok(Some(vec![7, 7])));
    assert_eq!(gguf.strings("a.strings").unwrap().unwrap(), ["x", ""]);
    let one = gguf.tensor("t.one").unwrap();
    assert_eq!((one.row_len(), one.rows(), one.kind), (32, 2, TensorType::Q4_1));
    assert_eq!(bytes[one.range.clone()], [1; 40]);
    assert_eq!(bytes[gguf.require_tensor("t.two").unwrap().range.clone()], [2; 12]);
    assert_eq!(one.range.start % 32, 0);
}

#[test]
fn absent_and_mistyped_keys_are_told_apart() {
    let gguf = Gguf::parse(&small().finish()).unwrap();
    assert_eq!(gguf.u32("nowhere"), Ok(None));
    assert_eq!(gguf.require("nowhere"), Err(Error::MissingKey("nowhere".to_owned())));
    assert!(gguf.require_tensor("nowhere").is_err());
    let error = gguf.u32("a.i64").unwrap_err().to_string();
    assert_eq!(error, "the metadata key \"a.i64\" holds the number -7, not a number between 0 and 4294967295");
    assert!(matches!(gguf.u32_per_layer("a.numbers", 2), Err(Error::WrongLength { found: 3, expected: 2, .. })));
}

#[test]
fn hostile_headers_are_refused_with_their_reason() {
    let mut counts = small().finish();
    counts[8..16].copy_from_slice(&(1u64 << 60).to_le_bytes());
    assert!(matches!(Gguf::parse(&counts), Err(Error::Implausible { .. })));
    counts[8..16].copy_from_slice(&(1u64 << 29).to_le_bytes());
    assert!(matches!(Gguf::parse(&counts), Err(Error::Truncated { .. })));
    let mut version = small().finish();
    version[4..8].copy_from_slice(&1u32.to_le_bytes());
    assert_eq!(Gguf::parse(&version), Err(Error::Version(1)));
    version[4..8].copy_from_slice(&3u32.to_be_bytes());
    assert_eq!(Gguf::parse(&version), Err(Error::BigEndian));
    assert_eq!(Gguf::parse(b"GG"), Err(Error::NotGguf));
    assert_eq!(Gguf::parse(b"GGML\0\0\0\0"), Err(Error::NotGguf));
}

#[test]
fn hostile_metadata_is_refused_with_its_reason() {
    assert!(matches!(Gguf::parse(&patched(b"a.u32", b"a.i64")), Err(Error::DuplicateKey(_))));
    assert!(matches!(Gguf::parse(&patched(b"llama", b"ll\xffma")), Err(Error::NotUtf8 { .. })));
    let mut nested = b"a.numbers".to_vec();
    nested.extend(9i32.to_le_bytes());
    let (mut from, mut to) = (nested.clone(), nested);
    from.extend(5i32.to_le_bytes());
    to.extend(9i32.to_le_bytes());
    assert_eq!(Gguf::parse(&patched(&from, &to)), Err(Error::NestedArray("a.numbers".to_owned())));
    let alignment = small().entry("general.alignment", Value::U32(33)).finish();
    assert_eq!(Gguf::parse(&alignment), Err(Error::Alignment(33)));
    let split = small().entry("split.count", Value::U16(3)).entry("split.no", Value::U16(1)).finish();
    assert_eq!(Gguf::parse(&split), Err(Error::Split { number: 2, count: 3 }));
}

#[test]
fn hostile_tensors_are_refused_with_their_reason() {
    let entry = tensor_entry("t.one", &[32, 2], 3, 0);
    let refused = |to: Vec<u8>| Gguf::parse(&patched(&entry, &to)).unwrap_err();
    assert!(matches!(refused(tensor_entry("t.one", &[32, 0], 3, 0)), Error::Shape { .. }));
    assert!(matches!(refused(tensor_entry("t.one", &[1 << 40, 1 << 40], 3, 0)), Error::Shape { .. }));
    assert!(matches!(refused(tensor_entry("t.one", &[33, 2], 3, 0)), Error::Shape { .. }));
    assert!(matches!(refused(tensor_entry("t.one", &[32, 2], 4, 0)), Error::TensorType { id: 4, .. }));
    let unknown = refused(tensor_entry("t.one", &[32, 2], 99, 0)).to_string();
    assert!(unknown.contains("\"t.one\" has type 99") && unknown.contains("this one reads F32, F16"), "{unknown}");
    assert!(matches!(refused(tensor_entry("t.one", &[32, 2], 3, 32)), Error::Offset { .. }));
    assert!(matches!(refused(tensor_entry("t.two", &[32, 2], 3, 0)), Error::DuplicateTensor(_)));
    assert!(matches!(refused(tensor_entry("t.one", &[1 << 40], 3, 0)), Error::BeyondFile { .. }));
    let overlapping = patched(&tensor_entry("t.two", &[3], 0, 64), &tensor_entry("t.two", &[3], 0, 0));
    assert!(matches!(Gguf::parse(&overlapping), Err(Error::Offset { .. })));
}

/// A file that is shorter than it was said to be.
struct Shrunk(Vec<u8>);

impl Source for Shrunk {
    fn lengths(&self) -> Vec<u64> {
        vec![self.0.len() as u64 + 1000]
    }

    fn read(&self, part: usize, at: u64, into: &mut [u8]) -> std::io::Result<()> {
        [&self.0].read(part, at, into)
    }
}

#[test]
fn a_file_that_cannot_be_read_is_an_error_that_says_where() {
    let mut bytes = small().finish();
    bytes.truncate(100);
    assert!(matches!(Gguf::read(&Shrunk(bytes)), Err(Error::Read { at: 0, .. })));
}

#[test]
fn every_truncation_is_an_error() {
    let bytes = small().finish();
    for len in 0..bytes.len() {
        assert!(Gguf::parse(&bytes[..len]).is_err(), "cut at {len}");
    }
}

#[test]
fn type_ids_survive_their_number() {
    for &kind in TensorType::ALL {
        assert_eq!(TensorType::from_id(kind.id()), Some(kind));
    }
}

proptest! {
    #[test]
    fn mutations_of_a_valid_file_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in any::<prop::sample::Index>(),
        keep in any::<bool>(),
    ) {
        let mut bytes = small().finish();
        for (index, byte) in edits {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        if !keep {
            bytes.truncate(cut.index(bytes.len()));
        }
        let _ = Gguf::parse(&bytes);
    }

    #[test]
    fn random_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..400), version in 2u32..4) {
        let _ = Gguf::parse(&bytes);
        if bytes.len() >= 8 {
            bytes[..4].copy_from_slice(b"GGUF");
            bytes[4..8].copy_from_slice(&version.to_le_bytes());
            let _ = Gguf::parse(&bytes);
        }
    }
}

#[test]
fn the_parts_of_a_model_are_named_by_number_and_count() {
    let all = ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"];
    for name in all {
        assert_eq!(part_names(name).unwrap(), all);
    }
    for name in ["m.gguf", "m-00004-of-00003.gguf", "m-00000-of-00003.gguf", "m-1-of-3.gguf", "é-of-00003.gguf", "m"] {
        assert_eq!(part_names(name), None, "{name}");
    }
}

#[test]
fn parts_are_read_as_one_model_and_must_belong_together() {
    let part = |number: u16, count: u16, tensor: &str| {
        Writer::new()
            .entry("general.name", Value::String(format!("part {number}")))
            .entry("split.no", Value::U16(number))
            .entry("split.count", Value::U16(count))
            .entry("split.tensors.count", Value::I32(2))
            .tensor(tensor, &[1], TensorType::F32, vec![number as u8; 4])
            .finish()
    };
    let (first, second) = (part(0, 2, "a"), part(1, 2, "b"));
    let gguf = Gguf::read(&[&first, &second]).unwrap();
    assert_eq!(gguf.string("general.name"), Ok(Some("part 0")));
    let places: Vec<_> = gguf.tensors().iter().map(|tensor| (tensor.name.as_str(), tensor.part)).collect();
    assert_eq!(places, [("a", 0), ("b", 1)]);
    let range = gguf.require_tensor("b").unwrap().range.clone();
    assert_eq!(second[range], [1; 4]);
    let refusal = |parts: [&[u8]; 2]| Gguf::read(&parts).unwrap_err().to_string();
    assert!(refusal([&second, &first]).contains("number 1 of 2"));
    assert!(refusal([&first, &part(1, 3, "b")]).contains("of 3"));
    assert!(refusal([&first, &part(1, 2, "a")]).contains("comes twice"));
    let short = Writer::new().entry("split.no", Value::U16(1)).entry("split.count", Value::U16(2)).finish();
    assert!(refusal([&first, &short]).contains("1 tensors together, not 2"));
    assert_eq!(Gguf::parse(&second), Err(Error::Split { number: 2, count: 2 }));
}
