//! What to make a filesystem with.

use platter_ondisk::Uuid;
use platter_vfs::{Error, Unsupported};

use crate::ondisk::features::{
    Compat, Features, Features2, Incompat, LogIncompat, RoCompat, Version,
};

/// Options of a new filesystem. What is `None` is chosen as `mkfs.xfs` chooses it for the size of the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MkfsOptions {
    /// Size of a block.
    pub block_bytes: Option<u32>,
    /// Size of a sector.
    pub sector_bytes: Option<u32>,
    /// Size of an inode.
    pub inode_bytes: Option<u32>,
    /// Size of a directory block.
    pub dir_block_bytes: Option<u32>,
    /// Number of allocation groups; their size counts where both are given.
    pub ag_count: Option<u32>,
    /// Size of an allocation group.
    pub ag_bytes: Option<u64>,
    /// Size of the log.
    pub log_bytes: Option<u64>,
    /// Stripe unit of the log.
    pub log_stripe_bytes: Option<u32>,
    /// Stripe unit and stripe width of the data, in blocks; zero for none.
    pub stripe_blocks: (u32, u32),
    /// The most space for inodes, in percent; zero for the default.
    pub inode_percent: u8,
    /// The label, of at most 12 bytes.
    pub label: Vec<u8>,
    /// The UUID.
    pub uuid: Uuid,
    /// User and group of the root directory.
    pub root_owner: (u32, u32),
    /// What may be absent.
    pub features: Features,
    /// Also what `mkfs.xfs` makes with `--unsupported` only: filesystems below 300 MiB or of one group, and logs below
    /// 64 MiB.
    pub unsupported: bool,
}

impl MkfsOptions {
    /// The defaults of mkfs.xfs 6.1.
    #[must_use]
    pub fn new(uuid: Uuid) -> Self {
        let features = Features {
            number: 5,
            version: Version::NLINK
                | Version::ALIGN
                | Version::LOGV2
                | Version::EXTFLG
                | Version::DIRV2
                | Version::MOREBITS,
            features2: Features2::LAZYSBCOUNT
                | Features2::ATTR2
                | Features2::PROJID32BIT
                | Features2::CRC,
            compat: Compat::empty(),
            ro_compat: RoCompat::FINOBT | RoCompat::REFLINK | RoCompat::INOBTCNT,
            incompat: Incompat::FTYPE | Incompat::SPINODES | Incompat::BIGTIME,
            log_incompat: LogIncompat::empty(),
        };
        Self {
            block_bytes: None,
            sector_bytes: None,
            inode_bytes: None,
            dir_block_bytes: None,
            ag_count: None,
            ag_bytes: None,
            log_bytes: None,
            log_stripe_bytes: None,
            stripe_blocks: (0, 0),
            inode_percent: 0,
            label: Vec::new(),
            uuid,
            root_owner: (0, 0),
            features,
            unsupported: false,
        }
    }

    /// Switches a feature on or off, by its name in mkfs.xfs.
    ///
    /// # Errors
    /// `Unsupported` for what is not made.
    pub fn set_feature(&mut self, name: &str, on: bool) -> Result<(), Unsupported> {
        let features = &mut self.features;
        match name {
            "finobt" => features.ro_compat.set(RoCompat::FINOBT, on),
            "rmapbt" => features.ro_compat.set(RoCompat::RMAPBT, on),
            "reflink" => features.ro_compat.set(RoCompat::REFLINK, on),
            "inobtcount" => features.ro_compat.set(RoCompat::INOBTCNT, on),
            "sparse" => features.incompat.set(Incompat::SPINODES, on),
            "bigtime" => features.incompat.set(Incompat::BIGTIME, on),
            "parent" => features.incompat.set(Incompat::PARENT, on),
            "exchange" => features.incompat.set(Incompat::EXCHRANGE, on),
            "nrext64" => features.incompat.set(Incompat::NREXT64, on),
            "crc" | "ftype" | "lazy-count" | "attr2" | "projid32bit" | "align" if on => {}
            name if on => return Err(refused(format!("making a filesystem with {name}"))),
            name => return Err(refused(format!("making a filesystem without {name}"))),
        }
        Ok(())
    }
}

fn refused(feature: String) -> Unsupported {
    Unsupported {
        filesystem: "xfs",
        feature,
        reason: None,
    }
}

/// Refuses a size that the format does not have.
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

    #[test]
    fn features_are_switched_by_their_names() {
        let mut options = MkfsOptions::new(Uuid::from_bytes([1; 16]));
        options.set_feature("rmapbt", true).unwrap();
        options.set_feature("sparse", false).unwrap();
        options.set_feature("crc", true).unwrap();
        assert!(options.features.has_rmapbt() && !options.features.has_sparse_inodes());
        for (name, on, expected) in [
            ("crc", false, "making a filesystem without crc"),
            ("ascii-ci", true, "making a filesystem with ascii-ci"),
        ] {
            let error = options.set_feature(name, on).unwrap_err();
            assert_eq!(error.feature, expected);
        }
    }
}
