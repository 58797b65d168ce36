//! An offline filesystem that becomes longer or shorter, in one checkpoint of its own log.
//!
//! New groups are written first, beyond the end of the filesystem, where nothing refers to them. What changes of the
//! old ones, and the superblock, is changed in a layer above the device and committed at once: whatever happens
//! meanwhile, the filesystem has its old or its new length.

use std::ops::ControlFlow;
use std::sync::Arc;

use platter_block::{BlockDevice, OverlayDevice, OverlayOptions};
use platter_cache::MemoryBudget;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Clock, Condition, Result, Unsupported};

use crate::ag::{GroupRule, Groups, alloc, space};
use crate::context::FsContext;
use crate::mkfs::write_new_groups;
use crate::mount::{ImageCommit, MountOptions, Xfs, refuse_unwritable};
use crate::ondisk::superblock::{set_counters, set_size};
use crate::ondisk::{AgBlock, AgNr, Agf, Agi, DiskSuperblock, FsSize, Geometry, Superblock};
use crate::recovery::Counters;
use crate::superblock;
use crate::txn::{self, LogDevice, LogState};

/// Headers of a group, each in a sector.
const HEADER_SECTORS: u32 = 4;

/// The length of a filesystem before and after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resized {
    /// Before.
    pub before_bytes: u64,
    /// Now.
    pub after_bytes: u64,
}

/// How long the filesystem on `device` is, in bytes, by its superblock.
pub fn len_bytes(device: &dyn BlockDevice) -> Result<u64> {
    let superblock = superblock::read(device)?;
    Ok(superblock.data_blocks << superblock.block_bits)
}

/// Makes the filesystem as long as whole groups allow, up to `len_bytes`; or shorter, as far as nothing is in use
/// there.
///
/// # Errors
/// `NoSpace` where the device is shorter; `Unsupported` for a length beyond which something is in use, and for
/// filesystems that are not written.
pub fn resize(
    device: &Arc<dyn BlockDevice>,
    len_bytes: u64,
    budget: &Arc<MemoryBudget>,
    clock: &Arc<dyn Clock>,
) -> Result<Resized> {
    let options = MountOptions::default();
    let found = superblock::read(&**device)?;
    superblock::refuse_unreadable(&found.features)?;
    refuse_unwritable(&**device, &found, &options)?;
    if len_bytes > device.geometry().len_bytes {
        return Err(Condition::NoSpace.into());
    }
    if found.log_start.is_none() {
        return Err(Unsupported {
            filesystem: "xfs",
            feature: "resizing an image with an external log".to_owned(),
            reason: Some("mount it, and resize the mount"),
        }
        .into());
    }
    let log = LogDevice::open(&found, device, None)?;
    if txn::find_position(&log, true)?.state == LogState::Dirty {
        let (budget, clock) = (Arc::clone(budget), Arc::clone(clock));
        let xfs = Xfs::mount_writable(Arc::clone(device), &options, budget, clock)?;
        platter_vfs::Filesystem::unmount(&xfs)?;
    }
    let old = superblock::read(&**device)?;
    let bits = old.block_bits;
    let size = new_size(&old, len_bytes >> bits)?;
    let resized = Resized {
        before_bytes: old.data_blocks << bits,
        after_bytes: size.data_blocks << bits,
    };
    if size.data_blocks == old.data_blocks {
        return Ok(resized);
    }
    let overlay = Arc::new(OverlayDevice::new(
        Arc::clone(device),
        OverlayOptions::default(),
    ));
    let above: Arc<dyn BlockDevice> = Arc::<OverlayDevice>::clone(&overlay);
    let job = Job {
        device,
        above: &above,
        old: &old,
        new: Superblock {
            ag_count: size.ag_count,
            data_blocks: size.data_blocks,
            ..old.clone()
        },
        budget,
    };
    let sector = if size.data_blocks > old.data_blocks {
        job.lengthen(size)?
    } else {
        job.shorten(size)?
    };
    let held = overlay.held().into_iter();
    let commit = ImageCommit {
        device: Arc::clone(device),
        unseen: Arc::clone(device),
        written: held
            .map(|(at, bytes)| at..at + bytes.len() as u64)
            .collect(),
        new: Arc::clone(&above),
        options,
        budget: Arc::clone(budget),
    };
    commit.run()?;
    // It has its new size all the same; the next mount for writing renews copies that say another one.
    let _ = superblock::write_copies(&**device, &Geometry::new(&job.new), &sector, |_| true);
    Ok(resized)
}

/// A change of length.
struct Job<'j> {
    device: &'j Arc<dyn BlockDevice>,
    /// The layer above the device.
    above: &'j Arc<dyn BlockDevice>,
    old: &'j Superblock,
    new: Superblock,
    budget: &'j Arc<MemoryBudget>,
}

impl Job<'_> {
    fn lengthen(&self, size: FsSize) -> Result<Vec<u8>> {
        let geometry = Geometry::new(self.old);
        let after = Geometry::new(&self.new);
        let last = AgNr(self.old.ag_count.saturating_sub(1));
        let (before, len) = (geometry.ag_len(last), after.ag_len(last));
        let copy = self.sector(size, None)?;
        let first = AgNr(self.old.ag_count);
        let go_on = &mut |_, _| ControlFlow::Continue(());
        let written = write_new_groups(&**self.device, self.new.clone(), &copy, first, go_on)?;
        debug_assert!(written);
        if len > before {
            let mut groups = Groups::new(Arc::clone(self.above), &geometry);
            let mut group = groups.get(last)?;
            group.set_len(len);
            space::free_extent(&mut group, AgBlock(before), len - before)?;
            groups.write_all()?;
        }
        self.store(size)
    }

    fn shorten(&self, size: FsSize) -> Result<Vec<u8>> {
        let geometry = Geometry::new(self.old);
        let after = Geometry::new(&self.new);
        let device = Arc::clone(self.device);
        let context = FsContext::new(device, None, self.old.clone(), Arc::clone(self.budget));
        for ag in geometry.groups().skip(size.ag_count as usize) {
            if !is_empty(&context.agf(ag)?, &context.agi(ag)?, &geometry) {
                return Err(in_use());
            }
        }
        let last = AgNr(size.ag_count.saturating_sub(1));
        let (before, len) = (geometry.ag_len(last), after.ag_len(last));
        if len < before {
            let mut groups = Groups::new(Arc::clone(self.above), &geometry);
            let mut group = groups.get(last)?;
            space::fill_free_list(&mut group)?;
            let taken = alloc::take(&mut group, AgBlock(len), before - len);
            if let Err(error) = taken {
                let rule = Corrupt::new(Locus::group(last.0.into()), GroupRule::NotFree);
                let is_used = error.to_string() == platter_vfs::Error::from(rule).to_string();
                return Err(if is_used { in_use() } else { error });
            }
            group.set_len(len);
            groups.write_all()?;
        }
        self.store(size)
    }

    /// The sector of the superblock with another size, and with counters.
    fn sector(&self, size: FsSize, counters: Option<Counters>) -> Result<Vec<u8>> {
        let mut sector = vec![0; 1 << self.old.sector_bits];
        self.device.read_at(0, &mut sector)?;
        set_size(&mut sector, size.data_blocks, size.ag_count);
        if let Some(counters) = counters {
            let Counters {
                inodes,
                free_inodes,
                free_blocks,
            } = counters;
            set_counters(&mut sector, [inodes, free_inodes, free_blocks]);
        }
        DiskSuperblock::seal(&mut sector);
        Ok(sector)
    }

    fn store(&self, size: FsSize) -> Result<Vec<u8>> {
        let counters = Counters::read(&**self.above, &Geometry::new(&self.new))?;
        let sector = self.sector(size, Some(counters))?;
        self.above.write_at(0, &sector)?;
        Ok(sector)
    }
}

/// The size next to so many blocks that a filesystem can have.
fn new_size(old: &Superblock, blocks: u64) -> Result<FsSize> {
    let now = FsSize {
        ag_count: old.ag_count,
        data_blocks: old.data_blocks,
    };
    let size = superblock::fitting_size(now, old.ag_blocks, blocks)?;
    if size.ag_count < 2 && size.data_blocks < now.data_blocks {
        return Err(unsupported("less than two groups"));
    }
    Ok(size)
}

/// Whether a group has nothing but what every group has.
fn is_empty(agf: &Agf, agi: &Agi, geometry: &Geometry) -> bool {
    let further = [agf.rmap, agf.refcount, agi.finobt];
    let roots = 3 + further.iter().flatten().count() as u64;
    let headers = (HEADER_SECTORS << geometry.sector_bits).div_ceil(geometry.block_bytes());
    let free = u64::from(agf.free_blocks) + u64::from(agf.free_list_count);
    let own = u64::from(headers) + roots + u64::from(agf.btree_blocks);
    agi.count == 0 && free + own == u64::from(agf.length)
}

fn in_use() -> platter_vfs::Error {
    unsupported("a length beyond which blocks are in use")
}

fn unsupported(feature: &str) -> platter_vfs::Error {
    Unsupported {
        filesystem: "xfs",
        feature: feature.to_owned(),
        reason: Some("contents are not moved"),
    }
    .into()
}
