//! Looking at a store that may be damaged, and mending it, without losing what only its files still hold.
//!
//! Opening a database mends it: recovery cuts its log where that cannot be read. So whoever only looks opens a copy
//! in `inspecting/`, and who mends keeps a copy first.
//!
//! **Invariant:** a look changes no byte of the journal.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::error::Error;
use super::folder::{self, Lock};
use super::repair::{self, DamageReport};
use super::sled_journal::SledJournal;
use super::{rebuild, swap};

/// Larger journals are not copied at each start.
const KEPT_BYTES_MAX: u64 = 256 << 20;

/// What [`mend`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mended {
    /// What was damaged.
    pub found: DamageReport,
    /// The journal as it was, unless nothing was damaged.
    pub kept: Option<PathBuf>,
}

/// Shows a copy of the store in the data folder `root`, with what is left of it if writes are lost.
pub fn inspect<T>(root: &Path, look: impl FnOnce(&SledJournal) -> T) -> Result<T, Error> {
    inspect_locked(root, &Lock::take(root)?, look)
}

/// Repairs the store in the data folder `root` and keeps the journal as it was. Does nothing where nothing is damaged.
pub fn mend(root: &Path) -> Result<Mended, Error> {
    let lock = Lock::take(root)?;
    let found = inspect_locked(root, &lock, repair::find_damage)??;
    if found.is_empty() {
        return Ok(Mended { found, kept: None });
    }
    let kept = keep(root, "journal.before-repair")?;
    // What a start found is of this damage; the next has its own.
    let damaged = root.join("journal.damaged");
    if damaged.exists() {
        swap::Step::Rename(damaged, swap::free_name(root, "journal.before-repair")).run()?;
    }
    let journal = SledJournal::open_accepting(root, &lock)?;
    if !found.is_unreadable {
        repair::repair(&journal)?;
        return Ok(Mended { found, kept: Some(kept) });
    }
    // What the database cannot read it cannot remove either: the rest is written anew.
    let lost = journal.lost.clone();
    rebuild::rebuild_readable(journal, root)?;
    let mut journal = SledJournal::open_accepting(root, &lock)?;
    journal.lost = journal.lost.or(lost);
    repair::repair(&journal)?;
    Ok(Mended { found, kept: Some(kept) })
}

/// Opens a journal and, where that is refused because of damage, keeps it as it was found as `journal.damaged`. Once
/// only, since who starts the server again and again finds what recovery left.
pub(super) fn keeping<T>(root: &Path, open: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let (copy, damaged) = (swap::inspecting(root), root.join("journal.damaged"));
    let is_small = swap::bytes(&swap::journal(root)).is_ok_and(|bytes| bytes <= KEPT_BYTES_MAX);
    // Without room for a copy the server starts all the same.
    let is_copied = is_small && !damaged.exists() && copy_of(root, &copy).is_ok();
    let opened = open();
    if is_copied {
        if let Err(Error::Lost(_) | Error::StoreDamaged(_)) = &opened {
            swap::Step::SyncAll(swap::journal(&copy)).run()?;
            swap::Step::Rename(swap::journal(&copy), damaged.clone()).run()?;
            swap::Step::Sync(root.to_owned()).run()?;
        }
        remove(&copy)?;
    }
    opened.map_err(|error| match error {
        Error::Lost(what) if damaged.exists() => {
            Error::Lost(format!("{what}; the journal as it was found is kept as {}", damaged.display()))
        }
        other => other,
    })
}

fn inspect_locked<T>(root: &Path, lock: &Lock, look: impl FnOnce(&SledJournal) -> T) -> Result<T, Error> {
    let copy = swap::inspecting(root);
    let looked = copy_of(root, &copy).and_then(|()| {
        let journal = SledJournal::open_accepting(&copy, lock)?;
        let seen = look(&journal);
        drop(journal);
        folder::wait_until_closed(&swap::journal(&copy))?;
        Ok(seen)
    });
    let removed = remove(&copy);
    looked.and_then(|seen| removed.map(|()| seen))
}

/// Copies the journal as it is to a free name beside it.
fn keep(root: &Path, wanted: &str) -> Result<PathBuf, Error> {
    let (copy, kept) = (swap::inspecting(root), swap::free_name(root, wanted));
    copy_of(root, &copy)?;
    let named = [swap::Step::SyncAll(swap::journal(&copy)), swap::Step::Rename(swap::journal(&copy), kept.clone())]
        .iter()
        .chain(&[swap::Step::Sync(root.to_owned())])
        .try_for_each(swap::Step::run);
    remove(&copy)?;
    named.map(|()| kept)
}

/// Copies what the journal consists of.
fn copy_of(root: &Path, to: &Path) -> Result<(), Error> {
    remove(to)?;
    let copied = fs::create_dir(to).and_then(|()| {
        for file in ["acknowledged", "journal.exists"] {
            match fs::copy(root.join(file), to.join(file)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        copy_all(&swap::journal(root), &swap::journal(to))
    });
    copied.map_err(|error| {
        let _ = remove(to);
        let needed = swap::bytes(&swap::journal(root)).unwrap_or_default();
        let what = format!(
            "cannot copy the journal to {} to look at the copy, which takes {needed} bytes; nothing was changed, free \
             so much disk space and try again",
            to.display()
        );
        Error::file(what, &error)
    })
}

fn copy_all(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_all(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

fn remove(copy: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(copy) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::file(format!("cannot remove {}", copy.display()), &error))
        }
        _ => Ok(()),
    }
}
