//! Paths of findings, from references of inodes and of subvolumes.

use std::collections::HashMap;

use platter_ondisk::Locus;
use platter_vfs::Result;

use crate::context::FsContext;
use crate::ondisk::inode_ref::InodeRef;
use crate::ondisk::key::ItemKind;
use crate::ondisk::types::FIRST_FREE_OBJECT;
use crate::ondisk::{Key, TreeId};
use crate::tree::Tree;

/// Maximum number of inodes whose paths are looked up; later findings have none.
const LOOKUPS_MAX: u32 = 1 << 16;
/// Maximum number of paths that are kept.
const KNOWN_MAX: usize = 4096;
/// Maximum number of components of a path.
const DEPTH_MAX: usize = 256;

/// The state of path lookup.
#[derive(Debug, Default)]
pub(super) struct Paths {
    lookups: u32,
    known: HashMap<(TreeId, u64), Option<Vec<u8>>>,
}

impl Paths {
    /// A path of an inode from the top-level subvolume; `None` where there is none.
    pub(super) fn path_of(
        &mut self,
        context: &FsContext,
        tree: TreeId,
        inode: u64,
    ) -> Option<Vec<u8>> {
        if !tree.is_subvolume() {
            return None;
        }
        if let Some(known) = self.known.get(&(tree, inode)) {
            return known.clone();
        }
        if self.lookups >= LOOKUPS_MAX {
            return None;
        }
        self.lookups += 1;
        let path = look_up(context, tree, inode).ok().flatten();
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert((tree, inode), path.clone());
        path
    }
}

fn look_up(context: &FsContext, tree: TreeId, inode: u64) -> Result<Option<Vec<u8>>> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut at = inode;
    let mut tree = tree;
    loop {
        let Some(subvolume) = context.subvolume(tree)? else {
            return Ok(None);
        };
        while at != FIRST_FREE_OBJECT {
            let found = name_of(context, subvolume.tree(), at)?;
            let Some((parent, name)) = found.filter(|_| names.len() < DEPTH_MAX) else {
                return Ok(None);
            };
            names.push(name);
            at = parent;
        }
        if tree == TreeId::FS {
            break;
        }
        let found = context.parent_name(tree)?;
        let Some(parent) = found.filter(|_| names.len() < DEPTH_MAX) else {
            return Ok(None);
        };
        names.push(parent.name);
        (tree, at) = (parent.parent, parent.dir);
    }
    let mut path = Vec::new();
    for name in names.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    if path.is_empty() {
        path.push(b'/');
    }
    Ok(Some(path))
}

/// The first name of an inode, and the directory that has it.
fn name_of(context: &FsContext, tree: Tree, inode: u64) -> Result<Option<(u64, Vec<u8>)>> {
    let mut cursor = context.cursor(tree);
    cursor.seek(Key::new(inode, ItemKind::INODE_REF, 0))?;
    let Some((key, data)) = cursor.item().filter(|(key, _)| key.object == inode) else {
        return Ok(None);
    };
    let refs = match key.kind {
        ItemKind::INODE_REF => InodeRef::decode_all(data, key.offset, Locus::UNKNOWN)?,
        ItemKind::INODE_EXTREF => InodeRef::decode_all_extended(data, Locus::UNKNOWN)?,
        ItemKind(_) => return Ok(None),
    };
    let first = refs.first();
    Ok(first.map(|name| (name.parent, name.name.to_vec())))
}
