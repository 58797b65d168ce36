//! Mount options of ext2, ext3 and ext4.

use platter_ext4::DataMode;

use crate::options::{MountOption, OptionError};

/// Options of mount(8) for these filesystems that would change durability or permissions.
const UNSUPPORTED: &[&str] = &[
    "nodelalloc",
    "nobarrier",
    "noacl",
    "nouser_xattr",
    "journal_checksum",
    "journal_async_commit",
    "data_err",
    "discard",
    "usrjquota",
    "grpjquota",
    "jqfmt",
    "test_dummy_encryption",
    "dax",
    "stripe",
    "resuid",
    "resgid",
    "grpid",
    "bsdgroups",
];

/// The options that only these filesystems have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExtOptions {
    /// `data=`; `None` for what the superblock says.
    pub(super) data_mode: Option<DataMode>,
    /// Whether equal xattr blocks are shared; `no_mbcache` for not.
    pub(super) mbcache: bool,
    /// Whether limits of users, groups and projects are enforced: `usrquota`, `grpquota`, `prjquota`.
    pub(super) quota_limits: [bool; 3],
}

impl Default for ExtOptions {
    fn default() -> Self {
        Self {
            data_mode: None,
            mbcache: true,
            quota_limits: [false; 3],
        }
    }
}

impl ExtOptions {
    /// What options say that were accepted.
    pub(super) fn of(options: &[MountOption]) -> Self {
        let mut own = Self::default();
        for option in options {
            // Each was accepted before.
            let _ = own.set(option);
        }
        own
    }

    /// Takes an option, the later after the earlier.
    pub(super) fn set(&mut self, option: &MountOption) -> Result<(), OptionError> {
        let MountOption { name, value } = option;
        match &**name {
            "data" => {
                self.data_mode = Some(match value.as_deref() {
                    Some("journal") => DataMode::Journal,
                    Some("ordered") => DataMode::Ordered,
                    Some("writeback") => DataMode::Writeback,
                    _ => return Err(OptionError::Invalid("journal, ordered or writeback")),
                });
            }
            "no_mbcache" => self.mbcache = false,
            "quota" | "usrquota" => self.quota_limits[0] = true,
            "grpquota" => self.quota_limits[1] = true,
            "prjquota" => self.quota_limits[2] = true,
            "noquota" => self.quota_limits = [false; 3],
            "acl" | "user_xattr" | "barrier" | "delalloc" => {}
            name if UNSUPPORTED.contains(&name) => return Err(OptionError::Unsupported),
            _ => return Err(OptionError::Unknown),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_taken_in_order_and_others_are_refused() {
        let options = [
            "data=journal",
            "no_mbcache",
            "acl",
            "data=writeback",
            "grpquota",
        ];
        let own = ExtOptions::of(&options.map(MountOption::parse));
        let expected = ExtOptions {
            data_mode: Some(DataMode::Writeback),
            mbcache: false,
            quota_limits: [false, true, false],
        };
        assert_eq!(own, expected);
        let refused = |word| ExtOptions::default().set(&MountOption::parse(word));
        assert_eq!(
            refused("usrjquota=aquota.user"),
            Err(OptionError::Unsupported)
        );
        assert_eq!(refused("subvol=/"), Err(OptionError::Unknown));
        assert!(matches!(refused("data"), Err(OptionError::Invalid(_))));
    }
}
