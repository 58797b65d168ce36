//! The tools that are compared.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use testkit::fs_type::FsType;
use testkit::program;

/// A program with its options.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Tool {
    PlatterCheck,
    E2fsck,
    BtrfsCheck,
    XfsRepair,
    PlatterCp,
    Rdump,
    Restore,
}

/// Tools that do the same, platter first. Nothing but a mount copies an XFS out.
pub(crate) const fn pairs(format: FsType) -> &'static [[Tool; 2]] {
    match format {
        FsType::Ext4 => &[
            [Tool::PlatterCheck, Tool::E2fsck],
            [Tool::PlatterCp, Tool::Rdump],
        ],
        FsType::Btrfs => &[
            [Tool::PlatterCheck, Tool::BtrfsCheck],
            [Tool::PlatterCp, Tool::Restore],
        ],
        FsType::Xfs => &[[Tool::PlatterCheck, Tool::XfsRepair]],
    }
}

impl Tool {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::PlatterCheck => "platter check",
            Self::E2fsck => "e2fsck -fn",
            Self::BtrfsCheck => "btrfs check --readonly",
            Self::XfsRepair => "xfs_repair -n",
            Self::PlatterCp => "platter cp -a",
            Self::Rdump => "debugfs rdump",
            Self::Restore => "btrfs restore -mSx",
        }
    }

    /// Whether it makes a copy of all that an image holds.
    pub(crate) const fn copies_out(self) -> bool {
        matches!(self, Self::PlatterCp | Self::Rdump | Self::Restore)
    }

    /// Adds the program with its arguments; what it copies out goes into `made`.
    pub(super) fn add_to(self, command: &mut Command, image: &Path, made: &Path) -> Result<()> {
        let platter = || Ok::<_, anyhow::Error>(program::platter()?.get_program().to_owned());
        match self {
            Self::PlatterCheck => command.arg(platter()?).arg("check").arg(image),
            Self::E2fsck => command.args(["e2fsck", "-f", "-n"]).arg(image),
            Self::BtrfsCheck => command.args(["btrfs", "check", "--readonly"]).arg(image),
            Self::XfsRepair => {
                command.args(["xfs_repair", "-n"]);
                if image.is_file() {
                    command.arg("-f");
                }
                command.arg(image)
            }
            Self::PlatterCp => {
                let root = with(image, ":/.");
                command
                    .arg(platter()?)
                    .args(["cp", "-a"])
                    .arg(root)
                    .arg(made)
            }
            Self::Rdump => {
                let request = with("rdump / ", made);
                command.args(["debugfs", "-R"]).arg(request).arg(image)
            }
            Self::Restore => command
                .args(["btrfs", "restore", "-mSx"])
                .arg(image)
                .arg(made),
        };
        Ok(())
    }
}

fn with(start: impl AsRef<OsStr>, end: impl AsRef<OsStr>) -> OsString {
    let mut whole = start.as_ref().to_owned();
    whole.push(end);
    whole
}
