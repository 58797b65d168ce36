//! One line of a listing, before it is laid out.

use std::cmp::Ordering;

use platter::vfs::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME};
use platter::vfs::inode::OwnedDirEntry;
use platter::vfs::{Attr, FileKind, InodeId};
use platter::{File, LoadedEntry, Volume};

/// What is listed of a file.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) name: Vec<u8>,
    pub(super) id: InodeId,
    /// The inode number to show.
    pub(super) inode: u64,
    pub(super) kind: Option<FileKind>,
    pub(super) detail: Detail,
}

/// What only the inode knows.
#[derive(Debug)]
pub(super) enum Detail {
    /// It was not asked for.
    Unasked,
    /// It cannot be had.
    Lost,
    /// It is there.
    Known(Box<Known>),
}

#[derive(Debug)]
pub(super) struct Known {
    pub(super) attr: Attr,
    /// Of a symbolic link.
    pub(super) target: Option<Vec<u8>>,
    /// What `ls` prints after the mode.
    pub(super) mark: Mark,
}

/// Whether a file has more access rules than its mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    None,
    /// A security label only.
    Label,
    /// An access control list.
    Acl,
}

/// In which order names are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Name,
    Size,
    Time,
    Unsorted,
}

impl Record {
    /// An entry by its name alone.
    pub(super) fn of_entry(entry: &OwnedDirEntry, volume: &Volume) -> Self {
        Self {
            name: entry.name.to_vec(),
            id: entry.id,
            inode: volume.filesystem().shown_number(entry.id),
            kind: entry.kind,
            detail: Detail::Unasked,
        }
    }

    /// An entry with its inode; the error is of what could not be had besides.
    pub(super) fn of_loaded(entry: LoadedEntry, volume: &Volume) -> (Self, Option<platter::Error>) {
        let LoadedEntry {
            name,
            id,
            kind,
            file,
        } = entry;
        match file {
            Ok((file, attr)) => Self::of_file(name.to_vec(), &file, attr),
            Err(error) => {
                let record = Self {
                    name: name.to_vec(),
                    id,
                    inode: volume.filesystem().shown_number(id),
                    kind,
                    detail: Detail::Lost,
                };
                (record, Some(error))
            }
        }
    }

    /// A file under any name.
    pub(super) fn of_file(
        name: Vec<u8>,
        file: &File,
        attr: Attr,
    ) -> (Self, Option<platter::Error>) {
        let mut problem = None;
        let mut target = None;
        if attr.kind == FileKind::Symlink {
            match file.read_link() {
                Ok(read) => target = Some(read),
                Err(error) => problem = Some(error),
            }
        }
        let mark = mark(file).unwrap_or_else(|error| {
            problem = problem.take().or(Some(error));
            Mark::None
        });
        let record = Self {
            name,
            id: file.inode().id(),
            inode: attr.inode,
            kind: Some(attr.kind),
            detail: Detail::Known(Box::new(Known { attr, target, mark })),
        };
        (record, problem)
    }

    /// Whether its inode was asked for and could not be had.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self.detail, Detail::Lost)
    }

    pub(super) fn known(&self) -> Option<&Known> {
        match &self.detail {
            Detail::Known(known) => Some(known),
            Detail::Unasked | Detail::Lost => None,
        }
    }
}

impl Order {
    /// Sorts records; what is equal, or not known, by name.
    pub(super) fn sort(self, records: &mut [Record], reverse: bool) {
        let by = |left: &Record, right: &Record| {
            let (l, r) = (
                left.known().map(|k| &k.attr),
                right.known().map(|k| &k.attr),
            );
            let first = match self {
                Self::Size => r
                    .map(|attr| attr.size_bytes)
                    .cmp(&l.map(|attr| attr.size_bytes)),
                Self::Time => r
                    .map(|attr| attr.modified)
                    .cmp(&l.map(|attr| attr.modified)),
                Self::Name | Self::Unsorted => Ordering::Equal,
            };
            first.then_with(|| left.name.cmp(&right.name))
        };
        if self != Self::Unsorted {
            records.sort_by(by);
        }
        if reverse {
            records.reverse();
        }
    }
}

fn mark(file: &File) -> platter::Result<Mark> {
    let names = file.list_xattrs()?;
    let has = |name: &[u8]| names.iter().any(|known| known == name);
    Ok(if has(ACL_ACCESS_NAME) || has(ACL_DEFAULT_NAME) {
        Mark::Acl
    } else if has(b"security.selinux") {
        Mark::Label
    } else {
        Mark::None
    })
}
