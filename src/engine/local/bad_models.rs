//! Files that change, models that do not fit, weights that are no numbers: each is an error with a code, and nothing
//! else suffers from it.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::files::ModelFiles;
use super::load::prepare;
use super::tests::{gated_engine_of, generate, prompt, read, request};
use super::*;
use crate::engine::gguf::{Gguf, Source, TensorType};
use crate::engine::model::tiny::Tiny;
use crate::engine::{FinishReason, KvFormat};

const OPTIONS: LoadOptions = LoadOptions {
    id: None,
    aliases: Vec::new(),
    template: None,
    tool_format: None,
    reasoning: None,
    bare_calls: true,
    efforts: std::collections::BTreeMap::new(),
    price: None,
    threads: Some(1),
    context_length: None,
    kv_bytes: 1 << 20,
    kv_pinned_bytes_max: 0,
    kv_format: KvFormat::F16,
    promised_bytes: 0,
    sequences_max: 8,
    step_sequences: 8,
    step_tokens: 128,
    token_gap_ms: 1000,
    guessed_tokens: 0,
    clock: Clock::System,
    progress: None,
};

fn tiny_file(folder: &Path) -> PathBuf {
    let path = folder.join("tiny.gguf");
    fs::write(&path, Tiny::default().file()).unwrap();
    path
}

/// Files to which something is done before the read with a certain number.
struct Meddled<'a> {
    files: ModelFiles,
    reads: AtomicUsize,
    at: usize,
    meddle: &'a (dyn Fn() + Sync),
}

impl Source for Meddled<'_> {
    fn lengths(&self) -> Vec<u64> {
        self.files.lengths()
    }

    fn read(&self, part: usize, at: u64, into: &mut [u8]) -> io::Result<()> {
        if self.reads.fetch_add(1, Ordering::SeqCst) == self.at {
            (self.meddle)();
        }
        self.files.read(part, at, into)
    }
}

/// Loads a file to which something is done before each of its reads in turn; gives how many reads there are.
fn check_meddling(meddle: impl Fn(&Path) + Sync) -> usize {
    for at in 0.. {
        let folder = tempfile::tempdir().unwrap();
        let path = tiny_file(folder.path());
        let (files, reads) = (ModelFiles::open(&path).unwrap(), AtomicUsize::new(0));
        let meddled = Meddled { files, reads, at, meddle: &|| meddle(&path) };
        let outcome = prepare(&path, &meddled, &OPTIONS).map(drop);
        if meddled.reads.into_inner() <= at {
            outcome.unwrap();
            return at;
        }
        let error = meddled.files.unless_changed(outcome).unwrap_err();
        assert_eq!(error.code(), "model_changed", "read {at}: {error}");
        assert!(error.to_string().contains("tiny.gguf"), "{error}");
    }
    unreachable!("there are not that many reads")
}

#[test]
fn a_file_that_is_cut_off_while_it_is_loaded_is_refused_wherever_loading_is() {
    let cut = |path: &Path| File::options().write(true).open(path).unwrap().set_len(1000).unwrap();
    assert!(check_meddling(cut) > 20, "the weights are read one by one");
}

#[test]
fn a_file_that_is_written_to_while_it_is_loaded_is_refused_even_when_all_could_be_read() {
    let later = |path: &Path| {
        let bytes = fs::read(path).unwrap();
        fs::write(path, bytes).unwrap();
        let modified = fs::metadata(path).unwrap().modified().unwrap() + Duration::from_secs(1);
        File::options().write(true).open(path).unwrap().set_modified(modified).unwrap();
    };
    check_meddling(later);
}

#[test]
fn a_loaded_model_does_not_need_its_file_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let path = tiny_file(folder.path());
    let engine = LocalEngine::load(&path, &OPTIONS).unwrap();
    let expected = generate(&engine, request(prompt(1, 40), 10)).tokens;
    File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    assert_eq!(generate(&engine, request(prompt(1, 40), 10)).tokens, expected);
    assert_eq!(engine.health(), Ok(()));
    let error = LocalEngine::load(&path, &OPTIONS).unwrap_err();
    assert_eq!((error.code(), error.to_string().contains("not a GGUF file")), ("model_unusable", true));
}

#[test]
#[cfg(target_os = "linux")]
fn a_model_that_does_not_fit_is_refused_before_its_weights_are_read() {
    let load = |options: &LoadOptions| {
        let (tiny, weights_read) = (Tiny::default().file(), AtomicUsize::new(0));
        let data = Gguf::parse(&tiny).unwrap().tensors()[0].range.start as u64;
        let files = Watched { file: &tiny, from: data, reads: &weights_read };
        let outcome = prepare(Path::new("tiny.gguf"), &files, options).map(drop);
        (outcome.unwrap_err(), weights_read.into_inner())
    };
    let (error, reads) = load(&LoadOptions { kv_bytes: usize::MAX, ..OPTIONS });
    assert_eq!((error.code(), reads), ("kv_exceeds_memory", 0));
    assert!(error.to_string().contains("are missing; all but the KV fits: set kv_bytes to "), "{error}");
    let (error, reads) = load(&LoadOptions { promised_bytes: u64::MAX / 2, ..OPTIONS });
    assert_eq!((error.code(), reads), ("model_exceeds_memory", 0));
    assert!(error.to_string().contains("take a smaller model or quantisation"), "{error}");
}

/// A file that counts the reads of its weights.
struct Watched<'a> {
    file: &'a [u8],
    from: u64,
    reads: &'a AtomicUsize,
}

impl Source for Watched<'_> {
    fn lengths(&self) -> Vec<u64> {
        [self.file].lengths()
    }

    fn read(&self, part: usize, at: u64, into: &mut [u8]) -> io::Result<()> {
        if at >= self.from {
            self.reads.fetch_add(1, Ordering::SeqCst);
        }
        [self.file].read(part, at, into)
    }
}

#[test]
fn a_token_whose_embedding_is_no_number_fails_its_sequence_and_none_beside_or_behind_it() {
    const BAD: u32 = 68;
    for (kind, scale) in [(TensorType::F32, &f32::NAN.to_le_bytes()[..]), (TensorType::Q4_1, &[0, 0x7e])] {
        let healthy = Tiny { kind, own_output: true, ..Tiny::default() }.file();
        let gguf = Gguf::parse(&healthy).unwrap();
        let embedding = gguf.require_tensor("token_embd.weight").unwrap();
        let row = embedding.range.len() / embedding.rows();
        let mut file = healthy.clone();
        let at = embedding.range.start + BAD as usize * row;
        file[at..at + scale.len()].copy_from_slice(scale);
        let answers = |file: &[u8], bad: bool| {
            let (engine, gate) = gated_engine_of(prepare(Path::new("x"), &[file], &OPTIONS).unwrap(), 8);
            // Holds the first step until the others are there, so that they share all that follow.
            let first = engine.submit(request(prompt(1, 20), 12)).unwrap();
            gate.arrived.recv().unwrap();
            let poisoned = bad.then(|| engine.submit(request([1, BAD, 2].repeat(20).into(), 12)).unwrap());
            let other = engine.submit(request(prompt(2, 20), 12)).unwrap();
            drop(gate.open);
            let mut answers = vec![read(first), read(other)];
            if let Some(poisoned) = poisoned.map(read) {
                assert!(matches!(&poisoned.finish, Some(FinishReason::Failed(text)) if text.contains("not finite")));
                assert_eq!(poisoned.tokens, [0; 0]);
            }
            // Over the blocks that it left.
            answers.extend((3..8).map(|seed| generate(&engine, request(prompt(seed, 100), 12))));
            assert_eq!(engine.health(), Ok(()));
            answers
        };
        assert!((1..8).all(|seed| !prompt(seed, 100).contains(&BAD)), "the others do without the token");
        assert_eq!(answers(&file, true), answers(&healthy, false), "{kind:?}");
    }
}
