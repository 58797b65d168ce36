//! Memory of the system for chunks, each a mapping or a part of one.
#![expect(unsafe_code, reason = "owns memory of the system")]

use std::alloc::Layout;
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, null_mut};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Zeroed memory of its own mapping.
pub(super) struct ChunkMemory {
    start: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: the mapping is owned.
unsafe impl Send for ChunkMemory {}

impl ChunkMemory {
    /// Memory of a size and alignment; `is_huge` asks for huge pages. `None` where the system has none.
    pub(super) fn new(layout: Layout, is_huge: bool) -> Option<Self> {
        let len_bytes = layout.size();
        let memory = Self::map(len_bytes)?;
        let memory = if memory.start.align_offset(layout.align()) == 0 {
            memory
        } else {
            drop(memory);
            Self::map(len_bytes + layout.align())?.aligned(len_bytes, layout.align())
        };
        let advice = if is_huge {
            Advice::LinuxHugepage
        } else {
            Advice::LinuxNoHugepage
        };
        // A system without huge pages has others.
        // SAFETY: contents stay as they are.
        let _ = unsafe { madvise(memory.start.as_ptr().cast(), len_bytes, advice) };
        Some(memory)
    }

    fn map(len_bytes: usize) -> Option<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, of no file.
        let mapped = unsafe { mmap_anonymous(null_mut(), len_bytes, access, MapFlags::PRIVATE) };
        let start = NonNull::new(mapped.ok()?.cast())?;
        Some(Self { start, len_bytes })
    }

    /// Its last part that is aligned. The system maps the next memory below this: neighbours are one mapping,
    /// of which a process has a limited number.
    fn aligned(self, len_bytes: usize, align: usize) -> Self {
        let whole = ManuallyDrop::new(self);
        let first = whole.start.align_offset(align);
        let before = first + (whole.len_bytes - first - len_bytes) / align * align;
        let after = whole.len_bytes - before - len_bytes;
        // SAFETY: what is before the part lies in the mapping.
        let start = unsafe { whole.start.add(before) };
        // SAFETY: the part lies in the mapping.
        let end = unsafe { start.add(len_bytes) };
        for (start, len_bytes) in [(whole.start, before), (end, after)] {
            if len_bytes > 0 {
                drop(Self { start, len_bytes });
            }
        }
        Self { start, len_bytes }
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for ChunkMemory {
    fn drop(&mut self) {
        // SAFETY: a mapping, or a part of one, that nothing refers to: no frame is left, each keeps its chunk.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len_bytes) };
    }
}
