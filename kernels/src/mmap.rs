//! A read-only view of a file's bytes through the page cache.
//! It must never be kept for longer than loading takes: a file that shrinks while it is mapped ends the process.

use std::fs::File;

use crate::Error;

/// How a mapping is going to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Front to back, once.
    Sequential,
    /// Soon, all of it.
    WillNeed,
    /// Not again.
    DontNeed,
}

/// A file mapped for reading.
///
/// Reading a page behind the end of a file that was truncated after mapping raises SIGBUS, and bytes change under the
/// reader if another process writes to the file. So map model files only, read everything once while loading
/// ([`crate::WeightMatrix::new`] copies), and drop the map.
#[derive(Debug)]
pub struct Mmap {
    /// Null for an empty file: an empty mapping does not exist.
    start: *const u8,
    len: usize,
}

// SAFETY: the mapping is only ever read.
unsafe impl Send for Mmap {}
// SAFETY: the mapping is only ever read.
unsafe impl Sync for Mmap {}

impl Mmap {
    /// Maps the whole file as it is now.
    #[cfg(unix)]
    pub fn new(file: &File) -> Result<Self, Error> {
        use std::os::fd::AsRawFd;

        let len = file.metadata()?.len();
        let len = usize::try_from(len).map_err(|_| std::io::Error::from(std::io::ErrorKind::FileTooLarge))?;
        if len == 0 {
            return Ok(Self { start: std::ptr::null(), len });
        }
        // SAFETY: a new private mapping touches no existing memory; the descriptor is open for the call.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().into());
        }
        Ok(Self { start: start.cast::<u8>().cast_const(), len })
    }

    /// The file's bytes.
    pub fn as_slice(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: `start` maps `len` readable bytes for as long as `self` lives (see the type about truncation).
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    /// Tells the system how the bytes will be read. A hint: failure is ignored.
    #[cfg(unix)]
    pub fn advise(&self, advice: Advice) {
        if self.len == 0 {
            return;
        }
        let advice = match advice {
            Advice::Sequential => libc::MADV_SEQUENTIAL,
            Advice::WillNeed => libc::MADV_WILLNEED,
            Advice::DontNeed => libc::MADV_DONTNEED,
        };
        // SAFETY: the range is this mapping; on a private, never written file mapping all three keep its content.
        unsafe {
            libc::madvise(self.start.cast_mut().cast(), self.len, advice);
        }
    }
}

#[cfg(unix)]
impl Drop for Mmap {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: this is the mapping made in `new`, and nothing borrows it any more.
            unsafe {
                libc::munmap(self.start.cast_mut().cast(), self.len);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_map_shows_the_files_bytes() {
        let path = std::env::temp_dir().join(format!("midstream-kernels-map-{}", std::process::id()));
        let content: Vec<u8> = (0..10_000_u32).map(|i| i as u8).collect();
        File::create(&path).unwrap().write_all(&content).unwrap();
        let map = Mmap::new(&File::open(&path).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        for advice in [Advice::Sequential, Advice::WillNeed, Advice::DontNeed] {
            map.advise(advice);
        }
        assert_eq!(map.as_slice(), content);
    }

    #[test]
    fn an_empty_file_is_an_empty_slice_and_a_directory_an_error() {
        let path = std::env::temp_dir().join(format!("midstream-kernels-empty-{}", std::process::id()));
        File::create(&path).unwrap();
        assert!(Mmap::new(&File::open(&path).unwrap()).unwrap().as_slice().is_empty());
        std::fs::remove_file(&path).unwrap();
        assert!(Mmap::new(&File::open(std::env::temp_dir()).unwrap()).is_err());
    }
}
