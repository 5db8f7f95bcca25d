//! Memory for packed weights: zeroed, 64-byte aligned, in huge pages where that pays.
//! It must never hand out memory that is not initialised.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use crate::Error;

/// From this size on a buffer is its own anonymous mapping, which the system can back with huge pages: weights then
/// stream from memory about one and a half times as fast.
const MAPPING_BYTES_MIN: usize = 4 << 20;

const ALIGN: usize = 64;

/// An owned, zero-initialised, 64-byte aligned run of bytes.
pub(crate) struct AlignedBytes {
    start: NonNull<u8>,
    len: usize,
    mapped: bool,
}

// SAFETY: the buffer is owned and plain bytes; shared access only reads.
unsafe impl Send for AlignedBytes {}
// SAFETY: as above; writing needs `&mut`.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// `len` zero bytes; `len` must not be 0.
    pub(crate) fn zeroed(len: usize) -> Result<Self, Error> {
        assert!(len > 0, "an empty buffer has no memory");
        if len >= MAPPING_BYTES_MIN
            && let Some(start) = map_anonymous(len)
        {
            return Ok(Self { start, len, mapped: true });
        }
        let layout = Layout::from_size_align(len, ALIGN).map_err(|_| Error::OutOfMemory { bytes: len })?;
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or(Error::OutOfMemory { bytes: len })?;
        Ok(Self { start, len, mapped: false })
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: `start` owns `len` initialised bytes for as long as `self` lives.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: `start` owns `len` initialised bytes, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        if self.mapped {
            #[cfg(unix)]
            // SAFETY: `map_anonymous` made exactly this mapping, and nothing borrows it any more.
            unsafe {
                libc::munmap(self.start.as_ptr().cast(), self.len);
            }
        } else if let Ok(layout) = Layout::from_size_align(self.len, ALIGN) {
            // SAFETY: allocated in `zeroed` with this very layout.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

#[cfg(unix)]
fn map_anonymous(len: usize) -> Option<NonNull<u8>> {
    // SAFETY: a new private anonymous mapping touches no existing memory.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return None;
    }
    #[cfg(target_os = "linux")]
    // SAFETY: the range is the mapping just made. Advice only: a refusal changes nothing.
    unsafe {
        libc::madvise(start, len, libc::MADV_HUGEPAGE);
    }
    NonNull::new(start.cast())
}

#[cfg(not(unix))]
fn map_anonymous(_len: usize) -> Option<NonNull<u8>> {
    None
}

/// Asks for memory that is about to be read, where the processor can be asked.
#[inline(always)]
pub(crate) fn prefetch<T>(memory: &[T]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let start = memory.as_ptr().cast::<i8>();
        for line in (0..size_of_val(memory)).step_by(ALIGN) {
            // SAFETY: a prefetch changes nothing the program sees and may have any address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(line)) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = memory;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_large_buffers_are_zero_aligned_and_writable() {
        for len in [1, 63, 4096, MAPPING_BYTES_MIN + 5] {
            let mut bytes = AlignedBytes::zeroed(len).unwrap();
            assert_eq!(bytes.as_slice().as_ptr() as usize % ALIGN, 0);
            assert!(bytes.as_slice().iter().all(|byte| *byte == 0));
            bytes.as_mut_slice()[len - 1] = 7;
            assert_eq!(bytes.as_slice()[len - 1], 7);
        }
    }

    #[test]
    fn a_size_no_machine_has_is_an_error() {
        assert!(matches!(AlignedBytes::zeroed(isize::MAX as usize - 4096), Err(Error::OutOfMemory { .. })));
    }
}
