//! The superblocks of all devices and their copies, and the log.

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;
use platter_vfs::check::{Checking as _, Finding, Severity};

use super::{Checker, Flow, SuperblockUseRule};
use crate::chunk::Member;
use crate::ondisk::key::ItemKind;
use crate::ondisk::root_item::RootItem;
use crate::ondisk::superblock::{
    DiskSuperblock, MAGIC, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, SuperblockFlags,
};
use crate::ondisk::{Key, Superblock, TreeId};
use crate::tree::{Cursor, Tree};

/// Compares the superblocks of all devices, and their copies.
pub(super) fn check(checker: &mut Checker<'_>) -> Flow {
    let context = checker.context;
    let total = context.blocks.store().members().iter().count() as u64;
    checker.report.progress("superblocks", 0, total)?;
    for member in context.blocks.store().members().iter() {
        checker.report.count("devices", 1);
        for (copy, at) in (0u16..).zip(SUPERBLOCK_OFFSETS) {
            check_superblock(checker, member, copy, at)?;
        }
    }
    Ok(())
}

fn check_superblock(checker: &mut Checker<'_>, member: &Member, copy: u16, at: u64) -> Flow {
    let Some(device) = &member.device else {
        return Ok(());
    };
    let end = at.saturating_add(SUPERBLOCK_BYTES as u64);
    if end > device.geometry().len_bytes {
        return Ok(());
    }
    let locus = Locus::UNKNOWN.on_member(member.id.0).of_copy(copy);
    let mut bytes = [0; SUPERBLOCK_BYTES];
    let read = device.read_at(at, &mut bytes);
    let Some(()) = checker.tolerate("superblock", locus, read.map_err(Into::into))? else {
        return Ok(());
    };
    let disk: DiskSuperblock = zerocopy::transmute!(bytes);
    // Devices that were small when they were added have no copy there.
    if copy > 0 && disk.magic != MAGIC {
        return checker.noticed(locus.at_offset(at), SuperblockUseRule::Copy);
    }
    let newest = &checker.context.superblock;
    match Superblock::decode(&disk, at) {
        Ok(found) => {
            if found.flags.refused().is_some() {
                let flags = locus.at_offset(at);
                let severity = if copy == 0 {
                    Severity::Error
                } else {
                    Severity::Notice
                };
                let corrupt = Corrupt::new(flags, SuperblockUseRule::Flags);
                let mut finding = Finding::error(corrupt.into());
                finding.severity = severity;
                checker.report_finding(finding)?;
            }
            // A seed stays as it was when it became one.
            if found.flags.contains(SuperblockFlags::SEEDING) && found.fsid != newest.fsid {
                return Ok(());
            }
            if found.generation == newest.generation {
                return Ok(());
            }
            let rule = if copy == 0 {
                SuperblockUseRule::Stale
            } else {
                SuperblockUseRule::Copy
            };
            checker.noticed(locus.at_offset(at), rule)
        }
        Err(mut corrupt) => {
            corrupt.locus = locus.at_offset(at);
            let mut finding = Finding::error(corrupt.into());
            if copy > 0 {
                finding.severity = Severity::Notice;
            }
            checker.report_finding(finding)
        }
    }
}

/// Reads the log trees, which a mount replays. What is wrong with them loses files that were synced
/// since the last commit, and leaves the filesystem as it was then.
pub(super) fn check_log(checker: &mut Checker<'_>) -> Flow {
    let Some(root) = checker.context.superblock.log_root else {
        return Ok(());
    };
    let log = Tree {
        id: TreeId::TREE_LOG,
        root,
    };
    checker.noticed(
        Locus::tree(log.id.0).at_block(root.logical.0),
        SuperblockUseRule::Log,
    )?;
    let logs = log_trees(checker, log);
    let trees = match logs {
        Ok(trees) => trees,
        Err(error) => return report_log(checker, error),
    };
    for tree in trees {
        if let Err(error) = read_log(checker, tree) {
            report_log(checker, error)?;
        }
    }
    Ok(())
}

/// Reports why the log cannot be replayed: a mount fails on it.
fn report_log(checker: &mut Checker<'_>, error: platter_vfs::Error) -> Flow {
    let locus = Locus::tree(TreeId::TREE_LOG.0);
    checker.report_finding(Finding::of_error("log tree", locus, error))
}

fn log_trees(checker: &Checker<'_>, log: Tree) -> Result<Vec<Tree>> {
    let mut trees = Vec::new();
    let mut cursor = Cursor::new(&checker.context.blocks, log);
    cursor.seek(Key::MIN)?;
    while let Some((key, data)) = cursor.item() {
        if key.kind == ItemKind::ROOT_ITEM {
            let item = RootItem::decode(data, checker.format.sector_bytes, log.locus(key))?;
            let (id, root) = (TreeId::TREE_LOG, item.root);
            trees.push(Tree { id, root });
        }
        cursor.step()?;
    }
    Ok(trees)
}

fn read_log(checker: &Checker<'_>, tree: Tree) -> Result<()> {
    let mut cursor = Cursor::new(&checker.context.blocks, tree);
    cursor.seek(Key::MIN)?;
    while let Some((key, data)) = cursor.item() {
        checker.format.check(key, data, tree.locus(key))?;
        cursor.step()?;
    }
    Ok(())
}
