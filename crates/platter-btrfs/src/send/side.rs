//! A read-only subvolume that a stream is made of: its inodes, names, attributes and extents.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSliceMut;

use platter_vfs::path::PATH_MAX;
use platter_vfs::{Condition, FileKind, Name, Result};

use crate::context::{FsContext, Subvolume};
use crate::data::{DataReader, DecompressedCache, Reader};
use crate::file::{Contents, Runs};
use crate::ondisk::Key;
use crate::ondisk::dir_item::Xattr;
use crate::ondisk::inode_item::{InodeFlags, InodeItem};
use crate::ondisk::inode_ref::InodeRef;
use crate::ondisk::key::ItemKind;
use crate::ondisk::send_stream::Source;
use crate::tree::Tree;
use crate::{directory, inode};

/// A name: the directory that has it, and the name in that.
pub(super) type Link = (u64, Vec<u8>);

/// The longest target of a symbolic link.
const TARGET_BYTES_MAX: u64 = 4095;

/// What data is read with.
#[derive(Debug, Clone, Copy)]
pub struct DataSource<'c> {
    /// Reads and verifies data.
    pub reader: &'c DataReader,
    /// The extents that were decompressed last.
    pub decompressed: &'c DecompressedCache,
}

/// A subvolume that does not change.
#[derive(Debug, Clone, Copy)]
pub(super) struct Side<'c> {
    pub(super) context: &'c FsContext,
    pub(super) subvolume: Subvolume,
    pub(super) data: DataSource<'c>,
}

impl<'c> Side<'c> {
    pub(super) fn tree(&self) -> Tree {
        self.subvolume.tree()
    }

    pub(super) fn root_dir(&self) -> u64 {
        self.subvolume.root_dir()
    }

    /// How a stream names it: as what it was received from, if it was.
    pub(super) fn source(&self) -> Source {
        let history = &self.subvolume.item.history;
        let uuid = if history.received_uuid.is_nil() {
            history.uuid
        } else {
            history.received_uuid
        };
        Source {
            uuid,
            generation: history.change_transaction,
        }
    }

    /// An inode with names; `None` if there is none.
    pub(super) fn inode(&self, number: u64) -> Result<Option<InodeItem>> {
        let item = inode::find(self.context, self.tree(), number)?;
        Ok(item.filter(|item| item.links > 0))
    }

    /// All names of an inode.
    pub(super) fn links(&self, number: u64) -> Result<BTreeSet<Link>> {
        let mut links = BTreeSet::new();
        if number == self.root_dir() {
            return Ok(links);
        }
        let tree = self.tree();
        let mut cursor = self.context.cursor_of_unchanged(tree);
        cursor.seek(Key::new(number, ItemKind::INODE_REF, 0))?;
        while let Some((key, data)) = cursor.item() {
            let locus = tree.locus(key);
            let refs = match key.kind {
                ItemKind::INODE_REF if key.object == number => {
                    InodeRef::decode_all(data, key.offset, locus)?
                }
                ItemKind::INODE_EXTREF if key.object == number => {
                    InodeRef::decode_all_extended(data, locus)?
                }
                ItemKind(_) => break,
            };
            links.extend(refs.iter().map(|it| (it.parent, it.name.to_vec())));
            cursor.step()?;
        }
        Ok(links)
    }

    /// The first name of an inode.
    pub(super) fn link(&self, number: u64) -> Result<Link> {
        inode::first_name(self.context, self.tree(), number)
    }

    /// All attributes of an inode.
    pub(super) fn xattrs(&self, number: u64) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let mut all = BTreeMap::new();
        let tree = self.tree();
        let mut cursor = self.context.cursor_of_unchanged(tree);
        cursor.seek(Key::new(number, ItemKind::XATTR_ITEM, 0))?;
        while let Some((key, data)) = cursor.item() {
            if key.object != number || key.kind != ItemKind::XATTR_ITEM {
                break;
            }
            let found = Xattr::decode_all(key, data, tree.locus(key))?;
            all.extend(found.iter().map(|it| (it.name.to_vec(), it.value.to_vec())));
            cursor.step()?;
        }
        Ok(all)
    }

    /// Whether the root directory has an entry of this name.
    pub(super) fn root_has(&self, name: &[u8]) -> Result<bool> {
        let name = Name::new(name)?;
        let found = directory::lookup(self.context, self.tree(), self.root_dir(), name)?;
        Ok(found.is_some())
    }

    /// The path of a directory, as names from the root down. `known` has those that are elsewhere, with their
    /// names in the root directory.
    pub(super) fn dir_path(&self, number: u64, known: &BTreeMap<u64, Vec<u8>>) -> Result<Vec<u8>> {
        let mut names = Vec::new();
        let mut len_bytes = 0;
        let mut at = number;
        while at != self.root_dir() {
            let (next, name) = match known.get(&at) {
                Some(name) => (self.root_dir(), name.clone()),
                None => self.link(at)?,
            };
            len_bytes += name.len() + 1;
            if len_bytes > PATH_MAX {
                return Err(Condition::NameTooLong.into());
            }
            names.push(name);
            at = next;
        }
        names.reverse();
        Ok(names.join(&b'/'))
    }

    /// The depth of a directory below the root.
    pub(super) fn depth(&self, number: u64) -> Result<usize> {
        let names = inode::names_between(
            self.context,
            self.tree(),
            (self.root_dir(), number),
            PATH_MAX,
        )?;
        Ok(names.len())
    }

    /// The target of a symbolic link.
    pub(super) fn target(&self, number: u64, item: &InodeItem) -> Result<Vec<u8>> {
        let len = item.size_bytes.min(TARGET_BYTES_MAX);
        let mut target = vec![0; usize::try_from(len).unwrap_or_default()];
        let contents = self.contents(number, item);
        contents.fill(0, &mut [IoSliceMut::new(&mut target)])?;
        Ok(target)
    }

    /// The contents of a file.
    pub(super) fn contents(&self, number: u64, item: &InodeItem) -> Contents<'c> {
        Contents {
            context: self.context,
            data: self.data.reader,
            decompressed: self.data.decompressed,
            tree: self.tree(),
            reader: Reader {
                tree: self.subvolume.id,
                inode: number,
                is_summed: !item.flags.contains(InodeFlags::NODATASUM),
            },
            size_bytes: item.size_bytes,
        }
    }

    /// What backs a file. Nothing is locked meanwhile: a reader of the stream may keep it waiting.
    pub(super) fn runs(&self, number: u64) -> Runs<'c> {
        Runs::of_unchanged(self.context, self.tree(), number)
    }
}

/// A path of a name in a directory.
pub(super) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() {
        name.to_vec()
    } else {
        [dir, name].join(&b'/')
    }
}

/// Whether two inodes of one number are the same: an inode that the older subvolume has was not replaced.
pub(super) fn is_same(
    (old, old_item): (&Side<'_>, &InodeItem),
    (new, new_item): (&Side<'_>, &InodeItem),
    number: u64,
) -> Result<bool> {
    let is_like = old_item.generation == new_item.generation
        && old_item.kind == new_item.kind
        && old_item.device == new_item.device;
    if !is_like || new_item.kind != FileKind::Symlink {
        return Ok(is_like);
    }
    Ok(old.target(number, old_item)? == new.target(number, new_item)?)
}
