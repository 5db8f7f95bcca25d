//! The data folder: its lock, sled's files in it, and the sync that sled leaves out.
//!
//! sled 0.34's flush writes the log and calls `sync_file_range`, which moves pages to the device but neither
//! flushes the device's cache nor writes the file's metadata: after a power cut a flushed batch can be gone. So
//! [`Folder::sync`] calls `sync_data` on its own handle of the log file `db`, which syncs the file whoever wrote
//! it. Large leaves would go to files under `blobs`, which sled does not sync at all; the codec's chunks are
//! small enough that there are none, and should one appear it is synced too.
//!
//! Layout: `lock`, `journal/` (sled's), `journal.exists`, written once the first schema number is durable,
//! `acknowledged`, which `acknowledged.rs` owns, and what `swap.rs` puts in the journal's place.
//!
//! **Invariant:** a folder that once held a journal is never opened as an empty one.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::error::Error;
use super::swap;

/// Memory for sled's page cache.
const PAGE_CACHE_BYTES: u64 = 64 << 20;

/// How often, and how long apart, opening is tried while sled's threads of an earlier handle in this process
/// still let go of the file.
const REOPEN_TRIES: u32 = 200;
const REOPEN_PAUSE: Duration = Duration::from_millis(25);

/// An open data folder.
#[derive(Debug)]
pub(super) struct Folder {
    root: PathBuf,
    database: File,
    /// Blob files that are synced already; they never change once written.
    synced_blobs: Mutex<HashSet<OsString>>,
    /// Held as long as the folder is open.
    _lock: Lock,
}

/// The right to use a data folder, as long as there is a clone of it.
#[derive(Clone, Debug)]
pub(super) struct Lock {
    _file: Arc<File>,
}

impl Lock {
    /// Locks the folder, creating it if it does not exist, and finishes what a crash interrupted in it.
    pub(super) fn take(root: &Path) -> Result<Self, Error> {
        fs::create_dir_all(root).map_err(|error| Error::file(format!("cannot create {}", root.display()), &error))?;
        let lock = Self { _file: Arc::new(lock(root)?) };
        swap::finish(root)?;
        Ok(lock)
    }
}

impl Folder {
    /// Opens the database in the locked folder, creating it if it does not exist.
    pub(super) fn open(root: &Path, lock: &Lock) -> Result<(Self, sled::Db), Error> {
        let at = |what: &str, path: &Path| format!("cannot {what} {}", path.display());
        let journal = swap::journal(root);
        if holds_journal(root) && !journal.join("db").exists() {
            return Err(Error::StoreDamaged(format!(
                "{} says that there is a journal, but {} is missing",
                marker(root).display(),
                journal.join("db").display()
            )));
        }
        remove_unfinished_snapshots(&journal).map_err(|error| Error::file(at("clean", &journal), &error))?;
        let db = open_database(&journal)?;
        let database_path = journal.join("db");
        let database = File::options()
            .read(true)
            .write(true)
            .open(&database_path)
            .map_err(|error| Error::file(at("open", &database_path), &error))?;
        for name in ["conf", "blobs", "."] {
            let path = journal.join(name);
            sync_path(&path).map_err(|error| Error::file(at("sync", &path), &error))?;
        }
        let folder = Self { root: root.to_owned(), database, synced_blobs: Mutex::default(), _lock: lock.clone() };
        folder.sync_names()?;
        Ok((folder, db))
    }

    /// Makes durable what sled flushed.
    pub(super) fn sync(&self) -> Result<(), Error> {
        self.try_sync().map_err(|error| Error::SyncFailed(error.to_string()))
    }

    fn try_sync(&self) -> io::Result<()> {
        let blobs = self.root.join("journal").join("blobs");
        let mut synced = self.synced_blobs.lock().unwrap_or_else(PoisonError::into_inner);
        let known = synced.len();
        for blob in fs::read_dir(&blobs)? {
            let name = blob?.file_name();
            if !synced.contains(&name) {
                // sled may have removed it since.
                match sync_path(&blobs.join(&name)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => synced.insert(name),
                };
            }
        }
        if synced.len() > known {
            sync_path(&blobs)?;
        }
        self.database.sync_data()
    }

    /// Whether the folder once held a journal.
    pub(super) fn was_initialised(&self) -> bool {
        holds_journal(&self.root)
    }

    /// Remembers that the folder holds a journal.
    pub(super) fn mark_initialised(&self) -> Result<(), Error> {
        let path = marker(&self.root);
        fs::write(&path, "This folder holds midstream's journal. Do not remove this file.\n")
            .and_then(|()| sync_path(&path))
            .map_err(|error| Error::file(format!("cannot write {}", path.display()), &error))?;
        self.sync_names()
    }

    /// Makes the names in the folder, and its own, durable.
    fn sync_names(&self) -> Result<(), Error> {
        let parent = self.root.parent().filter(|parent| !parent.as_os_str().is_empty());
        for path in [Some(self.root.as_path()), parent].into_iter().flatten() {
            sync_path(path).map_err(|error| Error::file(format!("cannot sync {}", path.display()), &error))?;
        }
        Ok(())
    }
}

/// Whether the folder holds a journal.
pub fn holds_journal(root: &Path) -> bool {
    marker(root).exists()
}

fn marker(root: &Path) -> PathBuf {
    root.join("journal.exists")
}

fn sync_path(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn lock(root: &Path) -> Result<File, Error> {
    let path = root.join("lock");
    let cannot = |error: &io::Error| Error::file(format!("cannot lock {}", path.display()), error);
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(|error| cannot(&error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::InUse(root.to_owned())),
        Err(TryLockError::Error(error)) => Err(cannot(&error)),
    }
}

/// Waits until nothing of this process has the database open any more.
pub(super) fn wait_until_closed(journal: &Path) -> Result<(), Error> {
    let path = journal.join("db");
    let file = File::open(&path).map_err(|error| Error::file(format!("cannot open {}", path.display()), &error))?;
    for _ in 0..REOPEN_TRIES {
        if file.try_lock().is_ok() {
            return Ok(());
        }
        std::thread::park_timeout(REOPEN_PAUSE);
    }
    Err(Error::InUse(journal.to_owned()))
}

fn snapshots(journal: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    if journal.exists() {
        for entry in fs::read_dir(journal)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with("snap.") {
                found.push(entry.path());
            }
        }
    }
    Ok(found)
}

/// sled takes a snapshot that a crash left half written for the newest one, and calls the store corrupt.
fn remove_unfinished_snapshots(journal: &Path) -> io::Result<()> {
    for path in snapshots(journal)? {
        if path.extension().is_some_and(|extension| extension == "generating") {
            tracing::warn!(path = %path.display(), "removed a snapshot that a crash left half written");
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// A snapshot only shortens recovery: without it sled reads the whole log.
fn set_snapshots_aside(journal: &Path) -> io::Result<usize> {
    let snapshots = snapshots(journal)?;
    for path in &snapshots {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        fs::rename(path, journal.join(format!("damaged-{name}")))?;
    }
    Ok(snapshots.len())
}

fn open_database(journal: &Path) -> Result<sled::Db, Error> {
    match start_sled(journal) {
        Err(Error::StoreDamaged(why)) => {
            let aside = set_snapshots_aside(journal)
                .map_err(|error| Error::file(format!("cannot rename snapshots in {}", journal.display()), &error))?;
            tracing::error!(%why, aside, "the store is damaged; its snapshots are set aside, and it is opened again");
            start_sled(journal)
        }
        other => other,
    }
}

/// sled asserts in places where it could report damage, so a panic is taken for damage.
fn start_sled(journal: &Path) -> Result<sled::Db, Error> {
    let config = sled::Config::new().path(journal).cache_capacity(PAGE_CACHE_BYTES).flush_every_ms(None);
    for attempt in 0.. {
        let opened = catch_unwind(AssertUnwindSafe(|| config.open()));
        let lingers = matches!(&opened, Ok(Err(sled::Error::Io(error))) if error.to_string().contains("acquire lock"));
        if lingers && attempt < REOPEN_TRIES {
            std::thread::park_timeout(REOPEN_PAUSE);
            continue;
        }
        return match opened {
            Ok(opened) => opened.map_err(Error::from),
            Err(_) => Err(Error::StoreDamaged(format!("{} cannot be read", journal.display()))),
        };
    }
    Err(Error::InUse(journal.to_owned()))
}
