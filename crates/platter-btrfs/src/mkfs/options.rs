//! What to make a filesystem with.

use platter_ondisk::Uuid;
use platter_vfs::{Error, Unsupported};

use crate::ondisk::ChecksumKind;
use crate::ondisk::chunk_item::{BlockGroupFlags, Profile};
use crate::ondisk::features::{CompatRo, Features, Incompat};
use crate::ondisk::superblock::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN};

/// The size of sectors.
pub(super) const SECTOR_BYTES: u32 = 4096;
/// The size of tree blocks where data and metadata are not mixed.
const NODE_BYTES: u32 = 16 << 10;

/// Options of a new filesystem. What is `None` is chosen as `mkfs.btrfs` 6.2 chooses it for the devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MkfsOptions {
    /// Size of a tree block.
    pub node_bytes: Option<u32>,
    /// How data is stored.
    pub data: Option<Profile>,
    /// How metadata is stored.
    pub metadata: Option<Profile>,
    /// The checksums of metadata and data.
    pub checksum_kind: ChecksumKind,
    /// The label, of at most 255 bytes.
    pub label: Vec<u8>,
    /// The UUID.
    pub uuid: Uuid,
    /// User and group of the root directory.
    pub root_owner: (u32, u32),
    /// What may be absent, without what profiles imply.
    pub features: Features,
    /// Quota groups are on: full ones, or simple ones by the features.
    pub has_quotas: bool,
    /// The first chunks are as small as they can be.
    pub is_small: bool,
}

impl MkfsOptions {
    /// The defaults of mkfs.btrfs 6.2.
    #[must_use]
    pub fn new(uuid: Uuid) -> Self {
        Self {
            node_bytes: None,
            data: None,
            metadata: None,
            checksum_kind: ChecksumKind::Crc32c,
            label: Vec::new(),
            uuid,
            root_owner: (0, 0),
            features: Features {
                compat: 0,
                compat_ro: CompatRo::FREE_SPACE_TREE | CompatRo::FREE_SPACE_TREE_VALID,
                incompat: Incompat::MIXED_BACKREF
                    | Incompat::EXTENDED_IREF
                    | Incompat::SKINNY_METADATA
                    | Incompat::NO_HOLES,
            },
            has_quotas: false,
            is_small: false,
        }
    }

    /// Switches a feature on or off, by its name in mkfs.btrfs, be it one of `-O` or of `-R` there.
    ///
    /// # Errors
    /// `Unsupported` for what is not made.
    pub fn set_feature(&mut self, name: &str, on: bool) -> Result<(), Unsupported> {
        let Features {
            compat_ro,
            incompat,
            ..
        } = &mut self.features;
        match name {
            "mixed-bg" => incompat.set(Incompat::MIXED_GROUPS, on),
            "extref" => incompat.set(Incompat::EXTENDED_IREF, on),
            "raid56" => incompat.set(Incompat::RAID56, on),
            "raid1c34" => incompat.set(Incompat::RAID1C34, on),
            "skinny-metadata" => incompat.set(Incompat::SKINNY_METADATA, on),
            "no-holes" => incompat.set(Incompat::NO_HOLES, on),
            "free-space-tree" => {
                let both = CompatRo::FREE_SPACE_TREE | CompatRo::FREE_SPACE_TREE_VALID;
                compat_ro.set(both, on);
            }
            "block-group-tree" => compat_ro.set(CompatRo::BLOCK_GROUP_TREE, on),
            "quota" | "squota" => {
                self.has_quotas = on;
                incompat.set(Incompat::SIMPLE_QUOTA, on && name == "squota");
            }
            name if on => return Err(refused(format!("making a filesystem with {name}"))),
            "zoned" | "raid-stripe-tree" | "extent-tree-v2" => {}
            name => return Err(refused(format!("making a filesystem without {name}"))),
        }
        Ok(())
    }

    /// Whether data and metadata share block groups.
    pub(super) fn is_mixed(&self) -> bool {
        self.features.incompat.contains(Incompat::MIXED_GROUPS)
    }

    /// The options for so many devices, with nothing left to choose.
    ///
    /// # Errors
    /// `Unsupported`, by name, for what does not go together.
    pub(super) fn choose(&self, devices: usize) -> Result<Choice, Error> {
        let is_mixed = self.is_mixed();
        let node_bytes = match self.node_bytes {
            Some(bytes) => bytes,
            None if is_mixed => SECTOR_BYTES,
            None => NODE_BYTES,
        };
        if !node_bytes.is_power_of_two()
            || !(BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&node_bytes)
        {
            let reason = "4096, 8192, 16384, 32768 or 65536";
            return Err(refuse(format!("nodes of {node_bytes} bytes"), reason));
        }
        let (data, metadata) = match (is_mixed, self.data, self.metadata) {
            (true, Some(data), Some(metadata)) if data != metadata => {
                let feature = "mixed block groups with two profiles".to_owned();
                return Err(refuse(feature, "data and metadata have the same one"));
            }
            (true, data, metadata) => {
                let both = data.or(metadata).unwrap_or(Profile::Single);
                (both, both)
            }
            (false, data, metadata) => {
                let redundant = if devices > 1 {
                    Profile::Raid1
                } else {
                    Profile::Dup
                };
                let data = data.unwrap_or(Profile::Single);
                (data, metadata.unwrap_or(redundant))
            }
        };
        if is_mixed && node_bytes != SECTOR_BYTES {
            let feature = format!("mixed block groups with nodes of {node_bytes} bytes");
            return Err(refuse(feature, "nodes are as large as sectors there"));
        }
        let mut features = self.features;
        if features.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE)
            && !(features.compat_ro.contains(CompatRo::FREE_SPACE_TREE)
                && features.incompat.contains(Incompat::NO_HOLES))
        {
            let feature = "block-group-tree without free-space-tree and no-holes".to_owned();
            return Err(refuse(feature, "it needs both"));
        }
        for profile in [data, metadata] {
            let implied = match profile {
                Profile::Raid5 | Profile::Raid6 => Incompat::RAID56,
                Profile::Raid1C3 | Profile::Raid1C4 => Incompat::RAID1C34,
                Profile::Single
                | Profile::Dup
                | Profile::Raid0
                | Profile::Raid1
                | Profile::Raid10 => Incompat::empty(),
            };
            features.incompat |= implied;
        }
        Ok(Choice {
            node_bytes,
            data: if is_mixed {
                None
            } else {
                Some(BlockGroupFlags::DATA | data.flags())
            },
            metadata: if is_mixed {
                BlockGroupFlags::DATA | BlockGroupFlags::METADATA | metadata.flags()
            } else {
                BlockGroupFlags::METADATA | metadata.flags()
            },
            system: BlockGroupFlags::SYSTEM | metadata.flags(),
            features,
            has_quotas: self.has_quotas,
            is_small: self.is_small,
        })
    }
}

/// What was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) node_bytes: u32,
    /// Type and profile of data; `None` where it shares the groups of metadata.
    pub(super) data: Option<BlockGroupFlags>,
    pub(super) metadata: BlockGroupFlags,
    pub(super) system: BlockGroupFlags,
    pub(super) features: Features,
    pub(super) has_quotas: bool,
    pub(super) is_small: bool,
}

fn refused(feature: String) -> Unsupported {
    Unsupported {
        filesystem: "btrfs",
        feature,
        reason: None,
    }
}

/// Refuses what the format does not have.
pub(super) fn refuse(feature: String, reason: &'static str) -> Error {
    Unsupported {
        reason: Some(reason),
        ..refused(feature)
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(change: impl FnOnce(&mut MkfsOptions)) -> MkfsOptions {
        let mut options = MkfsOptions::new(Uuid::from_u128(1));
        change(&mut options);
        options
    }

    #[test]
    fn metadata_has_two_copies_by_default() {
        let of = |devices| options(|_| ()).choose(devices).unwrap();
        assert_eq!(Profile::of(of(1).metadata), Some(Profile::Dup));
        assert_eq!(Profile::of(of(2).metadata), Some(Profile::Raid1));
        assert_eq!(of(2).data, Some(BlockGroupFlags::DATA));
        let mixed = options(|it| it.set_feature("mixed-bg", true).unwrap());
        let mixed = mixed.choose(1).unwrap();
        assert_eq!((mixed.data, mixed.node_bytes), (None, 4096));
        assert_eq!(Profile::of(mixed.metadata), Some(Profile::Single));
    }

    #[test]
    fn what_does_not_go_together_is_refused_by_name() {
        let refused = |change: &dyn Fn(&mut MkfsOptions)| {
            let mut options = options(|_| ());
            change(&mut options);
            options.choose(2).unwrap_err().to_string()
        };
        let mixed = |it: &mut MkfsOptions| it.set_feature("mixed-bg", true).unwrap();
        let text = refused(&|it| {
            mixed(it);
            it.node_bytes = Some(16 << 10);
        });
        assert!(text.contains("mixed block groups with nodes"), "{text}");
        let text = refused(&|it| {
            mixed(it);
            (it.data, it.metadata) = (Some(Profile::Raid1), Some(Profile::Raid0));
        });
        assert!(text.contains("two profiles"), "{text}");
        let text = refused(&|it| {
            it.set_feature("block-group-tree", true).unwrap();
            it.set_feature("no-holes", false).unwrap();
        });
        assert!(text.contains("block-group-tree without"), "{text}");
        let text = refused(&|it| it.node_bytes = Some(12 << 10));
        assert!(text.contains("nodes of 12288 bytes"), "{text}");
        for name in ["zoned", "raid-stripe-tree"] {
            let error = options(|_| ()).set_feature(name, true).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn profiles_imply_features() {
        let chosen = options(|it| it.metadata = Some(Profile::Raid1C3));
        let features = chosen.choose(3).unwrap().features;
        assert!(features.incompat.contains(Incompat::RAID1C34));
        let chosen = options(|it| it.data = Some(Profile::Raid5));
        let features = chosen.choose(3).unwrap().features;
        assert!(features.incompat.contains(Incompat::RAID56));
    }
}
