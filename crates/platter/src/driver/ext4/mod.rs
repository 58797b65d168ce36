//! ext2, ext3 and ext4.

mod mkfs;
mod options;
mod resize;

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_ext4::{ContentsShare, DataMode, Ext4, MountOptions, Unused};
use platter_ondisk::Corruption;
use platter_vfs::{CheckReport, CheckSink, Filesystem, Result};

use super::{
    Driver, EditStrategy, FreeRanges, Identity, ImageCommit, JournaledEdits, Mkfs, MountRequest,
    Purpose, Resize, unsupported,
};
use crate::Format;
use crate::devices::{DeviceRole, Devices};
use crate::options::{MountOption, OnError, OptionError, Recovery};
use options::ExtOptions;

/// Structures that other groups have copies of.
const COPIED_STRUCTURES: [&str; 2] = ["superblock", "group descriptor"];

/// What these filesystems cannot have.
const SEVERAL_DEVICES: &str = "a filesystem on several devices";

/// The driver.
pub(super) struct Ext;

impl Driver for Ext {
    fn format(&self) -> Format {
        Format::Ext
    }

    fn identify(&self, devices: &Devices) -> Result<Identity> {
        let superblock = Ext4::identify(&**devices.first())?;
        Ok(Identity {
            kind: superblock.kind(),
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
        let structure = corruption.map(|corruption| corruption.structure);
        if structure.is_some_and(|structure| !COPIED_STRUCTURES.contains(&structure)) {
            return None;
        }
        platter_ext4::find_superblock_copy(device)
    }

    fn check_option(&self, option: &MountOption) -> Result<(), OptionError> {
        ExtOptions::default().set(option)
    }

    fn mount(&self, request: MountRequest) -> Result<Arc<dyn Filesystem>> {
        // What is missing does not matter to a reader that does not reach it.
        let truncated = request.writing.is_none();
        Ok(Arc::new(open(request, truncated)?))
    }

    fn check(&self, request: MountRequest, sink: &mut dyn CheckSink) -> Result<CheckReport> {
        // Where the end is missing there is no use in reporting each structure that lay there.
        let truncated = false;
        Ok(open(request, truncated)?.check(sink))
    }

    fn edit_strategy(&self) -> EditStrategy<'_> {
        EditStrategy::Journaled(self)
    }

    fn mkfs_types(&self) -> &'static [&'static str] {
        mkfs::TYPES
    }

    fn mkfs(&self, kind: &str) -> Option<Box<dyn Mkfs>> {
        mkfs::of_type(kind).map(|options| -> Box<dyn Mkfs> { Box::new(options) })
    }

    fn resize(&self) -> Option<&dyn Resize> {
        Some(self)
    }
}

impl JournaledEdits for Ext {
    fn free_ranges(&self, request: &MountRequest) -> Result<Option<Box<FreeRanges>>> {
        let options = edit_options(request);
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
        let commit = platter_ext4::ImageCommit {
            options: edit_options(&mount),
            device: Arc::clone(mount.devices.first()),
            unseen: unbatched,
            new,
            budget: mount.budget,
            clock: mount.clock,
        };
        commit.run()
    }
}

fn open(request: MountRequest, truncated: bool) -> Result<Ext4> {
    refuse_several(&request.devices)?;
    let options = if request.purpose == Purpose::EditOnScratch {
        edit_options(&request)
    } else {
        mount_options(&request, truncated)
    };
    let device = Arc::clone(request.devices.first());
    Ext4::mount(device, &options, request.budget, request.clock)
}

/// Refuses devices other than the image that are no external journal.
fn refuse_several(devices: &Devices) -> Result<()> {
    let mut others = devices.iter().skip(1);
    let mut has_log = false;
    let is_refused = others.any(|other| {
        let is_second = std::mem::replace(&mut has_log, true);
        other.role != DeviceRole::Log || is_second
    });
    if is_refused {
        return Err(unsupported(Format::Ext, SEVERAL_DEVICES));
    }
    Ok(())
}

/// An edit is committed as a whole, so that its data needs no journal.
fn edit_options(request: &MountRequest) -> MountOptions {
    MountOptions {
        data_mode: Some(DataMode::Ordered),
        ..mount_options(request, false)
    }
}

fn mount_options(request: &MountRequest, truncated: bool) -> MountOptions {
    let writing = request.writing;
    let own = ExtOptions::of(&request.options);
    MountOptions {
        read_only: writing.is_none(),
        recovery: match request.recovery {
            Recovery::Replay => platter_ext4::Recovery::InMemory,
            Recovery::Skip => platter_ext4::Recovery::Skip,
        },
        journal: request.devices.of_role(DeviceRole::Log).cloned(),
        superblock_kib: request.superblock_kib,
        truncated,
        on_error: writing.and_then(|writing| {
            Some(match writing.on_error? {
                OnError::Continue => platter_ext4::OnError::Continue,
                OnError::ReadOnly => platter_ext4::OnError::ReadOnly,
            })
        }),
        data_mode: own.data_mode.filter(|_| writing.is_some()),
        mbcache: (writing.is_some() && own.mbcache).then(Default::default),
        commit_interval: writing.and_then(|writing| writing.commit_interval),
        share: if writing.is_some_and(|writing| writing.uses_reserve) {
            ContentsShare::Reserved
        } else {
            ContentsShare::Unreserved
        },
        unjournaled: request.purpose == Purpose::EditOnScratch,
        quota_limits: own.quota_limits,
        node_name: rustix::system::uname().nodename().to_bytes().to_vec(),
    }
}
