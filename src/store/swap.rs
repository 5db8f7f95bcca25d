//! Putting a rebuilt journal in the place of the old one.
//!
//! What is built lies in `rebuilding/`; once it is whole and on disk it gets the name `journal.next`. Then the old
//! journal steps aside and the next one takes its name. Two renames cannot be one, so whoever takes the folder's
//! lock finishes what a crash left in between.
//!
//! **Invariant:** whatever step a crash follows, the next start finds the whole old journal or the whole new one;
//! the old one is removed only when the new one's name is on disk.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::error::Error;
use crate::crash;

/// The journal in use.
pub(super) fn journal(root: &Path) -> PathBuf {
    root.join("journal")
}

/// The data folder in which a journal is rebuilt.
pub(super) fn rebuilding(root: &Path) -> PathBuf {
    root.join("rebuilding")
}

/// The copy of a journal that is only looked at.
pub(super) fn inspecting(root: &Path) -> PathBuf {
    root.join("inspecting")
}

fn next(root: &Path) -> PathBuf {
    root.join("journal.next")
}

fn old(root: &Path) -> PathBuf {
    root.join("journal.old")
}

/// One step on files.
#[derive(Debug)]
pub(super) enum Step {
    Rename(PathBuf, PathBuf),
    /// Makes the names in a folder durable.
    Sync(PathBuf),
    /// Makes every file below durable.
    SyncAll(PathBuf),
    Remove(PathBuf),
}

impl Step {
    pub(super) fn run(&self) -> Result<(), Error> {
        let done = match self {
            Self::Rename(from, to) => fs::rename(from, to),
            Self::Sync(path) => File::open(path).and_then(|folder| folder.sync_all()),
            Self::SyncAll(path) => sync_all(path),
            Self::Remove(path) if path.exists() => fs::remove_dir_all(path),
            Self::Remove(_) => Ok(()),
        };
        done.map_err(|error| Error::file(format!("cannot put the rebuilt journal in place ({self:?})"), &error))?;
        crash::point("swap_step");
        Ok(())
    }
}

/// The steps from a journal in `rebuilding/`, closed and whole, to its use. The old one is removed, or kept under
/// the name `aside`.
pub(super) fn steps(root: &Path, aside: Option<&Path>) -> Vec<Step> {
    let (built, root_) = (rebuilding(root), || root.to_owned());
    let mut steps = vec![
        Step::SyncAll(journal(&built)),
        Step::Rename(journal(&built), next(root)),
        Step::Sync(root_()),
        Step::Rename(journal(root), aside.map_or_else(|| old(root), Path::to_owned)),
        Step::Sync(root_()),
        Step::Rename(next(root), journal(root)),
        Step::Sync(root_()),
        Step::Remove(built),
    ];
    if aside.is_none() {
        steps.push(Step::Remove(old(root)));
    }
    steps
}

/// Finishes what a crash interrupted. Only for the holder of the folder's lock.
pub(super) fn finish(root: &Path) -> Result<(), Error> {
    let (journal, next, old, built) = (journal(root), next(root), old(root), rebuilding(root));
    let mut steps = Vec::new();
    if !journal.exists() && next.exists() {
        steps.push(Step::Rename(next, journal));
    } else if !journal.exists() && old.exists() {
        steps.push(Step::Rename(old.clone(), journal));
    } else {
        steps.push(Step::Remove(next));
    }
    steps.extend([Step::Sync(root.to_owned()), Step::Remove(old), Step::Remove(built), Step::Remove(inspecting(root))]);
    steps.iter().try_for_each(Step::run)
}

/// A name beside the journal that nothing has yet.
pub(super) fn free_name(root: &Path, wanted: &str) -> PathBuf {
    let candidates = (2..).map(|number| root.join(format!("{wanted}.{number}")));
    std::iter::once(root.join(wanted))
        .chain(candidates)
        .find(|path| !path.exists())
        .unwrap_or_else(|| root.join(wanted))
}

/// How many bytes the files below take.
pub(super) fn bytes(path: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let about = entry.metadata()?;
        bytes += if about.is_dir() { self::bytes(&entry.path())? } else { about.len() };
    }
    Ok(bytes)
}

fn sync_all(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_all(&entry.path())?;
        } else {
            File::open(entry.path())?.sync_all()?;
        }
    }
    File::open(path)?.sync_all()
}
