//! Growth of a mounted filesystem (`xfs_growfs_data`).
//!
//! New groups are written first, beyond the end of the filesystem, where nothing refers to them. Then transactions wait,
//! and one checkpoint changes the superblock, its copies and the group that was the last one. Everything is in its place
//! before and after it, so that no recovery finds in the log, with the checkpoint, what lies in groups that the superblock
//! on the device does not have yet: before 6.13, Linux looks at nothing beyond the end of those.

use std::ops::ControlFlow;
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_ondisk::Locus;
use platter_vfs::{Condition, Result};

use crate::ag::{GroupCounts, Groups, space};
use crate::change::{Change, Cost};
use crate::context::FsContext;
use crate::mkfs::write_new_groups;
use crate::ondisk::superblock::set_size;
use crate::ondisk::{AgBlock, AgNr, DiskSuperblock, FsSize, Geometry, Growth, Superblock};
use crate::ops::SuperBlock;
use crate::txn::Log;

/// What the item of a block takes in the log in addition to its bytes, and a sixteenth of those.
const ITEM_BYTES: u64 = 512;

/// A filesystem that is about to grow.
struct Growing<'g> {
    context: &'g FsContext,
    log: &'g Log,
    before: Geometry,
    after: Geometry,
}

/// Makes the filesystem reach as far as `size` says. Calls `go_on` with how many new groups are written of how many, which
/// may break it off. Returns whether it grew. The caller is inside the gate of writers.
///
/// # Errors
/// Those of the device and of the log; the filesystem is as it was, or writes nothing any more.
pub(super) fn grow(
    fs: &SuperBlock,
    size: FsSize,
    go_on: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<bool> {
    let _copies = fs.copies.lock();
    let context = &fs.context;
    let log = context.log().ok_or(Condition::ReadOnly)?;
    let before = context.geometry().clone();
    let after = Geometry {
        growth: Growth::new(size),
        ..before.clone()
    };
    let growing = Growing {
        context,
        log,
        before,
        after,
    };
    let Some(counts) = growing.write_groups(go_on)? else {
        return Ok(false);
    };
    // Most is in its place before transactions wait.
    log.quiesce()?;
    let mount = context.mount();
    mount.freeze()?;
    let grown = growing.commit(counts);
    // A shutdown thaws it, too.
    let _ = mount.thaw();
    if let Some(sector) = grown? {
        // It has grown all the same; the next mount writes those that say another size.
        let _ = growing.write_copies(&sector);
    }
    Ok(true)
}

impl Growing<'_> {
    fn size(&self) -> FsSize {
        self.after.growth.size()
    }

    fn first_new(&self) -> AgNr {
        AgNr(self.before.ag_count())
    }

    /// Writes the new groups. Returns what they have; `None` if that was broken off.
    fn write_groups(
        &self,
        go_on: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Option<GroupCounts>> {
        let FsSize {
            ag_count,
            data_blocks,
        } = self.size();
        let device = self.context.device();
        let mut copy = self.context.read_superblock(AgNr(0))?.to_vec();
        set_size(&mut copy, data_blocks, ag_count);
        DiskSuperblock::seal(&mut copy);
        // Features may have been switched on since the mount.
        let now = Superblock::decode(&copy, Locus::group(0))?;
        let superblock = Superblock {
            data_blocks,
            ag_count,
            features: now.features,
            ..self.context.superblock.clone()
        };
        if !write_new_groups(&**device, superblock, &copy, self.first_new(), go_on)? {
            return Ok(None);
        }
        // The end of the device is there, as far as a read can say.
        let mut last = vec![0; self.after.sector_bytes() as usize];
        device.read_at(self.after.len_bytes() - last.len() as u64, &mut last)?;
        self.count_groups(device).map(Some)
    }

    /// What the new groups have, as they are on the device.
    fn count_groups(&self, device: &Arc<dyn BlockDevice>) -> Result<GroupCounts> {
        let mut sum = GroupCounts::default();
        for ag in self.after.groups().skip(self.first_new().0 as usize) {
            let counts = Groups::new(Arc::clone(device), &self.after).counts(ag)?;
            sum.free_blocks += counts.free_blocks;
            sum.kept += counts.kept;
        }
        Ok(sum)
    }

    /// Makes the filesystem reach further, durably and in its place. No other transaction runs. Returns the superblock if
    /// its copies are still to be written.
    fn commit(&self, counts: GroupCounts) -> Result<Option<Vec<u8>>> {
        self.log.quiesce()?;
        let sector_bytes = u64::from(self.before.sector_bytes());
        let copy_bytes = sector_bytes + sector_bytes / 16 + ITEM_BYTES;
        let copies_bytes = copy_bytes * u64::from(self.before.ag_count());
        let logs_copies = copies_bytes <= self.log.usual_max();
        let cost = Cost {
            extents: 1,
            bytes: if logs_copies {
                copies_bytes
            } else {
                copy_bytes
            },
            ..Cost::default()
        };
        let change = |change: &mut Change<'_>| self.change(change, counts, logs_copies);
        let sector = self.context.change_frozen(&cost, change)?;
        self.log.quiesce()?;
        Ok((!logs_copies).then_some(sector))
    }

    fn change(
        &self,
        change: &mut Change<'_>,
        counts: GroupCounts,
        logs_copies: bool,
    ) -> Result<Vec<u8>> {
        // The superblock is changed by the thread that has the first group.
        change.groups.get(AgNr(0))?;
        let last = AgNr(self.before.ag_count().saturating_sub(1));
        let (old_len, len) = (self.before.ag_len(last), self.after.ag_len(last));
        if len > old_len {
            let mut group = change.groups.get(last)?;
            group.set_len(len);
            space::free_extent(&mut group, AgBlock(old_len), len - old_len)?;
        } else {
            // Its headers are read by threads that have it.
            change.groups.get(last)?;
        }
        let blocks = change.groups.blocks_mut();
        let mut sector = blocks.read(0, self.before.sector_bytes())?;
        let size = self.size();
        set_size(&mut sector, size.data_blocks, size.ag_count);
        DiskSuperblock::seal(&mut sector);
        blocks.write(0, sector.clone());
        if logs_copies {
            for ag in self.before.groups().skip(1) {
                blocks.create(self.before.ag_offset(ag), sector.clone());
            }
        }
        change.grow(size, counts);
        Ok(sector)
    }

    /// Writes the copies of the superblock where the log has no space for them. Until they are written, only the primary
    /// one says how far the filesystem reaches; the next mount [renews](crate::superblock::renew_copies) those that say
    /// another size.
    fn write_copies(&self, sector: &[u8]) -> Result<()> {
        let device = self.context.device();
        crate::superblock::write_copies(&**device, &self.before, sector, |_| true)
    }
}
