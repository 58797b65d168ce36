//! A name in a directory of the image: where something is made, or removed.

use std::sync::Arc;

use platter_vfs::path::{LINKS_FOLLOWED_MAX, PathWalk};
use platter_vfs::permission::{APPEND_ONLY, IMMUTABLE, check_create, check_delete};
use platter_vfs::{
    Attr, Condition, Context, CreateKind, Credentials, FileKind, Inode, Name, NameBuf, Result,
};

/// A name in a directory, whether or not there is such a file.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) dir: Arc<dyn Inode>,
    pub(crate) name: NameBuf,
    /// Only a directory can be meant.
    pub(crate) is_directory: bool,
    /// The whole path, for errors.
    pub(crate) path: Vec<u8>,
}

impl Place {
    /// What is there.
    pub(crate) fn find(&self) -> Result<Option<Arc<dyn Inode>>> {
        match self.dir.lookup(self.name.as_name()) {
            Ok(inode) => Ok(Some(inode)),
            Err(platter_vfs::Error::Condition(Condition::NotFound)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The same place, of the name that `name` is of a file that ends up in the directory `dir`.
    pub(crate) fn inside(dir: Arc<dyn Inode>, dir_path: &[u8], name: &[u8]) -> Result<Self> {
        Ok(Self {
            dir,
            name: Name::new(name)?.to_owned(),
            is_directory: false,
            path: join(dir_path, name),
        })
    }

    /// Makes something here.
    pub(crate) fn create(
        &self,
        context: &Context,
        kind: CreateKind,
        permissions: u32,
    ) -> Result<Arc<dyn Inode>> {
        if self.is_directory && kind != CreateKind::Directory {
            return Err(Condition::NotDirectory.into());
        }
        self.check_may_create()?;
        self.dir
            .create(context, self.name.as_name(), kind, permissions)
    }

    /// Makes a hard link to a file here.
    pub(crate) fn link(&self, context: &Context, target: &dyn Inode) -> Result<()> {
        if self.is_directory {
            return Err(Condition::NotFound.into());
        }
        self.check_may_create()?;
        check_link(&target.attr()?)?;
        self.dir.link(context, self.name.as_name(), target.id())
    }

    /// Removes what is here: a file, or a directory that is empty.
    pub(crate) fn remove(&self, victim: &dyn Inode) -> Result<()> {
        self.check_may_remove(victim)?;
        let context = Context::root();
        if victim.attr()?.kind == FileKind::Directory {
            return self.dir.remove_dir(&context, self.name.as_name());
        }
        self.dir.unlink(&context, self.name.as_name())
    }

    /// # Errors
    /// `NotPermitted` where flags keep the directory from changing.
    pub(crate) fn check_may_create(&self) -> Result<()> {
        check_create(&*self.dir, &self.dir.attr()?, &Credentials::root())
    }

    /// # Errors
    /// `NotPermitted` where flags keep the directory or the file from changing; `NotDirectory`
    /// where only a directory can be meant.
    pub(crate) fn check_may_remove(&self, victim: &dyn Inode) -> Result<()> {
        let attr = victim.attr()?;
        if self.is_directory && attr.kind != FileKind::Directory {
            return Err(Condition::NotDirectory.into());
        }
        check_delete(&*self.dir, &self.dir.attr()?, &attr, &Credentials::root())
    }
}

/// Whether a file may get another name.
///
/// # Errors
/// `NotPermitted` where its flags forbid that.
pub(crate) fn check_link(attr: &Attr) -> Result<()> {
    if attr.flags & (APPEND_ONLY | IMMUTABLE) != 0 {
        return Err(Condition::NotPermitted.into());
    }
    Ok(())
}

/// The path at which a file is created that a path names: where a symbolic link leads to nothing, what
/// it leads to.
pub(crate) fn end_of_links(walker: &PathWalk<'_>, path: &[u8]) -> Result<Vec<u8>> {
    let mut end = path.to_vec();
    for _ in 0..LINKS_FOLLOWED_MAX {
        let found = walker.resolve_no_follow(&end);
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

/// The path of an entry of a directory.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let end = dir.iter().rposition(|&byte| byte != b'/');
    let mut path = dir[..end.map_or(0, |end| end + 1)].to_vec();
    path.push(b'/');
    path.extend_from_slice(name);
    path
}

/// The last name of a path: none for the root, `.` and `..`.
pub(crate) fn last_name(path: &[u8]) -> Option<&[u8]> {
    let mut names = path.rsplit(|&byte| byte == b'/');
    let name = names.find(|name| !name.is_empty())?;
    (name != b"." && name != b"..").then_some(name)
}
