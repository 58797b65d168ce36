//! XFS.

mod mkfs;
mod resize;

use std::sync::Arc;

use platter_block::{BlockDevice, ScratchDevice};
use platter_ondisk::Corruption;
use platter_vfs::{CheckReport, CheckSink, Filesystem, Result};
use platter_xfs::{Logging, MountOptions, RealtimeDevice, Unused};

use super::{
    Driver, EditStrategy, FreeRanges, Identity, ImageCommit, JournaledEdits, Mkfs, MountRequest,
    Purpose, Resize, unsupported,
};
use crate::Format;
use crate::devices::{DeviceRole, Devices};
use crate::options::Recovery;

/// The driver.
pub(super) struct Xfs;

impl Driver for Xfs {
    fn format(&self) -> Format {
        Format::Xfs
    }

    fn identify(&self, devices: &Devices) -> Result<Identity> {
        let superblock = platter_xfs::Xfs::identify(&**devices.first())?;
        Ok(Identity {
            kind: "xfs",
            label: superblock.label,
            uuid: superblock.uuid,
            members: None,
        })
    }

    fn superblock_copy(
        &self,
        device: &dyn BlockDevice,
        corruption: Option<&Corruption>,
    ) -> Option<u64> {
        if corruption.is_some_and(|corruption| corruption.structure != "superblock") {
            return None;
        }
        Some(platter_xfs::superblock::find_copy(device)? / 1024)
    }

    fn accepts_superblock_at(&self, device: &dyn BlockDevice, kib: u64) -> bool {
        let at = kib.checked_mul(1024);
        at.is_some_and(|at| platter_xfs::superblock::is_copy(device, at))
    }

    fn gathers_reads(&self) -> bool {
        true
    }

    fn mount(&self, request: MountRequest) -> Result<Arc<dyn Filesystem>> {
        let options = options(&request)?;
        let device = Arc::clone(request.devices.first());
        if request.writing.is_some() {
            let (budget, clock) = (request.budget, request.clock);
            let xfs = platter_xfs::Xfs::mount_writable(device, &options, budget, clock)?;
            return Ok(Arc::new(xfs));
        }
        let xfs = platter_xfs::Xfs::mount(device, &options, request.budget)?;
        Ok(Arc::new(xfs))
    }

    fn check(&self, request: MountRequest, sink: &mut dyn CheckSink) -> Result<CheckReport> {
        if request.superblock_kib.is_some() {
            return Err(unsupported(Format::Xfs, "a copy of the superblock"));
        }
        let options = options(&request)?;
        let device = request.devices.first();
        platter_xfs::check::check(device, &options, &request.budget, sink)
    }

    fn edit_strategy(&self) -> EditStrategy<'_> {
        EditStrategy::Journaled(self)
    }

    fn resize(&self) -> Option<&dyn Resize> {
        Some(self)
    }

    fn mkfs_types(&self) -> &'static [&'static str] {
        &["xfs"]
    }

    fn mkfs(&self, kind: &str) -> Option<Box<dyn Mkfs>> {
        (kind == "xfs").then(|| -> Box<dyn Mkfs> { Box::new(mkfs::NewXfs::new()) })
    }
}

impl JournaledEdits for Xfs {
    fn free_ranges(&self, request: &MountRequest) -> Result<Option<Box<FreeRanges>>> {
        let options = options(request)?;
        let found = Unused::of(request.devices.first(), &options, &request.budget)?;
        let boxed =
            |unused: Unused| -> Box<FreeRanges> { Box::new(move |range| unused.contains(range)) };
        Ok(found.map(boxed))
    }

    fn commit_image(&self, commit: ImageCommit<'_>) -> Result<()> {
        let ImageCommit {
            mount,
            unbatched,
            new,
            ..
        } = commit;
        let commit = platter_xfs::ImageCommit {
            options: options(&mount)?,
            device: Arc::clone(mount.devices.first()),
            unseen: unbatched,
            written: new.written(),
            new: Arc::<ScratchDevice>::clone(new),
            budget: mount.budget,
        };
        commit.run()
    }
}

fn options(request: &MountRequest) -> Result<MountOptions> {
    let mut options = MountOptions {
        recovery: match request.recovery {
            Recovery::Replay => platter_xfs::Recovery::InMemory,
            Recovery::Skip => platter_xfs::Recovery::Skip,
        },
        superblock_offset: request.superblock_kib.map(|kib| kib.saturating_mul(1024)),
        // What is missing does not matter to a reader that does not reach it.
        truncated: true,
        logging: match request.purpose {
            Purpose::EditOnScratch => Logging::Scratch,
            Purpose::Use | Purpose::EditInPlace => Logging::Logged,
        },
        commit_interval: request.writing.and_then(|writing| writing.commit_interval),
        ..MountOptions::default()
    };
    for (member, device) in (0..).zip(request.devices.iter()).skip(1) {
        let named = Arc::clone(&device.device);
        match device.role {
            DeviceRole::Log if options.log.is_none() => options.log = Some(named),
            DeviceRole::Realtime if options.realtime.is_none() => {
                options.realtime = Some(RealtimeDevice {
                    device: named,
                    member,
                });
            }
            DeviceRole::Data | DeviceRole::Log | DeviceRole::Realtime => {
                return Err(unsupported(Format::Xfs, "several data devices"));
            }
        }
    }
    Ok(options)
}
