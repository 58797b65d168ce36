//! The devices of a filesystem: those that were given, and those that are missing.

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_ondisk::Uuid;

use crate::ondisk::DeviceId;
use crate::ondisk::chunk_item::Stripe;

/// A device of the filesystem.
#[derive(Debug, Clone)]
pub struct Member {
    /// Its number.
    pub id: DeviceId,
    /// Its UUID.
    pub uuid: Uuid,
    /// Its size as the filesystem knows it, if that is known.
    pub total_bytes: Option<u64>,
    /// Its position among the devices that were given.
    pub index: u16,
    /// The device; `None` if it is missing.
    pub device: Option<Arc<dyn BlockDevice>>,
}

/// The devices of a filesystem.
#[derive(Debug, Clone, Default)]
pub struct Members {
    list: Vec<Member>,
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
        let same = |known: &&mut Member| known.id == member.id && known.uuid == member.uuid;
        let Some(known) = self.list.iter_mut().find(same) else {
            self.list.push(member);
            return;
        };
        known.total_bytes = known.total_bytes.or(member.total_bytes);
        if known.device.is_none() {
            known.device = member.device;
            known.index = member.index;
        }
    }

    /// The device that a stripe is on.
    #[must_use]
    pub fn of_stripe(&self, stripe: &Stripe) -> Option<&Member> {
        let is_it =
            |member: &&Member| member.id == stripe.device && member.uuid == stripe.device_uuid;
        self.list.iter().find(is_it)
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
