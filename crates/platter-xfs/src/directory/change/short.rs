//! Entries in the inode.

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, FileKind, Result};

use super::{DataFork, DirectoryChange, KnownMappings, NewEntry};
use crate::fork::{ForkEdit, InodeEdit};
use crate::ondisk::chunks::Chunks;
use crate::ondisk::dir::DataPointer;
use crate::ondisk::dir::build::HashEntry;
use crate::ondisk::dir::data::{self, DataKind, entry_bytes};
use crate::ondisk::dir::short::{self, ShortDir, ShortEntry};
use crate::ondisk::inode::edit::{self, StoredFork};
use crate::ondisk::{ForkFormat, ForkKind, InodeNr, da, dir};

/// What a block has in addition to its entries: a leaf entry for each, also for `.` and `..`, and the tail.
const LEAF_ENTRY_BYTES: usize = 8;
const TAIL_BYTES: usize = 8;

/// An entry in the inode.
#[derive(Debug, Clone)]
struct Entry {
    offset: u16,
    name: Vec<u8>,
    inode: InodeNr,
    kind: Option<FileKind>,
}

impl Entry {
    fn view(&self) -> ShortEntry<'_> {
        ShortEntry {
            offset: self.offset,
            name: &self.name,
            inode: self.inode,
            kind: self.kind,
        }
    }
}

/// Stores contents in the inode.
pub(super) fn store(edit: &mut InodeEdit, bytes: &[u8]) -> Result<()> {
    let stored = StoredFork {
        kind: ForkKind::Data,
        format: ForkFormat::Local,
        extents: 0,
        bytes,
    };
    edit.set_fork(&stored, 0)?;
    edit.change(|inode| edit::set_size(inode, bytes.len() as u64))
}

fn read(dir: &mut DirectoryChange<'_, '_>) -> Result<(InodeNr, Vec<Entry>)> {
    let geometry = dir.geometry();
    dir.edit.refresh(geometry)?;
    let locus = Locus::inode(dir.owner().get());
    let bytes = dir.edit.inode().local_data().unwrap_or_default();
    let short = ShortDir::decode(bytes, geometry).map_err(|rule| Corrupt::new(locus, rule))?;
    let mut entries = Vec::new();
    for entry in short.entries(geometry) {
        let entry = entry.map_err(|rule| Corrupt::new(locus, rule))?;
        entries.push(Entry {
            offset: entry.offset,
            name: entry.name.to_vec(),
            inode: entry.inode,
            kind: entry.kind,
        });
    }
    Ok((short.parent, entries))
}

/// Stores entries in the inode; false if they do not fit.
fn write(dir: &mut DirectoryChange<'_, '_>, parent: InodeNr, entries: &[Entry]) -> Result<bool> {
    let views: Vec<_> = entries.iter().map(Entry::view).collect();
    let encoded = short::encode(parent, &views, dir.geometry());
    let area = dir.area_bytes()?;
    let Some(bytes) = encoded.filter(|bytes| bytes.len() <= area) else {
        return Ok(false);
    };
    store(&mut dir.edit, &bytes)?;
    Ok(true)
}

/// Adds a name that is not there.
pub(super) fn insert(dir: &mut DirectoryChange<'_, '_>, new: &NewEntry<'_>) -> Result<()> {
    let (parent, mut entries) = read(dir)?;
    if let Some((index, offset)) = vacant(dir, &entries, new.name.len()) {
        entries.insert(
            index,
            Entry {
                offset,
                name: new.name.to_vec(),
                inode: new.inode,
                kind: Some(new.kind),
            },
        );
        if write(dir, parent, &entries)? {
            return Ok(());
        }
    }
    leave(dir)?;
    dir.insert(new)
}

/// Where a name would be in a block: before which entry, and at which byte. `None` if a block would be
/// full.
fn vacant(
    dir: &DirectoryChange<'_, '_>,
    entries: &[Entry],
    name_len: usize,
) -> Option<(usize, u16)> {
    let geometry = dir.geometry();
    let has_ftype = geometry.features.has_ftype();
    let size = entry_bytes(name_len, has_ftype);
    let first = data::dotdot_offset(geometry) + entry_bytes(2, has_ftype);
    let mut at = first;
    let mut vacancy = None;
    for (index, entry) in entries.iter().enumerate() {
        let start = usize::from(entry.offset);
        if vacancy.is_none() && start.checked_sub(at)? >= size {
            vacancy = Some((index, at));
        }
        at = start + entry_bytes(entry.name.len(), has_ftype);
    }
    let (index, offset) = vacancy.unwrap_or((entries.len(), at));
    let end = at.max(offset + size);
    let leaves = (entries.len() + 3) * LEAF_ENTRY_BYTES + TAIL_BYTES;
    let fits = end + leaves <= geometry.dir_block_bytes() as usize;
    let offset = u16::try_from(offset).ok().filter(|_| fits)?;
    Some((index, offset))
}

/// False if the inode is too small for the new number.
pub(super) fn replace(dir: &mut DirectoryChange<'_, '_>, new: &NewEntry<'_>) -> Result<bool> {
    let (mut parent, mut entries) = read(dir)?;
    if new.name == b".." {
        parent = new.inode;
    } else {
        let mut found = entries.iter_mut();
        let found = found.find(|entry| entry.name == new.name);
        let found = found.ok_or(Condition::NotFound)?;
        (found.inode, found.kind) = (new.inode, Some(new.kind));
    }
    write(dir, parent, &entries)
}

/// Removes a name that is there.
pub(super) fn remove(dir: &mut DirectoryChange<'_, '_>, name: &[u8]) -> Result<()> {
    let (parent, mut entries) = read(dir)?;
    let before = entries.len();
    entries.retain(|entry| entry.name != name);
    if entries.len() == before {
        return Err(Condition::NotFound.into());
    }
    if write(dir, parent, &entries)? {
        return Ok(());
    }
    Err(dir.broken())
}

/// Moves the entries to a block of their own, each where its number in the listing says.
pub(super) fn leave(dir: &mut DirectoryChange<'_, '_>) -> Result<()> {
    let geometry = dir.geometry();
    let (parent, entries) = read(dir)?;
    let area = dir.area_bytes()?;
    let owner = dir.owner();
    store(&mut dir.edit, &[])?;
    dir.known = KnownMappings::default();
    dir.fork = DataFork::Open(ForkEdit::empty(ForkKind::Data, owner, area));
    let stored = StoredFork {
        kind: ForkKind::Data,
        format: ForkFormat::Extents,
        extents: 0,
        bytes: &[],
    };
    dir.edit.set_fork(&stored, 0)?;
    let mut bytes = dir.add_data(0, DataKind::Single)?;
    let directory = Some(FileKind::Directory);
    let dots = [
        (data::dot_offset(geometry), &b"."[..], owner),
        (data::dotdot_offset(geometry), &b".."[..], parent),
    ];
    let dots = dots.map(|(at, name, inode)| (at, name, inode, directory));
    let names = entries
        .iter()
        .map(|entry| (entry.offset.into(), &*entry.name, entry.inode, entry.kind));
    let mut leaves: Vec<HashEntry> = Vec::new();
    for (at, name, inode, kind) in dots.into_iter().chain(names) {
        let entry = (name, inode, kind);
        let mut within = Chunks::default();
        dir::build::put_entry_at(
            &mut bytes,
            &mut within,
            DataKind::Single,
            at,
            entry,
            geometry,
        )
        .ok_or_else(|| dir.broken())?;
        let pointer = DataPointer::new(geometry, 0, at).ok_or_else(|| dir.broken())?;
        leaves.push((da::hash(name), pointer.0));
    }
    leaves.sort_unstable();
    dir::build::set_leaves(&mut bytes, &leaves, geometry).ok_or_else(|| dir.broken())?;
    dir.write_data(0, DataKind::Single, bytes)
}

/// Moves the entries of the only block to the inode if they fit.
pub(super) fn try_become(dir: &mut DirectoryChange<'_, '_>, bytes: &[u8]) -> Result<bool> {
    let geometry = dir.geometry();
    let owner = dir.owner();
    let locus = Locus::inode(owner.get());
    let site = crate::ondisk::Site::verified(geometry, owner.get());
    let view = data::DirData::decode(bytes, DataKind::Single, &site)
        .map_err(|rule| Corrupt::new(locus, rule))?;
    let mut parent = None;
    let mut entries = Vec::new();
    for region in view.regions(geometry) {
        let region = region.map_err(|rule| Corrupt::new(locus, rule))?;
        let data::Region::Entry(entry) = region else {
            continue;
        };
        match entry.name {
            b"." => {}
            b".." => parent = Some(entry.inode),
            name => entries.push(Entry {
                offset: u16::try_from(entry.offset).map_err(|_| dir.broken())?,
                name: name.to_vec(),
                inode: entry.inode,
                kind: entry.kind,
            }),
        }
    }
    let parent = parent.ok_or_else(|| dir.broken())?;
    let views: Vec<_> = entries.iter().map(Entry::view).collect();
    let encoded = short::encode(parent, &views, geometry);
    let area = dir.area_bytes()?;
    if encoded.is_none_or(|encoded| encoded.len() > area) {
        return Ok(false);
    }
    dir.drop_block(dir::data_block(geometry, 0))?;
    if let DataFork::Open(fork) = std::mem::replace(&mut dir.fork, DataFork::Local) {
        fork.store(&mut dir.edit)?;
    }
    dir.known = KnownMappings::default();
    write(dir, parent, &entries)
}
