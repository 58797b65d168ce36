//! Simple quotas: an extent is charged to the subvolume that allocated it once, however many refer to it.

use std::collections::BTreeMap;

use platter_ondisk::Locus;
use platter_vfs::Result;
use platter_vfs::check::Checking as _;

use super::{COMPARISONS_MAX, subvolumes_of, uncounted};
use crate::check::{Checker, Flow, QgroupUseRule};
use crate::ondisk::extent_item::{ExtentItem, ExtentKind, ExtentRef};
use crate::ondisk::key::ItemKind;
use crate::ondisk::tree_block::Expected;
use crate::ondisk::{Generation, Key, LogicalAddr, TreeId};
use crate::qgroup::Stored;
use crate::tree::Cursor;

/// Compares the usage of simple quotas with what was charged since they were enabled, in that transaction
/// itself or not. Less is no error: older kernels did not charge the transaction that enabled them, and take
/// its extents off when they are freed.
pub(super) fn check(
    checker: &mut Checker<'_>,
    stored: &Stored,
    enabled: Option<Generation>,
) -> Flow {
    let enabled = enabled.unwrap_or(Generation(0));
    // What cannot be read was reported.
    let Ok([most, least]) = charges(checker, enabled) else {
        uncounted(checker, stored.infos.len());
        return Ok(());
    };
    let mut left = COMPARISONS_MAX;
    for (done, (id, info)) in stored.infos.iter().enumerate() {
        let Some(members) = subvolumes_of(*id, &stored.members, &mut left) else {
            uncounted(checker, stored.infos.len() - done);
            return Ok(());
        };
        let sum = |charges: &BTreeMap<TreeId, u64>| {
            let charged = members.iter().filter_map(|member| charges.get(member));
            charged.fold(0u64, |sum, bytes| sum.saturating_add(*bytes))
        };
        let (referenced, exclusive) = (info.referenced.0, info.exclusive.0);
        let key = Key::new(0, ItemKind::QGROUP_INFO, *id);
        let locus = Locus::tree(TreeId::QUOTA.0).at_key(key.into());
        if referenced > sum(&most) || referenced != exclusive {
            checker.found(locus, QgroupUseRule::Counts)?;
        } else if referenced < sum(&least) {
            checker.noticed(locus, QgroupUseRule::Counts)?;
        }
    }
    Ok(())
}

/// The bytes of extents that each subvolume allocated in this transaction and later ones, and in later ones
/// only.
fn charges(checker: &Checker<'_>, since: Generation) -> Result<[BTreeMap<TreeId, u64>; 2]> {
    let mut charges = <[BTreeMap<TreeId, u64>; 2]>::default();
    let Some(tree) = checker.context.tree(TreeId::EXTENT)? else {
        return Ok(charges);
    };
    let mut cursor = Cursor::new(&checker.context.blocks, tree);
    cursor.seek(Key::MIN)?;
    while let Some((key, data)) = cursor.item() {
        if matches!(key.kind, ItemKind::EXTENT_ITEM | ItemKind::METADATA_ITEM) {
            let item = ExtentItem::decode(key, data, tree.locus(key))?;
            let is_charged = [item.generation >= since, item.generation > since];
            let charge = if is_charged[0] {
                charge(checker, key, &item)?
            } else {
                None
            };
            if let Some((owner, bytes)) = charge.filter(|(owner, _)| owner.is_subvolume()) {
                let counted = charges.iter_mut().zip(is_charged);
                for (charges, _) in counted.filter(|(_, is_charged)| *is_charged) {
                    let sum = charges.entry(owner).or_default();
                    *sum = sum.saturating_add(bytes);
                }
            }
        }
        cursor.step()?;
    }
    Ok(charges)
}

/// Which tree an extent is charged to, and its length; `None` for data from before simple quotas, and for
/// blocks of other trees.
fn charge(checker: &Checker<'_>, key: Key, item: &ExtentItem) -> Result<Option<(TreeId, u64)>> {
    let ExtentKind::TreeBlock { level, .. } = item.kind else {
        let owner = item.inline.iter().find_map(|reference| {
            let ExtentRef::Owner { tree } = reference else {
                return None;
            };
            Some(*tree)
        });
        return Ok(owner.map(|owner| (owner, key.offset)));
    };
    let is_of_others = item.inline.iter().any(
        |reference| matches!(reference, ExtentRef::TreeBlock { tree } if !tree.is_subvolume()),
    );
    if is_of_others {
        return Ok(None);
    }
    let expected = Expected {
        level: Some(level),
        generation: Some(item.generation),
        ..Expected::default()
    };
    let block = checker
        .context
        .blocks
        .read(LogicalAddr(key.object), &expected)?;
    let node_bytes = u64::from(checker.context.superblock.node_bytes);
    Ok(block.header().map(|header| (header.owner, node_bytes)))
}
