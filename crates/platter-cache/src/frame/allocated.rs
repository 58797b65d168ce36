//! Memory of the allocator for chunks, in an interpreter that has no mappings.
#![expect(unsafe_code, reason = "owns memory of the system")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

pub(super) struct ChunkMemory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory is owned.
unsafe impl Send for ChunkMemory {}

impl ChunkMemory {
    pub(super) fn new(layout: Layout, _: bool) -> Option<Self> {
        // SAFETY: the layout has a size.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, layout })
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for ChunkMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout; no frame is left, each keeps its chunk.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}
