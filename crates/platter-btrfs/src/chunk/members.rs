//! The devices of a filesystem: those that were given, and those that are missing.

use std::sync::Arc;

use hashbrown::HashMap;
use platter_block::BlockDevice;
use platter_ondisk::Uuid;

use crate::ondisk::chunk_item::Stripe;
use crate::ondisk::{DeviceId, Generation};

/// A device of the filesystem.
#[derive(Debug, Clone)]
pub struct Member {
    /// Its number.
    pub id: DeviceId,
    /// Its UUID.
    pub uuid: Uuid,
    /// The filesystem that it belongs to: another one for a seed.
    pub fsid: Uuid,
    /// Its size as the filesystem knows it, if that is known.
    pub total_bytes: Option<u64>,
    /// The last commit that reached it; not known if it is missing.
    pub generation: Option<Generation>,
    /// Its position among the devices that were given.
    pub index: u16,
    /// The device; `None` if it is missing.
    pub device: Option<Arc<dyn BlockDevice>>,
}

/// The devices of a filesystem.
///
/// # Invariants
/// - `positions` has the position in `list` of each device, by its number and UUID.
#[derive(Debug, Clone, Default)]
pub struct Members {
    list: Vec<Member>,
    positions: HashMap<(DeviceId, Uuid), usize>,
    unlisted: Vec<DeviceId>,
}

impl Members {
    /// These devices. Of several entries with one number and UUID, one that is present counts.
    #[must_use]
    pub fn new(list: Vec<Member>) -> Self {
        let mut members = Self::default();
        for member in list {
            members.add(member);
        }
        members
    }

    /// Adds what is known of a device.
    pub fn add(&mut self, member: Member) {
        let position = self.positions.entry((member.id, member.uuid));
        let position = *position.or_insert(self.list.len());
        let Some(known) = self.list.get_mut(position) else {
            self.list.push(member);
            return;
        };
        known.total_bytes = known.total_bytes.or(member.total_bytes);
        if known.device.is_none() {
            known.device = member.device;
            known.index = member.index;
            known.generation = member.generation;
        }
    }

    /// Adds a device that has no valid item in the chunk tree.
    pub fn add_unlisted(&mut self, member: Member) {
        self.unlisted.push(member.id);
        self.add(member);
    }

    /// Removes a device.
    pub fn remove(&mut self, id: DeviceId) {
        self.list.retain(|member| member.id != id);
        let known = self.list.iter().enumerate();
        self.positions = known
            .map(|(at, member)| ((member.id, member.uuid), at))
            .collect();
    }

    /// The device with this number, to change what is known of it.
    pub fn find_mut(&mut self, id: DeviceId) -> Option<&mut Member> {
        self.list.iter_mut().find(|member| member.id == id)
    }

    /// The devices that have no valid item in the chunk tree.
    #[must_use]
    pub fn unlisted(&self) -> &[DeviceId] {
        &self.unlisted
    }

    /// The device that a stripe is on.
    #[must_use]
    pub fn of_stripe(&self, stripe: &Stripe) -> Option<&Member> {
        let position = self.positions.get(&(stripe.device, stripe.device_uuid))?;
        self.list.get(*position)
    }

    /// All devices.
    pub fn iter(&self) -> impl Iterator<Item = &Member> {
        self.list.iter()
    }

    /// The devices that are missing.
    pub fn missing(&self) -> impl Iterator<Item = &Member> {
        self.iter().filter(|member| member.device.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::DeviceAddr;

    fn member(number: u64) -> Member {
        Member {
            id: DeviceId(number),
            uuid: Uuid::from_bytes(u128::from(number).to_le_bytes()),
            fsid: Uuid::from_u128(0),
            total_bytes: Some(number),
            generation: None,
            index: 0,
            device: None,
        }
    }

    /// As many as a chunk tree of a few MiB can list: searched one by one, this would take minutes.
    #[test]
    fn devices_are_found_among_very_many() {
        const COUNT: u64 = 300_000;
        let twice = (0..COUNT).chain(0..COUNT);
        let members = Members::new(twice.map(member).collect());
        assert_eq!(members.iter().count() as u64, COUNT);
        for number in [0, 7, COUNT - 1] {
            let Member { id, uuid, .. } = member(number);
            let stripe = Stripe {
                device: id,
                offset: DeviceAddr(0),
                device_uuid: uuid,
            };
            let found = members.of_stripe(&stripe);
            assert_eq!(found.and_then(|it| it.total_bytes), Some(number));
            let device_uuid = member(COUNT).uuid;
            let other = Stripe {
                device_uuid,
                ..stripe
            };
            assert!(members.of_stripe(&other).is_none());
        }
    }
}
