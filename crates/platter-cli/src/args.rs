//! The command line.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use platter::MemoryBudget;
use platter::{OpenOptions, Recovery};

use crate::commands::{
    cat, check, chmod, chown, cp, generate, info, ln, ls, mkdir, mkfs, mount, mv, resize, rm, stat,
    tar, touch, tree, truncate, umount, write_batch, xattr,
};

/// Read, change, make, check and mount ext2, ext3 and ext4 images and disks without root.
///
/// IMAGE is a file or a block device. IMAGE@PARTITION is one of its partitions: a number, as in
/// disk.img@2, or PARTUUID=... or PARTLABEL=.... IMAGE[@PARTITION]:PATH is a file in it. Where
/// names hold ':' or '@' themselves, the longest existing prefix is the image.
///
/// Each command that changes an image makes all of its changes or, after an error or when it is
/// killed, none.
#[derive(Debug, Parser)]
#[command(
    name = "platter",
    version,
    max_term_width = 100,
    disable_help_subcommand = true
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) image: ImageOptions,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Info(info::Info),
    Ls(ls::Ls),
    Tree(tree::Tree),
    Stat(stat::Stat),
    Cat(cat::Cat),
    Cp(cp::Cp),
    Mv(mv::Mv),
    Rm(rm::Rm),
    Mkdir(mkdir::Mkdir),
    Ln(ln::Ln),
    Chmod(chmod::Chmod),
    Chown(chown::Chown),
    Xattr(xattr::Xattr),
    Truncate(truncate::Truncate),
    Touch(touch::Touch),
    Tar(tar::Tar),
    Mount(mount::Mount),
    Umount(umount::Umount),
    Check(check::Check),
    Mkfs(Box<mkfs::Mkfs>),
    Resize(resize::Resize),
    #[command(hide = true)]
    Generate(generate::Generate),
    #[command(hide = true)]
    WriteBatch(write_batch::WriteBatch),
}

/// The heading of what is said about opening images.
const IMAGE_OPTIONS: &str = "Image options";

/// How images are opened.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = IMAGE_OPTIONS)]
pub(crate) struct ImageOptions {
    /// The filesystem begins at this byte of the image or partition
    #[arg(long, global = true, value_name = "BYTES", value_parser = parse_size)]
    pub(crate) offset: Option<u64>,
    /// Leave a dirty journal alone instead of replaying it, in memory or for who writes in the image
    #[arg(long, global = true)]
    pub(crate) norecovery: bool,
    /// The image or device of an external journal
    #[arg(long, global = true, value_name = "IMAGE")]
    pub(crate) journal: Option<PathBuf>,
    /// Use the copy of the superblock at this place, in units of 1 KiB
    #[arg(long, global = true, value_name = "KIB")]
    pub(crate) superblock: Option<u64>,
    /// How much memory the caches may take
    #[arg(long, global = true, value_name = "SIZE", value_parser = parse_size, default_value = "64M")]
    pub(crate) cache: u64,
    /// Open an image that somebody else may be writing to
    #[arg(long, global = true)]
    pub(crate) no_lock: bool,
    /// Tell on standard error how many requests reached the image
    #[arg(long, global = true)]
    pub(crate) count_requests: bool,
}

impl ImageOptions {
    /// The options as the library takes them.
    pub(crate) fn open_options(&self) -> OpenOptions {
        let mut options = OpenOptions::new().budget(Arc::new(MemoryBudget::new(self.cache)));
        if let Some(offset) = self.offset {
            options = options.offset(offset);
        }
        if self.norecovery {
            options = options.recovery(Recovery::Skip);
        }
        if let Some(journal) = &self.journal {
            options = options.journal(journal);
        }
        if let Some(superblock) = self.superblock {
            options = options.superblock_kib(superblock);
        }
        if self.no_lock {
            options = options.without_lock();
        }
        if self.count_requests {
            options = options.count_requests();
        }
        options
    }
}

impl Command {
    /// The exit status of a command that could not do what it was asked for.
    pub(crate) fn failure_status(&self) -> u8 {
        match self {
            Self::Ls(_) | Self::Tree(_) | Self::Tar(_) => 2,
            Self::Check(_) => 8,
            Self::Mount(_) | Self::Umount(_) => 32,
            Self::Info(_)
            | Self::Stat(_)
            | Self::Cat(_)
            | Self::Cp(_)
            | Self::Mv(_)
            | Self::Rm(_)
            | Self::Mkdir(_)
            | Self::Ln(_)
            | Self::Chmod(_)
            | Self::Chown(_)
            | Self::Xattr(_)
            | Self::Truncate(_)
            | Self::Touch(_)
            | Self::Mkfs(_)
            | Self::Resize(_)
            | Self::Generate(_)
            | Self::WriteBatch(_) => 1,
        }
    }
}

/// A command line that was understood.
pub(crate) struct Invocation {
    pub(crate) cli: Cli,
}

/// A command line that was not, or that asked for help.
pub(crate) struct Usage {
    error: clap::Error,
    status: u8,
}

impl Invocation {
    /// Reads the command line. Where mount(8) calls, it is `platter mount`: under a name such as
    /// `mount.platter`, or with an image and a directory as mount.fuse(8) gives them.
    pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, Usage> {
        let mut arguments: Vec<OsString> = arguments.into_iter().collect();
        let program = arguments.first().map(Path::new).and_then(Path::file_name);
        let is_helper = program.is_some_and(|name| name.as_bytes().starts_with(b"mount."));
        if is_helper || is_bare_mount(&arguments) {
            arguments.insert(1, "mount".into());
        }
        let word = arguments.get(1).map_or(OsStr::new(""), |word| word);
        let status = match word.as_bytes() {
            b"check" => 16,
            b"ls" | b"tree" | b"tar" => 2,
            word if command().find_subcommand(OsStr::from_bytes(word)).is_some() => 1,
            _ => 2,
        };
        let parsed = command().try_get_matches_from(arguments);
        match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
            Ok(cli) => Ok(Self { cli }),
            Err(error) => Err(Usage { error, status }),
        }
    }
}

impl Usage {
    /// Prints what there is to say and gives the exit status.
    pub(crate) fn tell(self) -> ExitCode {
        // Nothing is left to do where this cannot be written.
        let _ = self.error.print();
        let kind = self.error.kind();
        if matches!(kind, ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
            return ExitCode::SUCCESS;
        }
        ExitCode::from(self.status)
    }
}

/// Whether the command line is `IMAGE DIRECTORY …` without a command.
fn is_bare_mount(arguments: &[OsString]) -> bool {
    let [_, image, directory, ..] = arguments else {
        return false;
    };
    let is_command = command().find_subcommand(image).is_some();
    let is_option = image.as_bytes().starts_with(b"-");
    !is_command && !is_option && Path::new(directory).is_dir()
}

/// The whole command, for completions and manual pages as well.
pub(crate) fn command() -> clap::Command {
    let mut command = Cli::command();
    // Only then its subcommands have the options that all share.
    command.build();
    command.mut_subcommand("umount", |umount| {
        umount.mut_args(|argument| {
            let is_of_images = argument.get_help_heading() == Some(IMAGE_OPTIONS);
            argument.hide(is_of_images)
        })
    })
}

/// A size in bytes, with an optional K, M, G or T in powers of 1024.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = match &text[digits.len()..] {
        "" | "B" => 0,
        "K" | "k" | "KiB" => 10,
        "M" | "m" | "MiB" => 20,
        "G" | "g" | "GiB" => 30,
        "T" | "t" | "TiB" => 40,
        _ => return Err("a size is a number with K, M, G or T".into()),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| "a size is a number with K, M, G or T")?;
    number
        .checked_mul(1 << scale)
        .ok_or_else(|| "the size is too large".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(parse_size("512"), Ok(512));
        assert_eq!(parse_size("3K"), Ok(3072));
        assert_eq!(parse_size("1GiB"), Ok(1 << 30));
        assert!(parse_size("").is_err());
        assert!(parse_size("-1").is_err());
        assert!(parse_size("1X").is_err());
        assert!(parse_size("99999999T").is_err());
    }

    #[test]
    fn a_mount_helper_is_the_mount_command() {
        let words = ["/sbin/mount.platter", "disk.img", "/mnt", "-o", "ro"].map(OsString::from);
        let invocation = Invocation::parse(words).unwrap_or_else(|usage| panic!("{}", usage.error));
        assert!(matches!(invocation.cli.command, Command::Mount(_)));
        let words = ["platter", "disk.img", "/", "-o", "rw,nosuid"].map(OsString::from);
        let invocation = Invocation::parse(words).unwrap_or_else(|usage| panic!("{}", usage.error));
        assert!(matches!(invocation.cli.command, Command::Mount(_)));
        assert!(Invocation::parse(["platter", "none", "/"].map(OsString::from)).is_ok());
        assert!(Invocation::parse(["platter", "none", "/none"].map(OsString::from)).is_err());
    }
}
