//! Regular files that are made with all that belongs to them, several of one directory in one handle. What does not go
//! into their items lies side by side, and is written before anything names it.

use std::io::IoSlice;

use platter_vfs::acl::ACL_DEFAULT_NAME;
use platter_vfs::attr::DeviceNumber;
use platter_vfs::file::ZEROS;
use platter_vfs::namei::{NamedInode, may_create};
use platter_vfs::{Condition, Error, FileKind, Result, WholeFile};

use super::create::inherited_flags;
use super::state::{INODE_CREDITS, NAME_CREDITS, Purpose, SECTOR_BYTES, States, touch_contents};
use super::{BtrfsInode, delalloc, entries};
use crate::compress::looks_compressible;
use crate::inode;
use crate::ondisk::file_extent::{Compression, ExtentPlace, FileExtent, FileExtentKind};
use crate::ondisk::inode_item::{InodeFlags, InodeItem};
use crate::ondisk::key::ItemKind;
use crate::ondisk::{Key, LogicalAddr};
use crate::txn::{FileRange, Handle, data_extents, space};
use crate::xattr;

/// Tree blocks that each further file changes, in leaves that have others of them.
const FILE_CREDITS: u32 = 6;

/// How the contents of a file are stored.
enum Form<'a> {
    Nothing,
    /// In the item.
    Inline(Compression, Vec<u8>),
    /// In an extent of whole sectors: as they are, with zeros after them.
    Plain(&'a [u8]),
    /// In an extent of whole sectors.
    Compressed(Compression, Vec<u8>),
}

impl Form<'_> {
    /// The bytes of its extent.
    fn disk_bytes(&self) -> u64 {
        match self {
            Self::Nothing | Self::Inline(..) => 0,
            Self::Plain(bytes) => (bytes.len() as u64).next_multiple_of(SECTOR_BYTES),
            Self::Compressed(_, bytes) => bytes.len() as u64,
        }
    }

    /// What is written to its extent.
    fn bufs(&self) -> impl Iterator<Item = &[u8]> {
        let bytes: &[u8] = match self {
            Self::Nothing | Self::Inline(..) => &[],
            Self::Plain(bytes) => bytes,
            Self::Compressed(_, bytes) => bytes,
        };
        let missing = self.disk_bytes() - bytes.len() as u64;
        let missing = usize::try_from(missing).unwrap_or_default();
        let zeros = ZEROS.get(..missing).unwrap_or_default();
        [bytes, zeros].into_iter().filter(|buf| !buf.is_empty())
    }
}

/// A file that was made, and refers to data.
struct Placed {
    inode: u64,
    place: ExtentPlace,
}

/// Makes as many of the first files as there is no obstacle to. Returns how many.
pub(super) fn create_together(directory: &BtrfsInode, files: &[WholeFile<'_>]) -> Result<usize> {
    let writing = directory.fs.transactions()?;
    let _writer = directory.fs.writers.enter();
    let _order = directory.order.write();
    if !takes_whole_files(directory)? {
        return Ok(0);
    }
    let forms: Vec<_> = files
        .iter()
        .map(|file| form_of(directory, file.contents))
        .collect();
    let disk_bytes: u64 = forms.iter().map(Form::disk_bytes).sum();
    let sectors = disk_bytes / SECTOR_BYTES;
    let tree = directory.tree_id();
    space::reserve_delayed(writing, tree, sectors)?;
    let made = make_all(directory, files, &forms, disk_bytes);
    space::release_delayed(writing, tree, sectors);
    made
}

/// Whether new files need no more than an inode, a name and contents.
fn takes_whole_files(directory: &BtrfsInode) -> Result<bool> {
    NamedInode::space(directory)?;
    may_create(&NamedInode::link_state(directory))?;
    let flags = inherited_flags(directory.item().flags, FileKind::Regular);
    if !(flags | directory.fs.policy.flags(FileKind::Regular)).is_empty() {
        return Ok(false);
    }
    let (tree, number) = (directory.tree(), directory.id.number);
    match xattr::get(directory.context(), tree, number, ACL_DEFAULT_NAME) {
        Err(Error::Condition(Condition::NoAttribute)) => Ok(true),
        found => found.map(|_| false),
    }
}

/// How contents are stored, by the options of the mount alone.
fn form_of<'a>(directory: &BtrfsInode, contents: &'a [u8]) -> Form<'a> {
    let policy = &directory.fs.policy;
    let method = policy.compression.map(|method| (method, policy.is_forced));
    if contents.is_empty() {
        return Form::Nothing;
    }
    if let Some((compression, bytes)) = delalloc::inline_form(directory, contents, method) {
        return Form::Inline(compression, bytes);
    }
    let sector = usize::try_from(SECTOR_BYTES).unwrap_or_default();
    let len = contents.len().next_multiple_of(sector);
    if let Some((method, is_forced)) = method
        && len > sector
        && (is_forced || looks_compressible(contents))
    {
        let mut input = contents.to_vec();
        input.resize(len, 0);
        let compressor = &directory.fs.compressor;
        if let Some(mut bytes) = compressor.compress(method, &input, len - sector, sector) {
            bytes.resize(bytes.len().next_multiple_of(sector), 0);
            return Form::Compressed(method.compression, bytes);
        }
    }
    Form::Plain(contents)
}

fn make_all(
    directory: &BtrfsInode,
    files: &[WholeFile<'_>],
    forms: &[Form<'_>],
    disk_bytes: u64,
) -> Result<usize> {
    let count = u32::try_from(files.len()).unwrap_or(u32::MAX);
    let credits = NAME_CREDITS + 2 * INODE_CREDITS + count.saturating_mul(FILE_CREDITS);
    let handle = directory
        .fs
        .begin(credits, Purpose::Change(directory.tree_id()))?;
    let mut address = LogicalAddr(0);
    if disk_bytes > 0 {
        address = data_extents::allocate(&handle, disk_bytes)?;
        let written = write_forms(directory, address, forms);
        if let Err(error) = written {
            data_extents::release(handle.fs(), address, disk_bytes)?;
            return Err(error);
        }
    }
    for form in forms {
        if let Form::Compressed(compression, _) | Form::Inline(compression, _) = form {
            data_extents::use_compression(directory.fs.transactions()?, *compression);
        }
    }
    let mut states = States::lock(&[directory]);
    let (mut made, mut end) = (0, address.0);
    let mut placed = Vec::new();
    for (file, form) in files.iter().zip(forms) {
        // A file that cannot be made leaves those before it.
        let Ok(inode) = make_whole(directory, &handle, file, form, LogicalAddr(end)) else {
            break;
        };
        if form.disk_bytes() > 0 {
            let place = place(LogicalAddr(end), form);
            placed.push(Placed { inode, place });
        }
        end += form.disk_bytes();
        made += 1;
    }
    let rest = address.0 + disk_bytes - end;
    if rest > 0 {
        data_extents::release(handle.fs(), LogicalAddr(end), rest)?;
    }
    if made == 0 {
        states.end();
        return Ok(0);
    }
    handle.whole(|handle| {
        add_references(directory, handle, &placed)?;
        let sums = checksums_of(directory, forms.get(..made).unwrap_or_default())?;
        if !sums.is_empty() {
            data_extents::insert_checksums(handle, address, sums)?;
        }
        let names = files.iter().take(made).map(|file| file.name.len() as u64);
        let dir = states.item(directory);
        dir.size_bytes += 2 * names.sum::<u64>();
        touch_contents(dir, directory.fs.clock.now());
        states.store(handle)
    })?;
    states.end();
    Ok(made)
}

/// Writes what goes to extents, side by side.
fn write_forms(directory: &BtrfsInode, address: LogicalAddr, forms: &[Form<'_>]) -> Result<()> {
    let writing = directory.fs.transactions()?;
    let bufs: Vec<_> = forms
        .iter()
        .flat_map(Form::bufs)
        .map(IoSlice::new)
        .collect();
    directory.fs.writes.write(|| {
        if let Some(error) = writing.failure() {
            return Err(error);
        }
        data_extents::write(writing, address, &bufs)
    })
}

/// Checksums of what was written, in order.
fn checksums_of(directory: &BtrfsInode, forms: &[Form<'_>]) -> Result<Vec<u8>> {
    let writing = directory.fs.transactions()?;
    let sector = usize::try_from(SECTOR_BYTES).unwrap_or_default();
    let mut sums = Vec::new();
    let mut last = Vec::new();
    for buf in forms.iter().filter_map(|form| match form {
        Form::Nothing | Form::Inline(..) => None,
        Form::Plain(bytes) => Some(*bytes),
        Form::Compressed(_, bytes) => Some(bytes.as_slice()),
    }) {
        let (whole, part) = buf.split_at(buf.len() - buf.len() % sector);
        sums.extend(data_extents::checksums_of(writing, whole));
        if !part.is_empty() {
            last.clear();
            last.extend_from_slice(part);
            last.resize(sector, 0);
            sums.extend(data_extents::checksums_of(writing, &last));
        }
    }
    Ok(sums)
}

/// Makes one file with its name and its extent. The name comes first: only that can be refused.
fn make_whole(
    directory: &BtrfsInode,
    handle: &Handle<'_>,
    file: &WholeFile<'_>,
    form: &Form<'_>,
    address: LogicalAddr,
) -> Result<u64> {
    let (fs, now) = (&directory.fs, directory.fs.clock.now());
    let size_bytes = file.contents.len() as u64;
    let file_bytes = match form {
        Form::Nothing | Form::Inline(..) => size_bytes,
        Form::Plain(_) | Form::Compressed(..) => size_bytes.next_multiple_of(SECTOR_BYTES),
    };
    let item = InodeItem {
        generation: handle.generation(),
        transaction: handle.generation(),
        size_bytes,
        allocated_bytes: file_bytes,
        links: 1,
        uid: file.uid,
        gid: file.gid,
        kind: FileKind::Regular,
        permissions: file.permissions & 0o7777,
        device: DeviceNumber { major: 0, minor: 0 },
        flags: InodeFlags::empty(),
        sequence: 0,
        accessed: file.modified,
        changed: now,
        modified: file.modified,
        created: now,
    };
    let (compression, kind) = match form {
        Form::Nothing => (Compression::None, None),
        Form::Inline(compression, bytes) => (*compression, Some(FileExtentKind::Inline(bytes))),
        Form::Plain(_) => {
            let place = place(address, form);
            (Compression::None, Some(FileExtentKind::Regular(place)))
        }
        Form::Compressed(compression, _) => {
            let place = place(address, form);
            (*compression, Some(FileExtentKind::Regular(place)))
        }
    };
    handle.edit(directory.tree_id(), |editor| {
        let number = fs.free_objectids.take(directory.tree_id(), editor)?;
        entries::add(
            directory,
            handle,
            editor,
            file.name,
            (number, FileKind::Regular),
        )?;
        inode::change::insert(editor, number, &item)?;
        if let Some(kind) = kind {
            let extent = FileExtent {
                generation: handle.generation(),
                ram_bytes: file_bytes,
                compression,
                file_bytes,
                kind,
            };
            let key = Key::new(number, ItemKind::EXTENT_DATA, 0);
            editor.insert(key, &extent.encode())?;
        }
        Ok(number)
    })
}

/// Adds the references of files to their data.
fn add_references(directory: &BtrfsInode, handle: &Handle<'_>, placed: &[Placed]) -> Result<()> {
    placed.iter().try_for_each(|placed| {
        let range = FileRange {
            tree: directory.tree_id(),
            inode: placed.inode,
            offset: 0,
        };
        data_extents::add(handle, range, &placed.place)
    })
}

fn place(address: LogicalAddr, form: &Form<'_>) -> ExtentPlace {
    ExtentPlace {
        logical: address,
        disk_bytes: form.disk_bytes(),
        offset: 0,
    }
}
