//! Writing a store anew from its own dump: to leave out the bytes of what is gone, or to reach a newer schema.
//!
//! **Invariant:** the old journal is only read. It gives way to the new one when that is whole, on disk and, unless
//! its schema is another one, holds the same.

use std::io::{self, BufReader, BufWriter, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::dump::{DumpSummary, LoadSummary, dump_as, load};
use super::error::Error;
use super::folder::{self, Lock};
use super::sled_journal::SledJournal;
use super::{migrate, swap};
use crate::crash;

/// What a compaction did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// Conversations kept.
    pub conversations: usize,
    /// Events kept.
    pub events: usize,
    /// Size of the journal's files before.
    pub bytes_before: u64,
    /// Size of the journal's files after.
    pub bytes_after: u64,
}

/// Writes the journal in the data folder anew, so that what was deleted leaves the disk. Refused while a server
/// uses the folder, and while anything in it is damaged, since the damaged part would be gone for good; it is kept as
/// [`SledJournal::open_keeping`] keeps it.
pub fn compact(root: &Path, kept_bytes_max: u64) -> Result<Compacted, Error> {
    let lock = Lock::take(root)?;
    let journal = SledJournal::open_locked(root, &lock, kept_bytes_max)?;
    let bytes_before = size(root)?;
    let built = build_same(&journal, root);
    close(journal, root)?;
    let DumpSummary { conversations, events, .. } = match built {
        Ok(dumped) => dumped,
        Err(error) => {
            swap::finish(root)?;
            return Err(error);
        }
    };
    crash::point("compaction_built");
    swap::steps(root, None).iter().try_for_each(swap::Step::run)?;
    Ok(Compacted { conversations, events, bytes_before, bytes_after: size(root)? })
}

/// Builds a journal with the same content, or says why there is none.
fn build_same(journal: &SledJournal, root: &Path) -> Result<DumpSummary, Error> {
    let (dumped, digest) = build(journal, root, migrate::SCHEMA)?;
    let damaged = dumped.damaged.len() + dumped.damaged_records;
    if damaged > 0 {
        return Err(Error::Invalid(format!(
            "{damaged} conversations or records are damaged, and compacting would remove what is left of them; see \
             midstream conversations repair"
        )));
    }
    let target = swap::rebuilding(root);
    let built = open_built(&target)?;
    let is_same = digest_of(&built)? == digest;
    close(built, &target)?;
    if is_same {
        Ok(dumped)
    } else {
        Err(Error::Invalid("the rebuilt journal differs from the old one; nothing was changed".into()))
    }
}

/// Brings the journal of an older schema to this build's and keeps the old one aside.
pub(super) fn migrate(journal: SledJournal, root: &Path, lock: &Lock) -> Result<SledJournal, Error> {
    let (from, to) = (journal.schema, migrate::SCHEMA);
    let aside = swap::free_name(root, &format!("journal.schema-{from}"));
    tracing::warn!(from, to, "the store was written by an older version and is brought to this one's schema");
    let (dumped, _) = build(&journal, root, from)?;
    for error in &dumped.damaged {
        tracing::error!(%error, aside = %aside.display(), "only what lies before the damage is taken over");
    }
    if dumped.damaged_records > 0 {
        tracing::error!(count = dumped.damaged_records, "damaged records of the index are not taken over");
    }
    close(journal, root)?;
    swap::steps(root, Some(&aside)).iter().try_for_each(swap::Step::run)?;
    tracing::warn!(
        conversations = dumped.conversations, events = dumped.events, aside = %aside.display(),
        "the store has the new schema; the old journal is kept aside, and can be deleted once all is well"
    );
    SledJournal::open_locked(root, lock, 0)
}

/// Writes anew what can be read of a journal, of which a copy is kept, and puts it in its place.
pub(super) fn rebuild_readable(journal: SledJournal, root: &Path) -> Result<(), Error> {
    build(&journal, root, migrate::SCHEMA)?;
    close(journal, root)?;
    swap::steps(root, None).iter().try_for_each(swap::Step::run)
}

/// Loads a journal's dump into a new one in `rebuilding/`, whole and closed. Its count of writes goes on from the old
/// one's, so that the file of what was acknowledged fits both.
pub(super) fn build(journal: &SledJournal, root: &Path, schema: u32) -> Result<(DumpSummary, Digested), Error> {
    let target = swap::rebuilding(root);
    swap::Step::Remove(target.clone()).run()?;
    let built = open_built(&target)?;
    let (reader, writer) = io::pipe().map_err(|error| Error::file("cannot open a pipe", &error))?;
    let (dumped, loaded) = std::thread::scope(|scope| {
        let dumping = scope.spawn(move || {
            let mut out = Digesting { out: BufWriter::new(writer), hash: Sha256::new() };
            dump_as(journal, schema, &mut out).map(|summary| (summary, out.hash.finalize().into()))
        });
        let loaded = load(&built, &mut BufReader::new(reader));
        (dumping.join(), loaded)
    });
    // What cannot be loaded also ends the dump: the first cause counts.
    let LoadSummary { events, .. } = loaded?;
    let (dumped, digest) = dumped.map_err(|_| Error::StoreDamaged("the journal cannot be read".into()))??;
    if events != dumped.events {
        return Err(Error::Invalid(format!("{} events were read and {events} written", dumped.events)));
    }
    built.count_from(journal)?;
    close(built, &target)?;
    Ok((dumped, digest))
}

/// Opens what is being built, of which no copy is needed.
fn open_built(target: &Path) -> Result<SledJournal, Error> {
    SledJournal::open_keeping(target, 0)
}

/// Lets go of the journal and waits until sled's threads have too: they would write by name into what takes its place.
fn close(journal: SledJournal, root: &Path) -> Result<(), Error> {
    drop(journal);
    folder::wait_until_closed(&swap::journal(root))
}

fn size(root: &Path) -> Result<u64, Error> {
    let path = swap::journal(root);
    swap::bytes(&path).map_err(|error| Error::file(format!("cannot measure {}", path.display()), &error))
}

/// SHA-256 of a dump.
type Digested = [u8; 32];

fn digest_of(journal: &SledJournal) -> Result<Digested, Error> {
    let mut out = Digesting { out: io::sink(), hash: Sha256::new() };
    dump_as(journal, migrate::SCHEMA, &mut out)?;
    Ok(out.hash.finalize().into())
}

/// Passes on what is written, and hashes it.
struct Digesting<W> {
    out: W,
    hash: Sha256,
}

impl<W: Write> Write for Digesting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
