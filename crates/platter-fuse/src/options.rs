//! How to mount: the options of `mount(8)` that make sense here.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use platter_vfs::{AccessTimes, BlockDevice, Error};

/// The largest request the kernel is allowed to send or ask for, in bytes: 256 pages, the most it
/// grants without a change of its settings.
const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// How a filesystem is mounted and served.
#[derive(Debug, Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an option of mount(8), which has them as independent flags"
)]
pub struct MountOptions {
    /// `ro`: refuse every change.
    pub read_only: bool,
    /// `allow_other`: let other users in than the mounting one. Anyone but the superuser needs
    /// `user_allow_other` in `/etc/fuse.conf` for it.
    pub allow_other: bool,
    /// `noperm`: check no permissions. Without `allow_other` only, so that the mounting user sees
    /// everything in an image that is theirs anyway.
    pub no_permission_checks: bool,
    /// `uid=`: everything is shown to belong to this user.
    pub uid: Option<u32>,
    /// `gid=`: everything is shown to belong to this group.
    pub gid: Option<u32>,
    /// `dev`: device files work. Only the superuser may ask for it.
    pub devices: bool,
    /// `suid`: set-id bits work. Only the superuser may ask for it.
    pub set_id: bool,
    /// `noexec`: refuse to run programs.
    pub no_exec: bool,
    /// `user_subvol_rm_allowed`: users delete subvolumes that they may write and whose names they may remove, not
    /// the administrator alone.
    pub users_delete_subvolumes: bool,
    /// `relatime`, `strictatime`, `noatime`: which reads that come here change times of access. Those
    /// that the kernel answers out of its cache do not come here; with `strictatime` the kernel keeps
    /// contents no longer than a file is open, so that every opening is seen.
    pub access_times: AccessTimes,
    /// `nodiratime`: listing a directory leaves its time of access as it is.
    pub no_directory_access_times: bool,
    /// `fsname=`: the source that `/proc/mounts` shows.
    pub source: Option<String>,
    /// Threads that answer requests: over rings for each processor, two at least, which is what `None`
    /// gives; over the device in all, where `None` gives one for each processor, from 2 to 16.
    pub threads: Option<usize>,
    /// `io_uring=`: requests come over `io_uring(7)` where the kernel offers that (its module
    /// parameter `fuse.enable_uring`), and not over the device alone.
    pub io_uring: bool,
    /// `writeback=`: the kernel gathers what programs write before it hands that over. Without it,
    /// every write(2) is a request, but other changes of files take fewer.
    pub writeback: bool,
    /// The largest read or write in one request, in bytes.
    pub request_bytes_max: u32,
    /// SIGINT, SIGTERM and SIGHUP unmount. Programs that still use files then have a short while to
    /// finish before the filesystem is shut down all the same.
    pub end_on_signals: bool,
    /// Receives every error that is more than an ordinary refusal, since the caller sees an errno
    /// only.
    pub on_error: Option<ErrorSink>,
    /// Opens devices that are added to the filesystem; without it, none is.
    pub open_device: Option<DeviceOpener>,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            allow_other: false,
            no_permission_checks: false,
            uid: None,
            gid: None,
            devices: false,
            set_id: false,
            no_exec: false,
            users_delete_subvolumes: false,
            access_times: AccessTimes::default(),
            no_directory_access_times: false,
            source: None,
            threads: None,
            io_uring: true,
            writeback: false,
            request_bytes_max: REQUEST_BYTES_MAX,
            end_on_signals: false,
            on_error: None,
            open_device: None,
        }
    }
}

/// Takes the errors that a mounted filesystem comes upon.
#[derive(Clone)]
pub struct ErrorSink(Arc<dyn Fn(&Error) + Send + Sync>);

impl ErrorSink {
    /// A sink that calls `report`, from any of the serving threads.
    pub fn new(report: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        Self(Arc::new(report))
    }

    pub(crate) fn report(&self, error: &Error) {
        (self.0)(error);
    }
}

impl fmt::Debug for ErrorSink {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ErrorSink")
    }
}

/// What opens the device at a path for writing, also one that something is on if that is forced.
type OpenDevice = dyn Fn(&Path, bool) -> io::Result<Arc<dyn BlockDevice>> + Send + Sync;

/// Opens devices that are added to a mounted filesystem, with the rights of the process that serves it.
#[derive(Clone)]
pub struct DeviceOpener(Arc<OpenDevice>);

impl DeviceOpener {
    /// An opener that calls `open` with a path, and whether the device is used although something is on it.
    pub fn new(
        open: impl Fn(&Path, bool) -> io::Result<Arc<dyn BlockDevice>> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(open))
    }

    pub(crate) fn open(&self, path: &Path, is_forced: bool) -> io::Result<Arc<dyn BlockDevice>> {
        (self.0)(path, is_forced)
    }
}

impl fmt::Debug for DeviceOpener {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("DeviceOpener")
    }
}

/// A mount option that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// The value is missing or no number.
    #[error("mount option {name}= takes a number")]
    NotANumber {
        /// The option.
        name: &'static str,
    },
    /// The value is neither `on` nor `off`.
    #[error("mount option {name}= takes on or off")]
    NotOnOrOff {
        /// The option.
        name: &'static str,
    },
    /// Two options exclude each other.
    #[error("mount option {0} cannot be used with {1}")]
    Conflict(&'static str, &'static str),
}

/// Options that only `mount(8)` and its callers care for.
const IGNORED: &[&str] = &[
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "loop",
    "async",
    // Times of access wait for the next commit in any case.
    "lazytime",
    "nolazytime",
];

impl MountOptions {
    /// Takes the options of a comma-separated list, as given to `-o`. What is not about mounting,
    /// such as `offset=`, is returned for the caller that opens the image.
    pub fn parse<'a>(&mut self, list: &'a str) -> Result<Vec<&'a str>, OptionError> {
        let options = list.split(',').filter(|option| !option.is_empty());
        let mut rest = Vec::new();
        for option in options {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            match name {
                "ro" => self.read_only = true,
                "rw" => self.read_only = false,
                "allow_other" => self.allow_other = true,
                "noperm" => self.no_permission_checks = true,
                "default_permissions" => self.no_permission_checks = false,
                "uid" => self.uid = Some(number("uid", value)?),
                "gid" => self.gid = Some(number("gid", value)?),
                "dev" => self.devices = true,
                "nodev" => self.devices = false,
                "suid" => self.set_id = true,
                "nosuid" => self.set_id = false,
                "exec" => self.no_exec = false,
                "noexec" => self.no_exec = true,
                "user_subvol_rm_allowed" => self.users_delete_subvolumes = true,
                "atime" | "relatime" | "norelatime" | "nostrictatime" => {
                    self.access_times = AccessTimes::Relative;
                }
                "strictatime" => self.access_times = AccessTimes::Strict,
                "noatime" => self.access_times = AccessTimes::Never,
                "diratime" => self.no_directory_access_times = false,
                "nodiratime" => self.no_directory_access_times = true,
                "io_uring" => self.io_uring = is_on("io_uring", value)?,
                "writeback" => self.writeback = is_on("writeback", value)?,
                "fsname" => self.source = Some(value.to_owned()),
                _ if IGNORED.contains(&name) || is_for_others(name) => {}
                _ => rest.push(option),
            }
        }
        self.validate()?;
        Ok(rest)
    }

    pub(crate) fn validate(&self) -> Result<(), OptionError> {
        if self.allow_other && self.no_permission_checks {
            return Err(OptionError::Conflict("noperm", "allow_other"));
        }
        Ok(())
    }
}

/// Whether it is a remark of fstab(5), or an option of a program that reads it.
fn is_for_others(name: &str) -> bool {
    name == "comment" || name.starts_with("x-") || name.starts_with("X-")
}

fn number(name: &'static str, value: &str) -> Result<u32, OptionError> {
    value.parse().map_err(|_| OptionError::NotANumber { name })
}

fn is_on(name: &'static str, value: &str) -> Result<bool, OptionError> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(OptionError::NotOnOrOff { name }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<(MountOptions, Vec<&str>), OptionError> {
        let mut options = MountOptions::default();
        let rest = options.parse(list)?;
        Ok((options, rest))
    }

    #[test]
    fn a_list_of_options_is_taken_and_the_rest_given_back() {
        let list = "ro,allow_other,uid=5,gid=7,offset=1048576,noexec,norecovery,fsname=disk,\
                    user_subvol_rm_allowed";
        let (options, rest) = parse(list).unwrap();
        assert!(options.read_only && options.allow_other && options.no_exec);
        assert!(options.users_delete_subvolumes);
        assert_eq!((options.uid, options.gid), (Some(5), Some(7)));
        assert_eq!(options.source.as_deref(), Some("disk"));
        assert_eq!(rest, ["offset=1048576", "norecovery"]);
    }

    #[test]
    fn what_fstab_says_to_others_is_passed_over() {
        let (options, rest) = parse(
            "defaults,nofail,,x-systemd.automount,X-mount.mkdir=0755,comment=disk,lazytime,rw",
        )
        .unwrap();
        assert!(!options.read_only);
        assert!(rest.is_empty());
    }

    #[test]
    fn times_of_access_are_relative_unless_asked_otherwise() {
        for (list, access_times, without_directories) in [
            ("", AccessTimes::Relative, false),
            ("noatime", AccessTimes::Never, false),
            ("noatime,atime", AccessTimes::Relative, false),
            ("strictatime,nodiratime", AccessTimes::Strict, true),
            ("nodiratime,relatime,diratime", AccessTimes::Relative, false),
        ] {
            let (options, rest) = parse(list).unwrap();
            let parsed = (options.access_times, options.no_directory_access_times);
            assert_eq!(parsed, (access_times, without_directories), "{list}");
            assert!(rest.is_empty());
        }
    }

    #[test]
    fn the_last_of_two_contrary_options_counts() {
        let (options, _) = parse("ro,rw,dev,nodev,suid,noexec,exec").unwrap();
        assert!(!options.read_only && !options.devices && options.set_id && !options.no_exec);
        let (options, _) = parse("writeback=off,writeback=on").unwrap();
        assert!(options.writeback);
    }

    #[test]
    fn options_that_make_no_sense_are_refused() {
        for list in ["uid=me", "gid", "uid=-1", "gid=4294967296"] {
            assert!(
                matches!(parse(list), Err(OptionError::NotANumber { .. })),
                "{list}"
            );
        }
        let gathered = parse("writeback=maybe").unwrap_err();
        assert_eq!(
            gathered.to_string(),
            "mount option writeback= takes on or off"
        );
        let conflict = parse("noperm,allow_other").unwrap_err();
        assert_eq!(
            conflict.to_string(),
            "mount option noperm cannot be used with allow_other"
        );
    }
}
