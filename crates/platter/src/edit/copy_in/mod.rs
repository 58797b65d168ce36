//! Copying into an image, from the host and from images, as cp(1) does it.

mod source;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use platter_vfs::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME};
use platter_vfs::permission::{Access, check_access};
use platter_vfs::tree_walk::second_name;
use platter_vfs::{
    Condition, Context, CreateKind, Credentials, FileKind, Inode, InodeId, SetAttr, SetTime,
    XattrMode,
};

pub use self::source::CopySource;
use self::source::{SourceAttr, SourceId};
use super::{Edit, Owner, Symlinks, Target};
use crate::copy::{CopyOptions, CopySummary};
use crate::host_file::HostFileId;
use crate::volume::place::Place;
use crate::{Cause, Error, Progress, Result};

const SET_ID_BITS: u32 = 0o6000;

/// Events reported while files are copied.
#[derive(Debug)]
pub enum CopyInEvent<'a> {
    /// A file is copied to this path of the image.
    Copying(&'a CopySource, &'a [u8]),
    /// The image itself, which lies in a directory that is copied, is left out.
    ImageLeftOut(&'a CopySource),
    /// More was copied.
    Progress(CopySummary),
}

/// Listens to a copy.
pub type CopyInObserver<'a> = dyn FnMut(CopyInEvent<'_>) + 'a;

/// Copies files into an image, and remembers which have several names.
#[derive(Debug)]
pub struct CopyIn {
    options: CopyOptions,
    owner: Owner,
    progress: Progress,
    summary: CopySummary,
    /// What a source with several names has become.
    copied: HashMap<SourceId, InodeId>,
    /// The same the other way round.
    sources: HashMap<InodeId, SourceId>,
}

/// Copies of one source.
struct Copying<'c> {
    edit: &'c Edit,
    state: &'c mut CopyIn,
    observer: &'c mut CopyInObserver<'c>,
}

/// A directory that is being filled.
struct Frame {
    source: CopySource,
    attr: SourceAttr,
    dir: Arc<dyn Inode>,
    path: Vec<u8>,
    /// What is left to be copied, in descending order.
    names: Vec<Vec<u8>>,
    is_new: bool,
}

impl CopyIn {
    /// A copier that has copied nothing yet. `owner` is that of new files, where it is given, whatever else is to
    /// be kept.
    #[must_use]
    pub fn new(options: CopyOptions, owner: Owner) -> Self {
        Self {
            options,
            owner,
            progress: Progress::default(),
            summary: CopySummary::default(),
            copied: HashMap::new(),
            sources: HashMap::new(),
        }
    }

    /// Counts in `progress`, which can cancel the copy.
    #[must_use]
    pub fn progress(mut self, progress: Progress) -> Self {
        self.progress = progress;
        self
    }

    /// Returns how much was copied so far.
    #[must_use]
    pub fn summary(&self) -> CopySummary {
        self.summary
    }

    fn remember(&mut self, source: SourceId, copy: InodeId) {
        self.sources.insert(copy, source.clone());
        self.copied.insert(source, copy);
    }

    /// Forgets what an inode was a copy of, before it is overwritten or loses a name.
    fn forget(&mut self, copy: InodeId) {
        if let Some(source) = self.sources.remove(&copy) {
            self.copied.remove(&source);
        }
    }

    /// Copies a source to a path of the image that `edit` changes, or into the directory there. What is copied
    /// over a symbolic link goes to where the link leads; below a directory, links are replaced.
    /// `symlinks` is for the source; below a directory, links are copied as such.
    ///
    /// # Errors
    /// The first that there is. The edit is then to be dropped.
    pub fn copy(
        &mut self,
        edit: &Edit,
        (source, symlinks): (&CopySource, Symlinks),
        (target, meaning): (&[u8], Target),
        observer: &mut CopyInObserver<'_>,
    ) -> Result<()> {
        // The two borrow for different times.
        let mut observer = |event: CopyInEvent<'_>| observer(event);
        let mut copying = Copying {
            edit,
            state: self,
            observer: &mut observer,
        };
        copying.copy(source, symlinks == Symlinks::Follow, target, meaning)
    }
}

impl Copying<'_> {
    fn copy(
        &mut self,
        source: &CopySource,
        follow: bool,
        target: &[u8],
        meaning: Target,
    ) -> Result<()> {
        let edit = self.edit;
        let attr = source.attr(follow)?;
        if self.is_image(&attr) {
            return Err(source.error(Cause::IntoItself));
        }
        if meaning == Target::Into
            && let Some(dir) = edit.directory(target)
        {
            return match source.last_name() {
                Some(name) => {
                    let place = edit.named(target, Place::inside(dir, target, name))?;
                    self.copy_tree(source, attr, follow, &place)
                }
                // The contents of a root, `.` or `..`.
                None => self.fill_top(source, attr, dir, target),
            };
        }
        if let Some(dir) = edit.directory(target)
            && attr.kind == FileKind::Directory
        {
            return self.fill_top(source, attr, dir, target);
        }
        let place = edit.place(&self.through_links(target)?, Condition::IsDirectory)?;
        self.copy_tree(source, attr, follow, &place)
    }

    /// The path that a target leads to, where it is a symbolic link to something that is there.
    fn through_links(&self, target: &[u8]) -> Result<Vec<u8>> {
        let edit = self.edit;
        let mut path = target.to_vec();
        // As many as a walk follows, which found that they end.
        for _ in 0..=platter_vfs::path::LINKS_FOLLOWED_MAX {
            let walker = edit.volume.walker();
            let Ok(inode) = walker.resolve_no_follow(&path) else {
                return Ok(path);
            };
            if edit.named(&path, inode.attr())?.kind != FileKind::Symlink {
                return Ok(path);
            }
            edit.named(target, walker.resolve(target))?;
            let text = edit.named(&path, inode.read_link())?;
            if text.starts_with(b"/") {
                path = text;
            } else {
                let end = path.iter().rposition(|&byte| byte == b'/');
                path.truncate(end.map_or(0, |end| end + 1));
                path.extend_from_slice(&text);
            }
        }
        Err(edit.error(
            target,
            platter_vfs::Error::from(Condition::TooManyLinksFollowed),
        ))
    }

    /// Copies what is in a directory into one that is there.
    fn fill_top(
        &mut self,
        source: &CopySource,
        attr: SourceAttr,
        dir: Arc<dyn Inode>,
        path: &[u8],
    ) -> Result<()> {
        if attr.kind != FileKind::Directory {
            let error = platter_vfs::Error::from(Condition::IsDirectory);
            return Err(self.edit.error(path, error));
        }
        self.refuse_directory(source)?;
        let top = dir.id();
        let frame = Frame {
            names: descending(source.names()?),
            source: source.clone(),
            attr,
            dir,
            path: path.to_vec(),
            is_new: false,
        };
        self.fill(vec![frame], top)
    }

    fn copy_tree(
        &mut self,
        source: &CopySource,
        attr: SourceAttr,
        follow: bool,
        place: &Place,
    ) -> Result<()> {
        match self.copy_one(source, attr, follow, place)? {
            Some(frame) => {
                let top = frame.dir.id();
                self.fill(vec![frame], top)
            }
            None => Ok(()),
        }
    }

    /// Copies what the directories still have, deepest first. `top` is the one that all ends up in.
    fn fill(&mut self, mut frames: Vec<Frame>, top: InodeId) -> Result<()> {
        let (edit, check) = (self.edit, self.check());
        let mut entered: HashSet<SourceId> = HashSet::new();
        while let Some(frame) = frames.last_mut() {
            check().map_err(|cause| edit.error(&frame.path, cause))?;
            let Some(name) = frame.names.pop() else {
                if let Some(frame) = frames.pop() {
                    self.finish_dir(&frame)?;
                }
                continue;
            };
            let source = frame.source.child(&name)?;
            let attr = source.attr(false)?;
            if self.is_image(&attr) {
                (self.observer)(CopyInEvent::ImageLeftOut(&source));
                continue;
            }
            let inside = Place::inside(Arc::clone(&frame.dir), &frame.path, &name);
            let place = edit.named(&frame.path, inside)?;
            if attr.kind == FileKind::Directory
                && let CopySource::Image(file) = &source
            {
                if self.is_edited(&source) && file.inode().id() == top {
                    return Err(source.error(Cause::IntoItself));
                }
                if !entered.insert(attr.id.clone()) {
                    let error = platter_vfs::Error::from(second_name(file.inode().id()));
                    return Err(source.error(error));
                }
            }
            frames.extend(self.copy_one(&source, attr, false, &place)?);
        }
        Ok(())
    }

    /// Whether the source is in the image that is edited.
    fn is_edited(&self, source: &CopySource) -> bool {
        let CopySource::Image(file) = source else {
            return false;
        };
        Arc::ptr_eq(file.volume().filesystem(), self.edit.volume.filesystem())
    }

    /// Whether the contents of a file are those of the image that is edited.
    fn is_image(&self, attr: &SourceAttr) -> bool {
        let file = match attr.id {
            SourceId::Host(device, inode) if attr.kind == FileKind::Regular => {
                HostFileId::Inode(device, inode)
            }
            SourceId::Host(..)
                if attr.kind == FileKind::BlockDevice && !self.state.options.recursive =>
            {
                let number = attr.device;
                HostFileId::BlockDevice(rustix::fs::makedev(number.major, number.minor))
            }
            SourceId::Host(..) | SourceId::Image(..) => return false,
        };
        self.edit.volume.host_files().contains(&file)
    }

    /// Copies one file; of a directory only itself.
    fn copy_one(
        &mut self,
        source: &CopySource,
        attr: SourceAttr,
        follow: bool,
        place: &Place,
    ) -> Result<Option<Frame>> {
        let edit = self.edit;
        let existing = edit.named(&place.path, place.find())?;
        let found = existing.as_ref().map(|inode| inode.attr());
        let found = edit.named(&place.path, found.transpose())?;
        let refuse = |condition: Condition| -> Error {
            edit.error(&place.path, platter_vfs::Error::from(condition))
        };
        if let Some(existing) = &existing
            && let CopySource::Image(file) = source
            && self.is_edited(source)
            && file.inode().id() == existing.id()
        {
            return Err(source.error(Cause::SameFile));
        }
        if attr.kind == FileKind::Directory {
            self.refuse_directory(source)?;
            (self.observer)(CopyInEvent::Copying(source, &place.path));
            let (dir, is_new) = match (existing, found) {
                (Some(dir), Some(found)) if found.kind == FileKind::Directory => (dir, false),
                (Some(_), _) => return Err(refuse(Condition::NotDirectory)),
                (None, _) => {
                    let made = place.create(
                        &self.context(),
                        CreateKind::Directory,
                        attr.permissions & 0o777,
                    );
                    (edit.named(&place.path, made)?, true)
                }
            };
            self.count();
            return Ok(Some(Frame {
                names: descending(source.names()?),
                source: source.clone(),
                attr,
                dir,
                path: place.path.clone(),
                is_new,
            }));
        }
        match &found {
            Some(found) if found.kind == FileKind::Directory => {
                return Err(refuse(Condition::IsDirectory));
            }
            Some(_) if self.state.options.no_clobber => return Ok(None),
            Some(_) | None => {}
        }
        (self.observer)(CopyInEvent::Copying(source, &place.path));
        let existing = existing.zip(found.map(|found| found.kind));
        self.make(source, &attr, follow, place, existing)?;
        self.count();
        Ok(None)
    }

    /// Copies what is no directory.
    fn make(
        &mut self,
        source: &CopySource,
        attr: &SourceAttr,
        follow: bool,
        place: &Place,
        existing: Option<(Arc<dyn Inode>, FileKind)>,
    ) -> Result<()> {
        let edit = self.edit;
        let has_links = self.state.options.preserve.links && attr.links > 1;
        let first = self
            .state
            .copied
            .get(&attr.id)
            .filter(|_| has_links)
            .copied();
        let is_contents = attr.kind == FileKind::Regular || !self.state.options.recursive;
        if let Some((there, kind)) = existing {
            if first == Some(there.id()) {
                return Ok(());
            }
            self.state.forget(there.id());
            if first.is_none() && is_contents && kind == FileKind::Regular {
                self.overwrite(source, attr, follow, &place.path, &*there)?;
                self.put_attributes(source, attr, follow, &place.path, &*there, false)?;
                if has_links {
                    self.state.remember(attr.id.clone(), there.id());
                }
                return Ok(());
            }
            edit.named(&place.path, place.remove(&*there))?;
        }
        if let Some(first) = first {
            let target = edit.volume.filesystem().inode(first);
            let target = edit.named(&place.path, target)?;
            let linked = place.link(&edit.context, &*target);
            return edit.named(&place.path, linked);
        }
        let kind = match attr.kind {
            _ if is_contents && attr.kind != FileKind::Symlink => CreateKind::Regular,
            FileKind::Symlink => CreateKind::Symlink(source.read_link()?),
            FileKind::CharDevice => CreateKind::CharDevice(attr.device),
            FileKind::BlockDevice => CreateKind::BlockDevice(attr.device),
            FileKind::Fifo => CreateKind::Fifo,
            FileKind::Socket => CreateKind::Socket,
            FileKind::Regular | FileKind::Directory => CreateKind::Regular,
        };
        let has_contents = kind == CreateKind::Regular;
        let made = place.create(&self.context(), kind, attr.permissions & 0o777);
        let inode = edit.named(&place.path, made)?;
        if has_contents {
            self.write(source, attr, follow, &place.path, &*inode)?;
        }
        self.put_attributes(source, attr, follow, &place.path, &*inode, true)?;
        if has_links {
            self.state.remember(attr.id.clone(), inode.id());
        }
        Ok(())
    }

    fn overwrite(
        &mut self,
        source: &CopySource,
        attr: &SourceAttr,
        follow: bool,
        path: &[u8],
        inode: &dyn Inode,
    ) -> Result<()> {
        let edit = self.edit;
        let found = edit.named(path, inode.attr())?;
        let allowed = check_access(inode, &found, &Credentials::root(), Access::WRITE);
        edit.named(path, allowed)?;
        edit.drop_capability(path, inode)?;
        let empty = SetAttr {
            size_bytes: Some(0),
            ..SetAttr::default()
        };
        edit.set_attr(path, inode, &empty)?;
        self.write(source, attr, follow, path, inode)
    }

    fn write(
        &mut self,
        source: &CopySource,
        attr: &SourceAttr,
        follow: bool,
        path: &[u8],
        inode: &dyn Inode,
    ) -> Result<()> {
        let (edit, check) = (self.edit, self.check());
        let mut refused = None;
        let copied = source.copy(attr, follow, &check, &mut |offset, bytes| {
            self.state.progress.add_bytes(bytes.len() as u64);
            check()?;
            self.state.summary.bytes += bytes.len() as u64;
            (self.observer)(CopyInEvent::Progress(self.state.summary));
            inode.write_at(offset, bytes).map_err(|error| {
                refused = Some(error.clone());
                Cause::from(error)
            })
        });
        // An error of the image is reported with the path of the image's file.
        if let Some(error) = refused {
            return Err(edit.error(path, error));
        }
        let changes = SetAttr {
            size_bytes: Some(copied?),
            ..SetAttr::default()
        };
        let set = inode.set_attr(&Context::root(), &changes);
        edit.named(path, set).map(drop)
    }

    /// Refuses to go on once the copy or the edit was cancelled.
    fn check(&self) -> impl Fn() -> Result<(), Cause> + use<> {
        let both = [self.edit.progress.clone(), self.state.progress.clone()];
        move || both.iter().try_for_each(Progress::check)
    }

    /// Puts on what is to be kept, in an order in which nothing undoes another.
    fn put_attributes(
        &self,
        source: &CopySource,
        attr: &SourceAttr,
        follow: bool,
        path: &[u8],
        inode: &dyn Inode,
        is_new: bool,
    ) -> Result<()> {
        let (edit, preserve) = (self.edit, self.state.options.preserve);
        let keeps_owner = preserve.ownership;
        let owner = SetAttr {
            uid: self
                .state
                .owner
                .uid
                .filter(|_| is_new)
                .or(keeps_owner.then_some(attr.uid)),
            gid: self
                .state
                .owner
                .gid
                .filter(|_| is_new)
                .or(keeps_owner.then_some(attr.gid)),
            ..SetAttr::default()
        };
        let is_link = attr.kind == FileKind::Symlink;
        let mut changes = owner;
        if preserve.mode && !is_link {
            let known_owner = keeps_owner || self.state.owner.uid.is_some();
            let dropped = if known_owner { 0 } else { SET_ID_BITS };
            changes.permissions = Some(attr.permissions & !dropped);
        }
        let root = Context::root();
        if preserve.xattrs || preserve.mode && !is_link {
            let xattrs = source.xattrs(follow)?;
            if preserve.mode && !is_link {
                self.drop_acls(path, inode, attr.kind)?;
            }
            for (name, value) in &xattrs {
                let is_acl = [ACL_ACCESS_NAME, ACL_DEFAULT_NAME].contains(&name.as_slice());
                let is_kept = if is_acl {
                    preserve.mode
                } else {
                    preserve.xattrs
                };
                if is_kept {
                    let set = inode.set_xattr(&root, name, value, XattrMode::Set);
                    edit.named(path, set)?;
                }
            }
        }
        if preserve.timestamps {
            changes.accessed = Some(SetTime::At(attr.accessed));
            changes.modified = Some(SetTime::At(attr.modified));
        }
        if changes == SetAttr::default() {
            return Ok(());
        }
        edit.named(path, inode.set_attr(&root, &changes)).map(drop)
    }

    /// Removes what a directory's default ACL gave.
    fn drop_acls(&self, path: &[u8], inode: &dyn Inode, kind: FileKind) -> Result<()> {
        let names = [ACL_ACCESS_NAME, ACL_DEFAULT_NAME];
        let count = if kind == FileKind::Directory { 2 } else { 1 };
        for name in &names[..count] {
            if inode.get_xattr(name).is_ok() {
                let removed = inode.remove_xattr(&Context::root(), name);
                self.edit.named(path, removed)?;
            }
        }
        Ok(())
    }

    fn finish_dir(&self, frame: &Frame) -> Result<()> {
        let Frame { source, attr, .. } = frame;
        self.put_attributes(source, attr, true, &frame.path, &*frame.dir, frame.is_new)
    }

    fn refuse_directory(&self, source: &CopySource) -> Result<()> {
        if self.state.options.recursive {
            return Ok(());
        }
        Err(source.error(platter_vfs::Error::from(Condition::IsDirectory)))
    }

    /// The owner and group of new files.
    fn context(&self) -> Context {
        let mut context = self.edit.context.clone();
        let credentials = &mut context.credentials;
        credentials.uid = self.state.owner.uid.unwrap_or(credentials.uid);
        credentials.gid = self.state.owner.gid.unwrap_or(credentials.gid);
        context
    }

    fn count(&mut self) {
        self.state.progress.add_file();
        self.state.summary.files += 1;
        (self.observer)(CopyInEvent::Progress(self.state.summary));
    }
}

/// To be taken from the end.
fn descending(mut names: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    names.reverse();
    names
}
