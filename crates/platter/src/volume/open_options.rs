//! How files are opened, as by `open(2)`.

use std::sync::Arc;

use platter_vfs::permission::{APPEND_ONLY, Access, check_access, check_create};
use platter_vfs::{
    Attr, Condition, CreateKind, Credentials, Error, FileKind, Inode, LastComponent, Located,
    SetAttr,
};

use super::{File, Volume};
use crate::{AsPath, Result};

/// How often a file is looked up that other threads create and remove meanwhile.
const RACES_MAX: usize = 100;

/// How a file is opened, as [`std::fs::OpenOptions`].
///
/// ```
/// # use platter::{FormatOptions, Image, OpenOptions};
/// # let image = Image::in_memory(4 << 20);
/// # FormatOptions::default().format(&image)?;
/// # let volume = platter::MountOptions::new().read_write().mount(image)?;
/// use std::io::Write;
/// let mut log = volume.open_with("/log", OpenOptions::new().append(true).create(true))?;
/// writeln!(log, "started")?;
/// # drop(log);
/// # volume.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the flags of open(2), which are independent"
)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    mode: u32,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            mode: 0o666,
        }
    }
}

impl OpenOptions {
    /// Nothing is allowed yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens for reading.
    #[must_use]
    pub fn read(mut self, read: bool) -> Self {
        self.read = read;
        self
    }

    /// Opens for writing.
    #[must_use]
    pub fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// Opens for writing at the end, wherever that is (`O_APPEND`).
    #[must_use]
    pub fn append(mut self, append: bool) -> Self {
        self.append = append;
        self
    }

    /// Truncates a file that is there (`O_TRUNC`). Needs [`write`](Self::write).
    #[must_use]
    pub fn truncate(mut self, truncate: bool) -> Self {
        self.truncate = truncate;
        self
    }

    /// Creates a file that is not there (`O_CREAT`). Needs [`write`](Self::write) or
    /// [`append`](Self::append).
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Creates the file, which must not be there: not even as a symbolic link (`O_EXCL`).
    #[must_use]
    pub fn create_new(mut self, create_new: bool) -> Self {
        self.create_new = create_new;
        self
    }

    /// The permission bits of a new file, without those that the umask of the volume clears; `0o666`
    /// by default.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    pub(super) fn may_read(&self) -> bool {
        self.read
    }

    pub(super) fn may_write(&self) -> bool {
        self.write || self.append
    }

    pub(super) fn appends(&self) -> bool {
        self.append
    }

    fn creates(&self) -> bool {
        self.create || self.create_new
    }

    /// Refuses what `std::fs` refuses.
    fn check(&self) -> platter_vfs::Result<()> {
        let changes = self.truncate || self.creates();
        let refused = !self.read && !self.may_write()
            || changes && !self.may_write()
            || self.append && self.truncate && !self.create_new;
        if refused {
            return Err(Condition::InvalidArgument.into());
        }
        Ok(())
    }
}

impl Volume {
    /// Opens a file as `options` say. Symbolic links are followed.
    ///
    /// # Errors
    /// Those of `open(2)`; `InvalidArgument` also for options that do not go together, and for writing to
    /// what has no contents.
    pub fn open_with(&self, path: impl AsPath, options: OpenOptions) -> Result<File> {
        let path = path.path_bytes();
        let opened = self.open_inode(path, options);
        Ok(self.file(path, opened)?.allowing(options))
    }

    fn open_inode(&self, path: &[u8], options: OpenOptions) -> platter_vfs::Result<Arc<dyn Inode>> {
        options.check()?;
        if options.creates() {
            let located = self.walker().resolve_parent(path)?;
            let is_name = matches!(located.last, LastComponent::Name(_));
            match is_name {
                true if located.trailing_slash => return Err(Condition::IsDirectory.into()),
                false if options.create_new => return Err(Condition::Exists.into()),
                true if options.create_new => return self.create_at(&located, options),
                true | false => {}
            }
        }
        for _ in 0..RACES_MAX {
            match self.walker().resolve(path) {
                Err(Error::Condition(Condition::NotFound)) if options.create => {
                    let end = self.end_of_links(path)?;
                    match self.create_at(&self.walker().resolve_parent(&end)?, options) {
                        Err(Error::Condition(Condition::Exists)) => {}
                        created => return created,
                    }
                }
                found => return self.open_found(found?, options),
            }
        }
        Err(Condition::Busy.into())
    }

    fn create_at(
        &self,
        located: &Located,
        options: OpenOptions,
    ) -> platter_vfs::Result<Arc<dyn Inode>> {
        let name = located.name_to_create()?;
        if located.trailing_slash {
            return Err(Condition::IsDirectory.into());
        }
        let parent = &*located.parent;
        check_create(parent, &parent.attr()?, &Credentials::root())?;
        parent.create(
            self.context(),
            name,
            CreateKind::Regular,
            options.mode & 0o7777,
        )
    }

    fn open_found(
        &self,
        inode: Arc<dyn Inode>,
        options: OpenOptions,
    ) -> platter_vfs::Result<Arc<dyn Inode>> {
        let attr = inode.attr()?;
        if options.may_write() {
            self.may_write_to(&*inode, &attr)?;
            if attr.flags & APPEND_ONLY != 0 && (!options.append || options.truncate) {
                return Err(Condition::NotPermitted.into());
            }
        }
        if options.truncate {
            let changes = SetAttr {
                size_bytes: Some(0),
                ..SetAttr::default()
            };
            Self::set_attr_of(&*inode, &changes)?;
        }
        Ok(inode)
    }

    /// Whether a file has contents that may be written.
    pub(crate) fn may_write_to(&self, inode: &dyn Inode, attr: &Attr) -> platter_vfs::Result<()> {
        match attr.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Condition::IsDirectory.into()),
            FileKind::Symlink
            | FileKind::CharDevice
            | FileKind::BlockDevice
            | FileKind::Fifo
            | FileKind::Socket => return Err(Condition::InvalidArgument.into()),
        }
        if self.filesystem().is_read_only() {
            return Err(Condition::ReadOnly.into());
        }
        check_access(inode, attr, &Credentials::root(), Access::WRITE)
    }

    /// The path at which a file is created that a path names: where a symbolic link leads to nothing, what
    /// it leads to.
    pub(crate) fn end_of_links(&self, path: &[u8]) -> platter_vfs::Result<Vec<u8>> {
        let mut end = path.to_vec();
        for _ in 0..platter_vfs::path::LINKS_FOLLOWED_MAX {
            let found = self.walker().resolve_no_follow(&end);
            let Ok(target) = found.and_then(|inode| inode.read_link()) else {
                return Ok(end);
            };
            let name = end.iter().rposition(|&byte| byte == b'/');
            let dir = name.filter(|_| !target.starts_with(b"/"));
            end.truncate(dir.map_or(0, |name| name + 1));
            end.extend_from_slice(&target);
        }
        Err(Condition::TooManyLinksFollowed.into())
    }
}
