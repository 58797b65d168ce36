//! Decoding of commands.

use platter_vfs::FileKind;
use platter_vfs::attr::DeviceNumber;

use super::StreamRule;
use super::attribute::{Attribute, Attributes};
use super::command::{Command, EncodedData, Source, Times, kind};
use crate::ondisk::types::Generation;

/// What `chmod` sets.
const PERMISSIONS: u32 = 0o7777;

fn decode_device(number: u64) -> DeviceNumber {
    let [low, high] = [number & 0xff | number >> 12 & 0xf_ff00, number >> 8 & 0xfff];
    let [minor, major] = [low, high].map(|part| u32::try_from(part).unwrap_or_default());
    DeviceNumber { major, minor }
}

/// A relative path: names without `.` and `..`, with single slashes between them. An empty one is the root of
/// the subvolume.
fn checked_path(path: &[u8]) -> Result<&[u8], StreamRule> {
    let is_name = |name: &[u8]| !matches!(name, b"" | b"." | b"..");
    let is_good = path.is_empty() || path.split(|&byte| byte == b'/').all(is_name);
    if !is_good || path.contains(&0) {
        return Err(StreamRule::Path);
    }
    Ok(path)
}

/// A path of one name.
fn checked_name(path: &[u8]) -> Result<&[u8], StreamRule> {
    if path.is_empty() || path.contains(&b'/') {
        return Err(StreamRule::Path);
    }
    Ok(path)
}

/// A range of a file from `offset` on, which ends below the largest offset.
fn checked_range(offset: u64, len_bytes: u64) -> Result<(), StreamRule> {
    let end = offset.checked_add(len_bytes);
    let is_good = end.is_some_and(|end| i64::try_from(end).is_ok());
    if is_good {
        Ok(())
    } else {
        Err(StreamRule::Range)
    }
}

impl<'a> Command<'a> {
    /// Decodes a command of a stream of this version.
    #[expect(clippy::too_many_lines, reason = "one arm for each command")]
    pub fn decode(number: u16, attributes: &'a [u8], version: u32) -> Result<Self, StreamRule> {
        let found = Attributes::decode(attributes, version)?;
        let path = || checked_path(found.bytes(Attribute::PATH)?);
        // Receivers do not need it, and not every sender has it.
        let inode = || found.number(Attribute::INODE).unwrap_or_default();
        let offset = || found.number(Attribute::FILE_OFFSET);
        let source = |uuid, generation| -> Result<Source, StreamRule> {
            Ok(Source {
                uuid: found.uuid(uuid)?,
                generation: Generation(found.number(generation)?),
            })
        };
        let own = || source(Attribute::UUID, Attribute::GENERATION);
        let other = || source(Attribute::CLONE_UUID, Attribute::CLONE_GENERATION);
        Ok(match number {
            kind::SUBVOL => Self::Subvolume {
                path: checked_name(path()?)?,
                source: own()?,
            },
            kind::SNAPSHOT => Self::Snapshot {
                path: checked_name(path()?)?,
                source: own()?,
                parent: other()?,
            },
            kind::MKFILE => Self::MakeFile {
                path: path()?,
                inode: inode(),
            },
            kind::MKDIR => Self::MakeDir {
                path: path()?,
                inode: inode(),
            },
            kind::MKNOD | kind::MKFIFO | kind::MKSOCK => {
                Self::decode_node(number, &found, path()?, inode())?
            }
            kind::SYMLINK => Self::Symlink {
                path: path()?,
                inode: inode(),
                target: found.bytes(Attribute::PATH_LINK)?,
            },
            kind::RENAME => Self::Rename {
                path: path()?,
                to: checked_path(found.bytes(Attribute::PATH_TO)?)?,
            },
            kind::LINK => Self::Link {
                path: path()?,
                existing: checked_path(found.bytes(Attribute::PATH_LINK)?)?,
            },
            kind::UNLINK => Self::Unlink { path: path()? },
            kind::RMDIR => Self::RemoveDir { path: path()? },
            kind::SET_XATTR => Self::SetXattr {
                path: path()?,
                name: found.bytes(Attribute::XATTR_NAME)?,
                value: found.bytes(Attribute::XATTR_DATA)?,
            },
            kind::REMOVE_XATTR => Self::RemoveXattr {
                path: path()?,
                name: found.bytes(Attribute::XATTR_NAME)?,
            },
            kind::WRITE => {
                let (offset, data) = (offset()?, found.bytes(Attribute::DATA)?);
                checked_range(offset, data.len() as u64)?;
                Self::Write {
                    path: path()?,
                    offset,
                    data,
                }
            }
            kind::CLONE => {
                let (offset, len_bytes) = (offset()?, found.number(Attribute::CLONE_LEN)?);
                let source_offset = found.number(Attribute::CLONE_OFFSET)?;
                checked_range(offset, len_bytes)?;
                checked_range(source_offset, len_bytes)?;
                Self::Clone {
                    path: path()?,
                    offset,
                    len_bytes,
                    source: other()?,
                    source_path: checked_path(found.bytes(Attribute::CLONE_PATH)?)?,
                    source_offset,
                }
            }
            kind::TRUNCATE => {
                let size_bytes = found.number(Attribute::SIZE)?;
                checked_range(size_bytes, 0)?;
                Self::Truncate {
                    path: path()?,
                    size_bytes,
                }
            }
            kind::CHMOD => Self::Chmod {
                path: path()?,
                permissions: found.small(Attribute::MODE)? & PERMISSIONS,
            },
            kind::CHOWN => Self::Chown {
                path: path()?,
                uid: found.small(Attribute::UID)?,
                gid: found.small(Attribute::GID)?,
            },
            kind::UTIMES => Self::SetTimes {
                path: path()?,
                times: Times {
                    accessed: found.time(Attribute::ACCESSED)?,
                    modified: found.time(Attribute::MODIFIED)?,
                    changed: found.time(Attribute::CHANGED)?,
                    created: match found.get(Attribute::CREATED) {
                        Some(_) if version >= 2 => Some(found.time(Attribute::CREATED)?),
                        Some(_) | None => None,
                    },
                },
            },
            kind::END => Self::End,
            kind::UPDATE_EXTENT => Self::UpdateExtent {
                path: path()?,
                offset: offset()?,
                len_bytes: found.number(Attribute::SIZE)?,
            },
            kind::FALLOCATE => {
                let (offset, len_bytes) = (offset()?, found.number(Attribute::SIZE)?);
                checked_range(offset, len_bytes)?;
                Self::Fallocate {
                    path: path()?,
                    mode: found.number_32(Attribute::FALLOCATE_MODE)?,
                    offset,
                    len_bytes,
                }
            }
            kind::FILEATTR => Self::SetFlags {
                path: path()?,
                flags: found.number(Attribute::FILEATTR)?,
            },
            kind::ENCODED_WRITE => Self::decode_encoded(&found, path()?, offset()?)?,
            kind => Self::Unknown { kind },
        })
    }

    fn decode_node(
        number: u16,
        found: &Attributes<'a>,
        path: &'a [u8],
        inode: u64,
    ) -> Result<Self, StreamRule> {
        let mode = || found.small(Attribute::MODE);
        let of_device = number == kind::MKNOD;
        let kind = match number {
            kind::MKFIFO => FileKind::Fifo,
            kind::MKSOCK => FileKind::Socket,
            _ => match FileKind::from_mode(mode()?) {
                Some(kind @ (FileKind::CharDevice | FileKind::BlockDevice)) => kind,
                _ => return Err(StreamRule::Number),
            },
        };
        let device = if of_device {
            decode_device(found.number(Attribute::DEVICE)?)
        } else {
            DeviceNumber::default()
        };
        Ok(Self::MakeNode {
            path,
            inode,
            kind,
            permissions: mode().unwrap_or_default() & PERMISSIONS,
            device,
        })
    }

    fn decode_encoded(
        found: &Attributes<'a>,
        path: &'a [u8],
        offset: u64,
    ) -> Result<Self, StreamRule> {
        let optional = |attribute| match found.get(attribute) {
            Some(_) => found.number_32(attribute),
            None => Ok(0),
        };
        let encoded = EncodedData {
            file_bytes: found.number(Attribute::UNENCODED_FILE_LEN)?,
            ram_bytes: found.number(Attribute::UNENCODED_LEN)?,
            offset: found.number(Attribute::UNENCODED_OFFSET)?,
            compression: optional(Attribute::COMPRESSION)?,
            encryption: optional(Attribute::ENCRYPTION)?,
            data: found.bytes(Attribute::DATA)?,
        };
        checked_range(offset, encoded.file_bytes)?;
        let end = encoded.offset.checked_add(encoded.file_bytes);
        if end.is_none_or(|end| end > encoded.ram_bytes) {
            return Err(StreamRule::Range);
        }
        Ok(Self::EncodedWrite {
            path,
            offset,
            encoded,
        })
    }
}
