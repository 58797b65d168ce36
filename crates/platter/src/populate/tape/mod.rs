//! What a tar archive holds: ustar, GNU and PAX headers, sparse files of GNU tar in all its forms,
//! attributes as `SCHILY.xattr.*` and ACLs as `SCHILY.acl.*`.

mod records;
mod walk;
mod sparse;

use std::fs::File;
use std::sync::Arc;

use platter_vfs::Timestamp;
use platter_vfs::attr::DeviceNumber;
use tar::{EntryType, Header};

use super::contents::Contents;
use super::layers::{Stack, is_whiteout};
use super::{Member, MemberKind, MemberPath, broken};
use crate::{Cause, Result};
use walk::{Entry, Walk, header_number};

/// What members with the name of a whiteout are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whiteouts {
    /// Ordinary files.
    PlainFiles,
    /// They hide files of lower layers.
    Honoured,
}

/// Adds the members of an archive, which is not compressed, to the layers before.
pub(super) fn add(
    stack: &mut Stack,
    name: &Arc<str>,
    file: File,
    whiteouts: Whiteouts,
) -> Result<()> {
    let honoured = whiteouts == Whiteouts::Honoured;
    if honoured {
        // They hide nothing of their own layer, in whatever order its members are.
        each(name, &file, &mut |entry| {
            stack.white_out(&MemberPath::parse(&entry.path)?)
        })?;
    }
    let mut tape = Tape {
        archive: Arc::new(file),
        stack,
        honoured,
    };
    let archive = Arc::clone(&tape.archive);
    each(name, &archive, &mut |entry| tape.add(entry))
}

fn each(
    name: &Arc<str>,
    file: &File,
    action: &mut dyn FnMut(Entry) -> Result<(), Cause>,
) -> Result<()> {
    let mut walk = Walk::new(file).map_err(|error| crate::Error::new(name, error))?;
    loop {
        let next = walk
            .next()
            .map_err(|cause| crate::Error::new(name, cause))?;
        let Some(entry) = next else {
            return Ok(());
        };
        let path = entry.path.clone();
        action(entry).map_err(|cause| crate::Error::at_path(name, &path, cause))?;
    }
}

/// An archive whose members are added.
struct Tape<'s> {
    archive: Arc<File>,
    stack: &'s mut Stack,
    honoured: bool,
}

impl Tape<'_> {
    fn add(&mut self, mut entry: Entry) -> Result<(), Cause> {
        let path = match &entry.records.sparse.name {
            Some(name) => MemberPath::parse(name)?,
            None => MemberPath::parse(&entry.path)?,
        };
        if self.honoured && is_whiteout(&path) {
            return Ok(());
        }
        if entry.header.entry_type() == EntryType::Link {
            let target = MemberPath::parse(&entry.target)?;
            return self.stack.link(path, &target);
        }
        let Some(kind) = self.kind(&mut entry)? else {
            return Ok(());
        };
        let header = &entry.header;
        let id = |field| -> Result<u32, Cause> {
            let id = u32::try_from(header_number::<u64>(field)?);
            id.map_err(|_| broken("the owner in a header is out of range"))
        };
        let member = Member {
            uid: match entry.records.uid {
                Some(uid) => uid,
                None => id(header.uid())?,
            },
            gid: match entry.records.gid {
                Some(gid) => gid,
                None => id(header.gid())?,
            },
            permissions: header_number(header.mode())? & 0o7777,
            modified: match entry.records.modified {
                Some(modified) => modified,
                None => Timestamp {
                    seconds: header_number(header.mtime())?.cast_signed(),
                    nanoseconds: 0,
                },
            },
            xattrs: entry.records.take_xattrs(),
            kind,
        };
        self.stack.insert(path, member)
    }

    /// Returns the kind of the member to be made; `None` if the entry only describes the archive.
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
            _ => return Err(unknown(kind)),
        }))
    }
}

fn unknown(kind: EntryType) -> Cause {
    let letter = char::from(kind.as_byte());
    broken(format!("a member of type {letter:?} is not known"))
}

fn device(header: &Header) -> Result<DeviceNumber, Cause> {
    Ok(DeviceNumber {
        major: header_number(header.device_major())?.unwrap_or_default(),
        minor: header_number(header.device_minor())?.unwrap_or_default(),
    })
}
