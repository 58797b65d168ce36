//! Making members, each in the directory that the one before was made in or near it.

use std::sync::Arc;

use platter_vfs::{
    Condition, Context, CreateKind, Credentials, FileKind, Filesystem, Inode, Name, SetAttr,
    SetTime, Subvolumes, WholeFile, XattrMode,
};

use super::ahead::{Part, Pieces};
use super::contents::{Contents, changed, has_holes, write_data};
use super::sharing::{ContentsDigest, Digester};
use super::subvolumes::SubvolumeKind;
use super::{Content, Filled, Member, MemberKind, MemberPath};
use crate::{Cause, Progress, Result};

/// Files that are no longer are made as a whole, several at once...
const SHORT_BYTES_MAX: u64 = 64 << 10;
/// ...up to so many, or until they have so many bytes together.
const WAITING_MAX: usize = 64;
const WAITING_BYTES_MAX: usize = 256 << 10;
/// Of directories that no member names.
const IMPLIED_PERMISSIONS: u32 = 0o755;

/// What makes the members of a content, one after the other.
pub(super) struct Filler<'a> {
    content: &'a Content,
    /// The contents of the files that are still to be made.
    pieces: Pieces<'a>,
    fs: &'a dyn Filesystem,
    /// The directories down to the last member.
    open: Vec<Open>,
    /// Files of one directory that are still to be made.
    waiting: Vec<Waiting<'a>>,
    /// How long they are together.
    waiting_bytes: usize,
    progress: Report<'a>,
}

/// A directory, by its name in the one above.
struct Open {
    name: Box<[u8]>,
    inode: Arc<dyn Inode>,
}

/// What was made, and where that is counted for the caller.
struct Report<'a> {
    filled: Filled,
    observer: &'a Progress,
}

/// A file without attributes whose contents have no holes.
struct Waiting<'a> {
    path: &'a MemberPath,
    member: &'a Member,
    bytes: Part,
}

impl<'a> Filler<'a> {
    pub(super) fn new(
        content: &'a Content,
        pieces: Pieces<'a>,
        fs: &'a dyn Filesystem,
        observer: &'a Progress,
    ) -> Self {
        Self {
            content,
            pieces,
            fs,
            open: Vec::new(),
            waiting: Vec::new(),
            waiting_bytes: 0,
            progress: Report {
                filled: Filled::default(),
                observer,
            },
        }
    }

    /// What was made so far.
    pub(super) fn filled(&self) -> Filled {
        self.progress.filled
    }

    /// Makes a member, or has it [wait](Self::make_waiting) for others.
    pub(super) fn make(&mut self, path: &'a MemberPath, member: &'a Member) -> Result<()> {
        let content = self.content;
        let failed = |cause| content.error(path, cause);
        if path.is_root() {
            return Ok(());
        }
        self.progress.observer.check().map_err(failed)?;
        self.progress.observer.add_file();
        self.progress.filled.names += 1;
        let size_bytes = member.kind.contents().map(Contents::size_bytes);
        let Some(size_bytes) = size_bytes.filter(|&size_bytes| size_bytes <= SHORT_BYTES_MAX)
        else {
            self.make_waiting()?;
            return self.make_now(path, member).map_err(failed);
        };
        let is_elsewhere = self
            .waiting
            .last()
            .is_some_and(|last| !last.path.is_sibling_of(path));
        let is_full = self.waiting.len() >= WAITING_MAX || self.waiting_bytes >= WAITING_BYTES_MAX;
        if is_elsewhere || is_full {
            self.make_waiting()?;
        }
        let bytes = self.pieces.whole(size_bytes).map_err(failed)?;
        if let Some(expected) = content.digests.get(path) {
            let mut digester = Digester::default();
            digester.add_data(0, &bytes).map_err(failed)?;
            refuse_changed(&digester, expected).map_err(failed)?;
        }
        if member.xattrs.is_empty() && !has_holes(&bytes) {
            self.progress.add(size_bytes);
            self.waiting_bytes += bytes.len();
            self.waiting.push(Waiting {
                path,
                member,
                bytes,
            });
            return Ok(());
        }
        self.make_waiting()?;
        let made = self.make_alone(path, member, |filler, inode| {
            let end = filler.progress.write(inode, 0, &bytes)?;
            set_size(inode, end, size_bytes)
        });
        made.map_err(failed)
    }

    /// Makes the members that wait.
    pub(super) fn make_waiting(&mut self) -> Result<()> {
        let Some(first) = self.waiting.first() else {
            return Ok(());
        };
        let content = self.content;
        let path = first.path;
        let dir = self.directory(path);
        let dir = dir.map_err(|cause| content.error(path, cause))?;
        let mut files = Vec::with_capacity(self.waiting.len());
        for Waiting {
            path,
            member,
            bytes,
        } in &self.waiting
        {
            let name = path.name();
            let name = name.map_err(|error| content.error(path, error.into()))?;
            files.push(WholeFile {
                name,
                uid: member.uid,
                gid: member.gid,
                permissions: member.permissions,
                modified: member.modified,
                contents: bytes,
            });
        }
        let made = dir.create_whole(&files);
        made.map_err(|unmade| {
            let path = self
                .waiting
                .get(unmade.index)
                .map_or(path, |file| file.path);
            content.error(path, unmade.error.into())
        })?;
        self.waiting.clear();
        self.waiting_bytes = 0;
        Ok(())
    }

    fn make_now(&mut self, path: &MemberPath, member: &Member) -> Result<(), Cause> {
        match &member.kind {
            MemberKind::Link(earlier) => {
                let dir = self.directory(path)?;
                let target = self.find(earlier)?;
                dir.link(&Context::root(), path.name()?, target.id())?;
                Ok(())
            }
            MemberKind::Directory => {
                let dir = self.directory(path)?;
                let (name, context) = (path.name()?, member.context());
                if self.content.subvolumes.contains_key(path) {
                    self.subvolumes()?.create(&context, dir.id(), name)?;
                    return Ok(());
                }
                make_directory(&*dir, name, &context)
            }
            MemberKind::Clone(earlier, size_bytes) => {
                self.make_alone(path, member, |filler, inode| {
                    if *size_bytes > 0 {
                        let source = filler.find(earlier)?;
                        inode.clone_range(&*source, 0..*size_bytes, 0)?;
                    }
                    Ok(())
                })
            }
            MemberKind::File(contents) => self.make_alone(path, member, |filler, inode| {
                let end = filler.write_pieces(inode, path)?;
                set_size(inode, end, contents.size_bytes())
            }),
            MemberKind::Symlink(_)
            | MemberKind::CharDevice(_)
            | MemberKind::BlockDevice(_)
            | MemberKind::Fifo
            | MemberKind::Socket => self.make_alone(path, member, |_, _| Ok(())),
        }
    }

    /// Makes what is no directory, and has `fill` give it its contents.
    fn make_alone(
        &mut self,
        path: &MemberPath,
        member: &Member,
        fill: impl FnOnce(&mut Self, &dyn Inode) -> Result<(), Cause>,
    ) -> Result<(), Cause> {
        let (kind, permissions) = match &member.kind {
            MemberKind::Symlink(target) => (CreateKind::Symlink(target.clone()), 0o777),
            MemberKind::CharDevice(device) => (CreateKind::CharDevice(*device), member.permissions),
            MemberKind::BlockDevice(device) => {
                (CreateKind::BlockDevice(*device), member.permissions)
            }
            MemberKind::Fifo => (CreateKind::Fifo, member.permissions),
            MemberKind::Socket => (CreateKind::Socket, member.permissions),
            MemberKind::File(_)
            | MemberKind::Clone(..)
            | MemberKind::Directory
            | MemberKind::Link(_) => (CreateKind::Regular, member.permissions),
        };
        let dir = self.directory(path)?;
        let inode = dir.create(&member.context(), path.name()?, kind, permissions)?;
        fill(self, &*inode)?;
        set_attributes(&*inode, member)
    }

    /// Writes the contents of the next file. Returns where they end, but for holes.
    ///
    /// # Errors
    /// If other files are to share them, and they are no longer what was compared.
    fn write_pieces(&mut self, inode: &dyn Inode, path: &MemberPath) -> Result<u64, Cause> {
        let expected = self.content.digests.get(path);
        let mut digester = Digester::default();
        let mut end = 0;
        while let Some(piece) = self.pieces.next()? {
            if expected.is_some() {
                digester.add_data(piece.offset, &piece.bytes)?;
            }
            end = end.max(self.progress.write(inode, piece.offset, &piece.bytes)?);
        }
        if let Some(expected) = expected {
            refuse_changed(&digester, expected)?;
        }
        Ok(end)
    }

    /// Sets the final attributes of a directory.
    pub(super) fn finish_directory(&mut self, path: &MemberPath, member: &Member) -> Result<()> {
        let finished = self
            .find(path)
            .and_then(|inode| set_attributes(&*inode, member));
        finished.map_err(|cause| self.content.error(path, cause))
    }

    /// Has a subvolume be the default one, or refuse changes.
    pub(super) fn finish_subvolume(
        &mut self,
        path: &MemberPath,
        kind: SubvolumeKind,
    ) -> Result<()> {
        let finished = self.find(path).and_then(|inode| {
            let subvolumes = self.subvolumes()?;
            let id = inode.id().tree;
            if kind.is_default {
                subvolumes.set_default(id)?;
            }
            if kind.is_read_only {
                subvolumes.set_read_only(id, true)?;
            }
            Ok(())
        });
        finished.map_err(|cause| self.content.error(path, cause))
    }

    fn subvolumes(&self) -> Result<&'a dyn Subvolumes, Cause> {
        let missing = || platter_vfs::Error::from(Condition::NotSupported);
        Ok(self.fs.subvolumes().ok_or_else(missing)?)
    }

    /// Makes a subvolume that no member names, as a directory would be.
    fn make_implied_subvolume(
        &self,
        dir: &dyn Inode,
        name: Name<'_>,
        context: &Context,
    ) -> Result<Arc<dyn Inode>, Cause> {
        self.subvolumes()?.create(context, dir.id(), name)?;
        let inode = dir.lookup(name)?;
        let changes = SetAttr {
            permissions: Some(IMPLIED_PERMISSIONS),
            ..SetAttr::default()
        };
        inode.set_attr(context, &changes)?;
        Ok(inode)
    }

    /// Sets the owner of the root directory.
    pub(super) fn own_root(&self, (uid, gid): (u32, u32)) -> Result<()> {
        let owner = SetAttr {
            uid: Some(uid),
            gid: Some(gid),
            ..SetAttr::default()
        };
        let root = self.fs.root();
        let owned = root.and_then(|root| root.set_attr(&Context::root(), &owner));
        owned.map_err(|error| self.content.error(&MemberPath::root(), error.into()))?;
        Ok(())
    }

    fn find(&mut self, path: &MemberPath) -> Result<Arc<dyn Inode>, Cause> {
        if path.is_root() {
            return Ok(self.fs.root()?);
        }
        let dir = self.directory(path)?;
        Ok(dir.lookup(path.name()?)?)
    }

    /// The directory that a path lies in. One that no member names is made.
    fn directory(&mut self, path: &MemberPath) -> Result<Arc<dyn Inode>, Cause> {
        let same = self.open.iter().zip(path.parents());
        let common = same.take_while(|(open, name)| *open.name == **name).count();
        self.open.truncate(common);
        let mut above = path.above(common);
        for component in path.parents().skip(common) {
            let parent = match self.open.last() {
                Some(above) => Arc::clone(&above.inode),
                None => self.fs.root()?,
            };
            let name = Name::new(component)?;
            above = above.below(component);
            let inode = match parent.lookup(name) {
                Err(platter_vfs::Error::Condition(Condition::NotFound)) => {
                    let (uid, gid) = self.content.implied_owner.unwrap_or_default();
                    let context = Context {
                        credentials: Credentials::new(uid, gid),
                        umask: 0,
                    };
                    if self.content.subvolumes.contains_key(&above) {
                        self.make_implied_subvolume(&*parent, name, &context)?
                    } else {
                        parent.create(&context, name, CreateKind::Directory, IMPLIED_PERMISSIONS)?
                    }
                }
                found => found?,
            };
            let name = component.into();
            self.open.push(Open { name, inode });
        }
        match self.open.last() {
            Some(open) => Ok(Arc::clone(&open.inode)),
            None => Ok(self.fs.root()?),
        }
    }
}

impl Report<'_> {
    /// Writes what is no zeros of a part of a file. Returns where that ends.
    fn write(&mut self, inode: &dyn Inode, offset: u64, bytes: &[u8]) -> Result<u64, Cause> {
        self.observer.check()?;
        let mut end = 0;
        write_data(offset, bytes, &mut |offset, bytes| {
            end = offset + bytes.len() as u64;
            self.add(bytes.len() as u64);
            Ok(inode.write_at(offset, bytes)?)
        })?;
        Ok(end)
    }

    fn add(&mut self, bytes: u64) {
        self.filled.bytes += bytes;
        self.observer.add_bytes(bytes);
    }
}

/// Refuses contents that were another file's when they were compared.
fn refuse_changed(digester: &Digester, expected: &ContentsDigest) -> Result<(), Cause> {
    if digester.digest().as_ref() == Some(expected) {
        return Ok(());
    }
    Err(changed())
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

/// Has a file whose contents end at `end`, but for a hole, be `size_bytes` long.
fn set_size(inode: &dyn Inode, end: u64, size_bytes: u64) -> Result<(), Cause> {
    if end != size_bytes {
        let changes = SetAttr {
            size_bytes: Some(size_bytes),
            ..SetAttr::default()
        };
        inode.set_attr(&Context::root(), &changes)?;
    }
    Ok(())
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
