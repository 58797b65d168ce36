//! Extents of files that are written anew.

#![expect(clippy::host_endian_bytes, reason = "ioctls carry native integers")]

use platter_vfs::lock::{Mutex, MutexGuard, rank};
use platter_vfs::permission::check_access;
use platter_vfs::{Access, Condition, Defragment, Error, Inode, SeekTarget};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::{Answer, Caller, Server};
use crate::ioctl::{
    DEFRAGMENTED_BYTES_MAX, DefragRange, DefragmentStep, argument, defragment_in_steps, text,
};

/// `BTRFS_DEFRAG_RANGE_COMPRESS`.
const COMPRESS: u64 = 1 << 0;
/// `BTRFS_DEFRAG_RANGE_START_IO`, which is done in any case.
const START_IO: u64 = 1 << 1;
/// `BTRFS_DEFRAG_RANGE_COMPRESS_LEVEL`.
const COMPRESS_LEVEL: u64 = 1 << 2;
/// Methods by their numbers, `BTRFS_COMPRESS_*`; the first one is what 0 stands for.
const METHODS: [&str; 4] = ["zlib", "zlib", "lzo", "zstd"];
/// How long extents are that Linux leaves as they are, where no length is named.
const EXTENT_BYTES: u64 = 256 << 10;

/// The turn to defragment, so that callers other than the administrator take one thread that serves at most.
#[derive(Debug, Default)]
pub(super) struct DefragmentTurn {
    /// Held while a file is defragmented for a caller other than the administrator.
    turn: Mutex<(), { rank(0, 3) }>,
}

/// A file whose extents a caller may have written anew.
pub(super) struct Fragmented<'f> {
    server: &'f Server,
    caller: Caller,
    file: &'f dyn Inode,
    /// `None` of the administrator.
    _turn: Option<MutexGuard<'f, ()>>,
}

impl<'f> Fragmented<'f> {
    /// A file, for a caller.
    ///
    /// # Errors
    /// `EPERM` for callers that may not write to the file; `EBUSY` while a file is defragmented for another one, except
    /// for the administrator; those of what has no contents, and of what is not changed.
    pub(super) fn new(server: &'f Server, caller: Caller, file: &'f dyn Inode) -> Answer<Self> {
        server.must_be_mounted_writable()?;
        let attr = server.shown_attr(file)?;
        server.check(attr.kind.refuse_without_contents())?;
        // The file need not be open for writing: a program that runs is not.
        let is_admin = caller.is_admin();
        if !server.options.no_permission_checks && !is_admin {
            let user = caller.context()?.credentials;
            match check_access(file, &attr, &user, Access::WRITE) {
                Err(Error::Condition(Condition::AccessDenied)) => return Err(Errno::PERM),
                checked => server.check(checked)?,
            }
        }
        let turn = if is_admin {
            None
        } else {
            Some(server.defragmenting.turn.try_lock().ok_or(Errno::BUSY)?)
        };
        Ok(Self {
            server,
            caller,
            file,
            _turn: turn,
        })
    }

    /// Writes extents of a range anew, for platter itself.
    ///
    /// # Errors
    /// `EINVAL` for a range that is longer than [`DEFRAGMENTED_BYTES_MAX`].
    pub(super) fn defragment(&self, input: &[u8]) -> Answer<Vec<u8>> {
        let asked: DefragmentStep = argument(input)?;
        if asked.end.saturating_sub(asked.start) > DEFRAGMENTED_BYTES_MAX {
            return Err(Errno::INVAL);
        }
        let method = text(&asked.compression)?;
        let method = str::from_utf8(method).map_err(|_| Errno::INVAL)?;
        let written_bytes = self.carry_out(&Defragment {
            range: asked.start..asked.end,
            extent_bytes: asked.extent_bytes,
            compression: (!method.is_empty()).then(|| method.to_owned()),
        })?;
        let answer = DefragmentStep {
            written_bytes,
            ..asked
        };
        Ok(answer.as_bytes().to_vec())
    }

    /// The same, of a whole file, as Linux is asked for it.
    pub(super) fn defragment_all(&self) -> Answer<Vec<u8>> {
        let all = Defragment {
            extent_bytes: EXTENT_BYTES,
            ..Defragment::default()
        };
        self.carry_out_in_steps(&all)
    }

    /// The same, of a range.
    pub(super) fn defragment_range(&self, input: &[u8]) -> Answer<Vec<u8>> {
        let asked: DefragRange = argument(input)?;
        if asked.flags & !(COMPRESS | START_IO | COMPRESS_LEVEL) != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let extent_bytes = match asked.extent_bytes {
            0 => EXTENT_BYTES,
            bytes => bytes.into(),
        };
        let request = Defragment {
            range: asked.start..asked.start.saturating_add(asked.len_bytes),
            extent_bytes,
            compression: compression(&asked)?,
        };
        self.carry_out_in_steps(&request)
    }

    /// Other callers get at the file between two steps, and a kill of the caller, a shutdown or a remount ends them.
    fn carry_out_in_steps(&self, request: &Defragment) -> Answer<Vec<u8>> {
        let step = |range| {
            self.server.must_be_mounted_writable()?;
            if self.caller.is_killed() {
                return Err(Errno::INTR);
            }
            self.carry_out(&Defragment {
                range,
                ..request.clone()
            })
        };
        let data = |from| {
            let found = self.file.seek(from, SeekTarget::Data);
            self.server.check(found)
        };
        defragment_in_steps(&request.range, step, data)?;
        Ok(Vec::new())
    }

    fn carry_out(&self, request: &Defragment) -> Answer<u64> {
        self.server.check(self.file.defragment(request))
    }
}

/// What a range is to be compressed by, in the words of the format.
fn compression(asked: &DefragRange) -> Answer<Option<String>> {
    if asked.flags & COMPRESS == 0 {
        return Ok(None);
    }
    let [kind, level, ..] = asked.compression;
    let (kind, level) = if asked.flags & COMPRESS_LEVEL == 0 {
        (u32::from_ne_bytes(asked.compression), 0)
    } else {
        (kind.into(), i8::from_ne_bytes([level]))
    };
    let kind = usize::try_from(kind).map_err(|_| Errno::INVAL)?;
    let method = METHODS.get(kind).ok_or(Errno::INVAL)?;
    Ok(Some(match level {
        0 => (*method).to_owned(),
        level => format!("{method}:{level}"),
    }))
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::process::Command;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use platter_memfs::{HookedInode, Hooks, MemFs, MemFsLimits};
    use platter_vfs::{CreateKind, FixedClock, Timestamp};
    use zerocopy::FromZeros;

    use super::*;
    use crate::MountOptions;

    const MIB: u64 = 1 << 20;
    /// A caller that cannot be seen, and so is not the administrator.
    const OTHER: Caller = Caller {
        uid: 1,
        gid: 1,
        pid: 0,
    };

    /// A file that is asked to defragment ranges.
    #[derive(Debug)]
    struct Asked {
        server: Arc<Server>,
        ranges: Mutex<Vec<Range<u64>>>,
        /// The next one shuts the mount down.
        shuts_down: AtomicBool,
    }

    impl Hooks for Asked {
        fn defragment(&self, _: &dyn Inode, request: &Defragment) -> platter_vfs::Result<u64> {
            self.ranges.lock().push(request.range.clone());
            let shuts_down = self.shuts_down.load(Ordering::Relaxed);
            self.server.shut_down.store(shuts_down, Ordering::Relaxed);
            Ok(0)
        }
    }

    impl Asked {
        /// Hooks of a file with data at its beginning and after 80 MiB, and the file.
        fn file() -> (Arc<Self>, HookedInode<Self>) {
            let clock = FixedClock::new(Timestamp::default(), 0);
            let fs = MemFs::new(Arc::new(clock), MemFsLimits::default());
            let file = fs.plant(b"file", CreateKind::Regular, 0o644).unwrap();
            for offset in [0, 80 * MIB] {
                file.write_at(offset, &[1; 4096]).unwrap();
            }
            let options = MountOptions {
                no_permission_checks: true,
                ..MountOptions::default()
            };
            let asked = Arc::new(Self {
                server: Arc::new(Server::new(Arc::new(fs), options).unwrap()),
                ranges: Mutex::default(),
                shuts_down: AtomicBool::new(false),
            });
            (Arc::clone(&asked), HookedInode::new(file, asked))
        }

        /// The ranges since the last call, in MiB.
        fn take(&self) -> Vec<Range<u64>> {
            let ranges = std::mem::take(&mut *self.ranges.lock());
            let in_mib = |range: Range<u64>| range.start / MIB..range.end / MIB;
            ranges.into_iter().map(in_mib).collect()
        }
    }

    #[test]
    fn file_is_defragmented_in_steps_past_its_holes() {
        let (asked, file) = Asked::file();
        let file = Fragmented::new(&asked.server, OTHER, &file).unwrap();
        file.defragment_all().unwrap();
        assert_eq!(asked.take(), [0..32, 80..112]);
        let range = |start, len_bytes| DefragRange {
            start,
            len_bytes,
            ..DefragRange::new_zeroed()
        };
        let defragment = |range: DefragRange| file.defragment_range(range.as_bytes());
        defragment(range(MIB, 40 * MIB)).unwrap();
        defragment(range(60 * MIB, 30 * MIB)).unwrap();
        defragment(range(70 * MIB, u64::MAX)).unwrap();
        assert_eq!(asked.take(), [1..33, 60..90, 70..102]);
        asked.shuts_down.store(true, Ordering::Relaxed);
        assert_eq!(file.defragment_all(), Err(Errno::IO));
        assert_eq!(asked.take().len(), 1);
    }

    #[test]
    fn kill_of_the_caller_ends_the_steps() {
        let (asked, file) = Asked::file();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let caller = Caller {
            pid: child.id(),
            ..OTHER
        };
        let file = Fragmented::new(&asked.server, caller, &file).unwrap();
        file.defragment_all().unwrap();
        assert_eq!(asked.take().len(), 2);
        child.kill().unwrap();
        // The signal is pending at once, or has ended the process, which is not waited for yet.
        assert_eq!(file.defragment_all(), Err(Errno::INTR));
        assert!(asked.take().is_empty());
        child.wait().unwrap();
    }

    #[test]
    fn long_range_is_not_one_step() {
        let (asked, file) = Asked::file();
        let file = Fragmented::new(&asked.server, OTHER, &file).unwrap();
        let defragment = |range: Range<u64>| {
            let range = DefragmentStep::new(&range, 0, None).unwrap();
            file.defragment(range.as_bytes()).map(drop)
        };
        assert_eq!(defragment(MIB..33 * MIB), Ok(()));
        assert_eq!(asked.take().len(), 1);
        for end in [33 * MIB + 1, u64::MAX] {
            assert_eq!(defragment(MIB..end), Err(Errno::INVAL));
        }
        assert!(asked.take().is_empty());
    }

    #[test]
    fn one_file_is_defragmented_for_others_at_once() {
        let (asked, file) = Asked::file();
        let begin = |caller| Fragmented::new(&asked.server, caller, &file);
        let first = begin(OTHER).unwrap();
        assert_eq!(begin(OTHER).err(), Some(Errno::BUSY));
        let admin = Caller {
            pid: std::process::id(),
            ..OTHER
        };
        assert!(begin(admin).is_ok());
        drop(first);
        assert!(begin(OTHER).is_ok());
    }

    #[test]
    fn methods_are_those_of_their_numbers() {
        let method = |flags: u64, compression: [u8; 4]| {
            super::compression(&DefragRange {
                flags,
                compression,
                ..DefragRange::new_zeroed()
            })
        };
        let plain = |number: u32| method(COMPRESS | START_IO, number.to_ne_bytes());
        assert_eq!(method(START_IO, 2_u32.to_ne_bytes()), Ok(None));
        assert_eq!(plain(0).unwrap().unwrap(), "zlib");
        assert_eq!(plain(2).unwrap().unwrap(), "lzo");
        assert_eq!(plain(3).unwrap().unwrap(), "zstd");
        assert_eq!(plain(4), Err(Errno::INVAL));
        assert_eq!(plain(u32::MAX), Err(Errno::INVAL));
        let leveled = |bytes| method(COMPRESS | COMPRESS_LEVEL, bytes).unwrap().unwrap();
        assert_eq!(leveled([1, 9, 0, 0]), "zlib:9");
        assert_eq!(leveled([3, 0xf1, 0, 0]), "zstd:-15");
        assert_eq!(leveled([3, 0, 0, 0]), "zstd");
    }
}
