//! Where the bytes of a model's files come from. Files are read, never mapped: one that is cut off while it is read is
//! an error here, and would be a signal that ends the process there.

use std::io;

/// The files of a model, in the order of its parts.
pub trait Source: Sync {
    /// The length of each file.
    fn lengths(&self) -> Vec<u64>;

    /// Fills `into` with the bytes of a file from `at` on. A file that ends before is an error.
    fn read(&self, part: usize, at: u64, into: &mut [u8]) -> io::Result<()>;
}

/// Files that are in memory.
impl<T: AsRef<[u8]> + Sync, const PARTS: usize> Source for [T; PARTS] {
    fn lengths(&self) -> Vec<u64> {
        self.iter().map(|file| file.as_ref().len() as u64).collect()
    }

    fn read(&self, part: usize, at: u64, into: &mut [u8]) -> io::Result<()> {
        let file = self.get(part).map(AsRef::as_ref).unwrap_or_default();
        let start = usize::try_from(at).unwrap_or(usize::MAX);
        let bytes = start.checked_add(into.len()).and_then(|end| file.get(start..end));
        into.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}
