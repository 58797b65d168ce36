//! The walks of all trees. Those that others are found by are walked before all extents are known.

use platter_ondisk::Locus;
use platter_vfs::FileKind;
use platter_vfs::check::Checking as _;

use super::inodes::Edge;
use super::walked::Walked;
use super::{Checker, Flow, InodeUseRule, extent_tree, inodes, names, walk};
use crate::context::TreesRule;
use crate::ondisk::inode_item::InodeItem;
use crate::ondisk::key::ItemKind;
use crate::ondisk::types::FIRST_FREE_OBJECT;
use crate::ondisk::{Key, TreeId};
use crate::tree::Tree;

/// Walks a tree that is needed to find others, before all extents are known.
pub(super) fn walk_early(checker: &mut Checker<'_>, tree: Tree) -> Flow {
    walk::walk(checker, &Walked::new(tree)).map(drop)
}

/// Walks the extent tree, and records what was referred to before it was known.
pub(super) fn walk_extent_tree(checker: &mut Checker<'_>) -> Flow {
    let context = checker.context;
    let locus = Locus::tree(TreeId::EXTENT.0);
    match checker.tolerate("tree", locus, context.tree(TreeId::EXTENT))? {
        Some(Some(tree)) => walk_early(checker, tree)?,
        Some(None) => {
            checker.is_blind = true;
            checker.found(locus, TreesRule::MissingTree)?;
        }
        None => checker.is_blind = true,
    }
    extent_tree::complete(checker)
}

/// Walks the trees that roots were found of.
pub(super) fn walk_others(checker: &mut Checker<'_>) -> Flow {
    for walked in checker.roots.walks() {
        walk_other(checker, &walked)?;
    }
    Ok(())
}

fn walk_other(checker: &mut Checker<'_>, walked: &Walked) -> Flow {
    if walked.has_files() {
        return walk_files(checker, walked);
    }
    if walked.id() == TreeId::EXTENT {
        return Ok(());
    }
    let was_blind = checker.is_blind;
    walk::walk(checker, walked)?;
    if walked.id() == TreeId::CSUM {
        checker.csums.ranges.sort();
        checker.csums.is_torn |= checker.is_blind && !was_blind;
    }
    Ok(())
}

/// Walks the tree of a subvolume, and checks the inodes at its ends and the sum of its names.
fn walk_files(checker: &mut Checker<'_>, walked: &Walked) -> Flow {
    let span = walk::walk(checker, walked)?;
    if walked.is_dead {
        return Ok(());
    }
    inodes::finish_span(checker, walked, &span)?;
    let is_torn = span.edges.iter().any(|edge| matches!(edge, Edge::Torn));
    if span.sum != 0 && !is_torn && !checker.is_blind {
        names::find(checker, walked)?;
    }
    check_root_directory(checker, walked)
}

fn check_root_directory(checker: &mut Checker<'_>, walked: &Walked) -> Flow {
    let key = Key::new(FIRST_FREE_OBJECT, ItemKind::INODE_ITEM, 0);
    let locus = walked.tree.locus(key);
    let context = checker.context;
    let found = context.find(walked.tree, key, |data| Ok(InodeItem::decode(data, locus)?));
    let is_directory = match found {
        Ok(Some(item)) => item.kind == FileKind::Directory,
        Ok(None) => false,
        // That was reported with the walk.
        Err(_) => true,
    };
    let item = checker.roots.item(walked.id());
    let named = item.map_or(0, |item| item.root_dir);
    if is_directory && [0, FIRST_FREE_OBJECT].contains(&named) {
        return Ok(());
    }
    checker.found(locus, InodeUseRule::RootDirectory)
}
