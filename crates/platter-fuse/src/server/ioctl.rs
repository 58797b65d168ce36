//! Carrying out ioctls: inode flags, projects and generations, as `chattr` and `lsattr` use them, the label,
//! syncing, discarding and shutting down.

#![expect(clippy::host_endian_bytes, reason = "ioctls carry native integers")]

use std::sync::atomic::Ordering;

use platter_vfs::lock::{Mutex, rank};
use platter_vfs::permission::{APPEND_ONLY, IMMUTABLE};
use platter_vfs::{DetailValue, ExtendedFlags, Inode, SetAttr, Trim, ranges};
use rustix::io::Errno;
use zerocopy::{FromZeros, IntoBytes};

use super::defragment::Fragmented;
use super::{Answer, Caller, Server, devices, extents, send, subvolumes};
use crate::Operation;
use crate::ioctl::{
    Command, DedupeRange, FSLABEL_BYTES, FsInfo, MountReport, ReportPage, TrimRange, argument,
};
use crate::node::NodeId;

/// Bytes of `struct fsxattr`.
const FSXATTR_BYTES: usize = 28;
/// Where in it the extent size hint, the number of extents, the project and the extent size hint for
/// copies on write lie.
const FSXATTR_EXTENT_SIZE: usize = 4;
const FSXATTR_EXTENTS: usize = 8;
const FSXATTR_PROJECT: usize = 12;
const FSXATTR_COW_EXTENT_SIZE: usize = 16;

/// `FS_*_FL` flags and their `FS_XFLAG_*` counterparts. Those without, as XFS has them, are passed on as
/// they are.
const XFLAGS: [(u32, u32); 7] = [
    (0x0000_0010, 0x0000_0008), // immutable
    (0x0000_0020, 0x0000_0010), // append only
    (0x0000_0008, 0x0000_0020), // sync
    (0x0000_0080, 0x0000_0040), // no atime
    (0x0000_0040, 0x0000_0080), // no dump
    (0x2000_0000, 0x0000_0200), // project inheritance
    (0x0200_0000, 0x0000_8000), // DAX
];

/// What an ioctl returns.
#[derive(Debug)]
pub(crate) struct IoctlAnswer {
    /// What is for the caller's buffer.
    pub(crate) output: Answer<Vec<u8>>,
    /// The kernel has to hear of this name before the caller gets the answer, also an error: the name may have
    /// changed before that.
    pub(crate) changed: Option<ChangedName>,
}

/// A name that an ioctl made or removed, which the kernel knows nothing of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChangedName {
    pub(crate) dir: NodeId,
    pub(crate) name: Vec<u8>,
    /// The directory that it named, where the kernel holds that.
    pub(crate) removed: Option<NodeId>,
}

impl From<Vec<u8>> for IoctlAnswer {
    fn from(output: Vec<u8>) -> Self {
        Self {
            output: Ok(output),
            changed: None,
        }
    }
}

/// Carries out an ioctl.
pub(crate) fn carry_out(
    server: &Server,
    caller: Caller,
    node: NodeId,
    command: u32,
    input: &[u8],
) -> Answer<IoctlAnswer> {
    server.counters.count(Operation::Ioctl);
    let command = Command::decode(command).ok_or(Errno::NOTTY)?;
    if command.takes_admin() && !caller.is_admin() {
        return Err(Errno::PERM);
    }
    let inode = server.inode(node)?;
    let output = match command {
        Command::Subvolume(command) => {
            return subvolumes::carry_out(server, caller, &*inode, command, input);
        }
        Command::GetFlags => {
            let attr = server.check(inode.attr())?;
            Ok(attr.flags.to_ne_bytes().to_vec())
        }
        Command::GetXflags => {
            let attr = server.check(inode.attr())?;
            let extended = server.check(inode.extended_flags())?;
            Ok(fsxattr(attr.flags, attr.project, extended).to_vec())
        }
        Command::SetFlags => {
            let changes = SetAttr {
                flags: Some(word(input, 0)?),
                ..SetAttr::default()
            };
            set_flags(server, caller, &*inode, &changes)
        }
        Command::SetXflags => {
            let attr = server.check(inode.attr())?;
            let xflags = word(input, 0)?;
            let changes = SetAttr {
                flags: Some(with_xflags(attr.flags, xflags)),
                project: Some(word(input, FSXATTR_PROJECT)?),
                xflags: Some(xflags & !common_xflags()),
                extent_size_bytes: Some(word(input, FSXATTR_EXTENT_SIZE)?),
                cow_extent_size_bytes: Some(word(input, FSXATTR_COW_EXTENT_SIZE)?),
                ..SetAttr::default()
            };
            set_flags(server, caller, &*inode, &changes)
        }
        Command::GetGeneration => {
            let generation = server.check(inode.attr())?.generation;
            // An int, whatever size the number of the ioctl speaks of.
            let generation = u32::try_from(generation & u64::from(u32::MAX));
            Ok(generation.unwrap_or_default().to_ne_bytes().to_vec())
        }
        Command::GetLabel => {
            let mut label = server.check(server.fs.label())?;
            label.truncate(FSLABEL_BYTES - 1);
            label.push(0);
            Ok(label)
        }
        Command::SetLabel => {
            server.must_be_mounted_writable()?;
            let end = input.iter().position(|&byte| byte == 0);
            let label = &input[..end.unwrap_or(input.len())];
            server
                .check(server.fs.set_label(label))
                .map(|()| Vec::new())
        }
        Command::Trim => trim(server, input),
        Command::Shutdown => shut_down(server),
        Command::Sync | Command::WaitSync => sync_all(server).map(|()| Vec::new()),
        Command::StartSync => {
            sync_all(server)?;
            let generation = number(server, "commit_generation");
            let generation = generation.or_else(|| number(server, "generation"));
            Ok(generation.unwrap_or_default().to_ne_bytes().to_vec())
        }
        Command::FsInfo => fs_info(server),
        Command::Report => report(server, input),
        Command::Dedupe => dedupe(server, &*inode, input),
        Command::Extents => extents::list(server, &*inode, input),
        Command::DefragmentStep => Fragmented::new(server, caller, &*inode)?.defragment(input),
        Command::Defrag => Fragmented::new(server, caller, &*inode)?.defragment_all(),
        Command::DefragRange => Fragmented::new(server, caller, &*inode)?.defragment_range(input),
        Command::Devices(command) => devices::carry_out(server, command, input),
        Command::Send(command) => send::carry_out(server, caller, &*inode, command, input),
        Command::Resize | Command::SendToFile => Err(Errno::OPNOTSUPP),
    };
    output.map(IoctlAnswer::from)
}

/// Makes everything done so far durable.
fn sync_all(server: &Server) -> Answer<()> {
    server.must_not_be_shut_down()?;
    server.check(server.fs.sync())
}

/// A number that the filesystem says of itself.
fn number(server: &Server, key: &str) -> Option<u64> {
    match server.fs.describe().detail(key) {
        Some(DetailValue::Number(number)) => Some(*number),
        _ => None,
    }
}

/// What was asked for cannot be seen, so that what is always there is returned.
fn fs_info(server: &Server) -> Answer<Vec<u8>> {
    server.fs.subvolumes().ok_or(Errno::NOTTY)?;
    let bytes = |key| {
        let number = number(server, key).and_then(|it| u32::try_from(it).ok());
        number.ok_or(Errno::NOTTY)
    };
    let sector_bytes = bytes("sector_bytes")?;
    let devices = number(server, "devices").ok_or(Errno::NOTTY)?;
    let info = FsInfo {
        max_device: devices,
        devices,
        uuid: server.fs.describe().uuid.into_bytes(),
        node_bytes: bytes("node_bytes")?,
        sector_bytes,
        clone_alignment_bytes: sector_bytes,
        ..FsInfo::new_zeroed()
    };
    Ok(info.as_bytes().to_vec())
}

/// Bytes that one call compares and shares at most: the thread is busy meanwhile.
const DEDUPED_BYTES_MAX: u64 = 32 << 20;

fn dedupe(server: &Server, target: &dyn Inode, input: &[u8]) -> Answer<Vec<u8>> {
    let asked: DedupeRange = argument(input)?;
    server.must_not_be_shut_down()?;
    if asked.dry_run == 0 {
        server.must_be_mounted_writable()?;
    }
    let end = asked.source_offset.checked_add(asked.len_bytes);
    let range = asked.source_offset..end.ok_or(Errno::INVAL)?;
    if asked.len_bytes > DEDUPED_BYTES_MAX {
        return Err(Errno::INVAL);
    }
    let id = server.fs.inode_shown_as(asked.source);
    let source = server.check(server.fs.inode(id.ok_or(Errno::STALE)?))?;
    for file in [target, &*source] {
        let kind = server.check(file.attr())?.kind;
        server.check(kind.refuse_without_contents())?;
    }
    let shared = if asked.dry_run == 0 {
        ranges::share_equal(target, &*source, range, asked.offset)
    } else {
        ranges::is_worth_sharing(target, &*source, &range, asked.offset)
    };
    let is_shared = server.check(shared)?.into();
    Ok(DedupeRange { is_shared, ..asked }.as_bytes().to_vec())
}

/// The latest report, until it was read to its end.
#[derive(Debug, Default)]
pub(super) struct LastReport {
    /// With its number.
    report: Mutex<(u64, Vec<u8>), { rank(0, 3) }>,
}

/// A part of a report.
///
/// # Errors
/// `ESTALE` where another one was begun meanwhile.
fn report(server: &Server, input: &[u8]) -> Answer<Vec<u8>> {
    let mut page: ReportPage = argument(input)?;
    let mut begun = None;
    if page.number == 0 {
        let report = MountReport {
            description: server.fs.describe(),
            counters: server.fs.counters(),
        };
        begun = Some(report.encode());
    }
    let mut last = server.report.report.lock();
    if let Some(encoded) = begun {
        *last = (last.0 + 1, encoded);
        (page.number, page.offset) = (last.0, 0);
    }
    let offset = usize::try_from(page.offset).map_err(|_| Errno::INVAL)?;
    let bytes = last.1.get(offset..).filter(|_| last.0 == page.number);
    let bytes = bytes
        .filter(|bytes| !bytes.is_empty())
        .ok_or(Errno::STALE)?;
    let len = bytes.len().min(page.bytes.len());
    page.bytes.fill(0);
    page.bytes[..len].copy_from_slice(&bytes[..len]);
    page.total_bytes = last.1.len() as u64;
    if offset + len == last.1.len() {
        last.1 = Vec::new();
    }
    Ok(page.as_bytes().to_vec())
}

/// The kernel passes `FS_IOC32_SETFLAGS` on unchecked, before Linux 5.13 the others as well.
fn set_flags(
    server: &Server,
    caller: Caller,
    inode: &dyn Inode,
    changes: &SetAttr,
) -> Answer<Vec<u8>> {
    server.must_be_mounted_writable()?;
    let attr = server.shown_attr(inode)?;
    let uid = caller.context().map_or(caller.uid, |it| it.credentials.uid);
    server.must_own(caller, uid, &attr)?;
    let toggled = changes.flags.map_or(0, |flags| flags ^ attr.flags);
    if toggled & (IMMUTABLE | APPEND_ONLY) != 0 && !caller.may_set_immutable() {
        return Err(Errno::PERM);
    }
    server.check(inode.set_attr(&Server::context(caller, 0), changes))?;
    Ok(Vec::new())
}

fn trim(server: &Server, input: &[u8]) -> Answer<Vec<u8>> {
    server.must_be_mounted_writable()?;
    let range: TrimRange = argument(input)?;
    let asked = Trim {
        start_bytes: range.start,
        len_bytes: range.len,
        min_bytes: range.minlen,
    };
    let len = server.check(server.fs.trim(&asked))?;
    Ok(TrimRange { len, ..range }.as_bytes().to_vec())
}

/// The flags of the request do not reach us: by its number, its argument is for an answer. So it is
/// always the strongest form, which makes everything durable before (`FS_SHUTDOWN_FLAGS_DEFAULT`).
fn shut_down(server: &Server) -> Answer<Vec<u8>> {
    server.shut_down.store(true, Ordering::Relaxed);
    server.sends.cancel_all();
    server.check(server.fs.shutdown())?;
    Ok(Vec::new())
}

/// The 32 bits at byte `at`.
fn word(bytes: &[u8], at: usize) -> Answer<u32> {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
    Ok(u32::from_ne_bytes(*word.ok_or(Errno::INVAL)?))
}

/// `flags` with those that have a counterpart as `xflags` has them.
fn with_xflags(flags: u32, xflags: u32) -> u32 {
    XFLAGS.iter().fold(flags, |flags, (flag, xflag)| {
        if xflags & xflag == 0 {
            flags & !flag
        } else {
            flags | flag
        }
    })
}

/// The `FS_XFLAG_*` that have a counterpart.
fn common_xflags() -> u32 {
    XFLAGS.iter().fold(0, |xflags, (_, xflag)| xflags | xflag)
}

fn fsxattr(flags: u32, project: u32, extended: ExtendedFlags) -> [u8; FSXATTR_BYTES] {
    let set = XFLAGS.iter().filter(|(flag, _)| flags & flag != 0);
    let own = extended.xflags & !common_xflags();
    let xflags = set.fold(own, |xflags, (_, xflag)| xflags | xflag);
    let mut bytes = [0; FSXATTR_BYTES];
    for (at, word) in [
        (0, xflags),
        (FSXATTR_EXTENT_SIZE, extended.extent_size_bytes),
        (FSXATTR_EXTENTS, extended.extents),
        (FSXATTR_PROJECT, project),
        (FSXATTR_COW_EXTENT_SIZE, extended.cow_extent_size_bytes),
    ] {
        bytes[at..][..4].copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use platter_memfs::{MemFs, MemFsLimits};
    use platter_vfs::{FixedClock, Timestamp};

    use super::*;
    use crate::MountOptions;
    use crate::ioctl::SendCommand;

    #[test]
    fn flags_and_project_are_where_linux_looks_for_them() {
        let extended = ExtendedFlags {
            xflags: 0x0001_0809,
            extent_size_bytes: 0x0004_0000,
            extents: 3,
            cow_extent_size_bytes: 0x0008_0000,
        };
        let bytes = fsxattr(0x2000_0090, 0x0102_0304, extended);
        // Immutable is one of the flags, and not set there.
        let words = [
            0x0001_0a49_u32,
            0x0004_0000,
            3,
            0x0102_0304,
            0x0008_0000,
            0,
            0,
        ];
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(bytes[..], words);
    }

    #[test]
    fn streams_are_refused_where_none_are_made() {
        let clock = FixedClock::new(Timestamp::default(), 0);
        let fs = MemFs::new(Arc::new(clock), MemFsLimits::default());
        let server = Server::new(Arc::new(fs), MountOptions::default()).unwrap();
        let ask = |command: Command, pid| {
            let caller = Caller {
                uid: 1,
                gid: 1,
                pid,
            };
            let (number, input) = (command.number(), vec![0; 16_376]);
            let answer = carry_out(&server, caller, NodeId::ROOT, number, &input)?;
            answer.output.map(drop)
        };
        let own = std::process::id();
        // BTRFS_IOC_SEND, whose descriptor is the caller's.
        assert_eq!(ask(Command::SendToFile, own), Err(Errno::OPNOTSUPP));
        let start = Command::Send(SendCommand::Start);
        assert_eq!(ask(start, own), Err(Errno::NOTTY));
        for command in [SendCommand::Read, SendCommand::End] {
            assert_eq!(ask(Command::Send(command), own), Err(Errno::STALE));
            assert_eq!(ask(Command::Send(command), 0), Err(Errno::PERM));
        }
        assert_eq!(ask(Command::SendToFile, 0), Err(Errno::PERM));
        assert_eq!(ask(start, 0), Err(Errno::PERM));
    }

    #[test]
    fn streams_end_where_the_filesystem_is_shut_down() {
        let clock = FixedClock::new(Timestamp::default(), 0);
        let fs = MemFs::new(Arc::new(clock), MemFsLimits::default());
        let server = Server::new(Arc::new(fs), MountOptions::default()).unwrap();
        assert!(!server.sends.is_closed());
        // Not every filesystem can be shut down; its streams end in any case.
        let _ = shut_down(&server);
        assert!(server.sends.is_closed());
    }

    #[test]
    fn flags_without_a_counterpart_are_kept() {
        assert_eq!(with_xflags(0x0008_0090, 0x0000_0010), 0x0008_0020);
        assert!(word(&[0; 15], FSXATTR_PROJECT).is_err());
    }
}
