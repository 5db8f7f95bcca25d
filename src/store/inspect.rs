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
    // What a start found of this damage is the journal as it was, for opening has cut it; the next damage has its own.
    let (damaged, named) = (root.join("journal.damaged"), swap::free_name(root, "journal.before-repair"));
    let as_found = damaged.exists().then(|| named.clone());
    if as_found.is_some() {
        swap::Step::Rename(damaged, named).run()?;
    }
    let cut = keep(root, "journal.before-repair")?;
    let kept = as_found.unwrap_or(cut);
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
/// only, since who starts the server again and again finds what recovery left. The copy that this takes is made only
/// where it costs little; without one the journal is opened all the same.
pub(super) fn keeping<T>(root: &Path, bytes_max: u64, open: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let (copy, damaged) = (swap::inspecting(root), root.join("journal.damaged"));
    let copied = if damaged.exists() { None } else { Some(copy_cheaply(root, &copy, bytes_max)) };
    let opened = open();
    if copied == Some(Ok(())) {
        if let Err(Error::Lost(_) | Error::StoreDamaged(_)) = &opened {
            swap::Step::SyncAll(swap::journal(&copy)).run()?;
            swap::Step::Rename(swap::journal(&copy), damaged.clone()).run()?;
            swap::Step::Sync(root.to_owned()).run()?;
        }
        put_away(&copy)?;
    }
    opened.map_err(|error| match error {
        Error::Lost(what) if damaged.exists() => {
            Error::Lost(format!("{what}; the journal as it was found is kept as {}", damaged.display()))
        }
        Error::Lost(what) => {
            let why = copied.and_then(Result::err).unwrap_or_default();
            Error::Lost(format!("{what}; the journal as it was found is not kept: {why}"))
        }
        other => other,
    })
}

/// Copies the journal if its files can share their bytes with the copy, or if it has at most `bytes_max` bytes and
/// twice as many are free. Else says why not.
fn copy_cheaply(root: &Path, to: &Path, bytes_max: u64) -> Result<(), String> {
    if copy_with(root, to, share).is_ok() {
        return Ok(());
    }
    let bytes = swap::bytes(&swap::journal(root)).map_err(|error| error.to_string())?;
    if bytes > bytes_max {
        return Err(format!("it has {bytes} bytes, more than the setting journal_kept_bytes_max"));
    }
    let free = rustix::fs::statvfs(root).map_err(|error| error.to_string())?;
    let free = free.f_bavail.saturating_mul(free.f_frsize);
    if bytes > free / 2 {
        return Err(format!("it has {bytes} bytes, and only {free} bytes of disk space are free"));
    }
    copy_of(root, to).map_err(|error| error.to_string())
}

/// Copies a file without its bytes, where the filesystem can: sled changes it in place, so a second name is no copy.
#[cfg(target_os = "linux")]
fn share(from: &Path, to: &Path) -> io::Result<()> {
    Ok(rustix::fs::ioctl_ficlone(fs::File::create(to)?, fs::File::open(from)?)?)
}

/// Nowhere else is it known how.
#[cfg(not(target_os = "linux"))]
fn share(_from: &Path, _to: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
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
    let removed = put_away(&copy);
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
    put_away(&copy)?;
    named.map(|()| kept)
}

/// Copies what the journal consists of.
fn copy_of(root: &Path, to: &Path) -> Result<(), Error> {
    copy_with(root, to, |from, to| fs::copy(from, to).map(drop)).map_err(|error| {
        let needed = swap::bytes(&swap::journal(root)).unwrap_or_default();
        let what = format!(
            "cannot copy the journal to {} to look at the copy, which takes {needed} bytes; nothing was changed, free \
             so much disk space and try again",
            to.display()
        );
        Error::file(what, &error)
    })
}

/// A way to copy one file.
type CopyFile = fn(&Path, &Path) -> io::Result<()>;

/// As [`copy_of`], in this way. Leaves nothing where it fails.
fn copy_with(root: &Path, to: &Path, copy_file: CopyFile) -> io::Result<()> {
    let copied = remove(to).and_then(|()| fs::create_dir(to)).and_then(|()| {
        for file in ["acknowledged", "journal.exists"] {
            match fs::copy(root.join(file), to.join(file)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        copy_all(&swap::journal(root), &swap::journal(to), copy_file)
    });
    if copied.is_err() {
        let _ = remove(to);
    }
    copied
}

fn copy_all(from: &Path, to: &Path, copy_file: CopyFile) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_all(&entry.path(), &target, copy_file)?;
        } else {
            copy_file(&entry.path(), &target)?;
        }
    }
    Ok(())
}

/// Removes the copy, if there is one.
fn remove(copy: &Path) -> io::Result<()> {
    match fs::remove_dir_all(copy) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// As [`remove`], for a copy that is done with.
fn put_away(copy: &Path) -> Result<(), Error> {
    remove(copy).map_err(|error| Error::file(format!("cannot remove {}", copy.display()), &error))
}
