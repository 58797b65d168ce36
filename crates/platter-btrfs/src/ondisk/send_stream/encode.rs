//! Encoding of commands.

use platter_vfs::FileKind;
use platter_vfs::attr::DeviceNumber;

use super::attribute::{Attribute, AttributeWriter};
use super::command::{Command, Source, kind};

/// A device number as user space has it (`new_encode_dev`).
fn encode_device(device: DeviceNumber) -> u64 {
    let (major, minor) = (u64::from(device.major), u64::from(device.minor));
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

impl<'a> Command<'a> {
    /// Appends the attributes of the command to `bytes`. Returns its number; `None` if a value is too long for
    /// the version.
    pub(super) fn encode(&self, bytes: &mut Vec<u8>, version: u32) -> Option<u16> {
        let mut put = AttributeWriter {
            bytes,
            version,
            fits: true,
        };
        let number = self.encode_into(&mut put);
        put.fits.then_some(number)
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each command")]
    fn encode_into(&self, put: &mut AttributeWriter<'_>) -> u16 {
        let (number, path) = self.name();
        if let Some(path) = path {
            put.put(Attribute::PATH, path);
        }
        match *self {
            Self::Subvolume { source, .. } => put_source(put, source),
            Self::Snapshot { source, parent, .. } => {
                put_source(put, source);
                put_parent(put, parent);
            }
            Self::MakeFile { inode, .. } | Self::MakeDir { inode, .. } => {
                put.put_number(Attribute::INODE, inode);
            }
            Self::MakeNode {
                inode,
                kind,
                permissions,
                device,
                ..
            } => {
                put.put_number(Attribute::INODE, inode)
                    .put_number(Attribute::DEVICE, encode_device(device))
                    .put_number(Attribute::MODE, kind.mode_bits() | permissions);
            }
            Self::Symlink { inode, target, .. } => {
                put.put_number(Attribute::INODE, inode)
                    .put(Attribute::PATH_LINK, target);
            }
            Self::Rename { to, .. } => {
                put.put(Attribute::PATH_TO, to);
            }
            Self::Link { existing, .. } => {
                put.put(Attribute::PATH_LINK, existing);
            }
            Self::SetXattr { name, value, .. } => {
                put.put(Attribute::XATTR_NAME, name)
                    .put(Attribute::XATTR_DATA, value);
            }
            Self::RemoveXattr { name, .. } => {
                put.put(Attribute::XATTR_NAME, name);
            }
            Self::Write { offset, data, .. } => {
                put.put_number(Attribute::FILE_OFFSET, offset);
                put.put_data(data);
            }
            Self::Clone {
                offset,
                len_bytes,
                source,
                source_path,
                source_offset,
                ..
            } => {
                put.put_number(Attribute::FILE_OFFSET, offset)
                    .put_number(Attribute::CLONE_LEN, len_bytes);
                put_parent(put, source);
                put.put(Attribute::CLONE_PATH, source_path)
                    .put_number(Attribute::CLONE_OFFSET, source_offset);
            }
            Self::Truncate { size_bytes, .. } => {
                put.put_number(Attribute::SIZE, size_bytes);
            }
            Self::Chmod { permissions, .. } => {
                put.put_number(Attribute::MODE, permissions);
            }
            Self::Chown { uid, gid, .. } => {
                put.put_number(Attribute::UID, uid)
                    .put_number(Attribute::GID, gid);
            }
            Self::SetTimes { times, .. } => {
                put.put_time(Attribute::ACCESSED, times.accessed)
                    .put_time(Attribute::MODIFIED, times.modified)
                    .put_time(Attribute::CHANGED, times.changed);
                if let Some(created) = times.created.filter(|_| put.version >= 2) {
                    put.put_time(Attribute::CREATED, created);
                }
            }
            Self::UpdateExtent {
                offset, len_bytes, ..
            } => {
                put.put_number(Attribute::FILE_OFFSET, offset)
                    .put_number(Attribute::SIZE, len_bytes);
            }
            Self::Fallocate {
                mode,
                offset,
                len_bytes,
                ..
            } => {
                put.put_number_32(Attribute::FALLOCATE_MODE, mode)
                    .put_number(Attribute::FILE_OFFSET, offset)
                    .put_number(Attribute::SIZE, len_bytes);
            }
            Self::SetFlags { flags, .. } => {
                put.put_number(Attribute::FILEATTR, flags);
            }
            Self::EncodedWrite {
                offset, encoded, ..
            } => {
                put.put_number(Attribute::FILE_OFFSET, offset)
                    .put_number(Attribute::UNENCODED_FILE_LEN, encoded.file_bytes)
                    .put_number(Attribute::UNENCODED_LEN, encoded.ram_bytes)
                    .put_number(Attribute::UNENCODED_OFFSET, encoded.offset);
                if encoded.compression != 0 {
                    put.put_number_32(Attribute::COMPRESSION, encoded.compression);
                }
                if encoded.encryption != 0 {
                    put.put_number_32(Attribute::ENCRYPTION, encoded.encryption);
                }
                put.put_data(encoded.data);
            }
            Self::Unlink { .. } | Self::RemoveDir { .. } | Self::End | Self::Unknown { .. } => {}
        }
        number
    }

    /// The number of the command, and its path.
    fn name(&self) -> (u16, Option<&'a [u8]>) {
        let (number, path) = match *self {
            Self::Subvolume { path, .. } => (kind::SUBVOL, path),
            Self::Snapshot { path, .. } => (kind::SNAPSHOT, path),
            Self::MakeFile { path, .. } => (kind::MKFILE, path),
            Self::MakeDir { path, .. } => (kind::MKDIR, path),
            Self::MakeNode { path, kind, .. } => match kind {
                FileKind::Fifo => (kind::MKFIFO, path),
                FileKind::Socket => (kind::MKSOCK, path),
                FileKind::CharDevice
                | FileKind::BlockDevice
                | FileKind::Regular
                | FileKind::Directory
                | FileKind::Symlink => (kind::MKNOD, path),
            },
            Self::Symlink { path, .. } => (kind::SYMLINK, path),
            Self::Rename { path, .. } => (kind::RENAME, path),
            Self::Link { path, .. } => (kind::LINK, path),
            Self::Unlink { path } => (kind::UNLINK, path),
            Self::RemoveDir { path } => (kind::RMDIR, path),
            Self::SetXattr { path, .. } => (kind::SET_XATTR, path),
            Self::RemoveXattr { path, .. } => (kind::REMOVE_XATTR, path),
            Self::Write { path, .. } => (kind::WRITE, path),
            Self::Clone { path, .. } => (kind::CLONE, path),
            Self::Truncate { path, .. } => (kind::TRUNCATE, path),
            Self::Chmod { path, .. } => (kind::CHMOD, path),
            Self::Chown { path, .. } => (kind::CHOWN, path),
            Self::SetTimes { path, .. } => (kind::UTIMES, path),
            Self::UpdateExtent { path, .. } => (kind::UPDATE_EXTENT, path),
            Self::Fallocate { path, .. } => (kind::FALLOCATE, path),
            Self::SetFlags { path, .. } => (kind::FILEATTR, path),
            Self::EncodedWrite { path, .. } => (kind::ENCODED_WRITE, path),
            Self::End => return (kind::END, None),
            Self::Unknown { kind } => return (kind, None),
        };
        (number, Some(path))
    }
}

fn put_source(put: &mut AttributeWriter<'_>, source: Source) {
    put.put_uuid(Attribute::UUID, source.uuid)
        .put_number(Attribute::GENERATION, source.generation.0);
}

fn put_parent(put: &mut AttributeWriter<'_>, source: Source) {
    put.put_uuid(Attribute::CLONE_UUID, source.uuid)
        .put_number(Attribute::CLONE_GENERATION, source.generation.0);
}
