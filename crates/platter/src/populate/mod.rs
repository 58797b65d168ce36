//! Filling a new filesystem with a directory of the host, or with what a tar archive holds.
//!
//! All that is to be made is known before the first of it is: it is made in the order of its paths,
//! so that a directory and its archive give the same filesystem, whatever order they list it in.

mod ahead;
mod contents;
mod folder;
mod owners;
mod tape;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use platter_vfs::attr::DeviceNumber;
use platter_vfs::{
    Condition, Context, CreateKind, Credentials, FileKind, Filesystem, Inode, Name, SetAttr,
    SetTime, Timestamp, XattrMode,
};

use crate::{Cause, Error, Result};
use ahead::Pieces;
pub(crate) use contents::Contents;
use contents::HOLE_BYTES;
pub(crate) use folder::{host_error, xattrs as host_xattrs};
pub use owners::{IdMap, IdRange};

/// Longer targets of links take a block in every format.
const TARGET_INSIDE_MAX: usize = 59;

/// What is to be made, and what it is made of.
#[derive(Debug)]
pub struct Content {
    members: BTreeMap<MemberPath, Member>,
    name: Arc<str>,
    /// The archive that it is read from.
    source: Option<FileId>,
    /// Bytes of data, once they were counted.
    data_bytes: OnceLock<u64>,
}

/// Which file of the host it is, whatever its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct FileId {
    device: u64,
    inode: u64,
}

/// A path below the root, so that a directory comes right before what is in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct MemberPath(Vec<Vec<u8>>);

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
}

/// A full name, such as `user.comment`, and a value.
pub(crate) type Xattr = (Vec<u8>, Vec<u8>);

#[derive(Debug)]
enum MemberKind {
    Directory,
    File(Contents),
    Symlink(Vec<u8>),
    CharDevice(DeviceNumber),
    BlockDevice(DeviceNumber),
    Fifo,
    Socket,
    /// A further name of a member that comes earlier.
    Link(MemberPath),
}

/// What was made.
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

impl MemberPath {
    /// Takes a path apart. Leading slashes and `.` mean nothing.
    ///
    /// # Errors
    /// `InvalidArgument` for `..`, which would lead out of the filesystem.
    fn parse(path: &[u8]) -> platter_vfs::Result<Self> {
        let mut components = Vec::new();
        for component in path.split(|&byte| byte == b'/') {
            match component {
                b"" | b"." => {}
                b".." => return Err(Condition::InvalidArgument.into()),
                name => components.push(Name::new(name)?.as_bytes().to_vec()),
            }
        }
        Ok(Self(components))
    }

    fn text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for component in &self.0 {
            text.push(b'/');
            text.extend_from_slice(component);
        }
        text
    }
}

impl Content {
    /// All below a directory of the host, the owners and times as it has them.
    pub fn of_folder(folder: &Path) -> Result<Self> {
        folder::index(folder, None)
    }

    /// As [`of_folder`](Self::of_folder), but for one file, which may lie in it: the image that is
    /// to be made does not go into itself.
    pub fn of_folder_without(folder: &Path, left_out: &Path) -> Result<Self> {
        folder::index(folder, Some(left_out))
    }

    /// All that a tar archive holds, of what is there twice the later. The archive has to be a file.
    pub fn of_archive(archive: &Path) -> Result<Self> {
        tape::index(archive)
    }

    fn new(name: Arc<str>) -> Self {
        Self {
            members: BTreeMap::new(),
            name,
            source: None,
            data_bytes: OnceLock::new(),
        }
    }

    /// Whether it is read from the file that `path` leads to.
    pub(crate) fn is_read_from(&self, path: &Path) -> bool {
        self.source.is_some() && self.source == FileId::of(path)
    }

    /// How many inodes it takes.
    #[must_use]
    pub fn inodes(&self) -> u64 {
        let is_inode = |member: &&Member| !matches!(member.kind, MemberKind::Link(_));
        self.members.values().filter(is_inode).count() as u64
    }

    /// Bytes of the blocks of 4 KiB that hold anything but zeros. It takes reading all of them, so
    /// that it does not matter which holes the source knows of.
    pub(crate) fn data_bytes(&self) -> Result<u64> {
        if let Some(bytes) = self.data_bytes.get() {
            return Ok(*bytes);
        }
        let bytes = self.count(Contents::data_bytes)?;
        Ok(*self.data_bytes.get_or_init(|| bytes))
    }

    /// No fewer bytes than that. Zeros in short files count, too, so that only long ones are read.
    pub(crate) fn data_bytes_max(&self) -> Result<u64> {
        self.count(Contents::data_bytes_max)
    }

    fn count(&self, of_contents: fn(&Contents) -> Result<u64, Cause>) -> Result<u64> {
        let mut all = 0u64;
        for (path, member) in &self.members {
            let bytes = match &member.kind {
                MemberKind::File(contents) => {
                    let count = of_contents(contents);
                    count.map_err(|cause| self.error(path, cause))?
                }
                MemberKind::Directory => HOLE_BYTES as u64,
                MemberKind::Symlink(target) if target.len() > TARGET_INSIDE_MAX => {
                    HOLE_BYTES as u64
                }
                MemberKind::Symlink(_)
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

    /// Makes it all in a filesystem. `tell` hears of the bytes as they are written.
    pub fn fill(&self, fs: &dyn Filesystem, tell: &mut dyn FnMut(u64)) -> Result<Filled> {
        let files = self
            .members
            .values()
            .filter_map(|member| match &member.kind {
                MemberKind::File(contents) => Some(contents),
                MemberKind::Directory
                | MemberKind::Symlink(_)
                | MemberKind::CharDevice(_)
                | MemberKind::BlockDevice(_)
                | MemberKind::Fifo
                | MemberKind::Socket
                | MemberKind::Link(_) => None,
            });
        let filled = ahead::read(files, |pieces| self.fill_from(pieces, fs, tell));
        filled.unwrap_or_else(|error| Err(Error::new(&self.name, error)))
    }

    fn fill_from(
        &self,
        pieces: Pieces<'_>,
        fs: &dyn Filesystem,
        tell: &mut dyn FnMut(u64),
    ) -> Result<Filled> {
        let mut filler = Filler {
            content: self,
            pieces,
            fs,
            open: Vec::new(),
            filled: Filled::default(),
            tell,
        };
        for (path, member) in &self.members {
            filler
                .make(path, member)
                .map_err(|cause| self.error(path, cause))?;
        }
        // Last, since what is made in a directory changes its times and takes over its ACL.
        for (path, member) in self.members.iter().rev() {
            if matches!(member.kind, MemberKind::Directory) {
                filler
                    .finish_directory(path, member)
                    .map_err(|cause| self.error(path, cause))?;
            }
        }
        Ok(filler.filled)
    }

    fn error(&self, path: &MemberPath, cause: Cause) -> Error {
        Error::at_path(&self.name, &path.text(), cause)
    }
}

/// Makes members, each in the directory that the one before was made in or near it.
struct Filler<'a> {
    content: &'a Content,
    /// The contents of the files that are still to be made.
    pieces: Pieces<'a>,
    fs: &'a dyn Filesystem,
    /// The directories down to the last member.
    open: Vec<(Vec<u8>, Arc<dyn Inode>)>,
    filled: Filled,
    tell: &'a mut dyn FnMut(u64),
}

impl Filler<'_> {
    fn make(&mut self, path: &MemberPath, member: &Member) -> Result<(), Cause> {
        let Some((name, parents)) = path.0.split_last() else {
            return Ok(());
        };
        let dir = self.directory(parents)?;
        let name = Name::new(name)?;
        self.filled.names += 1;
        if let MemberKind::Link(earlier) = &member.kind {
            let target = self.find(earlier)?;
            dir.link(&Context::root(), name, target.id())?;
            return Ok(());
        }
        let context = Context {
            credentials: Credentials::new(member.uid, member.gid),
            umask: 0,
        };
        let (kind, permissions) = match &member.kind {
            MemberKind::Directory => return make_directory(&*dir, name, &context),
            MemberKind::File(_) | MemberKind::Link(_) => (CreateKind::Regular, member.permissions),
            MemberKind::Symlink(target) => (CreateKind::Symlink(target.clone()), 0o777),
            MemberKind::CharDevice(device) => (CreateKind::CharDevice(*device), member.permissions),
            MemberKind::BlockDevice(device) => {
                (CreateKind::BlockDevice(*device), member.permissions)
            }
            MemberKind::Fifo => (CreateKind::Fifo, member.permissions),
            MemberKind::Socket => (CreateKind::Socket, member.permissions),
        };
        let inode = dir.create(&context, name, kind, permissions)?;
        if let MemberKind::File(contents) = &member.kind {
            self.write(&*inode, contents.size_bytes())?;
        }
        set_attributes(&*inode, member)
    }

    /// Writes the contents of the next file.
    fn write(&mut self, inode: &dyn Inode, size_bytes: u64) -> Result<(), Cause> {
        let mut end = 0;
        while let Some(piece) = self.pieces.next()? {
            contents::write_data(piece.offset, piece.bytes, &mut |offset, bytes| {
                let count = bytes.len() as u64;
                end = offset + count;
                self.filled.bytes += count;
                (self.tell)(count);
                Ok(inode.write_at(offset, bytes)?)
            })?;
        }
        if end != size_bytes {
            let changes = SetAttr {
                size_bytes: Some(size_bytes),
                ..SetAttr::default()
            };
            inode.set_attr(&Context::root(), &changes)?;
        }
        Ok(())
    }

    fn finish_directory(&mut self, path: &MemberPath, member: &Member) -> Result<(), Cause> {
        let inode = self.find(path)?;
        set_attributes(&*inode, member)
    }

    fn find(&mut self, path: &MemberPath) -> Result<Arc<dyn Inode>, Cause> {
        let Some((name, parents)) = path.0.split_last() else {
            return Ok(self.fs.root()?);
        };
        let dir = self.directory(parents)?;
        Ok(dir.lookup(Name::new(name)?)?)
    }

    /// The directory with this path. One that no member names is made.
    fn directory(&mut self, path: &[Vec<u8>]) -> Result<Arc<dyn Inode>, Cause> {
        let same = self.open.iter().zip(path);
        let common = same.take_while(|((open, _), name)| open == *name).count();
        self.open.truncate(common);
        for (depth, component) in path.iter().enumerate().skip(common) {
            let parent = match self.open.last() {
                Some((_, inode)) => Arc::clone(inode),
                None => self.fs.root()?,
            };
            let name = Name::new(component)?;
            let inode = match parent.lookup(name) {
                Err(platter_vfs::Error::Condition(Condition::NotFound)) => {
                    let known = MemberPath(path[..=depth].to_vec());
                    debug_assert!(!self.content.members.contains_key(&known));
                    parent.create(&Context::root(), name, CreateKind::Directory, 0o755)?
                }
                found => found?,
            };
            self.open.push((component.clone(), inode));
        }
        match self.open.last() {
            Some((_, inode)) => Ok(Arc::clone(inode)),
            None => Ok(self.fs.root()?),
        }
    }
}

/// A directory may be there: the root has `lost+found`.
fn make_directory(dir: &dyn Inode, name: Name<'_>, context: &Context) -> Result<(), Cause> {
    match dir.create(context, name, CreateKind::Directory, 0o700) {
        Ok(_) => Ok(()),
        Err(platter_vfs::Error::Condition(Condition::Exists)) => {
            let is_directory = dir.lookup(name)?.attr()?.kind == FileKind::Directory;
            if is_directory {
                return Ok(());
            }
            Err(platter_vfs::Error::from(Condition::Exists).into())
        }
        Err(error) => Err(error.into()),
    }
}

/// Owner, permissions, attributes and times, in an order in which none undoes another.
fn set_attributes(inode: &dyn Inode, member: &Member) -> Result<(), Cause> {
    let root = Context::root();
    for (name, value) in &member.xattrs {
        inode.set_xattr(&root, name, value, XattrMode::Set)?;
    }
    let time = Some(SetTime::At(member.modified));
    let is_link = matches!(member.kind, MemberKind::Symlink(_));
    let changes = SetAttr {
        permissions: (!is_link).then_some(member.permissions),
        uid: Some(member.uid),
        gid: Some(member.gid),
        accessed: time,
        modified: time,
        ..SetAttr::default()
    };
    inode.set_attr(&root, &changes)?;
    Ok(())
}
