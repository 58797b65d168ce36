//! The extent tree: which extents it lists, with which references.

use platter_ondisk::Locus;
use platter_vfs::check::Checking as _;

use super::extents::{Extent, ExtentState};
use super::{BlockGroupUseRule, Checker, ExtentUseRule, Flow, SuperblockUseRule, backrefs, claims};
use crate::ondisk::block_group::BlockGroupItem;
use crate::ondisk::chunk_item::BlockGroupFlags;
use crate::ondisk::extent_item::{ExtentFlags, ExtentItem, ExtentKind, ExtentRef};
use crate::ondisk::key::ItemKind;
use crate::ondisk::{Key, TreeId};

/// The extent whose references are being read.
#[derive(Debug)]
pub(super) struct Listed {
    start: u64,
    refs: u64,
    counted: u64,
    locus: Locus,
    /// Its item breaks a rule, so that its references are not compared.
    is_odd: bool,
}

/// Records an item of the extent tree or the block group tree.
pub(super) fn note_item(checker: &mut Checker<'_>, key: Key, data: &[u8], locus: Locus) -> Flow {
    match key.kind {
        ItemKind::BLOCK_GROUP_ITEM => {
            if let Ok(group) = BlockGroupItem::decode(key, data, locus) {
                checker.devices.groups.push(group);
            }
            Ok(())
        }
        ItemKind::EXTENT_ITEM | ItemKind::METADATA_ITEM => {
            let Ok(item) = ExtentItem::decode(key, data, locus) else {
                return Ok(());
            };
            list_extent(checker, key, &item, locus)
        }
        ItemKind::TREE_BLOCK_REF
        | ItemKind::SHARED_BLOCK_REF
        | ItemKind::EXTENT_DATA_REF
        | ItemKind::SHARED_DATA_REF => {
            let Ok(reference) = ExtentRef::decode_keyed(key, data, locus) else {
                return Ok(());
            };
            list_reference(checker, key, reference, locus)
        }
        ItemKind(_) => Ok(()),
    }
}

fn list_extent(checker: &mut Checker<'_>, key: Key, item: &ExtentItem, locus: Locus) -> Flow {
    finish_listed(checker)?;
    let node_bytes = u64::from(checker.context.superblock.node_bytes);
    let (len_bytes, level, kind) = match item.kind {
        ExtentKind::Data => (key.offset, 0, ExtentState::DATA),
        ExtentKind::TreeBlock { level, .. } => {
            if key.kind == ItemKind::EXTENT_ITEM && key.offset != node_bytes {
                checker.found(locus, ExtentUseRule::Length)?;
            }
            (node_bytes, level, ExtentState::empty())
        }
    };
    let newest = checker.context.superblock.generation.0.saturating_add(1);
    // 0 is valid, as in `check_extent_item` of Linux.
    if item.generation.0 > newest {
        checker.found(locus, ExtentUseRule::Generation)?;
    }
    let before = checker.extents.last();
    let overlaps = before.is_some_and(|last| last.end() > key.object);
    let is_same = before.is_some_and(|last| last.start == key.object);
    if overlaps {
        checker.found(locus, ExtentUseRule::Overlap)?;
    }
    let is_aligned = key
        .object
        .is_multiple_of(checker.format.sector_bytes.into())
        && len_bytes.is_multiple_of(checker.format.sector_bytes.into());
    let is_long = key.object.checked_add(len_bytes).is_none();
    let is_bad = len_bytes == 0 || !is_aligned || is_long;
    if is_bad || is_same {
        checker.listed = Some(Listed {
            start: key.object,
            refs: item.refs,
            counted: 0,
            locus,
            is_odd: true,
        });
        if is_bad {
            checker.found(locus, ExtentUseRule::Length)?;
        }
        return Ok(());
    }
    let mut state = kind;
    state.set(
        ExtentState::FULL_BACKREF,
        item.flags.contains(ExtentFlags::FULL_BACKREF),
    );
    state.set(ExtentState::SHARED, item.refs > 1);
    checker.extents.push(key.object, len_bytes, state, level);
    let mut counted = 0u64;
    for reference in &item.inline {
        counted = counted.saturating_add(reference.count());
        checker.extents.store(*reference);
    }
    checker.listed = Some(Listed {
        start: key.object,
        refs: item.refs,
        counted,
        locus,
        is_odd: false,
    });
    Ok(())
}

/// A reference in an item of its own, which follows that of the extent.
fn list_reference(checker: &mut Checker<'_>, key: Key, reference: ExtentRef, locus: Locus) -> Flow {
    let listed = checker.listed.as_mut();
    let Some(listed) = listed.filter(|listed| listed.start == key.object) else {
        return checker.found(locus, ExtentUseRule::NoItem);
    };
    if listed.is_odd {
        return Ok(());
    }
    listed.counted = listed.counted.saturating_add(reference.count());
    checker.extents.store(reference);
    Ok(())
}

/// All references of an extent were read.
fn finish_listed(checker: &mut Checker<'_>) -> Flow {
    match checker.listed.take() {
        Some(listed) if !listed.is_odd && listed.counted != listed.refs => {
            checker.found(listed.locus, ExtentUseRule::GlobalCount)
        }
        Some(_) | None => Ok(()),
    }
}

/// The extent tree was read: records what was referred to before it was known.
pub(super) fn complete(checker: &mut Checker<'_>) -> Flow {
    finish_listed(checker)?;
    for claim in checker.extents.complete() {
        claims::add(checker, claim)?;
    }
    Ok(())
}

/// Checks that all references were found, and that extents are where their kind may be.
pub(super) fn check(checker: &mut Checker<'_>) -> Flow {
    let mut unbalanced = Vec::new();
    let mut found = Vec::new();
    for extent in checker.extents.iter() {
        let locus = Locus::tree(TreeId::EXTENT.0).at_block(extent.start);
        if !extent.is_balanced() {
            unbalanced.push(extent.start);
        }
        if let Some(rule) = broken_flag(extent) {
            found.push((locus, rule));
        }
        let group = checker.devices.group_of(extent.start);
        let Some(group) = group else {
            found.push((locus, ExtentUseRule::OutsideGroup));
            continue;
        };
        if extent.end() > group.start.0.saturating_add(group.len_bytes) {
            found.push((locus, ExtentUseRule::OutsideGroup));
        }
        let fitting = if extent.is_data() {
            BlockGroupFlags::DATA
        } else {
            BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM
        };
        if !group.flags.intersects(fitting) {
            found.push((locus, ExtentUseRule::GroupType));
        }
    }
    for (locus, rule) in found {
        checker.found(locus, rule)?;
    }
    // Where blocks could not be read, that references are not found says nothing.
    if !unbalanced.is_empty() && !checker.is_blind {
        backrefs::report(checker, &unbalanced)?;
    }
    check_used(checker)
}

/// The sum of the extents in each block group, and of all.
fn check_used(checker: &mut Checker<'_>) -> Flow {
    let mut wrong = Vec::new();
    for group in &checker.devices.groups {
        let range = group.start.0..group.start.0.saturating_add(group.len_bytes);
        let used = sum(checker.extents.within(&range));
        if used != group.used_bytes {
            wrong.push(Locus::group(range.start).at_block(range.start));
        }
    }
    let total = sum(checker.extents.within(&(0..u64::MAX)));
    if checker.is_blind {
        return Ok(());
    }
    for locus in wrong {
        checker.found(locus, BlockGroupUseRule::Used)?;
    }
    if total != checker.context.superblock.bytes_used {
        checker.found(Locus::UNKNOWN, SuperblockUseRule::BytesUsed)?;
    }
    Ok(())
}

/// The rule that the flag of full backrefs breaks, if it says the wrong of a block that was visited. Blocks of
/// relocation trees have it all.
fn broken_flag(extent: &Extent) -> Option<ExtentUseRule> {
    let state = extent.state;
    let is_full = state.contains(ExtentState::FULL_BACKREF);
    if state.contains(ExtentState::OF_FILES) && !state.contains(ExtentState::RELOCATED) {
        let is_wrong = extent.is_balanced() && is_full == state.contains(ExtentState::OWNER_FOUND);
        let rule = if is_full {
            ExtentUseRule::FullBackref
        } else {
            ExtentUseRule::Owner
        };
        return is_wrong.then_some(rule);
    }
    // No snapshot is made of the other trees.
    let is_alone = state.contains(ExtentState::VISITED)
        && !state.intersects(ExtentState::RELOCATED | ExtentState::DATA);
    (is_full && is_alone).then_some(ExtentUseRule::FullBackref)
}

/// How long extents are together.
fn sum(extents: &[Extent]) -> u64 {
    let lengths = extents.iter().map(|extent| extent.len_bytes);
    lengths.fold(0, u64::saturating_add)
}
