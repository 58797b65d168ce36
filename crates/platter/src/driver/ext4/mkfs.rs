//! New filesystems of ext2, ext3 and ext4.

use std::ops::Range;
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_ext4::mkfs::{
    Generation, MkfsOptions, SMALL_BLOCKS_END_BYTES, check, free_bytes, mkfs,
};
use platter_ext4::{ContentsShare, Ext4, MountOptions};
use platter_ondisk::Uuid;
use platter_vfs::{Clock, Filesystem, Result};

use crate::Format;
use crate::devices::Devices;
use crate::driver::mkfs::fit;
use crate::driver::{FillRequest, Mkfs, MkfsRequest, NewFilesystem, OnDevice, unsupported};
use crate::options::OptionError;

/// The types.
pub(super) const TYPES: &[&str] = &["ext2", "ext3", "ext4"];

/// The longest label.
const LABEL_LEN_MAX: usize = 16;

/// A new filesystem.
#[derive(Debug, Clone)]
pub(super) struct NewExt {
    options: MkfsOptions,
    /// The size of flexible groups was given.
    sizes_flex_groups: bool,
}

/// The defaults of mke2fs for a type.
pub(super) fn of_type(kind: &str) -> Option<NewExt> {
    let generation = match kind {
        "ext2" => Generation::Ext2,
        "ext3" => Generation::Ext3,
        "ext4" => Generation::Ext4,
        _ => return None,
    };
    Some(NewExt::from(MkfsOptions::new(generation)))
}

impl From<MkfsOptions> for NewExt {
    fn from(options: MkfsOptions) -> Self {
        Self {
            options,
            sizes_flex_groups: false,
        }
    }
}

impl Default for NewFilesystem {
    /// ext4, as mke2fs makes it.
    fn default() -> Self {
        MkfsOptions::new(Generation::Ext4).into()
    }
}

/// The options of the driver itself, which its tests have.
#[doc(hidden)]
impl From<MkfsOptions> for NewFilesystem {
    fn from(options: MkfsOptions) -> Self {
        Self::new(NewExt::from(options))
    }
}

impl Mkfs for NewExt {
    fn boxed(&self) -> Box<dyn Mkfs> {
        Box::new(self.clone())
    }

    fn format(&self) -> Format {
        Format::Ext
    }

    fn set_label(&mut self, label: Vec<u8>) -> Result<(), OptionError> {
        if label.len() > LABEL_LEN_MAX {
            return Err(OptionError::Invalid("at most 16 bytes"));
        }
        self.options.label = label;
        Ok(())
    }

    fn set_uuid(&mut self, uuid: Uuid) {
        self.options.uuid = Some(uuid);
    }

    fn set_root_owner(&mut self, uid: u32, gid: u32) {
        self.options.root_owner = Some((uid, gid));
    }

    fn root_owner(&self) -> Option<(u32, u32)> {
        self.options.root_owner
    }

    fn set_feature(&mut self, name: &str, on: bool) -> Result<()> {
        Ok(self.options.set_feature(name, on)?)
    }

    fn set_number(&mut self, name: &str, value: u64) -> Result<(), OptionError> {
        let options = &mut self.options;
        match name {
            "block-size" => options.block_bytes = Some(fit(value)?),
            "cluster-size" => options.cluster_bytes = Some(fit(value)?),
            "inode-size" => options.inode_bytes = Some(fit(value)?),
            "bytes-per-inode" => options.bytes_per_inode = Some(fit(value)?),
            "inodes" => options.inodes = Some(fit(value)?),
            "reserved" => options.reserved = fit(value)?,
            "journal-size" => options.journal_bytes = Some(value),
            "groups-per-flex" => {
                options.groups_per_flex = fit(value)?;
                self.sizes_flex_groups = true;
            }
            "no-lazy-init" => options.zero_inode_tables = value != 0,
            "stride" => options.stripe.0 = fit(value)?,
            "stripe-width" => options.stripe.1 = fit(value)?,
            _ => return Err(OptionError::Unknown),
        }
        Ok(())
    }

    fn idle_option(&self) -> Option<&'static str> {
        let features = &self.options.features;
        if self.options.journal_bytes.is_some() && !features.has_journal() {
            return Some("-J is the size of a journal, and there is none; add -O has_journal");
        }
        if self.options.cluster_bytes.is_some() && !features.has_bigalloc() {
            return Some("-C is the size of clusters, and there are none; add -O bigalloc");
        }
        if self.sizes_flex_groups && !features.has_flex_bg() {
            return Some("-G is the size of flexible groups, and there are none; add -O flex_bg");
        }
        None
    }

    fn require_inodes(&mut self, inodes: u32) {
        self.options.inodes_min = self.options.inodes_min.max(inodes);
    }

    fn choose_random(&mut self, clock: &dyn Clock) {
        self.options.uuid.get_or_insert_with(|| clock.random_uuid());
        self.options
            .hash_seed
            .get_or_insert_with(|| clock.random_uuid());
    }

    fn check(&self, targets: &Devices, clock: &dyn Clock) -> Result<()> {
        refuse_several(targets)?;
        let len_bytes = targets.first().geometry().len_bytes;
        check(len_bytes, &self.options, clock)
    }

    fn make(&self, request: MkfsRequest<'_>) -> Result<()> {
        let MkfsRequest {
            targets,
            before,
            budget,
            clock,
        } = request;
        refuse_several(targets)?;
        let is_zero = before == OnDevice::Zeros;
        mkfs(targets.first(), &self.options, is_zero, budget, clock)
    }

    fn mount(&self, request: FillRequest<'_>) -> Result<Arc<dyn Filesystem>> {
        let options = MountOptions {
            read_only: false,
            share: ContentsShare::Everything,
            // Nothing refers to it before it is finished.
            unjournaled: request.before == OnDevice::Zeros,
            ..MountOptions::default()
        };
        let device = Arc::clone(request.targets.first());
        let mounted = Ext4::mount(device, &options, request.budget, request.clock)?;
        Ok(Arc::new(mounted))
    }

    fn free_bytes(&self, device: &Arc<dyn BlockDevice>) -> Result<u64> {
        free_bytes(&**device)
    }

    fn length_classes(&self) -> Vec<Range<u64>> {
        let any = 0..i64::MAX.unsigned_abs();
        match self.options.block_bytes {
            Some(_) => vec![any],
            // With each block size, content takes other space.
            None => vec![0..SMALL_BLOCKS_END_BYTES, SMALL_BLOCKS_END_BYTES..any.end],
        }
    }

    fn length_unit_bytes(&self) -> u64 {
        u64::from(self.options.cluster_bytes.unwrap_or(1)).max(1)
    }
}

fn refuse_several(targets: &Devices) -> Result<()> {
    if targets.iter().nth(1).is_some() {
        return Err(unsupported(Format::Ext, super::SEVERAL_DEVICES));
    }
    Ok(())
}
