//! Requests that change nothing.

use std::ops::{ControlFlow, Range};

use platter_vfs::permission::{APPEND_ONLY, IMMUTABLE};
use platter_vfs::{
    AccessTimes, Condition, DirCursor, Error, FileKind, Inode, InodeId, NameBuf, SeekTarget, StatFs,
};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{Answer, Caller, EntryParam, ReadAttr, Server};
use crate::Operation;
use crate::node::NodeId;

/// How many entries are read of a directory at once, at first and at most: how many fit a reply is
/// not known, and what does not fit was read for nothing.
const ENTRIES_AT_FIRST: usize = 32;
const ENTRIES_AT_MOST: usize = 1024;

/// How often a hole is looked for again, while the kernel has contents to fill it.
const SEEKS_MAX: usize = 64;

/// One line of a listing.
#[derive(Debug)]
pub(crate) struct DirLine<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) inode: u64,
    pub(crate) kind: FileKind,
    pub(crate) next: u64,
}

/// One line of a listing that also describes the file.
#[derive(Debug)]
pub(crate) struct PlusLine<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) next: u64,
    pub(crate) file: PlusFile<'a>,
}

/// What a listing returns about a file.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PlusFile<'a> {
    /// The file, which the kernel holds from now on.
    Entry(&'a EntryParam),
    /// No more than the entry itself says: of `.` and `..`, and of a file that cannot be read now.
    Named { inode: u64, kind: FileKind },
}

/// An entry on its way into a listing. Its inode cannot be asked for anything in the middle of the
/// driver's own listing.
struct Pending {
    name: NameBuf,
    id: InodeId,
    kind: Option<FileKind>,
    next: DirCursor,
}

impl Server {
    pub(crate) fn attributes(&self, node: NodeId) -> Answer<ReadAttr> {
        self.counters.count(Operation::GetAttr);
        self.nodes.note_attr_sent(node);
        self.read_attr(&*self.inode(node)?)
    }

    /// As [`attributes`](Self::attributes), asked for with the time of creation.
    pub(crate) fn extended_attributes(&self, node: NodeId) -> Answer<ReadAttr> {
        self.counters.count(Operation::Statx);
        self.nodes.note_attr_sent(node);
        self.read_attr(&*self.inode(node)?)
    }

    pub(crate) fn link_target(&self, node: NodeId) -> Answer<Vec<u8>> {
        self.counters.count(Operation::ReadLink);
        let inode = self.inode(node)?;
        let target = self.check(inode.read_link())?;
        self.note_access(&*inode, FileKind::Symlink, OFlags::empty());
        Ok(target)
    }

    /// Reads into `buf` as much as there is, of a file opened with `flags`.
    pub(crate) fn read(
        &self,
        node: NodeId,
        offset: u64,
        flags: OFlags,
        buf: &mut [u8],
    ) -> Answer<usize> {
        self.counters.count(Operation::Read);
        self.must_not_be_shut_down()?;
        let inode = self.inode(node)?;
        let len = self.check(inode.read_at(offset, buf))?;
        self.note_access(&*inode, FileKind::Regular, flags);
        Ok(len)
    }

    /// A file was read. Failing to record its time of access is no error of the reader. The kernel asks
    /// for the time again by itself.
    pub(super) fn note_access(&self, inode: &dyn Inode, kind: FileKind, flags: OFlags) {
        let options = &self.options;
        if options.read_only
            || flags.contains(OFlags::NOATIME)
            || kind == FileKind::Directory && options.no_directory_access_times
            || options.access_times == AccessTimes::Never
            || self.must_not_be_shut_down().is_err()
        {
            return;
        }
        let _change = self.versions.begin(inode.id());
        let _ = inode.note_access(options.access_times);
    }

    /// Whether the kernel is to say what is opened: so that it reads it from here, and not from what it
    /// kept of an earlier time.
    pub(crate) fn sees_openings(&self) -> bool {
        self.options.access_times == AccessTimes::Strict && !self.options.read_only
    }

    /// Opens a file with `flags`, where that is to be seen.
    pub(crate) fn open(&self, node: NodeId, flags: OFlags) -> Answer<()> {
        if !self.sees_openings() {
            return Err(self.not_needed(Operation::Open));
        }
        self.counters.count(Operation::Open);
        let writes = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
        let frozen = if flags.contains(OFlags::APPEND) {
            IMMUTABLE
        } else {
            IMMUTABLE | APPEND_ONLY
        };
        if writes && self.check(self.inode(node)?.attr())?.flags & frozen != 0 {
            return Err(Errno::PERM);
        }
        Ok(())
    }

    /// Opens a directory, where that is to be seen.
    pub(crate) fn open_dir(&self) -> Answer<()> {
        if !self.sees_openings() {
            return Err(self.not_needed(Operation::OpenDir));
        }
        self.counters.count(Operation::OpenDir);
        Ok(())
    }

    /// Says that requests of this kind are not needed: the kernel sends no more of them. Without
    /// `OPEN` it keeps the pages it has, without `OPENDIR` also listings.
    pub(crate) fn not_needed(&self, operation: Operation) -> Errno {
        self.counters.count(operation);
        Errno::NOSYS
    }

    /// The kernel released a file that it had opened with `flags`.
    pub(crate) fn release(&self, node: NodeId, flags: OFlags) {
        self.counters.count(Operation::Release);
        if flags.intersects(OFlags::WRONLY | OFlags::RDWR)
            && let Ok(inode) = self.inode(node)
        {
            inode.closed();
        }
    }

    /// The kernel released a directory that it had opened.
    pub(crate) fn release_dir(&self) {
        self.counters.count(Operation::ReleaseDir);
    }

    /// Passes the entries after `from` to `add` until it reports that its reply is full. The directory was
    /// opened with `flags`.
    pub(crate) fn list(
        &self,
        node: NodeId,
        (from, flags): (u64, OFlags),
        mut add: impl FnMut(DirLine<'_>) -> bool,
    ) -> Answer<()> {
        self.counters.count(Operation::ReadDir);
        let dir = self.inode(node)?;
        self.for_each_entry(&*dir, from, |entry| {
            let kind = entry.kind.map_or_else(|| self.kind_of(entry.id), Ok);
            add(DirLine {
                name: &entry.name,
                inode: self.fs.shown_number(entry.id),
                kind: kind.unwrap_or(FileKind::Regular),
                next: entry.next.0,
            })
        })?;
        self.note_access(&*dir, FileKind::Directory, flags);
        Ok(())
    }

    /// As [`list`](Self::list), with the files that the entries name.
    pub(crate) fn list_plus(
        &self,
        node: NodeId,
        (from, flags): (u64, OFlags),
        mut add: impl FnMut(PlusLine<'_>) -> bool,
    ) -> Answer<()> {
        self.counters.count(Operation::ReadDirPlus);
        let dir = self.inode(node)?;
        self.for_each_entry(&*dir, from, |entry| self.add_plus(&*dir, entry, &mut add))?;
        self.note_access(&*dir, FileKind::Directory, flags);
        Ok(())
    }

    /// Passes the entries after `from` to `add` until it reports that its reply is full. An error counts
    /// only when nothing came before it; otherwise it comes first with the next request.
    fn for_each_entry(
        &self,
        dir: &dyn Inode,
        from: u64,
        mut add: impl FnMut(&Pending) -> bool,
    ) -> Answer<()> {
        let (mut from, mut any, mut at_once) = (DirCursor(from), false, ENTRIES_AT_FIRST);
        loop {
            let mut entries = Vec::new();
            let listing = dir.read_dir(from, &mut |entry| {
                entries.push(Pending {
                    name: entry.name.to_owned(),
                    id: entry.id,
                    kind: entry.kind,
                    next: entry.next,
                });
                if entries.len() == at_once {
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            });
            for entry in &entries {
                if add(entry) {
                    return Ok(());
                }
                any = true;
            }
            match entries.last() {
                Some(last) if entries.len() == at_once && last.next != from => from = last.next,
                _ if any => return Ok(()),
                _ => return self.check(listing),
            }
            at_once = ENTRIES_AT_MOST.min(at_once * 2);
        }
    }

    fn kind_of(&self, id: InodeId) -> Answer<FileKind> {
        let attr = self.fs.inode(id).and_then(|inode| inode.attr());
        self.check(attr).map(|attr| attr.kind)
    }

    /// Adds one entry; whether the reply is full.
    fn add_plus(
        &self,
        dir: &dyn Inode,
        entry: &Pending,
        add: &mut impl FnMut(PlusLine<'_>) -> bool,
    ) -> bool {
        let (name, next) = (&*entry.name, entry.next.0);
        let mut line = |file| add(PlusLine { name, next, file });
        let is_dot = entry.name.as_name().is_dot_or_dotdot();
        let child = if is_dot {
            None
        } else {
            let loaded = self.check(self.fs.inode(entry.id));
            loaded
                .and_then(|inode| self.make_entry(&inode, self.name_validity(dir)))
                .ok()
        };
        let Some(child) = child else {
            let unknown = if is_dot {
                FileKind::Directory
            } else {
                FileKind::Regular
            };
            return line(PlusFile::Named {
                inode: self.fs.shown_number(entry.id),
                kind: entry.kind.unwrap_or(unknown),
            });
        };
        let full = line(PlusFile::Entry(&child));
        if full {
            self.nodes.forget(child.node, 1);
        }
        full
    }

    pub(crate) fn space(&self, node: NodeId) -> Answer<StatFs> {
        self.counters.count(Operation::StatFs);
        let id = self.nodes.id_of(node).ok_or(Errno::STALE)?;
        self.check(self.fs.stat_fs_at(id))
    }

    /// Makes a file's data and what leads to it durable.
    pub(crate) fn sync(&self, node: NodeId, data_only: bool, of: Operation) -> Answer<()> {
        self.counters.count(of);
        self.must_not_be_shut_down()?;
        self.check(self.inode(node)?.sync(data_only))
    }

    pub(crate) fn xattr(&self, node: NodeId, name: &[u8]) -> Answer<Vec<u8>> {
        self.counters.count(Operation::GetXattr);
        self.check(self.inode(node)?.get_xattr(name))
    }

    /// The names of all attributes the caller may know of, each with a closing NUL.
    pub(crate) fn xattr_names(&self, node: NodeId, caller: Caller) -> Answer<Vec<u8>> {
        self.counters.count(Operation::ListXattr);
        let names = self.check(self.inode(node)?.list_xattrs())?;
        let (mut list, mut is_superuser) = (Vec::new(), None);
        for name in names {
            if name.starts_with(b"trusted.")
                && !*is_superuser.get_or_insert_with(|| caller.is_superuser())
            {
                continue;
            }
            list.extend_from_slice(&name);
            list.push(0);
        }
        Ok(list)
    }

    pub(crate) fn seek(&self, node: NodeId, offset: u64, target: SeekTarget) -> Answer<u64> {
        self.counters.count(Operation::Lseek);
        self.check(self.inode(node)?.seek(offset, target))
    }

    /// As [`seek`](Self::seek), for a file that counts as having no holes.
    pub(crate) fn seek_as_if_full(
        &self,
        node: NodeId,
        offset: u64,
        target: SeekTarget,
    ) -> Answer<u64> {
        self.counters.count(Operation::Lseek);
        let end = self.check(self.inode(node)?.attr())?.size_bytes;
        match target {
            _ if offset >= end => Err(Errno::NXIO),
            SeekTarget::Data => Ok(offset),
            SeekTarget::Hole => Ok(end),
        }
    }

    /// As [`seek`](Self::seek), for a file of which the kernel may hold contents that did not come
    /// here yet. `write_back` has it write those in a range of bytes.
    pub(crate) fn seek_written_back(
        &self,
        node: NodeId,
        offset: u64,
        target: SeekTarget,
        mut write_back: impl FnMut(Range<u64>),
    ) -> Answer<u64> {
        self.counters.count(Operation::Lseek);
        let inode = self.inode(node)?;
        let mut found = inode.seek(offset, target);
        // The caller of the kernel keeps other writers out, but for those of mapped pages.
        for _ in 0..SEEKS_MAX {
            let is_last = |place: u64| inode.attr().is_ok_and(|attr| place >= attr.size_bytes);
            let hole = match (target, &found) {
                (SeekTarget::Data, Ok(data)) => offset..*data,
                (SeekTarget::Hole, Ok(hole)) if !is_last(*hole) => *hole..hole.saturating_add(1),
                (SeekTarget::Hole, Ok(end)) => *end..u64::MAX,
                (_, Err(Error::Condition(Condition::NoSuchAddress))) => offset..u64::MAX,
                (_, Err(_)) => break,
            };
            if hole.is_empty() {
                break;
            }
            write_back(hole);
            let again = inode.seek(offset, target);
            let is_same = match (&found, &again) {
                (Ok(before), Ok(now)) => before == now,
                (Err(_), Err(_)) => true,
                (Ok(_), Err(_)) | (Err(_), Ok(_)) => false,
            };
            found = again;
            if is_same {
                break;
            }
        }
        self.check(found)
    }
}
