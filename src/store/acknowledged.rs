//! Finds out at the start whether acknowledged writes are gone.
//!
//! sled's recovery meets a damaged record in two ways, and neither is an error to it: in the last segments it cuts
//! the log there, and further back it leaves out the rest of the segment and goes on behind it. So every group of
//! batches carries a [`Tally`] in its own atomic batch: how many batches were ever written, and a sum over all rows
//! of the index. A cut takes the tally back, which the file `acknowledged` beside the journal shows; a hole in the
//! middle leaves a sum that the rows do not have. Events need no sum: the head record says how many there must be.
//!
//! The file is written after the sync and never synced itself: it may lag behind what is on disk, and must never run
//! ahead of it.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::error::Error;
use super::sled_access::Access;
use super::{codec, keys};

/// Stands for a key in the file's checksum.
const FILE_KEY: &[u8] = b"acknowledged";

/// What the journal says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Batches written since the store was made, or since it was first opened by a version that counts.
    committed: u64,
    /// The sum over the index, unless a part of it could not be read when its loss was accepted.
    index_sum: Option<u128>,
}

impl Tally {
    /// The tally behind `batches` more, which change these rows of the index from `before`.
    pub(super) fn after(
        self,
        batches: usize,
        index: &HashMap<Vec<u8>, Option<Vec<u8>>>,
        before: &HashMap<Vec<u8>, Option<sled::IVec>>,
    ) -> Self {
        let changed = |sum: u128, (key, value): (&Vec<u8>, &Option<Vec<u8>>)| {
            let old = before.get(key).and_then(Option::as_ref).map_or(0, |value| weight(value));
            sum.wrapping_sub(old).wrapping_add(value.as_deref().map_or(0, weight))
        };
        Self {
            committed: self.committed.saturating_add(batches as u64),
            index_sum: self.index_sum.map(|sum| index.iter().fold(sum, changed)),
        }
    }

    /// This tally with at least as many batches as the other.
    pub(super) fn counted_from(self, other: Self) -> Self {
        Self { committed: self.committed.max(other.committed), ..self }
    }

    pub(super) fn encode(self) -> Vec<u8> {
        let mut body = self.committed.to_be_bytes().to_vec();
        body.extend(self.index_sum.iter().flat_map(|sum| sum.to_be_bytes()));
        body
    }

    fn decode(body: &[u8]) -> Option<Self> {
        let (committed, sum) = body.split_first_chunk()?;
        let index_sum = if sum.is_empty() { None } else { Some(u128::from_be_bytes(sum.try_into().ok()?)) };
        Some(Self { committed: u64::from_be_bytes(*committed), index_sum })
    }

    fn read(db: &sled::Db, access: &Access) -> Result<Option<Self>, Error> {
        let Some(value) = access.read(|| db.get(keys::TALLY))? else {
            return Ok(None);
        };
        let tally = codec::unseal(keys::TALLY, &value).ok().and_then(Self::decode);
        tally.map(Some).ok_or_else(|| Error::StoreDamaged("the count of its writes cannot be read".into()))
    }
}

/// A row's part of the sum: its checksum, and above all carries, one.
fn weight(value: &[u8]) -> u128 {
    let checksum = value.first_chunk().map_or(0, |sum| u32::from_be_bytes(*sum));
    (1 << 64) + u128::from(checksum)
}

/// The sum over the rows that are there.
fn index_sum(db: &sled::Db, access: &Access) -> Result<u128, Error> {
    let mut sum = 0_u128;
    for kind in keys::INDEX {
        let mut rows = db.scan_prefix([kind]);
        while let Some((_, value)) = access.next(&mut rows)? {
            sum = sum.wrapping_add(weight(&value));
        }
    }
    Ok(sum)
}

/// What is done about a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Losses {
    /// The store is not opened.
    Refuse,
    /// It is opened with what is left, and nothing is written before somebody writes.
    Accept,
}

/// What the file said when the folder was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// There was none: a new or older store, or somebody accepts a loss.
    Nothing,
    /// A power cut tore it.
    Torn,
    /// At least so many batches were acknowledged.
    AtLeast(u64),
}

/// The file that says how many batches were acknowledged.
#[derive(Debug)]
pub(super) struct Acknowledged {
    path: PathBuf,
    file: File,
    known: Known,
    /// The last write failed, and that was said.
    failing: AtomicBool,
}

impl Acknowledged {
    /// Opens the file in the data folder, or makes it.
    pub(super) fn open(root: &Path) -> Result<Self, Error> {
        let path = root.join("acknowledged");
        let cannot = |error: &io::Error| Error::file(format!("cannot open {}", path.display()), error);
        let known = match fs::read(&path) {
            Ok(bytes) => codec::unseal(FILE_KEY, &bytes)
                .ok()
                .and_then(|body| codec::decode_seq(body).ok())
                .map_or(Known::Torn, Known::AtLeast),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Known::Nothing,
            Err(error) => return Err(cannot(&error)),
        };
        let options = File::options().create(true).truncate(known == Known::Torn).write(true).open(&path);
        let file = options.map_err(|error| cannot(&error))?;
        if known == Known::Torn {
            tracing::warn!(path = %path.display(), "the count of acknowledged writes is torn and begun anew");
        }
        Ok(Self { path, file, known, failing: AtomicBool::new(false) })
    }

    /// Compares the journal with what was acknowledged, and returns the tally to go on from, and what is lost.
    /// `durable` makes durable what is in the database.
    pub(super) fn check(
        &self,
        db: &sled::Db,
        access: &Access,
        losses: Losses,
        durable: impl Fn() -> Result<(), Error>,
    ) -> Result<(Tally, Option<String>), Error> {
        let tally = Tally::read(db, access);
        let stored = tally.clone().ok().flatten().unwrap_or_default();
        let sum = index_sum(db, access);
        if let Some(what) = self.loss(&tally, &sum) {
            let acknowledged = if let Known::AtLeast(count) = self.known { count } else { 0 };
            let next = Tally { committed: stored.committed.max(acknowledged), index_sum: sum.ok() };
            return match losses {
                Losses::Refuse => Err(Error::Lost(what)),
                Losses::Accept => Ok((next, Some(what))),
            };
        }
        let next = Tally { committed: stored.committed, index_sum: sum.ok() };
        if tally != Ok(Some(next)) {
            let value = codec::seal(keys::TALLY, &next.encode());
            access.read(|| db.insert(keys::TALLY, value.as_slice()))?;
            db.flush()?;
        }
        // Also what a killed process wrote and did not sync: the file must not run ahead of it.
        durable()?;
        self.write(next);
        Ok((next, None))
    }

    /// What is lost, unless somebody accepts that.
    fn loss(&self, tally: &Result<Option<Tally>, Error>, sum: &Result<u128, Error>) -> Option<String> {
        let accepted = self.known == Known::Nothing;
        let stored = match tally {
            Err(_) if accepted => Tally::default(),
            Err(_) => return Some("the count of its writes cannot be read".into()),
            Ok(tally) => tally.unwrap_or_default(),
        };
        if let Known::AtLeast(acknowledged) = self.known
            && let missing @ 1.. = acknowledged.saturating_sub(stored.committed)
        {
            return Some(format!("{missing} of {acknowledged} acknowledged writes are missing"));
        }
        let fault = match (sum, stored.index_sum) {
            (Err(_), Some(_)) => Some("a part of its index cannot be read".to_owned()),
            (Ok(sum), Some(stored)) if *sum != stored => {
                let (found, written) = (*sum >> 64, stored >> 64);
                Some(format!(
                    "acknowledged writes are missing: the index has {found} rows where {written} were written"
                ))
            }
            _ => None,
        };
        if accepted && let Some(what) = &fault {
            tracing::error!(%what, "the loss is accepted, since the count was deleted");
        }
        fault.filter(|_| !accepted)
    }

    /// Notes that all of the tally is acknowledged. It is only a lower bound, so a failure costs no more than that.
    pub(super) fn write(&self, tally: Tally) {
        let bytes = codec::seal(FILE_KEY, &codec::encode_seq(tally.committed));
        let mut file = &self.file;
        match file.rewind().and_then(|()| file.write_all(&bytes)) {
            Ok(()) => self.failing.store(false, Ordering::Relaxed),
            Err(error) => {
                if !self.failing.swap(true, Ordering::Relaxed) {
                    let path = self.path.display();
                    tracing::warn!(%path, %error, "the count of acknowledged writes cannot be written");
                }
            }
        }
    }
}
