//! What a tar archive holds: ustar, GNU and PAX headers, sparse files of GNU tar in all its forms,
//! attributes as `SCHILY.xattr.*` and ACLs as `SCHILY.acl.*`.

mod records;
mod sparse;
mod walk;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use platter_vfs::Timestamp;
use platter_vfs::attr::DeviceNumber;
use tar::{EntryType, Header};

use super::contents::Contents;
use super::folder::host_error;
use super::{Content, FileId, Member, MemberKind, MemberPath, unpack};
use crate::{Cause, Escaped, Result};
use walk::{Entry, Walk, broken};

/// Finds the members of an archive, which may be compressed.
pub(super) fn index(path: &Path, data_bytes_max: u64) -> Result<Content> {
    let name: Arc<str> = Escaped(path.as_os_str().as_bytes()).to_string().into();
    let host = |error| host_error(path, error);
    let file = File::open(path).map_err(host)?;
    let source = FileId::from(&file.metadata().map_err(host)?);
    let plain = unpack::plain(file, data_bytes_max);
    let plain = plain.map_err(|cause| crate::Error::new(&name, cause))?;
    let mut content = index_plain(name, plain)?;
    content.source = Some(source);
    Ok(content)
}

/// Finds the members of an archive that comes through a pipe.
pub(super) fn index_stream(
    name: Arc<str>,
    stream: impl Read,
    data_bytes_max: u64,
) -> Result<Content> {
    let plain = unpack::unpack(stream, data_bytes_max);
    let plain = plain.map_err(|cause| crate::Error::new(&name, cause))?;
    index_plain(name, plain)
}

fn index_plain(name: Arc<str>, file: File) -> Result<Content> {
    let host = |error: std::io::Error| crate::Error::new(&name, error);
    let file = Arc::new(file);
    let mut tape = Tape {
        archive: Arc::clone(&file),
        names: BTreeMap::new(),
        inodes: Vec::new(),
    };
    let mut walk = Walk::new(&file).map_err(host)?;
    while let Some(entry) = walk
        .next()
        .map_err(|cause| crate::Error::new(&name, cause))?
    {
        let path = entry.path.clone();
        tape.add(entry)
            .map_err(|cause| crate::Error::at_path(&name, &path, cause))?;
    }
    let mut content = Content::new(name);
    content.members = tape.into_members();
    Ok(content)
}

/// What would be there if all so far had been unpacked, one member over the other.
struct Tape {
    archive: Arc<File>,
    /// Which of the inodes each name is for.
    names: BTreeMap<MemberPath, usize>,
    inodes: Vec<Member>,
}

impl Tape {
    fn add(&mut self, mut entry: Entry) -> Result<(), Cause> {
        let path = match &entry.records.sparse.name {
            Some(name) => MemberPath::parse(name)?,
            None => MemberPath::parse(&entry.path)?,
        };
        if entry.header.entry_type() == EntryType::Link {
            let target = MemberPath::parse(&entry.target)?;
            return self.add_link(path, &target);
        }
        let Some(kind) = self.kind(&mut entry)? else {
            return Ok(());
        };
        if path.is_root() && !matches!(kind, MemberKind::Directory) {
            return Err(broken("has a root that is no directory"));
        }
        let header = &entry.header;
        let id = |number: u64| u32::try_from(number).map_err(std::io::Error::other);
        let member = Member {
            uid: match entry.records.uid {
                Some(uid) => uid,
                None => id(header.uid()?)?,
            },
            gid: match entry.records.gid {
                Some(gid) => gid,
                None => id(header.gid()?)?,
            },
            permissions: header.mode()? & 0o7777,
            modified: match entry.records.modified {
                Some(modified) => modified,
                None => Timestamp {
                    seconds: header.mtime()?.cast_signed(),
                    nanoseconds: 0,
                },
            },
            xattrs: entry.records.take_xattrs(),
            kind,
        };
        self.names.insert(path, self.inodes.len());
        self.inodes.push(member);
        Ok(())
    }

    /// What is to be made; nothing of what only tells of the archive.
    #[expect(clippy::wildcard_enum_match_arm, reason = "there may be others")]
    fn kind(&self, entry: &mut Entry) -> Result<Option<MemberKind>, Cause> {
        let header = &entry.header;
        let kind = header.entry_type();
        Ok(Some(match kind {
            EntryType::Directory => MemberKind::Directory,
            EntryType::Symlink => MemberKind::Symlink(std::mem::take(&mut entry.target)),
            EntryType::Char => MemberKind::CharDevice(device(header)?),
            EntryType::Block => MemberKind::BlockDevice(device(header)?),
            EntryType::Fifo => MemberKind::Fifo,
            // Old archives know directories by their names.
            EntryType::Regular if entry.path.ends_with(b"/") && entry.len_bytes == 0 => {
                MemberKind::Directory
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let (size_bytes, pieces) = sparse::pieces(&self.archive, entry)?;
                MemberKind::File(Contents::Tape {
                    archive: Arc::clone(&self.archive),
                    pieces,
                    size_bytes,
                })
            }
            // The label of the volume.
            kind if kind.as_byte() == b'V' => return Ok(None),
            _ => return Err(unknown(kind).into()),
        }))
    }

    /// A further name is for what its target is for now, whatever takes the target's name later.
    fn add_link(&mut self, path: MemberPath, target: &MemberPath) -> Result<(), Cause> {
        let inode = self.names.get(target).copied();
        let inode =
            inode.ok_or_else(|| broken("is a link to what the archive did not hold yet"))?;
        if matches!(self.inodes[inode].kind, MemberKind::Directory) {
            return Err(broken("is a link to a directory"));
        }
        if path.is_root() {
            return Err(broken("has a root that is no directory"));
        }
        self.names.insert(path, inode);
        Ok(())
    }

    /// Gives each inode to the first of its names.
    fn into_members(self) -> Vec<(MemberPath, Member)> {
        let mut places: Vec<_> = self.inodes.into_iter().map(Place::Free).collect();
        let mut members = Vec::with_capacity(self.names.len());
        for (path, inode) in self.names {
            let place = std::mem::replace(&mut places[inode], Place::Given(path.clone()));
            let member = match place {
                Place::Free(member) => member,
                Place::Given(first) => {
                    places[inode] = Place::Given(first.clone());
                    Member::link(first)
                }
            };
            members.push((path, member));
        }
        members
    }
}

/// Whether an inode has a name already.
enum Place {
    Free(Member),
    Given(MemberPath),
}

fn unknown(kind: EntryType) -> std::io::Error {
    let letter = char::from(kind.as_byte());
    std::io::Error::other(format!("a member of type {letter:?} is not known"))
}

fn device(header: &Header) -> Result<DeviceNumber, Cause> {
    Ok(DeviceNumber {
        major: header.device_major()?.unwrap_or_default(),
        minor: header.device_minor()?.unwrap_or_default(),
    })
}
