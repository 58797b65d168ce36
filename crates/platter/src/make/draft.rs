//! A new image file while it is made: it is in the same directory as its target, and replaces it
//! atomically.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use platter_block::Access;

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
    is_finished: bool,
}

impl Draft {
    /// Begins an empty file that takes the place of `target`. What is there is given locked, and
    /// stays as it is until then.
    pub(crate) fn begin(target: &Path, replaced: Option<Image>) -> Result<Self> {
        let name: Arc<str> = Escaped(target.as_os_str().as_bytes()).to_string().into();
        let host = |error: std::io::Error| Error::new(&name, error);
        let target = match fs::canonicalize(target) {
            Err(error) if error.kind() == ErrorKind::NotFound => target.to_owned(),
            found => found.map_err(host)?,
        };
        let path = create_draft(&target).map_err(host)?;
        Ok(Self {
            name: Arc::clone(&name),
            target,
            path,
            replaced,
            is_finished: false,
        })
    }

    /// Puts it into the place of an open image.
    pub(crate) fn finish_over(mut self, replaced: Image) -> Result<()> {
        self.replaced = Some(replaced);
        self.finish()
    }

    /// Another file for the same place.
    pub(super) fn sibling(&self) -> Result<Self> {
        let path = create_draft(&self.target).map_err(|error| Error::new(&self.name, error))?;
        Ok(Self {
            name: Arc::clone(&self.name),
            target: self.target.clone(),
            path,
            replaced: None,
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
        let file = File::options().write(true).open(&self.path).map_err(host)?;
        file.set_len(0).map_err(host)?;
        file.set_len(size_bytes).map_err(host)?;
        self.open()
    }

    /// Opens what it holds.
    pub(super) fn open(&self) -> Result<Image> {
        let image = Image::open(&self.path, Access::Write)?;
        Ok(Image::new(
            Arc::clone(&self.name),
            Arc::clone(image.device()),
        ))
    }

    /// Puts it into its place, with the permissions of what was there.
    pub(super) fn finish(mut self) -> Result<()> {
        let host = |error: std::io::Error| Error::new(&self.name, error);
        if self.replaced.is_some() {
            let permissions = fs::metadata(&self.target).map_err(host)?.permissions();
            fs::set_permissions(&self.path, permissions).map_err(host)?;
        }
        fs::rename(&self.path, &self.target).map_err(host)?;
        self.is_finished = true;
        Ok(())
    }
}

fn create_draft(target: &Path) -> std::io::Result<PathBuf> {
    let name = target.file_name().ok_or(ErrorKind::InvalidInput)?;
    for number in 0..NAMES_MAX {
        let mut draft_name = OsString::from(".");
        draft_name.push(name);
        draft_name.push(format!(".{}-{number}.part", std::process::id()));
        let path = target.with_file_name(draft_name);
        match File::create_new(&path) {
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
