//! Block groups whose extents stay as they are on the devices while handles and writers go on.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use platter_vfs::{Condition, Result};

use super::{NoneInGroup, WriteContext, space};
use crate::block_group::BlockGroup;
use crate::ondisk::LogicalAddr;
use crate::ondisk::chunk_item::BlockGroupFlags;

/// Tree blocks that are free elsewhere while a group with tree blocks is held, besides what is kept for commits.
const FREE_BLOCKS: u64 = 128;
/// The same of the chunk tree.
const FREE_SYSTEM_BLOCKS: u64 = 16;
/// How long what was allocated before is waited for: writeback that has a place, and has not reached the device.
const WAIT_MAX: Duration = Duration::from_mins(2);
/// Between two looks at it.
const PAUSE: Duration = Duration::from_millis(2);

/// A group in which nothing is allocated nor written. All extents in it are in the extent tree, and durable.
#[derive(Debug)]
pub(crate) struct HeldGroup<'f> {
    fs: &'f WriteContext,
    group: Arc<BlockGroup>,
    none_in_place: Option<NoneInGroup>,
}

impl<'f> HeldGroup<'f> {
    /// Holds the group at an address; `None` if there is none any more. The caller has no handle, and no other group is
    /// held.
    ///
    /// # Errors
    /// `ENOSPC` where other groups have no space for what was reserved for writers; `Busy` where what was allocated
    /// in it before is not written in time; those of a commit.
    pub(crate) fn hold(fs: &'f WriteContext, start: LogicalAddr) -> Result<Option<Self>> {
        let Ok(group) = fs.groups.find(start, 1) else {
            return Ok(None);
        };
        let spare = |kind: BlockGroupFlags| {
            let blocks = if kind.contains(BlockGroupFlags::METADATA) {
                FREE_BLOCKS
            } else if kind.contains(BlockGroupFlags::SYSTEM) {
                FREE_SYSTEM_BLOCKS
            } else {
                0
            };
            blocks * fs.node_bytes()
        };
        if !space::hold(fs, &group, &spare)? {
            return Ok(None);
        }
        let mut held = Self {
            fs,
            group,
            none_in_place: None,
        };
        held.wait_for_allocated()?;
        let range = held.group.start().0..held.group.end().0;
        held.none_in_place = Some(fs.in_place.exclude_from(range));
        Ok(Some(held))
    }

    /// Waits until all that was allocated in it has items that are durable.
    fn wait_for_allocated(&self) -> Result<()> {
        let begin = self.fs.clock.monotonic();
        loop {
            self.fs.refuse_moving()?;
            self.fs.sync()?;
            if self.group.space().reserved == 0 {
                // References that were run meanwhile.
                return self.fs.sync();
            }
            if self.fs.clock.monotonic().saturating_sub(begin) > WAIT_MAX {
                return Err(Condition::Busy.into());
            }
            thread::sleep(PAUSE);
        }
    }

    /// The group.
    pub(crate) fn group(&self) -> &BlockGroup {
        &self.group
    }
}

impl Drop for HeldGroup<'_> {
    fn drop(&mut self) {
        self.fs.groups.let_go(&self.group);
    }
}

/// A group in which no extent is written over that was durable when it was looked at: what is freed is not allocated
/// again, and what is written in place waits. Other space in it is allocated.
#[derive(Debug)]
pub(crate) struct KeptGroup<'f> {
    fs: &'f WriteContext,
    group: Arc<BlockGroup>,
    _none_in_place: NoneInGroup,
}

impl<'f> KeptGroup<'f> {
    /// Keeps the extents of the group at an address; `None` if there is none any more. The caller has no handle, and no
    /// other group is kept or held.
    #[must_use]
    pub(crate) fn keep(fs: &'f WriteContext, start: LogicalAddr) -> Option<Self> {
        let group = fs.groups.find(start, 1).ok()?;
        if !group.keep_pinned() {
            return None;
        }
        let range = group.start().0..group.end().0;
        Some(Self {
            fs,
            group,
            _none_in_place: fs.in_place.exclude_from(range),
        })
    }

    /// The group.
    pub(crate) fn group(&self) -> &BlockGroup {
        &self.group
    }
}

impl Drop for KeptGroup<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.fs.groups.unpin_kept(&self.group) {
            self.fs.fail(&error);
        }
    }
}
