//! What devices say of their filesystem, without mounting it.

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_ondisk::Uuid;
use platter_vfs::Result;

use super::chunks::ChunkTree;
use super::members::{Given, group, superblock};
use crate::chunk::{Member, Members};
use crate::ondisk::{DeviceId, Superblock};

/// Enough for the chunk tree, which is read once.
const BUDGET_BYTES: u64 = 1 << 20;

/// A filesystem, and its devices by number and UUID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The newest superblock.
    pub superblock: Superblock,
    /// The devices that were given.
    pub present: Vec<(DeviceId, Uuid)>,
    /// Those that were not, as far as the chunk tree can be read.
    pub missing: Vec<(DeviceId, Uuid)>,
}

/// Reads what `devices` say of the filesystem that the first names. Devices of other filesystems are
/// left out, which a mount refuses; features need not be ones that this driver knows.
pub fn identify_all(devices: &[Arc<dyn BlockDevice>]) -> Result<Identity> {
    let mut given = Vec::new();
    for (index, device) in (0u16..).zip(devices) {
        match superblock(&**device, given.first(), None) {
            Ok(superblock) => given.push(Given::new(index, device, superblock)),
            Err(error) if index == 0 => return Err(error),
            Err(_) => {}
        }
    }
    let found = group(given)?;
    let superblock = found.superblock.clone();
    let budget = Arc::new(MemoryBudget::new(BUDGET_BYTES));
    let members = match ChunkTree::read(&found, &superblock, &budget, false) {
        Ok(tree) => found.named(&tree.devices),
        Err(_) => found.own(),
    };
    Ok(Identity {
        superblock,
        present: list(&members, true),
        missing: list(&members, false),
    })
}

fn list(members: &Members, present: bool) -> Vec<(DeviceId, Uuid)> {
    let chosen = members.iter().filter(|it| it.device.is_some() == present);
    chosen
        .map(|member: &Member| (member.id, member.uuid))
        .collect()
}
