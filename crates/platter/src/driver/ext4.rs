//! ext2, ext3 and ext4.

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_ext4::{Changeover, ContentsShare, Ext4, MountOptions, Unused};
use platter_vfs::{CheckReport, CheckSink, Filesystem, Result};

use super::{ChangeoverRequest, Driver, Identity, MountRequest, UnusedPlaces};
use crate::Format;
use crate::open::{DataMode, OnError, Recovery};

pub(super) const DRIVER: Driver = Driver {
    format: Format::Ext,
    identify,
    superblock_copy: platter_ext4::find_superblock_copy,
    mount,
    check,
    unused,
    change_over,
};

fn identify(device: &dyn BlockDevice) -> Result<Identity> {
    let superblock = Ext4::identify(device)?;
    Ok(Identity {
        kind: superblock.kind(),
        label: superblock.label,
        uuid: superblock.uuid,
    })
}

fn mount(request: MountRequest) -> Result<Arc<dyn Filesystem>> {
    // What is missing can be passed over by who reads only.
    let cut_off = request.writing.is_none();
    Ok(Arc::new(open(request, cut_off)?))
}

fn check(request: MountRequest, sink: &mut dyn CheckSink) -> Result<CheckReport> {
    // Where the end is missing there is no use in telling each structure that lay there.
    let cut_off = false;
    Ok(open(request, cut_off)?.check(sink))
}

fn unused(request: &MountRequest) -> Result<Option<Box<UnusedPlaces>>> {
    let found = Unused::of(&request.device, &options(request, false), &request.budget)?;
    Ok(found.map(|unused| -> Box<UnusedPlaces> { Box::new(move |range| unused.contains(range)) }))
}

fn change_over(request: ChangeoverRequest<'_>) -> Result<()> {
    let ChangeoverRequest { mount, unseen, new } = request;
    let changeover = Changeover {
        options: options(&mount, false),
        device: mount.device,
        unseen,
        new,
        budget: mount.budget,
        clock: mount.clock,
    };
    changeover.run()
}

fn open(request: MountRequest, cut_off: bool) -> Result<Ext4> {
    let options = options(&request, cut_off);
    Ext4::mount(request.device, &options, request.budget, request.clock)
}

fn options(request: &MountRequest, cut_off: bool) -> MountOptions {
    let writing = request.writing;
    MountOptions {
        read_only: writing.is_none(),
        recovery: match request.recovery {
            Recovery::Replay => platter_ext4::Recovery::InMemory,
            Recovery::Skip => platter_ext4::Recovery::Skip,
        },
        journal: request.journal.clone(),
        superblock_kib: request.superblock_kib,
        cut_off,
        on_error: writing.and_then(|writing| {
            Some(match writing.on_error? {
                OnError::Continue => platter_ext4::OnError::Continue,
                OnError::ReadOnly => platter_ext4::OnError::ReadOnly,
            })
        }),
        data_mode: writing.and_then(|writing| {
            Some(match writing.data_mode? {
                DataMode::Journal => platter_ext4::DataMode::Journal,
                DataMode::Ordered => platter_ext4::DataMode::Ordered,
                DataMode::Writeback => platter_ext4::DataMode::Writeback,
            })
        }),
        mbcache: writing.and_then(|writing| writing.mbcache.then(Default::default)),
        commit_interval: writing.and_then(|writing| writing.commit_interval),
        share: if writing.is_some_and(|writing| writing.uses_reserve) {
            ContentsShare::Reserved
        } else {
            ContentsShare::Unreserved
        },
        unjournaled: request.on_scratch,
        node_name: rustix::system::uname().nodename().to_bytes().to_vec(),
    }
}
