//! How much of a model's files has been read, for whoever waits for it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::gguf::Source;

/// Shared by who loads a model and who asks how far that is.
#[derive(Clone, Debug, Default)]
pub struct LoadProgress(Arc<Bytes>);

#[derive(Debug, Default)]
struct Bytes {
    read: AtomicU64,
    all: AtomicU64,
}

impl LoadProgress {
    /// The share of the files that has been read: 0 before loading begins, 1 at its end.
    pub fn share(&self) -> f64 {
        match self.0.all.load(Ordering::Relaxed) {
            0 => 0.0,
            all => (self.0.read.load(Ordering::Relaxed) as f64 / all as f64).min(1.0),
        }
    }

    /// All of it has been read that is needed.
    pub(super) fn finish(&self) {
        self.0.all.fetch_max(1, Ordering::Relaxed);
        self.0.read.fetch_max(self.0.all.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Files of which is counted what is read.
pub(super) struct Watched<'a> {
    files: &'a dyn Source,
    progress: &'a LoadProgress,
}

impl<'a> Watched<'a> {
    pub(super) fn new(files: &'a dyn Source, progress: &'a LoadProgress) -> Self {
        progress.0.all.store(files.lengths().iter().sum(), Ordering::Relaxed);
        Self { files, progress }
    }
}

impl Source for Watched<'_> {
    fn lengths(&self) -> Vec<u64> {
        self.files.lengths()
    }

    fn read(&self, part: usize, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.files.read(part, at, into)?;
        self.progress.0.read.fetch_add(into.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_grows_with_what_is_read_from_nothing_to_all() {
        let (files, progress) = ([[0_u8; 40], [0; 40]], LoadProgress::default());
        assert!(progress.share() <= 0.0);
        let watched = Watched::new(&files, &progress);
        watched.read(0, 0, &mut [0; 40]).unwrap();
        assert!((progress.share() - 0.5).abs() < 1e-9);
        assert!(watched.read(1, 30, &mut [0; 20]).is_err());
        assert!((progress.share() - 0.5).abs() < 1e-9, "what could not be read does not count");
        // A header is read more than once, and some bytes never.
        watched.read(0, 0, &mut [0; 20]).unwrap();
        progress.finish();
        assert!((progress.share() - 1.0).abs() < 1e-9);
    }
}
