//! The commands that change a subvolume.

use std::sync::Arc;

use platter_vfs::{
    Condition, CreateKind, FallocateMode, FileKind, Inode, Name, RenameMode, Result, SetAttr,
    SetTime, XattrMode,
};

use super::{Receiver, unsupported};
use crate::inode;
use crate::ondisk::TreeId;
use crate::ondisk::inode_item::InodeFlags;
use crate::ondisk::send_stream::Command;

/// Permissions of a file until they are set.
const FILE_PERMISSIONS: u32 = 0o600;
/// Permissions of a directory until they are set.
const DIR_PERMISSIONS: u32 = 0o700;

/// The mode of `fallocate(2)`.
fn fallocate_mode(mode: u32) -> Option<FallocateMode> {
    Some(match mode {
        0 => FallocateMode::Allocate { keep_size: false },
        1 => FallocateMode::Allocate { keep_size: true },
        3 => FallocateMode::PunchHole,
        0x10 => FallocateMode::ZeroRange { keep_size: false },
        0x11 => FallocateMode::ZeroRange { keep_size: true },
        _ => return None,
    })
}

impl Receiver<'_> {
    /// Applies a command to the subvolume that is received.
    #[expect(clippy::too_many_lines, reason = "one arm for each command")]
    pub(super) fn apply(&mut self, command: &Command<'_>) -> Result<()> {
        if let Some(current) = &mut self.current {
            current.commands += 1;
        }
        match *command {
            Command::MakeFile { path, .. } => {
                self.create(path, CreateKind::Regular, FILE_PERMISSIONS)
            }
            Command::MakeDir { path, .. } => {
                self.create(path, CreateKind::Directory, DIR_PERMISSIONS)
            }
            Command::MakeNode {
                path,
                kind,
                permissions,
                device,
                ..
            } => {
                let kind = match kind {
                    FileKind::Fifo => CreateKind::Fifo,
                    FileKind::Socket => CreateKind::Socket,
                    FileKind::CharDevice => CreateKind::CharDevice(device),
                    FileKind::BlockDevice => CreateKind::BlockDevice(device),
                    FileKind::Regular | FileKind::Directory | FileKind::Symlink => {
                        return Err(Condition::InvalidArgument.into());
                    }
                };
                self.create(path, kind, permissions)
            }
            Command::Symlink { path, target, .. } => {
                self.create(path, CreateKind::Symlink(target.to_vec()), 0o777)
            }
            Command::Rename { path, to } => self.rename(path, to),
            Command::Link { path, existing } => {
                let target = self.file(existing)?.id();
                let (dir, name) = self.parent(path)?;
                dir.link(&self.context, name, target)
            }
            Command::Unlink { path } => {
                let (dir, name) = self.parent(path)?;
                self.forget_file();
                dir.unlink(&self.context, name)
            }
            Command::RemoveDir { path } => {
                let (dir, name) = self.parent(path)?;
                self.forget();
                dir.remove_dir(&self.context, name)
            }
            Command::SetXattr { path, name, value } => {
                let file = self.file(path)?;
                file.set_xattr(&self.context, name, value, XattrMode::Set)
            }
            Command::RemoveXattr { path, name } => {
                self.file(path)?.remove_xattr(&self.context, name)
            }
            Command::Truncate { path, size_bytes } => {
                let size_bytes = Some(size_bytes);
                self.set(
                    path,
                    &SetAttr {
                        size_bytes,
                        ..SetAttr::default()
                    },
                )
            }
            Command::Chmod { path, permissions } => {
                let permissions = Some(permissions);
                self.set(
                    path,
                    &SetAttr {
                        permissions,
                        ..SetAttr::default()
                    },
                )
            }
            Command::Chown { path, uid, gid } => {
                let (uid, gid) = (Some(uid), Some(gid));
                self.set(
                    path,
                    &SetAttr {
                        uid,
                        gid,
                        ..SetAttr::default()
                    },
                )
            }
            Command::SetTimes { path, times } => {
                let changes = SetAttr {
                    accessed: Some(SetTime::At(times.accessed)),
                    modified: Some(SetTime::At(times.modified)),
                    ..SetAttr::default()
                };
                self.set(path, &changes)
            }
            Command::Fallocate {
                path,
                mode,
                offset,
                len_bytes,
            } => {
                let file = self.file(path)?;
                let name = || format!("fallocate mode {mode:#x} of a send stream");
                let mode = fallocate_mode(mode).ok_or_else(|| unsupported(name()))?;
                file.fallocate(offset..offset.saturating_add(len_bytes), mode)
            }
            Command::SetFlags { path, flags } => self.set_flags(path, flags),
            Command::Write { path, offset, data } => self.file(path)?.write_at(offset, data),
            Command::EncodedWrite {
                path,
                offset,
                encoded,
            } => self.write_encoded(path, offset, &encoded),
            Command::Clone {
                path,
                offset,
                len_bytes,
                source,
                source_path,
                source_offset,
            } => {
                let range = source_offset..source_offset.saturating_add(len_bytes);
                self.clone_range(path, offset, source, (source_path, range))
            }
            Command::UpdateExtent { .. } => Err(unsupported("a send stream without data")),
            Command::Unknown { kind } => {
                Err(unsupported(format!("command {kind} of a send stream")))
            }
            Command::Subvolume { .. } | Command::Snapshot { .. } | Command::End => Ok(()),
        }
    }

    pub(super) fn file(&mut self, path: &[u8]) -> Result<Arc<dyn Inode>> {
        let current = self.current.as_mut().ok_or(Condition::NotFound)?;
        current.recent.file(&current.root, path)
    }

    fn parent<'p>(&mut self, path: &'p [u8]) -> Result<(Arc<dyn Inode>, Name<'p>)> {
        let current = self.current.as_mut().ok_or(Condition::NotFound)?;
        current.recent.parent(&current.root, path)
    }

    fn forget(&mut self) {
        if let Some(current) = &mut self.current {
            current.recent.forget();
        }
    }

    fn forget_file(&mut self) {
        if let Some(current) = &mut self.current {
            current.recent.forget_file();
        }
    }

    fn create(&mut self, path: &[u8], kind: CreateKind, permissions: u32) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        dir.create(&self.context, name, kind, permissions)?;
        Ok(())
    }

    fn rename(&mut self, path: &[u8], to: &[u8]) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        let (new_dir, new_name) = self.parent(to)?;
        self.forget();
        let mode = RenameMode::Replace;
        dir.rename(&self.context, name, new_dir.id(), new_name, mode)
    }

    fn set(&mut self, path: &[u8], changes: &SetAttr) -> Result<()> {
        self.file(path)?.set_attr(&self.context, changes)?;
        Ok(())
    }

    /// Sets the flags that a file can have. What cannot be set, such as how existing contents are stored, is left.
    fn set_flags(&mut self, path: &[u8], flags: u64) -> Result<()> {
        let file = self.file(path)?;
        let tree = self.tree()?;
        let number = file.id().number;
        let item = inode::find(self.fs.context(), tree, number)?;
        let mut item = item.ok_or(Condition::Stale)?;
        let kept = item.flags & InodeFlags::VERITY;
        item.flags = InodeFlags::from_bits_truncate(flags).difference(InodeFlags::VERITY) | kept;
        let flags = Some(inode::attr(&item, number, self.fs.context().sector_bytes()).flags);
        match file.set_attr(
            &self.context,
            &SetAttr {
                flags,
                ..SetAttr::default()
            },
        ) {
            Ok(_)
            | Err(platter_vfs::Error::Condition(
                Condition::NotSupported | Condition::InvalidArgument,
            )) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn tree(&self) -> Result<crate::tree::Tree> {
        let current = self.current.as_ref().ok_or(Condition::NotFound)?;
        let id: TreeId = current.id;
        Ok(self.fs.context().tree(id)?.ok_or(Condition::Stale)?)
    }
}
