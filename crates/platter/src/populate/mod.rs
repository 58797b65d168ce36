//! Filling a new filesystem with a directory of the host, or with what a tar archive holds.
//!
//! All that is to be made is known before the first of it is: it is made in the order of its paths,
//! so that a directory and its archive give the same filesystem, whatever order they list it in.

mod contents;
mod ahead;
mod member_path;
mod sharing;
mod subvolumes;
mod filler;
mod dir;
mod oci;
mod owners;
mod tape;
mod unpack;
mod layers;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use platter_vfs::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME};
use platter_vfs::attr::DeviceNumber;
use platter_vfs::{Context, Credentials, Filesystem, Timestamp};
use rustix::fs::Stat;

use crate::{Cause, Error, Progress, Result};
use ahead::Pieces;
use contents::HOLE_BYTES;
pub(crate) use contents::{Contents, HostPlace};
pub(crate) use dir::{host_error, xattrs as host_xattrs};
use filler::Filler;
pub use layers::ContentLayers;
use member_path::MemberPath;
pub use owners::{IdMap, IdRange};
use sharing::ContentsDigest;
pub use subvolumes::NewSubvolume;
use subvolumes::SubvolumeKind;

/// Longer targets of links take a block in every format.
const TARGET_INSIDE_MAX: usize = 59;

/// The files that a new filesystem is filled with, and where their contents are read from.
#[derive(Debug)]
pub struct Content {
    /// In the order of their paths, each of which is there once.
    members: Vec<(MemberPath, Member)>,
    name: Arc<str>,
    /// Owner of directories that members lie in, but that no member names, as in archives;
    /// the superuser's otherwise.
    implied_owner: Option<(u32, u32)>,
    /// The archives that it is read from.
    sources: Vec<FileId>,
    /// Directories that become subvolumes.
    subvolumes: BTreeMap<MemberPath, SubvolumeKind>,
    /// What the contents were of files that others [share](Self::share_equal_files).
    digests: BTreeMap<MemberPath, ContentsDigest>,
    /// Bytes of data, once they were counted.
    data_bytes: OnceLock<u64>,
}

/// Which file of the host it is, whatever its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FileId {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

/// One thing to make.
#[derive(Debug)]
struct Member {
    kind: MemberKind,
    uid: u32,
    gid: u32,
    permissions: u32,
    modified: Timestamp,
    xattrs: Vec<Xattr>,
}

impl Member {
    /// A further name of the member with this path.
    fn link(first: MemberPath) -> Self {
        Self {
            kind: MemberKind::Link(first),
            uid: 0,
            gid: 0,
            permissions: 0,
            modified: Timestamp::default(),
            xattrs: Vec::new(),
        }
    }

    /// The credentials that it is made with.
    fn context(&self) -> Context {
        Context {
            credentials: Credentials::new(self.uid, self.gid),
            umask: 0,
        }
    }
}

/// A full name, such as `user.comment`, and a value.
pub(crate) type Xattr = (Vec<u8>, Vec<u8>);

#[derive(Debug)]
enum MemberKind {
    Directory,
    File(Contents),
    /// A file that shares the contents of a member that comes earlier, and its size.
    Clone(MemberPath, u64),
    Symlink(Vec<u8>),
    CharDevice(DeviceNumber),
    BlockDevice(DeviceNumber),
    Fifo,
    Socket,
    /// A further name of a member that comes earlier.
    Link(MemberPath),
}

impl MemberKind {
    /// What a regular file holds.
    const fn contents(&self) -> Option<&Contents> {
        match self {
            Self::File(contents) => Some(contents),
            Self::Directory
            | Self::Clone(..)
            | Self::Symlink(_)
            | Self::CharDevice(_)
            | Self::BlockDevice(_)
            | Self::Fifo
            | Self::Socket
            | Self::Link(_) => None,
        }
    }
}

/// How much was made of a [`Content`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Filled {
    /// Names, the root left out.
    pub names: u64,
    /// Bytes of contents that are no zeros.
    pub bytes: u64,
}

impl FileId {
    /// The file that a path leads to.
    fn of(path: &Path) -> Option<Self> {
        Some(Self::from(&std::fs::metadata(path).ok()?))
    }
}

impl From<&Metadata> for FileId {
    fn from(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}

impl From<&Stat> for FileId {
    fn from(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
        }
    }
}

impl Content {
    /// Content of all below a directory of the host, with owners and times as it has them.
    pub fn of_dir(dir: &Path) -> Result<Self> {
        dir::index(dir, None)
    }

    /// As [`of_dir`](Self::of_dir), but for one file, which may lie in it: the image that is
    /// to be made does not go into itself.
    pub fn of_dir_without(dir: &Path, left_out: &Path) -> Result<Self> {
        dir::index(dir, Some(left_out))
    }

    /// Content of all that a tar archive holds, of what is there twice the later. The archive may be compressed by
    /// gzip, zstd or xz; it is unpacked into a temporary file then.
    pub fn of_archive(archive: &Path) -> Result<Self> {
        Self::of_archive_within(archive, u64::MAX)
    }

    /// As [`of_archive`](Self::of_archive), with no more than so many bytes in the temporary file, zeros
    /// left out.
    pub fn of_archive_within(archive: &Path, data_bytes_max: u64) -> Result<Self> {
        let mut layers = ContentLayers::new(data_bytes_max);
        layers.add_archive(archive)?;
        Ok(layers.finish())
    }

    /// As [`of_archive_within`](Self::of_archive_within), of an archive that comes through a pipe. Errors
    /// call it `name`.
    pub fn of_stream(name: &str, stream: impl Read, data_bytes_max: u64) -> Result<Self> {
        let mut layers = ContentLayers::new(data_bytes_max);
        layers.add_stream(name, stream)?;
        Ok(layers.finish())
    }

    fn new(name: Arc<str>) -> Self {
        Self {
            members: Vec::new(),
            name,
            implied_owner: None,
            sources: Vec::new(),
            subvolumes: BTreeMap::new(),
            digests: BTreeMap::new(),
            data_bytes: OnceLock::new(),
        }
    }

    /// Has everything belong to one user and group.
    pub fn owned_by(&mut self, uid: u32, gid: u32) {
        for (_, member) in &mut self.members {
            (member.uid, member.gid) = (uid, gid);
        }
        self.implied_owner = Some((uid, gid));
    }

    /// Has owners, and those that ACLs name, become others.
    pub fn map_owners(&mut self, users: &IdMap, groups: &IdMap) {
        let (uid, gid) = self.implied_owner.unwrap_or_default();
        self.implied_owner = Some((users.map(uid), groups.map(gid)));
        for (_, member) in &mut self.members {
            member.uid = users.map(member.uid);
            member.gid = groups.map(member.gid);
            for (name, value) in &mut member.xattrs {
                let is_acl = matches!(&**name, ACL_ACCESS_NAME | ACL_DEFAULT_NAME);
                let mapped = is_acl.then(|| users.map_acl(groups, value)).flatten();
                if let Some(mapped) = mapped {
                    *value = mapped;
                }
            }
        }
    }

    /// Has files with equal contents share them: the first in the order of paths has the extents, the others become clones
    /// of it. Files that are shorter than a block are left out. Where several files have the same size, they are read
    /// for that: their beginnings, and the rest of those that begin alike. `progress` counts what is read.
    ///
    /// What is written later has to be what was compared: [filling](Self::fill) fails otherwise.
    ///
    /// # Errors
    /// Those of reading, and `Cancelled`.
    pub fn share_equal_files(&mut self, progress: &Progress) -> Result<()> {
        sharing::share_equal_files(self, progress)
    }

    /// Whether a file shares what another one has.
    pub(crate) fn has_clones(&self) -> bool {
        let mut kinds = self.members.iter().map(|(_, member)| &member.kind);
        kinds.any(|kind| matches!(kind, MemberKind::Clone(..)))
    }

    /// Has directories become subvolumes, also in each other. A file with names in several of them becomes a file in
    /// each, which share their contents.
    ///
    /// # Errors
    /// `NotFound` and `NotDirectory` for what is no directory of the content, `InvalidArgument` for its root, which is a
    /// subvolume anyway, `Exists` for what is named twice, and for a second default one.
    pub fn make_subvolumes(&mut self, subvolumes: &[NewSubvolume]) -> Result<()> {
        subvolumes::make_subvolumes(self, subvolumes)
    }

    /// Whether there are subvolumes.
    pub(crate) fn has_subvolumes(&self) -> bool {
        !self.subvolumes.is_empty()
    }

    /// What errors call it.
    pub(crate) fn name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// Whether it is read from the file that `path` leads to.
    pub(crate) fn is_read_from(&self, path: &Path) -> bool {
        FileId::of(path).is_some_and(|file| self.sources.contains(&file))
    }

    /// The number of inodes that the content takes.
    #[must_use]
    pub fn inodes(&self) -> u64 {
        let members = self.members.iter();
        let inodes = members.filter(|(_, member)| !matches!(member.kind, MemberKind::Link(_)));
        inodes.count() as u64
    }

    /// Bytes of the blocks of 4 KiB that hold anything but zeros. It takes reading all of them, so
    /// that it does not matter which holes the source knows of.
    pub(crate) fn data_bytes(&self, progress: &Progress) -> Result<u64> {
        if let Some(bytes) = self.data_bytes.get() {
            return Ok(*bytes);
        }
        let bytes = self.count(progress, Contents::data_bytes)?;
        Ok(*self.data_bytes.get_or_init(|| bytes))
    }

    /// No fewer bytes than that. Zeros in short files count, too, so that only long ones are read.
    pub(crate) fn data_bytes_max(&self, progress: &Progress) -> Result<u64> {
        self.count(progress, Contents::data_bytes_max)
    }

    fn count(
        &self,
        progress: &Progress,
        of_contents: fn(&Contents, &Progress) -> Result<u64, Cause>,
    ) -> Result<u64> {
        let mut all = 0u64;
        for (path, member) in &self.members {
            let bytes = match &member.kind {
                MemberKind::File(contents) => {
                    let count = of_contents(contents, progress);
                    count.map_err(|cause| self.error(path, cause))?
                }
                MemberKind::Directory => HOLE_BYTES as u64,
                MemberKind::Symlink(target) if target.len() > TARGET_INSIDE_MAX => {
                    HOLE_BYTES as u64
                }
                MemberKind::Clone(..)
                | MemberKind::Symlink(_)
                | MemberKind::CharDevice(_)
                | MemberKind::BlockDevice(_)
                | MemberKind::Fifo
                | MemberKind::Socket
                | MemberKind::Link(_) => 0,
            };
            let of_xattrs = member.xattrs.iter().map(|(_, value)| value.len() as u64);
            all = all.saturating_add(bytes).saturating_add(of_xattrs.sum());
        }
        Ok(all)
    }

    /// Makes all of the content in a filesystem, and returns how much that was. Counts in `progress` what is written, or about to be.
    pub fn fill(&self, fs: &dyn Filesystem, progress: &Progress) -> Result<Filled> {
        let files = self
            .members
            .iter()
            .filter_map(|(_, member)| member.kind.contents());
        let filled = ahead::read(files, |pieces| self.fill_from(pieces, fs, progress));
        filled.unwrap_or_else(|error| Err(Error::new(&self.name, error)))
    }

    fn fill_from(
        &self,
        pieces: Pieces<'_>,
        fs: &dyn Filesystem,
        progress: &Progress,
    ) -> Result<Filled> {
        let mut filler = Filler::new(self, pieces, fs, progress);
        for (path, member) in &self.members {
            filler.make(path, member)?;
        }
        filler.make_waiting()?;
        if let Some(owner) = self.implied_owner
            && !self.members.iter().any(|(path, _)| path.is_root())
        {
            filler.own_root(owner)?;
        }
        // Last, since what is made in a directory changes its times and takes over its ACL.
        for (path, member) in self.members.iter().rev() {
            if matches!(member.kind, MemberKind::Directory) {
                filler.finish_directory(path, member)?;
            }
        }
        // Then nothing in them changes any more.
        for (path, kind) in &self.subvolumes {
            filler.finish_subvolume(path, *kind)?;
        }
        Ok(filler.filled())
    }

    fn error(&self, path: &MemberPath, cause: Cause) -> Error {
        Error::at_path(&self.name, &path.text(), cause)
    }
}

/// An archive or an image layout that content cannot be read from.
fn broken(problem: impl Into<String>) -> Cause {
    Cause::BadArchive {
        problem: problem.into(),
    }
}
