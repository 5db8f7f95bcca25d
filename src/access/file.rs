//! The file of API keys in the data folder. It is written anew for every change and takes the old one's place whole, so
//! that a server that reads meanwhile sees the one or the other.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Error;
use super::key::Key;
use crate::crash;

/// What the file is called.
const FILE: &str = "keys.json";
/// How the file is laid out.
const VERSION: u32 = 1;
/// Only who runs the server may read or write it.
const MODE: u32 = 0o600;

/// Where the keys of a data folder are.
#[derive(Clone, Debug)]
pub struct KeyFile {
    path: PathBuf,
}

/// What the file says.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
    keys: Vec<Key>,
}

/// Tells one content of the file from another without reading it: who writes it makes a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    inode: u64,
    bytes: u64,
    changed: (i64, i64),
}

impl KeyFile {
    /// The file of this data folder, whether it is there or not.
    pub fn of(data_dir: &Path) -> Self {
        Self { path: data_dir.join(FILE) }
    }

    /// The keys. Without the file nobody is asked for one; with it everybody is, even where it holds none.
    pub fn read(&self) -> Result<Option<Vec<Key>>, Error> {
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(self.failed(source)),
        };
        let unreadable = |why: String| Error::Unreadable { path: self.path.clone(), why };
        let Content { version, keys } = serde_json::from_str(&text).map_err(|error| unreadable(error.to_string()))?;
        if version != VERSION {
            return Err(unreadable(format!("version {version}; this midstream knows {VERSION}")));
        }
        Ok(Some(keys))
    }

    /// Changes the keys; two that change them at once do it one after the other. A refusal leaves them as they are.
    pub fn change<T>(&self, change: impl FnOnce(&mut Vec<Key>) -> Result<T, Error>) -> Result<T, Error> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|source| self.failed(source))?;
        let lock = File::options().create(true).truncate(false).write(true).mode(MODE).open(self.beside("lock"));
        let lock = lock.and_then(|lock| lock.lock().map(|()| lock)).map_err(|source| self.failed(source))?;
        let mut keys = self.read()?.unwrap_or_default();
        let changed = change(&mut keys)?;
        self.write(folder, keys).map_err(|source| self.failed(source))?;
        drop(lock);
        Ok(changed)
    }

    fn write(&self, folder: &Path, keys: Vec<Key>) -> io::Result<()> {
        let mut text = serde_json::to_string_pretty(&Content { version: VERSION, keys })?;
        text.push('\n');
        let fresh = self.beside("new");
        // One that a crash left has whatever mode it has.
        match fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&fresh)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        crash::point("keys_written");
        fs::rename(&fresh, &self.path)?;
        File::open(folder)?.sync_all()
    }

    fn beside(&self, extension: &str) -> PathBuf {
        self.path.with_extension(extension)
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::File { path: self.path.clone(), source }
    }

    /// None where there is no file.
    pub(super) fn stamp(&self) -> Option<Stamp> {
        let found = fs::metadata(&self.path).ok()?;
        Some(Stamp { inode: found.ino(), bytes: found.len(), changed: (found.mtime(), found.mtime_nsec()) })
    }
}
