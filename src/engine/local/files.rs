//! The files of a model: one, or the parts of a split one; and whether they are still what they were when loading
//! began.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::super::gguf::{Source, part_names};
use super::LoadError;

/// A model's files, in the order of its parts.
pub(super) struct ModelFiles {
    parts: Vec<Part>,
}

struct Part {
    path: PathBuf,
    file: File,
    found: State,
}

/// What changes when somebody writes to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    length: u64,
    modified: Option<SystemTime>,
}

impl ModelFiles {
    /// Opens the file, and all others where it is one part of several.
    pub(super) fn open(path: &Path) -> Result<Self, LoadError> {
        Ok(Self { parts: parts_of(path).into_iter().map(Part::open).collect::<Result<_, _>>()? })
    }

    /// What came out of reading the files; or that one of them changed meanwhile, so that nothing of it can be
    /// believed, errors included.
    pub(super) fn unless_changed<T>(&self, outcome: Result<T, LoadError>) -> Result<T, LoadError> {
        match self.parts.iter().find(|part| part.changed()) {
            Some(part) => Err(LoadError::Changed { path: part.path.display().to_string() }),
            None => outcome,
        }
    }
}

impl Source for ModelFiles {
    fn lengths(&self) -> Vec<u64> {
        self.parts.iter().map(|part| part.found.length).collect()
    }

    fn read(&self, part: usize, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.parts.get(part).ok_or(io::ErrorKind::NotFound)?.file.read_exact_at(into, at)
    }
}

impl Part {
    fn open(path: PathBuf) -> Result<Self, LoadError> {
        let opened = File::open(&path).and_then(|file| {
            let found = State::of(&file.metadata()?);
            Ok((file, found))
        });
        match opened {
            Ok((file, found)) => Ok(Self { path, file, found }),
            Err(error) => Err(LoadError::Read { path: path.display().to_string(), reason: error.to_string() }),
        }
    }

    fn changed(&self) -> bool {
        self.file.metadata().map(|now| State::of(&now)).ok() != Some(self.found)
    }
}

impl State {
    fn of(metadata: &Metadata) -> Self {
        Self { length: metadata.len(), modified: metadata.modified().ok() }
    }
}

/// The name of the model in the file: the file's, without what marks a part.
pub(super) fn model_name(path: &Path) -> String {
    let stem = path.file_stem().map_or_else(|| "model".to_owned(), |stem| stem.to_string_lossy().into_owned());
    let is_part = path.file_name().and_then(|name| part_names(&name.to_string_lossy())).is_some();
    match stem.len().checked_sub(PART_MARK_BYTES).filter(|_| is_part) {
        Some(end) => stem[..end].to_owned(),
        None => stem,
    }
}

/// Bytes of `-00001-of-00003`.
const PART_MARK_BYTES: usize = 15;

fn parts_of(path: &Path) -> Vec<PathBuf> {
    let names = path.file_name().and_then(|name| part_names(name.to_str()?));
    names.map_or_else(|| vec![path.to_owned()], |names| names.iter().map(|name| path.with_file_name(name)).collect())
}
