//! Output that several threads write at once, each its own part.
//! It must never let two borrows of one element meet: every maker of a part says why its parts are disjoint.

use std::marker::PhantomData;

/// A slice whose disjoint parts may be written from several threads.
pub(crate) struct SharedSlice<'a, T> {
    start: *mut T,
    len: usize,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: it stands for a `&mut [T]`, and `part` puts the duty of disjointness on its callers.
unsafe impl<T: Send> Send for SharedSlice<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedSlice<'_, T> {}

impl<'a, T> SharedSlice<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), owner: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The elements from `at` on, `len` of them. Panics when they reach outside the slice.
    ///
    /// # Safety
    /// No other live borrow made by `part` may overlap this one.
    #[allow(clippy::mut_from_ref, reason = "that is what the safety contract is about")]
    pub(crate) unsafe fn part(&self, at: usize, len: usize) -> &mut [T] {
        assert!(at <= self.len && len <= self.len - at, "a part inside the slice");
        // SAFETY: inside the slice as just checked; exclusive by this function's contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }
}
