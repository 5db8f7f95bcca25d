//! The files of a model, mapped into memory: one, or the parts of a split one.

use std::fs::File;
use std::path::{Path, PathBuf};

use midstream_kernels::{Advice, Mmap};

use super::super::gguf::part_names;
use super::LoadError;

/// A model's files, in the order of its parts.
pub(super) struct ModelFiles {
    maps: Vec<Mmap>,
}

impl ModelFiles {
    /// Opens the file, and all others where it is one part of several.
    pub(super) fn open(path: &Path) -> Result<Self, LoadError> {
        Ok(Self { maps: parts_of(path).iter().map(|path| map(path)).collect::<Result<_, _>>()? })
    }

    /// Says that the files are read from beginning to end.
    pub(super) fn read_through(&self) {
        self.maps.iter().for_each(|map| map.advise(Advice::Sequential));
    }

    /// The files' bytes.
    pub(super) fn bytes(&self) -> Vec<&[u8]> {
        self.maps.iter().map(Mmap::as_slice).collect()
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

fn map(path: &Path) -> Result<Mmap, LoadError> {
    let unreadable =
        |reason: &dyn ToString| LoadError::Read { path: path.display().to_string(), reason: reason.to_string() };
    let file = File::open(path).map_err(|error| unreadable(&error))?;
    Mmap::new(&file).map_err(|error| unreadable(&error))
}
