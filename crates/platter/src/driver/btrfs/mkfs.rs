//! New filesystems of btrfs.

use std::ops::Range;
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_btrfs::mkfs::{LABEL_LEN_MAX, MkfsOptions, Target, check, free_bytes, mkfs};
use platter_btrfs::ondisk::ChecksumKind;
use platter_btrfs::ondisk::chunk_item::Profile;
use platter_btrfs::{Btrfs, MountOptions};
use platter_ondisk::Uuid;
use platter_vfs::{Clock, Filesystem, Result};

use super::{set_compression, unsupported};
use crate::Format;
use crate::devices::{DeviceRole, Devices};
use crate::driver::mkfs::fit;
use crate::driver::{FillRequest, Mkfs, MkfsRequest, OnDevice};
use crate::options::OptionError;

/// All profiles.
const PROFILES: [Profile; 9] = [
    Profile::Single,
    Profile::Dup,
    Profile::Raid0,
    Profile::Raid1,
    Profile::Raid1C3,
    Profile::Raid1C4,
    Profile::Raid10,
    Profile::Raid5,
    Profile::Raid6,
];
/// Checksums by their names in mkfs.btrfs.
const CHECKSUMS: [(&str, ChecksumKind); 4] = [
    ("crc32c", ChecksumKind::Crc32c),
    ("xxhash", ChecksumKind::Xxhash64),
    ("sha256", ChecksumKind::Sha256),
    ("blake2", ChecksumKind::Blake2b),
];

/// Chunks of the usual sizes fit, and others in addition.
const SPARE_BYTES: u64 = 128 << 20;
/// The part of the device that chunks take at most where the image is to be short.
const SMALL_CHUNK_PARTS: u64 = 100;

/// A new filesystem.
#[derive(Debug, Clone)]
pub(super) struct NewBtrfs {
    options: MkfsOptions,
    uuid: Option<Uuid>,
    root_owner: Option<(u32, u32)>,
    /// How it is mounted to fill it.
    filling: MountOptions,
}

impl NewBtrfs {
    /// The defaults of mkfs.btrfs.
    pub(super) fn new() -> Self {
        Self {
            options: MkfsOptions::new(Uuid::nil()),
            uuid: None,
            root_owner: None,
            filling: MountOptions::default(),
        }
    }
}

impl Mkfs for NewBtrfs {
    fn boxed(&self) -> Box<dyn Mkfs> {
        Box::new(self.clone())
    }

    fn format(&self) -> Format {
        Format::Btrfs
    }

    fn has_subvolumes(&self) -> bool {
        true
    }

    fn shares_extents(&self) -> bool {
        true
    }

    fn set_label(&mut self, label: Vec<u8>) -> Result<(), OptionError> {
        if label.len() > LABEL_LEN_MAX || label.contains(&b'\n') {
            return Err(OptionError::Invalid("at most 255 bytes in one line"));
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
        match name {
            "node-size" => self.options.node_bytes = Some(fit(value)?),
            "sector-size" if value == 4096 => {}
            "sector-size" => return Err(OptionError::Invalid("4096")),
            _ => return Err(OptionError::Unknown),
        }
        Ok(())
    }

    fn set_word(&mut self, name: &str, value: &str) -> Result<(), OptionError> {
        match name {
            "data" => self.options.data = Some(profile(value)?),
            "metadata" => self.options.metadata = Some(profile(value)?),
            "csum" => {
                let found = CHECKSUMS.iter().find(|(name, _)| *name == value);
                let invalid = OptionError::Invalid("crc32c, xxhash, sha256 or blake2");
                self.options.checksum_kind = found.ok_or(invalid)?.1;
            }
            "compress" => set_compression(&mut self.filling, Some(value), false)?,
            _ => return Err(OptionError::Unknown),
        }
        Ok(())
    }

    fn require_inodes(&mut self, _: u32) {}

    fn spare_bytes(&self) -> u64 {
        SPARE_BYTES
    }

    fn set_minimal(&mut self) {
        self.options.is_small = true;
        self.filling.transactions.chunk_parts = SMALL_CHUNK_PARTS;
    }

    fn choose_random(&mut self, clock: &dyn Clock) {
        self.uuid.get_or_insert_with(|| clock.random_uuid());
    }

    fn check(&self, targets: &Devices, _: &dyn Clock) -> Result<()> {
        let devices = data_devices(targets)?;
        let lens = devices.iter().map(|device| device.geometry().len_bytes);
        check(&lens.collect::<Vec<_>>(), &self.options)
    }

    fn make(&self, request: MkfsRequest<'_>) -> Result<()> {
        let (devices, clock) = (data_devices(request.targets)?, request.clock);
        let options = MkfsOptions {
            uuid: self.uuid.unwrap_or_else(|| clock.random_uuid()),
            root_owner: self.root_owner.unwrap_or_default(),
            ..self.options.clone()
        };
        let target = Target {
            devices: &devices,
            is_zero: request.before == OnDevice::Zeros,
        };
        mkfs(&target, &options, clock)
    }

    fn mount(&self, request: FillRequest<'_>) -> Result<Arc<dyn Filesystem>> {
        let devices = data_devices(request.targets)?;
        let (budget, clock) = (request.budget, request.clock);
        let mounted = Btrfs::mount_writable(&devices, &self.filling, budget, clock)?;
        Ok(Arc::new(mounted))
    }

    fn free_bytes(&self, device: &Arc<dyn BlockDevice>) -> Result<u64> {
        free_bytes(device)
    }

    fn length_classes(&self) -> Vec<Range<u64>> {
        let any = 0..i64::MAX.unsigned_abs();
        vec![any]
    }

    fn length_unit_bytes(&self) -> u64 {
        4096
    }
}

/// The profile of this name, as btrfs-progs has them but for upper and lower case.
fn profile(name: &str) -> Result<Profile, OptionError> {
    let mut all = PROFILES.into_iter();
    let found = all.find(|profile| profile.name().eq_ignore_ascii_case(name));
    found.ok_or(OptionError::Invalid(
        "single, dup, raid0, raid1, raid1c3, raid1c4, raid10, raid5 or raid6",
    ))
}

/// The devices, all of which hold data.
fn data_devices(targets: &Devices) -> Result<Vec<Arc<dyn BlockDevice>>> {
    let mut all = targets.iter();
    if all.any(|target| target.role != DeviceRole::Data) {
        let feature = "making it with devices that do not hold data";
        return Err(unsupported(Format::Btrfs, feature));
    }
    let devices = targets.iter();
    Ok(devices.map(|target| Arc::clone(&target.device)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_mkfs_btrfs() {
        let mut new = NewBtrfs::new();
        new.set_word("data", "RAID1c3").unwrap();
        new.set_word("metadata", "single").unwrap();
        new.set_word("csum", "blake2").unwrap();
        assert_eq!(new.options.data, Some(Profile::Raid1C3));
        assert_eq!(new.options.metadata, Some(Profile::Single));
        assert_eq!(new.options.checksum_kind, ChecksumKind::Blake2b);
        for (name, value) in [("data", "raid7"), ("csum", "md5"), ("compress", "gzip")] {
            let refused = new.set_word(name, value);
            assert!(matches!(refused, Err(OptionError::Invalid(_))), "{name}");
        }
        assert_eq!(new.set_word("other", ""), Err(OptionError::Unknown));
        assert_eq!(new.set_number("sector-size", 4096), Ok(()));
        assert!(new.set_number("sector-size", 8192).is_err());
        new.set_label(vec![b'x'; 256]).unwrap_err();
    }
}
