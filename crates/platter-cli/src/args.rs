//! The command line.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use platter::MemoryBudget;
use platter::open::check_option;
use platter::vfs::Timestamp;
use platter::{DeviceRole, MountOption, MountOptions, Recovery};
use serde_json::json;

use crate::commands::{
    balance, cat, check, chmod, chown, completions, cp, dedupe, defrag, device, du, info, ln, ls,
    man, mkdir, mkfs, mount, mv, receive, resize, rm, scrub, send, stat, subvolume, sync, tar,
    touch, tree, trim, truncate, tune, umount, write_batch, xattr,
};
use crate::console::{refuse_closed_stdout, report, write_line};
use crate::output::error::{misuse, usage_object};

/// Read, change, make, check and mount images and disks of ext2, ext3, ext4, btrfs and XFS without root.
///
/// IMAGE is a file or a block device. IMAGE@PARTITION is one of its partitions: a number, as in
/// disk.img@2, or PARTUUID=... or PARTLABEL=.... IMAGE[@PARTITION]:PATH is a file in it. Where
/// names hold ':' or '@' themselves, the longest existing prefix is the image.
///
/// Each command that changes an image makes all of its changes or, after an error or when it is
/// killed, none. With `SOURCE_DATE_EPOCH` in the environment, times in it are that one, and the same
/// command makes the same bytes of the same image.
///
/// With --json, results are JSON on standard output, and errors are objects on standard error, one
/// on each line; docs/json.md describes them. A wrong command line has the exit status 2; of check,
/// 16.
#[derive(Debug, Parser)]
#[command(
    name = "platter",
    version,
    max_term_width = 100,
    disable_help_subcommand = true
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) output: OutputOptions,
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
    Du(du::Du),
    Cat(cat::Cat),
    Cp(cp::Cp),
    Mv(mv::Mv),
    Rm(rm::Rm),
    Mkdir(mkdir::Mkdir),
    Ln(ln::Ln),
    Chmod(chmod::Chmod),
    Chown(chown::Chown),
    Xattr(xattr::Xattr),
    Subvolume(subvolume::Subvolume),
    Send(send::Send),
    Receive(receive::Receive),
    Truncate(truncate::Truncate),
    Touch(touch::Touch),
    Tar(tar::Tar),
    Mount(mount::Mount),
    Umount(umount::Umount),
    Sync(sync::Sync),
    Trim(trim::Trim),
    Check(check::Check),
    Mkfs(Box<mkfs::Mkfs>),
    Scrub(scrub::Scrub),
    Balance(balance::Balance),
    Defrag(defrag::Defrag),
    Dedupe(dedupe::Dedupe),
    Device(device::Device),
    Resize(resize::Resize),
    Tune(tune::Tune),
    Completions(completions::Completions),
    Man(man::Man),
    #[command(hide = true)]
    WriteBatch(write_batch::WriteBatch),
}

/// The format of results and errors.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct OutputOptions {
    /// Write results and errors as JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// The exit status of a wrong command line.
const STATUS_USAGE: u8 = 2;

/// The same for `check`, as fsck(8) counts: 2 asks for a reboot there.
const STATUS_USAGE_CHECK: u8 = 16;

/// The same for the helper of mount(8), whose status that passes on.
const STATUS_USAGE_HELPER: u8 = 1;

/// The heading of what is said about opening images.
const IMAGE_OPTIONS: &str = "Image options";

/// How images are opened.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = IMAGE_OPTIONS)]
pub(crate) struct ImageOptions {
    /// The filesystem begins at this byte of the image or partition
    #[arg(long, global = true, value_name = "BYTES", value_parser = parse_size)]
    pub(crate) offset: Option<u64>,
    /// Do not replay the journal
    #[arg(long, global = true)]
    pub(crate) norecovery: bool,
    /// Another device of the filesystem, as IMAGE[@PARTITION]; can be given several times
    #[arg(long = "device", global = true, value_name = "IMAGE")]
    pub(crate) devices: Vec<PathBuf>,
    /// The device of an external journal or log, as IMAGE[@PARTITION]
    #[arg(long, global = true, value_name = "IMAGE", visible_alias = "logdev")]
    pub(crate) journal: Option<PathBuf>,
    /// The device of a realtime section, as IMAGE[@PARTITION]
    #[arg(long, global = true, value_name = "IMAGE")]
    pub(crate) rtdev: Option<PathBuf>,
    /// Use the copy of the superblock at this place, in units of 1 KiB
    #[arg(long, global = true, value_name = "KIB")]
    pub(crate) superblock: Option<u64>,
    /// An option that only some filesystems have, as after -o of mount(8): for btrfs subvol=PATH,
    /// subvolid=ID, degraded, rescue=...; can be given several times
    #[arg(id = "option", long = "option", global = true, value_name = "NAME[=VALUE]", value_parser = parse_option)]
    pub(crate) fs_options: Vec<MountOption>,
    /// How much memory the caches may take
    #[arg(long, global = true, value_name = "SIZE", value_parser = parse_size, default_value = "64M")]
    pub(crate) cache: u64,
    /// Open an image that another process may be writing to
    #[arg(long, global = true)]
    pub(crate) no_lock: bool,
    /// Report on standard error how many requests reached the image
    #[arg(long, global = true)]
    pub(crate) count_requests: bool,
}

impl ImageOptions {
    /// The devices in addition to the image.
    pub(crate) fn devices(&self) -> impl Iterator<Item = (DeviceRole, &PathBuf)> {
        let data = self.devices.iter().map(|path| (DeviceRole::Data, path));
        let log = self.journal.iter().map(|path| (DeviceRole::Log, path));
        let realtime = self.rtdev.iter().map(|path| (DeviceRole::Realtime, path));
        data.chain(log).chain(realtime)
    }

    /// The options as the library takes them.
    pub(crate) fn open_options(&self) -> MountOptions {
        let mut options = MountOptions::new().budget(Arc::new(MemoryBudget::new(self.cache)));
        if let Some(offset) = self.offset {
            options = options.offset(offset);
        }
        if self.norecovery {
            options = options.recovery(Recovery::Skip);
        }
        for (role, device) in self.devices() {
            options = options.device(role, device);
        }
        for option in &self.fs_options {
            options = options.option(option.clone());
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

    /// Refuses options that a command does not use, all but those named and the size of caches, rather than to do without
    /// what they ask for.
    pub(crate) fn refuse_others(&self, used: &[&str], command: &str) -> anyhow::Result<()> {
        self.refuse(|name| !used.contains(&name), command)
    }

    /// Refuses to count requests, for a command that does not report how many there were.
    pub(crate) fn refuse_counting(&self, command: &str) -> anyhow::Result<()> {
        self.refuse(|name| name == "count-requests", command)
    }

    fn refuse(&self, is_refused: impl Fn(&str) -> bool, command: &str) -> anyhow::Result<()> {
        for (name, is_given) in [
            ("offset", self.offset.is_some()),
            ("norecovery", self.norecovery),
            ("device", !self.devices.is_empty()),
            ("journal", self.journal.is_some()),
            ("rtdev", self.rtdev.is_some()),
            ("superblock", self.superblock.is_some()),
            ("option", !self.fs_options.is_empty()),
            ("no-lock", self.no_lock),
            ("count-requests", self.count_requests),
        ] {
            if is_given && is_refused(name) {
                misuse!("--{name} is not for {command}");
            }
        }
        Ok(())
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
            | Self::Du(_)
            | Self::Cat(_)
            | Self::Cp(_)
            | Self::Mv(_)
            | Self::Rm(_)
            | Self::Mkdir(_)
            | Self::Ln(_)
            | Self::Chmod(_)
            | Self::Chown(_)
            | Self::Xattr(_)
            | Self::Subvolume(_)
            | Self::Send(_)
            | Self::Receive(_)
            | Self::Truncate(_)
            | Self::Touch(_)
            | Self::Mkfs(_)
            | Self::Scrub(_)
            | Self::Balance(_)
            | Self::Defrag(_)
            | Self::Dedupe(_)
            | Self::Device(_)
            | Self::Resize(_)
            | Self::Tune(_)
            | Self::Sync(_)
            | Self::Trim(_)
            | Self::Completions(_)
            | Self::Man(_)
            | Self::WriteBatch(_) => 1,
        }
    }
}

/// A command line that was understood.
pub(crate) struct Invocation {
    pub(crate) cli: Cli,
    /// The exit status if it turns out to make no sense.
    pub(crate) usage_status: u8,
}

/// A command line that was not, or that asked for help.
pub(crate) struct Usage {
    error: clap::Error,
    status: u8,
    is_json: bool,
}

impl Invocation {
    /// Reads the command line. Where mount(8) calls, it is `platter mount`: under a name such as
    /// `mount.platter`, or with an image and a directory as mount.fuse(8) gives them. Where umount(8)
    /// does, it is `platter umount`, under a name such as `umount.fuse.platter`.
    pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, Usage> {
        let mut arguments: Vec<OsString> = arguments.into_iter().collect();
        let program = arguments.first().map(Path::new).and_then(Path::file_name);
        let is_unmounting = program.is_some_and(|name| name.as_bytes().starts_with(b"umount."));
        let is_helper = program.is_some_and(|name| name.as_bytes().starts_with(b"mount."))
            || (!is_unmounting && is_bare_mount(&arguments));
        if is_unmounting {
            arguments.insert(1, "umount".into());
        } else if is_helper {
            arguments.insert(1, "mount".into());
        } else if arguments.get(1).is_some_and(|word| word == "help") {
            // `help COMMAND` is `COMMAND --help`.
            arguments.remove(1);
            arguments.push("--help".into());
        }
        let commands = command();
        let mut words = arguments.iter_mut().skip(1);
        let called = words.find_map(|word| commands.find_subcommand(word));
        if let Some(called) = called {
            attach_values(called, words);
        }
        let status = match called {
            _ if is_helper => STATUS_USAGE_HELPER,
            Some(called) if called.get_name() == "check" => STATUS_USAGE_CHECK,
            _ => STATUS_USAGE,
        };
        let mut options = arguments.iter().take_while(|word| *word != "--");
        let is_json = options.any(|word| word == "--json");
        let parsed = commands.try_get_matches_from(arguments);
        match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
            Ok(cli) => Ok(Self {
                cli,
                usage_status: status,
            }),
            Err(error) => Err(Usage {
                error,
                status,
                is_json,
            }),
        }
    }
}

impl Usage {
    /// Prints the message and returns the exit status.
    pub(crate) fn print(self) -> ExitCode {
        let kind = self.error.kind();
        let is_help = matches!(kind, ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
        if self.is_json && !is_help {
            let text = self.error.to_string();
            let text = text.lines().take_while(|line| !line.is_empty());
            let text = text.map(str::trim).collect::<Vec<_>>().join(" ");
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            write_line(&json!({"error": usage_object(text)}));
        } else if !is_help {
            // Nothing is left to do where this cannot be written.
            let _ = self.error.print();
        } else if let Err(error) = refuse_closed_stdout().and_then(|()| self.error.print()) {
            report(&anyhow::Error::from(error).context("standard output"));
            return ExitCode::FAILURE;
        }
        if is_help {
            return ExitCode::SUCCESS;
        }
        ExitCode::from(self.status)
    }
}

/// Separates values that follow a letter at once, as in `-czstd`, where an option takes no others: so what comes after
/// the option alone is an operand, which clap would take as its value or, if values need a `=`, refuse.
fn attach_values<'a>(command: &clap::Command, arguments: impl Iterator<Item = &'a mut OsString>) {
    for argument in arguments.take_while(|argument| *argument != "--") {
        let bytes = argument.as_bytes();
        let letters = match bytes {
            [b'-', b'-', ..] => continue,
            [b'-', letters @ ..] => letters,
            _ => continue,
        };
        let valued = letters.iter().enumerate().find_map(|(at, letter)| {
            let is_it = |option: &&clap::Arg| option.get_short() == Some(char::from(*letter));
            let option = command.get_arguments().find(is_it)?;
            option.get_action().takes_values().then_some((at, option))
        });
        let valued = valued.filter(|(_, option)| option.is_require_equals_set());
        let Some((at, _)) = valued else {
            continue;
        };
        let value = letters.get(at + 1..).unwrap_or_default();
        if !value.is_empty() && !value.starts_with(b"=") {
            let (option, value) = bytes.split_at(at + 2);
            *argument = OsString::from_vec([option, b"=", value].concat());
        }
    }
}

/// Whether the command line is `IMAGE DIRECTORY …` without a command.
fn is_bare_mount(arguments: &[OsString]) -> bool {
    let [_, image, directory, ..] = arguments else {
        return false;
    };
    let is_command = image == "help" || command().find_subcommand(image).is_some();
    let is_option = image.as_bytes().starts_with(b"-");
    !is_command && !is_option && Path::new(directory).is_dir()
}

/// The whole command, for completions and manual pages as well.
pub(crate) fn command() -> clap::Command {
    let mut command = Cli::command();
    // Only then its subcommands have the options that all share.
    command.build();
    for name in ["umount", "sync", "completions", "man"] {
        command = command.mut_subcommand(name, |command| {
            command.mut_args(|argument| {
                let is_of_images = argument.get_help_heading() == Some(IMAGE_OPTIONS);
                argument.hide(is_of_images)
            })
        });
    }
    command
}

/// The time that `SOURCE_DATE_EPOCH` asks for, so that the same command makes the same bytes.
pub(crate) fn source_date() -> anyhow::Result<Option<Timestamp>> {
    let Some(text) = std::env::var_os("SOURCE_DATE_EPOCH") else {
        return Ok(None);
    };
    let seconds = text.to_str().and_then(|text| text.trim().parse().ok());
    let Some(seconds) = seconds else {
        anyhow::bail!("SOURCE_DATE_EPOCH is not a number of seconds");
    };
    Ok(Some(Timestamp {
        seconds,
        nanoseconds: 0,
    }))
}

/// An option of a filesystem; what no filesystem takes is refused.
fn parse_option(text: &str) -> Result<MountOption, String> {
    let option = MountOption::parse(text);
    match check_option(&option) {
        Ok(()) => Ok(option),
        Err(error) => Err(format!("{} {error}", option.name)),
    }
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
    // A sign means something else, or nothing.
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let number: Option<u64> = digits.parse().ok().filter(|_| is_plain);
    let number = number.ok_or("a size is a number with K, M, G or T")?;
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
        assert!(parse_size("+1").is_err());
        assert!(parse_size("1X").is_err());
        assert!(parse_size("99999999T").is_err());
    }

    #[test]
    fn options_are_refused_by_the_filesystem_that_knows_them_best() {
        let refused = parse_option("discard=later").unwrap_err();
        assert_eq!(refused, "discard takes sync or async");
        let refused = parse_option("sunit=128").unwrap_err();
        assert_eq!(refused, "sunit is not supported");
        assert!(parse_option("logbsize=256k").is_ok());
    }

    #[test]
    fn a_mount_helper_is_the_mount_command() {
        let words = ["/sbin/mount.platter", "disk.img", "/mnt", "-o", "ro"].map(OsString::from);
        let invocation = Invocation::parse(words).unwrap_or_else(|usage| panic!("{}", usage.error));
        assert!(matches!(invocation.cli.command, Command::Mount(_)));
        let words = ["platter", "disk.img", "/", "-o", "rw,nosuid"].map(OsString::from);
        let invocation = Invocation::parse(words).unwrap_or_else(|usage| panic!("{}", usage.error));
        assert!(matches!(invocation.cli.command, Command::Mount(_)));
        let words = [
            "/sbin/umount.fuse.platter",
            "/mnt",
            "-l",
            "-t",
            "fuse.platter",
        ];
        let invocation = Invocation::parse(words.map(OsString::from));
        let invocation = invocation.unwrap_or_else(|usage| panic!("{}", usage.error));
        assert!(matches!(invocation.cli.command, Command::Umount(_)));
        assert!(Invocation::parse(["platter", "none", "/"].map(OsString::from)).is_ok());
        assert!(Invocation::parse(["platter", "none", "/none"].map(OsString::from)).is_err());
        assert!(Invocation::parse(["platter", "help", "/"].map(OsString::from)).is_err());
    }
}
