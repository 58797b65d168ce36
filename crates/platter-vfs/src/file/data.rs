//! What is kept of a file's contents in addition to its block mapping.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use platter_block::lock::{Mutex, RwLock, RwLockWriteGuard, rank};

use crate::InodeId;
use crate::writing::FileSync;

/// Size, locks and sync state of one file's contents; `P` is where it got blocks last.
#[derive(Debug)]
pub struct FileData<P> {
    /// The size as readers see it (`i_size`): ahead of the size on disk while contents are only in the
    /// cache.
    size_bytes: AtomicU64,
    /// How often the file was truncated.
    truncations: AtomicU64,
    /// It was truncated to be written anew: it is written back as soon as it can be, since many programs
    /// expect to find its new contents after a crash.
    is_replaced: AtomicBool,
    /// What a sync of it has to do.
    pub sync: FileSync,
    /// Held from when the cache loses contents until the mapping does (`invalidate_lock`).
    pub(super) invalidation: RwLock<(), { rank(2, 5) }>,
    /// Held shared for I/O on mapped blocks, exclusively while blocks leave the mapping: from then on they
    /// may become another file's. Taken after locks of the page cache, and before `placement`.
    pub mapping: RwLock<(), { rank(5, 4) }>,
    /// Held from the allocation of blocks until they are mapped: one writer of new blocks. Taken after
    /// locks of the page cache, and before a handle.
    pub placement: Mutex<P, { rank(5, 5) }>,
}

/// The end of a file at some moment: void once the file was truncated since then.
#[derive(Debug, Clone, Copy)]
pub struct FileEnd {
    /// In bytes.
    pub offset: u64,
    truncations: u64,
}

impl FileEnd {
    /// The end of contents that may reach less far.
    #[must_use]
    pub fn at(self, offset: u64) -> Self {
        Self { offset, ..self }
    }
}

impl<P: Default> FileData<P> {
    /// Of a file of this size, which may have unflushed writes of an earlier object.
    #[must_use]
    pub fn new(size_bytes: u64, may_be_unflushed: bool) -> Self {
        Self {
            size_bytes: AtomicU64::new(size_bytes),
            truncations: AtomicU64::new(0),
            is_replaced: AtomicBool::new(false),
            sync: FileSync::new(may_be_unflushed),
            invalidation: RwLock::new(()),
            mapping: RwLock::new(()),
            placement: Mutex::default(),
        }
    }
}

impl<P> FileData<P> {
    /// Locks the mappings of two different files exclusively, that of the lower number first.
    #[must_use]
    pub fn lock_both<'d>(
        one: (InodeId, &'d Self),
        other: (InodeId, &'d Self),
    ) -> [RwLockWriteGuard<'d, ()>; 2] {
        debug_assert_ne!(one.0, other.0, "a file has one mapping");
        let is_first = one.0 < other.0;
        let (first, second) = if is_first { (one, other) } else { (other, one) };
        [first.1.mapping.write(), second.1.mapping.write_nth(1)]
    }

    /// The size as readers see it.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    /// Sets the size, where the file is not truncated.
    pub fn set_size(&self, size: u64) {
        self.size_bytes.store(size, Ordering::Release);
    }

    /// Extends the file to `end`, if it is shorter.
    pub fn extend(&self, end: u64) {
        self.size_bytes.fetch_max(end, Ordering::AcqRel);
    }

    /// Truncates the file to `size`, or sets a size that may be smaller than it was. The caller has the
    /// inode's state locked, with that size in it.
    pub fn truncate(&self, size: u64) {
        self.size_bytes.store(size, Ordering::Release);
        self.truncations.fetch_add(1, Ordering::AcqRel);
    }

    /// The end of the file now.
    pub fn end(&self) -> FileEnd {
        // The other way round than it is truncated.
        let truncations = self.truncations.load(Ordering::Acquire);
        FileEnd {
            offset: self.size_bytes(),
            truncations,
        }
    }

    /// Whether the file was not truncated since it had this end. The caller has the inode's state locked.
    pub fn is_current(&self, end: FileEnd) -> bool {
        self.truncations.load(Ordering::Acquire) == end.truncations
    }

    /// Says that the file was truncated to be written anew, or that it is written back.
    pub(super) fn set_replaced(&self, is_replaced: bool) {
        self.is_replaced.store(is_replaced, Ordering::Release);
    }

    pub(super) fn is_replaced(&self) -> bool {
        self.is_replaced.load(Ordering::Acquire)
    }
}
