//! New filesystems of XFS.

use std::ops::Range;
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_ondisk::Uuid;
use platter_vfs::{Clock, Filesystem, Result};
use platter_xfs::mkfs::{
    LEN_BYTES_MIN, MkfsOptions, Target, UNSUPPORTED_LEN_BYTES_MIN, check, free_bytes, mkfs,
};
use platter_xfs::{Logging, MountOptions, Xfs};

use crate::Format;
use crate::devices::{DeviceRole, Devices};
use crate::driver::mkfs::fit;
use crate::driver::{FillRequest, Mkfs, MkfsRequest, OnDevice, unsupported};
use crate::options::OptionError;

/// The longest label.
const LABEL_LEN_MAX: usize = 12;

/// A new filesystem.
#[derive(Debug, Clone)]
pub(super) struct NewXfs {
    options: MkfsOptions,
    uuid: Option<Uuid>,
    root_owner: Option<(u32, u32)>,
}

impl NewXfs {
    /// The defaults of mkfs.xfs.
    pub(super) fn new() -> Self {
        Self {
            options: MkfsOptions::new(Uuid::from_bytes([0; 16])),
            uuid: None,
            root_owner: None,
        }
    }
}

impl Mkfs for NewXfs {
    fn boxed(&self) -> Box<dyn Mkfs> {
        Box::new(self.clone())
    }

    fn format(&self) -> Format {
        Format::Xfs
    }

    fn shares_extents(&self) -> bool {
        self.options.features.has_reflink()
    }

    fn set_label(&mut self, label: Vec<u8>) -> Result<(), OptionError> {
        if label.len() > LABEL_LEN_MAX {
            return Err(OptionError::Invalid("at most 12 bytes"));
        }
        self.options.label = label;
        Ok(())
    }

    fn set_uuid(&mut self, uuid: Uuid) {
        self.uuid = Some(uuid);
    }

    fn set_root_owner(&mut self, uid: u32, gid: u32) {
        self.root_owner = Some((uid, gid));
    }

    fn root_owner(&self) -> Option<(u32, u32)> {
        self.root_owner
    }

    fn set_feature(&mut self, name: &str, on: bool) -> Result<()> {
        Ok(self.options.set_feature(name, on)?)
    }

    fn set_number(&mut self, name: &str, value: u64) -> Result<(), OptionError> {
        let options = &mut self.options;
        match name {
            "block-size" => options.block_bytes = Some(fit(value)?),
            "sector-size" => options.sector_bytes = Some(fit(value)?),
            "inode-size" => options.inode_bytes = Some(fit(value)?),
            "dir-block-size" => options.dir_block_bytes = Some(fit(value)?),
            "ag-count" => options.ag_count = Some(fit(value)?),
            "ag-size" => options.ag_bytes = Some(value),
            "log-size" => options.log_bytes = Some(value),
            "log-stripe-unit" => options.log_stripe_bytes = Some(fit(value)?),
            "inode-percent" => options.inode_percent = fit(value)?,
            "stride" => options.stripe_blocks.0 = fit(value)?,
            "stripe-width" => options.stripe_blocks.1 = fit(value)?,
            "unsupported" => options.unsupported = value != 0,
            _ => return Err(OptionError::Unknown),
        }
        Ok(())
    }

    fn require_inodes(&mut self, _: u32) {}

    fn choose_random(&mut self, clock: &dyn Clock) {
        self.uuid.get_or_insert_with(|| clock.random_uuid());
    }

    fn check(&self, targets: &Devices, _: &dyn Clock) -> Result<()> {
        let log = log_of(targets)?.map(|log| log.geometry());
        check(&targets.first().geometry(), log.as_ref(), &self.options)
    }

    fn make(&self, request: MkfsRequest<'_>) -> Result<()> {
        let (targets, clock) = (request.targets, request.clock);
        let options = MkfsOptions {
            uuid: self.uuid.unwrap_or_else(|| clock.random_uuid()),
            root_owner: self.root_owner.unwrap_or_default(),
            ..self.options.clone()
        };
        let target = Target {
            device: &**targets.first(),
            log: log_of(targets)?.map(|log| &**log),
            is_zero: request.before == OnDevice::Zeros,
        };
        mkfs(&target, &options, clock)
    }

    fn mount(&self, request: FillRequest<'_>) -> Result<Arc<dyn Filesystem>> {
        let device = Arc::clone(request.targets.first());
        let options = MountOptions {
            log: log_of(request.targets)?.map(Arc::clone),
            logging: match request.before {
                OnDevice::Zeros => Logging::New,
                OnDevice::Anything => Logging::Logged,
            },
            ..MountOptions::default()
        };
        let mounted = Xfs::mount_writable(device, &options, request.budget, request.clock)?;
        Ok(Arc::new(mounted))
    }

    fn free_bytes(&self, device: &Arc<dyn BlockDevice>) -> Result<u64> {
        free_bytes(&**device)
    }

    fn length_classes(&self) -> Vec<Range<u64>> {
        let usual = LEN_BYTES_MIN..i64::MAX.unsigned_abs();
        let short = UNSUPPORTED_LEN_BYTES_MIN..LEN_BYTES_MIN;
        if self.options.unsupported {
            vec![short, usual]
        } else {
            vec![usual]
        }
    }

    fn length_unit_bytes(&self) -> u64 {
        1
    }
}

/// The device of the log, where it has one of its own. Others are refused.
fn log_of(targets: &Devices) -> Result<Option<&Arc<dyn BlockDevice>>> {
    let mut others = targets.iter().skip(1);
    let log = others.next();
    if others.next().is_some() || log.is_some_and(|log| log.role != DeviceRole::Log) {
        let text = "making it on devices other than one for data and one for the log";
        return Err(unsupported(Format::Xfs, text));
    }
    Ok(log.map(|log| &log.device))
}
