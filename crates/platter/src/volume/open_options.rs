//! How files are opened, as by `open(2)`.

use std::sync::Arc;

use platter_vfs::permission::{APPEND_ONLY, check_create};
use platter_vfs::{
    Condition, CreateKind, Credentials, Error, Inode, LastComponent, Located, SetAttr,
};

use super::Volume;
use super::place::end_of_links;
use super::rights::{check_writable, set_attr};

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
    /// Options that allow nothing yet.
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

/// The file that a path names, opened or created as `options` say.
pub(super) fn open_inode(
    volume: &Volume,
    path: &[u8],
    options: OpenOptions,
) -> platter_vfs::Result<Arc<dyn Inode>> {
    options.check()?;
    if options.creates() {
        let located = volume.walker().resolve_parent(path)?;
        let is_name = matches!(located.last, LastComponent::Name(_));
        match is_name {
            true if located.trailing_slash => return Err(Condition::IsDirectory.into()),
            false if options.create_new => return Err(Condition::Exists.into()),
            true if options.create_new => return create_at(volume, &located, options),
            true | false => {}
        }
    }
    for _ in 0..RACES_MAX {
        match volume.walker().resolve(path) {
            Err(Error::Condition(Condition::NotFound)) if options.create => {
                let end = end_of_links(&volume.walker(), path)?;
                match create_at(volume, &volume.walker().resolve_parent(&end)?, options) {
                    Err(Error::Condition(Condition::Exists)) => {}
                    created => return created,
                }
            }
            found => return open_found(volume, found?, options),
        }
    }
    Err(Condition::Busy.into())
}

fn create_at(
    volume: &Volume,
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
        volume.context(),
        name,
        CreateKind::Regular,
        options.mode & 0o7777,
    )
}

fn open_found(
    volume: &Volume,
    inode: Arc<dyn Inode>,
    options: OpenOptions,
) -> platter_vfs::Result<Arc<dyn Inode>> {
    let attr = inode.attr()?;
    if options.may_write() {
        check_writable(&**volume.filesystem(), &*inode, &attr)?;
        if attr.flags & APPEND_ONLY != 0 && (!options.append || options.truncate) {
            return Err(Condition::NotPermitted.into());
        }
    }
    if options.truncate {
        let changes = SetAttr {
            size_bytes: Some(0),
            ..SetAttr::default()
        };
        set_attr(&*inode, &changes)?;
    }
    Ok(inode)
}
