//! A filesystem as a program uses it: by paths, and through files that it keeps open.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use platter_vfs::{
    Condition, Context, Exchange, Filesystem, Inode, PathWalk, Result, SetAttr, XattrMode,
};

use super::operation::{Operation, Span, open_number};
use super::subvolumes;
use super::tree::read_content;

/// A program's side. Its end closes its files.
#[derive(Debug)]
pub struct Session<'a> {
    fs: &'a dyn Filesystem,
    open: BTreeMap<u32, Arc<dyn Inode>>,
}

impl<'a> Session<'a> {
    /// With no file open.
    #[must_use]
    pub fn new(fs: &'a dyn Filesystem) -> Self {
        let open = BTreeMap::new();
        Self { fs, open }
    }

    /// What it uses.
    pub(super) fn filesystem(&self) -> &'a dyn Filesystem {
        self.fs
    }

    /// The files that it keeps open, with their numbers.
    pub(super) fn open_files(&self) -> impl Iterator<Item = (u32, &dyn Inode)> {
        self.open.iter().map(|(&number, file)| (number, &**file))
    }

    /// The contents of a file.
    pub fn contents(&self, path: &str) -> anyhow::Result<Vec<u8>> {
        let file = self.file(path)?;
        let size = file.attr()?.size_bytes;
        read_content(&*file, size)
    }

    /// Whether any extent of a file is stored compressed, outside of its metadata.
    pub fn is_compressed(&self, path: &str) -> Result<bool> {
        let file = self.file(path)?;
        let mut is_compressed = false;
        file.extents(0..file.attr()?.size_bytes, &mut |extent| {
            is_compressed |= extent.encoded && !extent.inline;
            ControlFlow::Continue(())
        })?;
        Ok(is_compressed)
    }

    /// Replaces all contents of a file.
    pub fn replace(&self, path: &str, contents: &[u8]) -> Result<()> {
        let file = self.file(path)?;
        let emptied = SetAttr {
            size_bytes: Some(0),
            ..SetAttr::default()
        };
        file.set_attr(&Context::root(), &emptied)?;
        file.write_at(0, contents)?;
        Ok(())
    }

    /// The file that a path means.
    fn file(&self, path: &str) -> Result<Arc<dyn Inode>> {
        match open_number(path) {
            Some(number) => {
                let file = self.open.get(&number);
                Ok(file.cloned().ok_or(Condition::NotFound)?)
            }
            None => resolve(self.fs, path),
        }
    }

    /// Does an operation, for the superuser.
    pub fn apply(&mut self, operation: &Operation) -> Result<()> {
        let context = Context::root();
        let fs = self.fs;
        let parent = |path: &str| PathWalk::new(fs).resolve_parent(path.as_bytes());
        match operation {
            Operation::Create(path, kind, permissions) => {
                let located = parent(path)?;
                let name = located.name_to_create()?;
                located
                    .parent
                    .create(&context, name, kind.clone(), *permissions)?;
            }
            Operation::CreateUnnamed(dir, number) => {
                let file = self.file(dir)?.create_unnamed(&context, 0o644)?;
                self.open.insert(*number, file);
            }
            Operation::Open(path, number) => {
                let file = self.file(path)?;
                self.open.insert(*number, file);
            }
            Operation::Close(number) => drop(self.open.remove(number)),
            Operation::Write(path, fill) => {
                self.file(path)?.write_at(fill.offset, &fill.bytes())?;
            }
            Operation::Fallocate(path, range, mode) => {
                self.file(path)?.fallocate(range.clone(), *mode)?;
            }
            Operation::CopyRange(span) => self.copy_range(span)?,
            Operation::CloneRange(span) => {
                let source = self.file(&span.from)?;
                self.file(&span.to)?
                    .clone_range(&*source, span.range.clone(), span.offset)?;
            }
            Operation::DedupeRange(span) => {
                let source = self.file(&span.from)?;
                self.file(&span.to)?
                    .dedupe_range(&*source, span.range.clone(), span.offset)?;
            }
            Operation::Exchange(one, other) => {
                let exchange = Exchange {
                    offset: 0,
                    other_offset: 0,
                    len_bytes: None,
                    written_only: false,
                    dry_run: false,
                };
                let other = self.file(other)?;
                self.file(one)?.exchange_range(&*other, &exchange)?;
            }
            Operation::CreateSubvolume(path) => subvolumes::create(fs, path)?,
            Operation::Snapshot(source, path) => subvolumes::snapshot(fs, source, path)?,
            Operation::DeleteSubvolume(path) => subvolumes::delete(fs, path)?,
            Operation::Rename(from, to, mode) => {
                let (from, to) = (parent(from)?, parent(to)?);
                let (name, new_name) = (from.name_to_rename()?, to.name_to_rename()?);
                let target = to.parent.id();
                from.parent
                    .rename(&context, name, target, new_name, *mode)?;
            }
            Operation::Link(from, to) => {
                let target = self.file(from)?.id();
                let located = parent(to)?;
                located
                    .parent
                    .link(&context, located.name_to_create()?, target)?;
            }
            Operation::Unlink(path) => {
                let located = parent(path)?;
                located.parent.unlink(&context, located.name_to_unlink()?)?;
            }
            Operation::RemoveDir(path) => {
                let located = parent(path)?;
                located
                    .parent
                    .remove_dir(&context, located.name_to_remove_dir()?)?;
            }
            Operation::SetXattr(path, name, fill) => {
                let (name, value) = (name.as_bytes(), fill.bytes());
                self.file(path)?
                    .set_xattr(&context, name, &value, XattrMode::Set)?;
            }
            Operation::RemoveXattr(path, name) => {
                self.file(path)?.remove_xattr(&context, name.as_bytes())?;
            }
            Operation::Truncate(path, _)
            | Operation::SetPermissions(path, _)
            | Operation::SetOwner(path, ..) => {
                self.file(path)?.set_attr(&context, &changes(operation))?;
            }
            Operation::Fsync(path, data_only) => self.file(path)?.sync(*data_only)?,
            Operation::Sync => fs.sync()?,
        }
        Ok(())
    }
}

impl Session<'_> {
    /// Copies until all is copied or the source ends, as `cp` does: one call may copy less.
    fn copy_range(&self, span: &Span) -> Result<()> {
        let (source, target) = (self.file(&span.from)?, self.file(&span.to)?);
        let (mut range, mut offset) = (span.range.clone(), span.offset);
        while range.start < range.end {
            let copied = target.copy_range(&*source, range.clone(), offset)?;
            if copied == 0 {
                break;
            }
            range.start += copied;
            offset += copied;
        }
        Ok(())
    }
}

/// The attributes that an operation sets.
fn changes(operation: &Operation) -> SetAttr {
    let mut changes = SetAttr::default();
    if let Operation::Truncate(_, size) = operation {
        changes.size_bytes = Some(*size);
    }
    if let Operation::SetPermissions(_, permissions) = operation {
        changes.permissions = Some(*permissions);
    }
    if let Operation::SetOwner(_, uid, gid) = operation {
        (changes.uid, changes.gid) = (Some(*uid), Some(*gid));
    }
    changes
}

/// The file at a path, itself where it is a symbolic link.
pub(super) fn resolve(fs: &dyn Filesystem, path: &str) -> Result<Arc<dyn Inode>> {
    if path.is_empty() {
        return fs.root();
    }
    PathWalk::new(fs).resolve_no_follow(path.as_bytes())
}
