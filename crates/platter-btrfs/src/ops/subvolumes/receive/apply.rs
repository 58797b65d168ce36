//! The commands that change a subvolume.

use platter_vfs::{
    Condition, CreateKind, Error, FallocateMode, FileKind, RenameMode, Result, SetAttr, SetTime,
    XattrMode,
};

use super::{Receiver, unsupported};
use crate::inode;
use crate::ondisk::inode_item::InodeFlags;
use crate::ondisk::send_stream::Command;

/// Permissions of a file until they are set.
const FILE_PERMISSIONS: u32 = 0o600;
/// Permissions of a directory until they are set.
const DIR_PERMISSIONS: u32 = 0o700;

/// `FS_COMPR_FL`, `FS_NOCOMP_FL` and `FS_NOCOW_FL`: how contents are stored, which a file may refuse.
const STORAGE: u32 = 0x80_0404;

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

/// Applies a command to the subvolume that is received.
#[expect(clippy::too_many_lines, reason = "one arm for each command")]
pub(super) fn apply(receiver: &mut Receiver<'_>, command: &Command<'_>) -> Result<()> {
    if let Some(current) = &mut receiver.current {
        current.commands += 1;
    }
    match *command {
        Command::MakeFile { path, .. } => {
            create(receiver, path, CreateKind::Regular, FILE_PERMISSIONS)
        }
        Command::MakeDir { path, .. } => {
            create(receiver, path, CreateKind::Directory, DIR_PERMISSIONS)
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
            create(receiver, path, kind, permissions)
        }
        Command::Symlink { path, target, .. } => {
            create(receiver, path, CreateKind::Symlink(target.to_vec()), 0o777)
        }
        Command::Rename { path, to } => rename(receiver, path, to),
        Command::Link { path, existing } => {
            let target = receiver.file(existing)?.id();
            let (dir, name) = receiver.parent(path)?;
            dir.link(&receiver.context, name, target)
        }
        Command::Unlink { path } => {
            let (dir, name) = receiver.parent(path)?;
            receiver.forget_file();
            dir.unlink(&receiver.context, name)
        }
        Command::RemoveDir { path } => {
            let (dir, name) = receiver.parent(path)?;
            receiver.forget();
            dir.remove_dir(&receiver.context, name)
        }
        Command::SetXattr { path, name, value } => {
            let file = receiver.file(path)?;
            file.set_xattr(&receiver.context, name, value, XattrMode::Set)
        }
        Command::RemoveXattr { path, name } => {
            receiver.file(path)?.remove_xattr(&receiver.context, name)
        }
        Command::Truncate { path, size_bytes } => {
            let size_bytes = Some(size_bytes);
            set(
                receiver,
                path,
                &SetAttr {
                    size_bytes,
                    ..SetAttr::default()
                },
            )
        }
        Command::Chmod { path, permissions } => {
            let permissions = Some(permissions);
            set(
                receiver,
                path,
                &SetAttr {
                    permissions,
                    ..SetAttr::default()
                },
            )
        }
        Command::Chown { path, uid, gid } => {
            let (uid, gid) = (Some(uid), Some(gid));
            set(
                receiver,
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
            set(receiver, path, &changes)
        }
        Command::Fallocate {
            path,
            mode,
            offset,
            len_bytes,
        } => {
            let file = receiver.file(path)?;
            let name = || format!("fallocate mode {mode:#x} of a send stream");
            let mode = fallocate_mode(mode).ok_or_else(|| unsupported(name()))?;
            file.fallocate(offset..offset.saturating_add(len_bytes), mode)
        }
        Command::SetFlags { path, flags } => set_flags(receiver, path, flags),
        Command::Write { path, offset, data } => receiver.file(path)?.write_at(offset, data),
        Command::EncodedWrite {
            path,
            offset,
            encoded,
        } => receiver.write_encoded(path, offset, &encoded),
        Command::Clone {
            path,
            offset,
            len_bytes,
            source,
            source_path,
            source_offset,
        } => {
            let range = source_offset..source_offset.saturating_add(len_bytes);
            receiver.clone_range(path, offset, source, (source_path, range))
        }
        Command::UpdateExtent { .. } => Err(unsupported("a send stream without data")),
        Command::Unknown { kind } => Err(unsupported(format!("command {kind} of a send stream"))),
        Command::Subvolume { .. } | Command::Snapshot { .. } | Command::End => Ok(()),
    }
}

fn create(
    receiver: &mut Receiver<'_>,
    path: &[u8],
    kind: CreateKind,
    permissions: u32,
) -> Result<()> {
    let (dir, name) = receiver.parent(path)?;
    dir.create(&receiver.context, name, kind, permissions)?;
    Ok(())
}

fn rename(receiver: &mut Receiver<'_>, path: &[u8], to: &[u8]) -> Result<()> {
    let (dir, name) = receiver.parent(path)?;
    let (new_dir, new_name) = receiver.parent(to)?;
    receiver.forget();
    let mode = RenameMode::Replace;
    dir.rename(&receiver.context, name, new_dir.id(), new_name, mode)
}

fn set(receiver: &mut Receiver<'_>, path: &[u8], changes: &SetAttr) -> Result<()> {
    receiver.file(path)?.set_attr(&receiver.context, changes)?;
    Ok(())
}

/// Sets the flags that a file can have. What cannot be set, such as how existing contents are stored, is left.
fn set_flags(receiver: &mut Receiver<'_>, path: &[u8], flags: u64) -> Result<()> {
    let file = receiver.file(path)?;
    let tree = receiver.tree()?;
    let number = file.id().number;
    let item = inode::find(receiver.fs.context(), tree, number)?;
    let mut item = item.ok_or(Condition::Stale)?;
    let before = inode::shown_flags(item.flags);
    let kept = item.flags & InodeFlags::VERITY;
    item.flags = InodeFlags::from_bits_truncate(flags).difference(InodeFlags::VERITY) | kept;
    let all = inode::attr(&item, number, receiver.fs.context().sector_bytes()).flags;
    let others = all & !STORAGE | before & STORAGE;
    for flags in [all, others] {
        let changes = SetAttr {
            flags: Some(flags),
            ..SetAttr::default()
        };
        match file.set_attr(&receiver.context, &changes) {
            Err(Error::Condition(Condition::NotSupported | Condition::InvalidArgument)) => {}
            set => return set.map(|_| ()),
        }
    }
    Ok(())
}
