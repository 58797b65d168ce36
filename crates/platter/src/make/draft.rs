//! A new image file while it is made: it is in the same directory as its target, and replaces it
//! atomically.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use platter_block::Access;
use platter_vfs::acl::ACL_ACCESS_NAME;
use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use crate::populate::host_xattrs;
use crate::{Error, Escaped, Image, Result};

/// Names that are tried for it.
const NAMES_MAX: u32 = 1000;

/// A file that is removed again unless it is finished.
#[derive(Debug)]
pub(crate) struct Draft {
    name: Arc<str>,
    /// The place it is for, no symbolic link.
    target: PathBuf,
    path: PathBuf,
    /// What is there now, locked.
    replaced: Option<Image>,
    visibility: Visibility,
    is_finished: bool,
}

/// The users that may open a draft.
#[derive(Debug, Clone, Copy)]
enum Visibility {
    /// All that the umask permits.
    Umask,
    /// The caller alone: it gets the permissions of a file that is there when it takes its place.
    Caller,
}

impl Draft {
    /// Begins an empty file that takes the place of `target`. What is there is given locked, and
    /// stays as it is until then.
    pub(crate) fn begin(target: &Path, replaced: Option<Image>) -> Result<Self> {
        let name: Arc<str> = Escaped(target.as_os_str().as_bytes()).to_string().into();
        let host = |error: std::io::Error| Error::new(&name, error);
        let (target, visibility) = match fs::canonicalize(target) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                (target.to_owned(), Visibility::Umask)
            }
            found => (found.map_err(host)?, Visibility::Caller),
        };
        let path = create_draft(&target, visibility).map_err(host)?;
        let draft = Self {
            name: Arc::clone(&name),
            target,
            path,
            replaced,
            visibility,
            is_finished: false,
        };
        if let Visibility::Caller = visibility {
            draft.check_owner()?;
        }
        Ok(draft)
    }

    /// Refuses before the work an owner that could not be kept after it. It is tried on a second, empty file: if the
    /// draft had that owner, the owner could open it and write to it while it is made.
    fn check_owner(&self) -> Result<()> {
        let host = |error: std::io::Error| Error::new(&self.name, error);
        let found = fs::metadata(&self.target).map_err(host)?;
        let made = fs::symlink_metadata(&self.path).map_err(host)?;
        if owner(&found) == owner(&made) {
            return Ok(());
        }
        let trial = self.sibling()?;
        let file = open_draft(&trial.path).map_err(host)?;
        keep_owner(&found, &file).map_err(host)
    }

    /// What errors call it.
    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Puts it into the place of an open image.
    pub(crate) fn finish_over(mut self, replaced: Image) -> Result<()> {
        self.replaced = Some(replaced);
        self.finish()
    }

    /// Another file for the same place.
    pub(super) fn sibling(&self) -> Result<Self> {
        let path = create_draft(&self.target, self.visibility);
        let path = path.map_err(|error| Error::new(&self.name, error))?;
        Ok(Self {
            name: Arc::clone(&self.name),
            target: self.target.clone(),
            path,
            replaced: None,
            visibility: self.visibility,
            is_finished: false,
        })
    }

    /// Takes what another holds.
    pub(super) fn replace_by(&self, mut other: Self) -> Result<()> {
        fs::rename(&other.path, &self.path).map_err(|error| Error::new(&self.name, error))?;
        other.is_finished = true;
        Ok(())
    }

    /// Has it hold nothing but `size_bytes` zeros, which take no space yet.
    pub(crate) fn clear(&self, size_bytes: u64) -> Result<Image> {
        let host = |error: std::io::Error| Error::new(&self.name, error);
        let file = open_draft(&self.path).map_err(host)?;
        file.set_len(0).map_err(host)?;
        file.set_len(size_bytes).map_err(host)?;
        self.open()
    }

    /// Opens what it holds, but nothing that a symbolic link in its place leads to.
    pub(super) fn open(&self) -> Result<Image> {
        let host = |error: std::io::Error| Error::new(&self.name, error);
        let draft = open_draft(&self.path).and_then(|draft| draft.metadata());
        let draft = draft.map_err(host)?;
        let image = Image::open(&self.path, Access::Write)?;
        let opened = image.file().map(rustix::fs::fstat).transpose();
        let opened = opened.map_err(|error| host(error.into()))?;
        if opened.is_none_or(|it| (it.st_dev, it.st_ino) != (draft.dev(), draft.ino())) {
            return Err(host(Errno::STALE.into()));
        }
        Ok(Image::new(
            Arc::clone(&self.name),
            Arc::clone(image.device()),
        ))
    }

    /// Puts it into its place, with owner, permissions and extended attributes of what was there.
    pub(super) fn finish(mut self) -> Result<()> {
        let host = |error: std::io::Error| Error::new(&self.name, error);
        if self.replaced.is_some() {
            keep_attributes(&self.target, &self.path).map_err(host)?;
        }
        fs::rename(&self.path, &self.target).map_err(host)?;
        self.is_finished = true;
        Ok(())
    }
}

/// Puts on a draft what a file has besides its contents: first the owner, since that clears others, and the mode last.
fn keep_attributes(target: &Path, draft: &Path) -> std::io::Result<()> {
    let found = fs::metadata(target)?;
    let draft = open_draft(draft)?;
    keep_owner(&found, &draft)?;
    // One that the directory gave.
    match rustix::fs::fremovexattr(&draft, ACL_ACCESS_NAME) {
        Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => {}
        Err(error) => return Err(error.into()),
    }
    for (name, value) in host_xattrs(target)? {
        match rustix::fs::fsetxattr(&draft, &*name, &value, XattrFlags::empty()) {
            Ok(()) => {}
            // The host sets its own, as labels are.
            Err(Errno::PERM | Errno::NOTSUP) if is_of_host(&name) => {}
            Err(error) => return Err(error.into()),
        }
    }
    draft.set_permissions(found.permissions())
}

fn keep_owner(found: &fs::Metadata, draft: &File) -> std::io::Result<()> {
    if owner(found) != owner(&draft.metadata()?) {
        fchown(draft, Some(found.uid()), Some(found.gid()))?;
    }
    Ok(())
}

/// User and group of a file.
fn owner(file: &fs::Metadata) -> (u32, u32) {
    (file.uid(), file.gid())
}

/// Opens a draft for writing, but nothing that a symbolic link in its place leads to.
fn open_draft(path: &Path) -> std::io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

fn is_of_host(name: &[u8]) -> bool {
    name.starts_with(b"security.") || name.starts_with(b"trusted.")
}

/// Makes a file that has a name from the beginning. One without (`O_TMPFILE`) would not outlive a kill, but linkat(2)
/// replaces nothing: it would need that name in the end, and another way where filesystems make no such files.
fn create_draft(target: &Path, visibility: Visibility) -> std::io::Result<PathBuf> {
    let mut options = File::options();
    options.write(true).create_new(true);
    if let Visibility::Caller = visibility {
        options.mode(0o600);
    }

    let name = target.file_name().ok_or(ErrorKind::InvalidInput)?;
    for number in 0..NAMES_MAX {
        let mut draft_name = OsString::from(".");
        draft_name.push(name);
        draft_name.push(format!(".{}-{number}.part", std::process::id()));
        let path = target.with_file_name(draft_name);
        match options.open(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => return made.map(|_| path),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.is_finished {
            // An error is ignored: a file that is left is visible to the user.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn copy_of_a_file_is_the_callers_alone_until_it_replaces_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        fs::write(&path, b"old").unwrap();
        for mode in [0o600, 0o666] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let mode_of = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
            let image = Image::open(&path, Access::Write).unwrap();
            let draft = Draft::begin(&path, Some(image)).unwrap();
            assert_eq!(mode_of(&draft.path), 0o600);
            assert_eq!(mode_of(&draft.sibling().unwrap().path), 0o600);
            draft.clear(1024).unwrap();
            draft.finish().unwrap();
            assert_eq!(mode_of(&path), mode);
        }
        assert_eq!(fs::metadata(&path).unwrap().len(), 1024);
    }

    #[test]
    fn owner_of_a_file_gets_its_copy_when_that_is_complete() {
        let caller = rustix::process::geteuid();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        fs::write(&path, b"old").unwrap();
        if caller.is_root() {
            std::os::unix::fs::chown(&path, Some(65534), Some(65533)).unwrap();
        }
        let before = owner(&fs::metadata(&path).unwrap());
        let image = Image::open(&path, Access::Write).unwrap();
        let draft = Draft::begin(&path, Some(image)).unwrap();
        let uid_of = |draft: &Draft| fs::symlink_metadata(&draft.path).unwrap().uid();
        assert_eq!(uid_of(&draft), caller.as_raw());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        let sibling = draft.sibling().unwrap();
        assert_eq!(uid_of(&sibling), caller.as_raw());
        draft.replace_by(sibling).unwrap();
        draft.clear(1024).unwrap();
        draft.finish().unwrap();
        assert_eq!(owner(&fs::metadata(&path).unwrap()), before);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn symbolic_link_in_place_of_a_draft_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("image"), dir.path().join("other"));
        fs::write(&path, b"old").unwrap();
        fs::write(&other, b"other").unwrap();
        let image = Image::open(&path, Access::Write).unwrap();
        let draft = Draft::begin(&path, Some(image)).unwrap();
        fs::remove_file(&draft.path).unwrap();
        std::os::unix::fs::symlink(&other, &draft.path).unwrap();
        draft.clear(1024).unwrap_err();
        draft.open().unwrap_err();
        draft.finish().unwrap_err();
        assert_eq!(fs::read(&other).unwrap(), b"other");
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }
}
