//! Simple quotas: an extent counts for the subvolume that allocated it, from its allocation until it is freed.

use std::collections::BTreeMap;

use platter_block::lock::Mutex;
use platter_vfs::Result;

use super::WriteContext;
use super::extents::Extent;
use crate::delayed_refs::ExtentKind;
use crate::ondisk::extent_item::{ExtentItem, ExtentRef};
use crate::ondisk::tree_block::Expected;
use crate::ondisk::{Generation, LogicalAddr, TreeId};

/// What simple quotas count.
#[derive(Debug)]
pub(super) struct SimpleQuotas {
    /// The transaction that enabled them: older extents do not count.
    since: Generation,
    /// What the running transaction counted.
    counts: Mutex<Counts>,
}

/// What the running transaction allocated and freed.
#[derive(Debug, Default)]
struct Counts {
    /// The subvolumes of tree blocks that it allocated, and of data that has no item yet.
    owners: BTreeMap<LogicalAddr, TreeId>,
    /// Bytes that got items, and bytes that lost them, by subvolume.
    changes: BTreeMap<TreeId, (u64, u64)>,
}

impl SimpleQuotas {
    pub(super) fn since(since: Generation) -> Self {
        Self {
            since,
            counts: Mutex::default(),
        }
    }

    /// Says which tree allocates an extent.
    pub(super) fn set_owner(&self, address: LogicalAddr, tree: Option<TreeId>) {
        let mut counts = self.counts.lock();
        match tree.filter(|tree| tree.is_subvolume()) {
            Some(tree) => counts.owners.insert(address, tree),
            None => counts.owners.remove(&address),
        };
    }

    /// Counts an extent that gets its item. Returns the subvolume that owns it.
    pub(super) fn allocated(&self, extent: &Extent) -> Option<TreeId> {
        let mut counts = self.counts.lock();
        let owner = match extent.kind {
            ExtentKind::Data => counts.owners.remove(&extent.address),
            ExtentKind::TreeBlock { .. } => counts.owners.get(&extent.address).copied(),
        };
        let owner = owner?;
        let (allocated, _) = counts.changes.entry(owner).or_default();
        *allocated = allocated.saturating_add(extent.len_bytes);
        Some(owner)
    }

    /// Counts an extent that lost its item.
    pub(super) fn freed(
        &self,
        fs: &WriteContext,
        extent: &Extent,
        item: &ExtentItem,
        running: Generation,
    ) -> Result<()> {
        if item.generation < self.since {
            return Ok(());
        }
        let owner = match extent.kind {
            ExtentKind::Data => item.inline.iter().find_map(|reference| {
                let ExtentRef::Owner { tree } = reference else {
                    return None;
                };
                Some(*tree)
            }),
            // What was never written may be nowhere any more.
            ExtentKind::TreeBlock { .. } if item.generation == running => {
                self.counts.lock().owners.get(&extent.address).copied()
            }
            ExtentKind::TreeBlock { level, .. } => {
                let expected = Expected {
                    level: Some(level),
                    generation: Some(item.generation),
                    ..Expected::default()
                };
                let block = fs.blocks().read(extent.address, &expected)?;
                block.header().map(|header| header.owner)
            }
        };
        if let Some(owner) = owner.filter(|owner| owner.is_subvolume()) {
            let mut counts = self.counts.lock();
            let (_, freed) = counts.changes.entry(owner).or_default();
            *freed = freed.saturating_add(extent.len_bytes);
        }
        Ok(())
    }

    /// Takes what was counted: by subvolume, the bytes that were allocated, and those that were freed. All references of
    /// subvolumes were run.
    pub(super) fn take(&self) -> BTreeMap<TreeId, (u64, u64)> {
        std::mem::take(&mut *self.counts.lock()).changes
    }
}
