//! The process that sent a request.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use platter_vfs::{Context, Credentials, MountTable, MountedDevice};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::Answer;

/// The sender of a request, as the kernel reports it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller {
    /// `fsuid`, as the mount maps it; [`NOT_SENT`] where the kernel sends it with requests that make a
    /// file only, as on each mount that can be id-mapped.
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The thread, in the pid namespace of the mount; 0 where that does not see it.
    pub(crate) pid: u32,
}

/// `FUSE_INVALID_UIDGID`.
const NOT_SENT: u32 = u32::MAX;
/// `CAP_FOWNER`.
const FOWNER: u32 = 3;
/// `CAP_LINUX_IMMUTABLE`.
const LINUX_IMMUTABLE: u32 = 9;
/// `CAP_SYS_ADMIN`.
const SYS_ADMIN: u32 = 21;
/// `SIGKILL`.
const KILL: u32 = 9;
/// The umask of a thread that has none any more.
const UMASK_CLOSED: u32 = 0o777;

/// What `/proc` says of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Status {
    /// The process of the thread.
    process: i32,
    umask: u32,
    fs_uid: u32,
    /// That of the filesystem first.
    groups: Vec<u32>,
    effective_capabilities: u64,
}

/// A process, which may end at any time.
#[derive(Debug)]
pub(crate) struct Process(OwnedFd);

impl Process {
    /// Whether the process has ended, even if its parent has not waited for it.
    pub(crate) fn has_ended(&self) -> bool {
        let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let found = rustix::io::retry_on_intr(|| poll(&mut polled, Some(&now)));
        found.is_ok() && !polled[0].revents().is_empty()
    }
}

/// A file that a process has open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpenFile {
    /// The filesystem that it is on.
    pub(crate) device: MountedDevice,
    /// The inode number that is shown for it.
    pub(crate) inode: u64,
}

impl Caller {
    /// Whether it is the superuser.
    pub(crate) fn is_superuser(self) -> bool {
        self.uid == 0 || self.is_unsent_superuser()
    }

    /// Whether it is the superuser, which its request did not say.
    pub(crate) fn is_unsent_superuser(self) -> bool {
        self.uid == NOT_SENT && self.status().is_some_and(|status| status.fs_uid == 0)
    }

    /// Whether set-id bits outlive what this caller does to contents (`CAP_FSETID`).
    pub(crate) fn keeps_set_ids(self) -> bool {
        self.is_superuser()
    }

    /// Whether a group is one of its groups, as those are without the mount's mapping of ids.
    pub(crate) fn is_in_group(self, gid: u32) -> bool {
        self.gid == gid
            || self
                .status()
                .is_some_and(|status| status.groups.contains(&gid))
    }

    /// Whether it may do what takes `CAP_SYS_ADMIN` in the kernel: the superuser, and the uid that serves
    /// the mount, which may write to the image anyway.
    pub(crate) fn is_admin(self) -> bool {
        self.is_capable(SYS_ADMIN)
    }

    /// Whether it may do what takes the owner of a file or `CAP_FOWNER` in the kernel, with any owner: the callers
    /// that [`is_admin`](Self::is_admin) speaks of.
    pub(crate) fn is_above_owners(self) -> bool {
        self.is_capable(FOWNER)
    }

    /// Whether it may make files immutable or append-only: those of `CAP_LINUX_IMMUTABLE`, as of
    /// [`is_admin`](Self::is_admin).
    pub(crate) fn may_set_immutable(self) -> bool {
        self.is_capable(LINUX_IMMUTABLE)
    }

    fn is_capable(self, capability: u32) -> bool {
        let server = rustix::process::geteuid();
        self.status().is_some_and(|status| {
            if !server.is_root() && status.fs_uid == server.as_raw() {
                return true;
            }
            let is_capable = status.effective_capabilities >> capability & 1 == 1;
            status.fs_uid == 0 && is_capable && (!server.is_root() || self.shares_namespace())
        })
    }

    /// Its credentials and umask, which a request that the kernel checks no permissions for does not have.
    ///
    /// # Errors
    /// `EPERM` for one that cannot be seen.
    pub(crate) fn context(self) -> Answer<Context> {
        let status = self.status().ok_or(Errno::PERM)?;
        let (uid, gid) = if self.uid == NOT_SENT {
            (
                status.fs_uid,
                status.groups.first().copied().unwrap_or(NOT_SENT),
            )
        } else {
            (self.uid, self.gid)
        };
        Ok(Context {
            credentials: Credentials {
                uid,
                gid,
                groups: status.groups,
            },
            umask: status.umask,
        })
    }

    /// Whether the caller was killed, and only the answer keeps it; `false` for one that cannot be seen.
    pub(crate) fn is_killed(self) -> bool {
        if self.pid == 0 {
            return false;
        }
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid));
        status.is_ok_and(|status| is_killed(&status))
    }

    /// The file that it has open as `fd`. The mount itself is asked nothing: no other thread may be there to answer.
    ///
    /// # Errors
    /// `EINVAL` where it has none; `EACCES` for a process that must not be looked at, `EXDEV` for a file that it
    /// sees no mount of.
    pub(crate) fn open_file(self, fd: i64) -> Answer<OpenFile> {
        let refusal = |error: io::Error| {
            if error.kind() == io::ErrorKind::NotFound {
                Errno::INVAL
            } else {
                Errno::ACCESS
            }
        };
        if self.pid == 0 {
            return Err(Errno::ACCESS);
        }
        let pid = self.pid;
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).map_err(refusal)?;
        let value = |name| {
            let mut lines = info.lines();
            let found = lines.find_map(|line: &str| line.strip_prefix(name));
            found.and_then(|value| value.trim().parse().ok())
        };
        let mount: u64 = value("mnt_id:").ok_or(Errno::OPNOTSUPP)?;
        // From Linux 5.14 on.
        let inode: u64 = value("ino:").ok_or(Errno::OPNOTSUPP)?;
        let mounts = fs::read(format!("/proc/{pid}/mountinfo")).map_err(refusal)?;
        let mounts = MountTable::parse(&mounts);
        let mount = mounts.by_id(mount).ok_or(Errno::XDEV)?;
        Ok(OpenFile {
            device: mount.device,
            inode,
        })
    }

    /// Its process, for requests that outlive this one.
    ///
    /// # Errors
    /// `EPERM` for one that cannot be seen; those of `pidfd_open(2)`.
    pub(crate) fn process(self) -> Answer<Process> {
        let process = self.status().ok_or(Errno::PERM)?.process;
        let process = Pid::from_raw(process).ok_or(Errno::PERM)?;
        Ok(Process(pidfd_open(process, PidfdFlags::empty())?))
    }

    /// Whether its capabilities count in the user namespace of the server.
    fn shares_namespace(self) -> bool {
        let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/user"));
        match (of(&self.pid.to_string()), of("self")) {
            (Ok(caller), Ok(server)) => caller == server,
            (Ok(_) | Err(_), _) => false,
        }
    }

    /// The thread waits in the kernel for the answer, and cannot even be killed before: it is the one
    /// that `/proc` shows under its number, and its credentials stay as they are.
    fn status(self) -> Option<Status> {
        if self.pid == 0 {
            return None;
        }
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid));
        Status::decode(&status.ok()?)
    }
}

/// Whether `/proc` says of a thread that it, or its process, was killed, or has ended.
fn is_killed(status: &str) -> bool {
    let mut lines = status.lines();
    let state = lines.find_map(|line| line.strip_prefix("State:"));
    if state.is_some_and(|state| state.trim_start().starts_with(['Z', 'X'])) {
        return true;
    }
    let pending = status.lines().filter_map(|line| {
        let signals = line
            .strip_prefix("SigPnd:")
            .or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(signals.trim(), 16).ok()
    });
    pending.fold(0, |all, signals| all | signals) >> (KILL - 1) & 1 == 1
}

impl Status {
    fn decode(status: &str) -> Option<Self> {
        let value = |name| status.lines().find_map(|line| line.strip_prefix(name));
        let process = value("Tgid:")?.trim().parse().ok()?;
        // Real, effective, saved, and that of the filesystem.
        let fs_uid = value("Uid:")?.split_whitespace().nth(3)?;
        let fs_gid = value("Gid:")?.split_whitespace().nth(3)?;
        let groups = value("Groups:")?.split_whitespace();
        let groups = std::iter::once(fs_gid).chain(groups);
        let effective = value("CapEff:")?.trim();
        let umask = value("Umask:").and_then(|umask| u32::from_str_radix(umask.trim(), 8).ok());
        Some(Self {
            process,
            umask: umask.unwrap_or(UMASK_CLOSED),
            fs_uid: fs_uid.parse().ok()?,
            groups: groups.map(|gid| gid.parse().ok()).collect::<Option<_>>()?,
            effective_capabilities: u64::from_str_radix(effective, 16).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn ids_and_capabilities_are_those_in_effect() {
        let status = "Name:\tUid:\nUmask:\t0027\nTgid:\t21\nUid:\t0\t1\t2\t3\nGid:\t4\t5\t6\t7\nGroups:\t8 9 \n\
                      CapPrm:\t000001ffffffffff\nCapEff:\t0000000000200000\n";
        let expected = Status {
            process: 21,
            umask: 0o27,
            fs_uid: 3,
            groups: vec![7, 8, 9],
            effective_capabilities: 1 << SYS_ADMIN,
        };
        assert_eq!(Status::decode(status), Some(expected));
        for broken in [
            "",
            "Tgid:\t1\nUid:\t0\t1\t2\nCapEff:\t0\n",
            "Tgid:\t1\nUid:\t0\t1\t2\t3\nCapEff:\t0\n",
            "Uid:\t0\t1\t2\t3\nGid:\t0\t0\t0\t0\nGroups:\t\nCapEff:\t0\n",
            "Tgid:\t1\nUid:\t0\t1\t2\t3\nGid:\t0\t0\t0\t0\nGroups:\t\nCapEff:\tx\n",
        ] {
            assert_eq!(Status::decode(broken), None);
        }
    }

    #[test]
    fn killed_threads_are_those_with_the_signal_pending() {
        let status = |own, shared| format!("Threads:\t1\nSigPnd:\t{own}\nShdPnd:\t{shared}\n");
        assert!(is_killed(&status("0000000000000100", "0000000000000000")));
        assert!(is_killed(&status("0000000000000000", "0000000000004100")));
        assert!(!is_killed(&status("0000000000004000", "0000000000000002")));
        assert!(!is_killed(""));
        let caller = |pid| Caller {
            uid: 1,
            gid: 1,
            pid,
        };
        assert!(!caller(std::process::id()).is_killed() && !caller(0).is_killed());
        // No thread has such a number.
        assert!(!caller(u32::MAX).is_killed());
    }

    #[test]
    fn a_thread_outside_the_pid_namespace_has_no_privileges() {
        let caller = |uid| Caller {
            uid,
            gid: 0,
            pid: 0,
        };
        assert!(caller(0).is_superuser() && !caller(0).is_admin());
        assert!(!caller(NOT_SENT).is_superuser() && !caller(NOT_SENT).is_admin());
        assert_eq!(caller(0).context(), Err(Errno::PERM));
        assert_eq!(caller(0).open_file(0), Err(Errno::ACCESS));
    }

    #[test]
    fn end_of_a_process_is_seen_before_its_parent_waits() {
        let mut child = std::process::Command::new("sleep");
        let mut child = child.arg("60").spawn().unwrap();
        let caller = Caller {
            uid: 0,
            gid: 0,
            pid: child.id(),
        };
        let process = caller.process().unwrap();
        assert!(!process.has_ended());
        child.kill().unwrap();
        let mut attempts = 0;
        while !process.has_ended() {
            attempts += 1;
            assert!(attempts < 30_000);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        child.wait().unwrap();
        assert!(process.has_ended());
        assert_eq!(caller.process().map(drop), Err(Errno::PERM));
    }

    #[test]
    fn open_files_are_found_by_their_descriptors() {
        let caller = Caller {
            uid: NOT_SENT,
            gid: NOT_SENT,
            pid: std::process::id(),
        };
        let file = fs::File::open("/proc").unwrap();
        let found = caller.open_file(file.as_raw_fd().into()).unwrap();
        let metadata = file.metadata().unwrap();
        let device = MountedDevice {
            major: rustix::fs::major(metadata.dev()),
            minor: rustix::fs::minor(metadata.dev()),
        };
        let inode = metadata.ino();
        assert_eq!(found, OpenFile { device, inode });
        assert_eq!(caller.open_file(-1), Err(Errno::INVAL));
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(caller.context().unwrap().credentials.uid, user);
    }
}
