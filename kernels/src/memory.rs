//! Memory for packed weights: zeroed, 64-byte aligned, in huge pages where the system has them.
//! It must never hand out memory that is not initialised, nor the same bytes twice.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::Error;

/// From this size on a region is its own anonymous mapping, which the system can back with huge pages: weights then
/// stream from memory about one and a half times as fast.
const MAPPING_BYTES_MIN: usize = 4 << 20;

/// Where huge pages begin and end.
const HUGE_PAGE: usize = 2 << 20;

/// Where parts begin.
pub(crate) const ALIGN: usize = 64;

/// Memory for the weights of one model, handed out matrix by matrix from regions that hold many: a matrix alone is
/// often too small for huge pages.
#[derive(Debug, Default)]
pub struct WeightMemory {
    region: Option<Arc<Region>>,
    used: usize,
}

impl WeightMemory {
    /// Room for `bytes` in one region, which is where [`crate::WeightShape::memory_bytes`] of all matrices fit. More is
    /// taken from the system when it is needed.
    pub fn new(bytes: usize) -> Result<Self, Error> {
        let region = if bytes == 0 { None } else { Some(Arc::new(Region::zeroed(bytes)?)) };
        Ok(Self { region, used: 0 })
    }

    /// `len` zero bytes.
    pub(crate) fn take(&mut self, len: usize) -> Result<WeightBytes, Error> {
        let region = match &self.region {
            Some(region) if len <= region.len - self.used => Arc::clone(region),
            _ => {
                let region = Arc::new(Region::zeroed(len.max(1))?);
                self.used = 0;
                self.region.insert(region).clone()
            }
        };
        let at = self.used;
        self.used = at.saturating_add(len).next_multiple_of(ALIGN).min(region.len);
        Ok(WeightBytes { region, at, len })
    }
}

/// A part of a region that belongs to one matrix.
pub(crate) struct WeightBytes {
    region: Arc<Region>,
    at: usize,
    len: usize,
}

impl WeightBytes {
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: inside the region, as `take` saw to, whose bytes are initialised and live as long as `self`; parts
        // do not overlap, and this one is only written through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.region.start.as_ptr().add(self.at), self.len) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.region.start.as_ptr().add(self.at), self.len) }
    }
}

/// An owned, zero-initialised, 64-byte aligned run of bytes. Only the [`WeightBytes`] in it are ever accessed.
#[derive(Debug)]
struct Region {
    start: NonNull<u8>,
    len: usize,
    mapped: bool,
}

// SAFETY: the region is owned and plain bytes; its parts do not overlap.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// At least `len` zero bytes; `len` must not be 0.
    fn zeroed(len: usize) -> Result<Self, Error> {
        assert!(len > 0, "an empty region has no memory");
        if len >= MAPPING_BYTES_MIN
            && let Some(len) = len.checked_next_multiple_of(HUGE_PAGE)
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
}

impl Drop for Region {
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

/// A mapping of `len` bytes, whole huge pages, that begins where a huge page does.
#[cfg(unix)]
fn map_anonymous(len: usize) -> Option<NonNull<u8>> {
    let total = len.checked_add(HUGE_PAGE)?;
    // SAFETY: a new private anonymous mapping touches no existing memory.
    let mapping = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            total,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if mapping == libc::MAP_FAILED {
        return None;
    }
    let before = mapping.cast::<u8>().align_offset(HUGE_PAGE);
    // SAFETY: `before` is at most one huge page, by which the mapping is longer than `len`.
    let start = unsafe { mapping.cast::<u8>().add(before) };
    // SAFETY: as above: the end is inside the mapping, or its end.
    let end = unsafe { start.add(len) };
    let behind = total - before - len;
    for (slack, bytes) in [(mapping, before), (end.cast(), behind)] {
        if bytes > 0 {
            // SAFETY: a part of the mapping just made that nobody has seen, whole pages. Failure would only waste
            // addresses.
            unsafe { libc::munmap(slack, bytes) };
        }
    }
    #[cfg(target_os = "linux")]
    // SAFETY: the range is what is left of the mapping. Advice only: a refusal changes nothing.
    unsafe {
        libc::madvise(start.cast(), len, libc::MADV_HUGEPAGE);
    }
    NonNull::new(start)
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

    fn check(bytes: &mut WeightBytes, len: usize) {
        assert_eq!(bytes.as_slice().as_ptr() as usize % ALIGN, 0);
        assert_eq!(bytes.as_slice().len(), len);
        assert!(bytes.as_slice().iter().all(|byte| *byte == 0));
        bytes.as_mut_slice().fill(7);
    }

    #[test]
    fn small_and_large_parts_are_zero_aligned_and_apart() {
        for room in [0, 1, 100, MAPPING_BYTES_MIN] {
            let mut memory = WeightMemory::new(room).unwrap();
            let mut parts = Vec::new();
            for len in [1, 63, 64, 4096, MAPPING_BYTES_MIN + 5, 0, 3] {
                let mut bytes = memory.take(len).unwrap();
                check(&mut bytes, len);
                parts.push(bytes);
            }
            // Still there when the memory it came from is not.
            drop(memory);
            assert!(parts.iter().all(|bytes| bytes.as_slice().iter().all(|byte| *byte == 7)));
        }
    }

    #[test]
    fn what_was_asked_for_at_once_lies_in_one_region() {
        let mut memory = WeightMemory::new(3 * MAPPING_BYTES_MIN).unwrap();
        let parts: Vec<_> = (0..3).map(|_| memory.take(MAPPING_BYTES_MIN).unwrap()).collect();
        assert!(parts.iter().all(|part| Arc::ptr_eq(&part.region, &parts[0].region)));
        assert_eq!(parts[0].as_slice().as_ptr() as usize % HUGE_PAGE, 0);
    }

    #[test]
    #[cfg(target_os = "linux")]
    #[allow(clippy::print_stderr, reason = "a test that cannot be made here says so")]
    fn large_regions_are_huge_pages_where_the_system_has_them() {
        let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
        if setting.is_empty() || setting.contains("[never]") {
            eprintln!("NOT TESTED: this system has no transparent huge pages, or they are turned off ({setting:?})");
            return;
        }
        let mut memory = WeightMemory::new(4 * HUGE_PAGE).unwrap();
        let mut bytes = memory.take(4 * HUGE_PAGE).unwrap();
        bytes.as_mut_slice().fill(1);
        let start = format!("{:x}-", bytes.as_slice().as_ptr() as usize);
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mapping = maps.lines().skip_while(|line| !line.starts_with(&start));
        let advised = mapping.clone().find(|line| line.starts_with("VmFlags")).unwrap();
        assert!(advised.split_whitespace().any(|flag| flag == "hg"), "{advised}");
        // The system may be short of huge pages; that it tried is what can be asked for.
        let huge = mapping.clone().find(|line| line.starts_with("AnonHugePages")).unwrap();
        assert!(huge.ends_with("kB"), "{huge}");
    }

    #[test]
    fn a_size_no_machine_has_is_an_error() {
        for bytes in [isize::MAX as usize - 4096, usize::MAX] {
            assert!(matches!(WeightMemory::new(bytes), Err(Error::OutOfMemory { .. })));
            assert!(matches!(WeightMemory::default().take(bytes), Err(Error::OutOfMemory { .. })));
        }
    }
}
