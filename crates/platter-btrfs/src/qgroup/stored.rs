//! What the quota tree says.

use std::collections::{BTreeMap, BTreeSet};

use platter_vfs::Result;

use super::uncounted::Uncounted;
use crate::context::FsContext;
use crate::ondisk::key::ItemKind;
use crate::ondisk::qgroup::{QgroupFlags, QgroupInfo, QgroupLimit, QgroupStatus};
use crate::ondisk::types::QGROUP_LEVEL_ONE;
use crate::ondisk::{Key, TreeId};
use crate::tree::{Cursor, Tree, TreeBlocks};

/// What is known of the usage of quota groups.
#[derive(Debug, Clone)]
pub enum QuotaState {
    /// There are no quota groups, or they are off.
    Off,
    /// Simple quotas are on.
    Simple,
    /// Usage is right.
    Consistent,
    /// Usage is not right.
    Inconsistent(Uncounted),
}

impl QuotaState {
    /// The state in the last transaction.
    ///
    /// # Errors
    /// Those of reading the quota tree.
    pub fn read(context: &FsContext) -> Result<Self> {
        let Some(tree) = context.tree(TreeId::QUOTA)? else {
            return Ok(Self::Off);
        };
        let key = Key::new(0, ItemKind::QGROUP_STATUS, 0);
        let status = context.find(tree, key, |data| {
            Ok(QgroupStatus::decode(data, tree.locus(key))?)
        })?;
        let Some(status) = status.filter(|status| status.flags.contains(QgroupFlags::ON)) else {
            return Ok(Self::Off);
        };
        if status.flags.contains(QgroupFlags::SIMPLE_MODE) {
            return Ok(Self::Simple);
        }
        let why = Uncounted::by_status(&status, context.superblock.generation);
        Ok(why.map_or(Self::Consistent, Self::Inconsistent))
    }
}

/// What the quota tree says.
#[derive(Debug, Default)]
pub struct Stored {
    /// The state, if there is one.
    pub status: Option<QgroupStatus>,
    /// Usage of each group.
    pub infos: BTreeMap<u64, QgroupInfo>,
    /// Limits of groups.
    pub limits: BTreeMap<u64, QgroupLimit>,
    /// Groups and their members.
    pub members: BTreeMap<u64, BTreeSet<u64>>,
    /// There are more items, which were not read.
    pub is_truncated: bool,
}

impl Stored {
    /// Reads up to `items_max` items of the quota tree.
    ///
    /// # Errors
    /// Those of reading it.
    pub fn read(blocks: &TreeBlocks, tree: Tree, items_max: usize) -> Result<Self> {
        let mut stored = Self::default();
        let mut left = items_max;
        let mut cursor = Cursor::new(blocks, tree);
        cursor.seek(Key::MIN)?;
        while let Some((key, data)) = cursor.item() {
            let Some(rest) = left.checked_sub(1) else {
                stored.is_truncated = true;
                break;
            };
            left = rest;
            let locus = tree.locus(key);
            match key.kind {
                ItemKind::QGROUP_STATUS => {
                    stored.status = Some(QgroupStatus::decode(data, locus)?);
                }
                ItemKind::QGROUP_INFO => {
                    let info = QgroupInfo::decode(data, locus)?;
                    stored.infos.insert(key.offset, info);
                }
                ItemKind::QGROUP_LIMIT => {
                    let limit = QgroupLimit::decode(data, locus)?;
                    stored.limits.insert(key.offset, limit);
                }
                // Each relation is stored in both directions. Like the kernel, reads that of the member.
                ItemKind::QGROUP_RELATION if key.object < key.offset => {
                    let members = stored.members.entry(key.offset).or_default();
                    members.insert(key.object);
                }
                ItemKind(_) => {}
            }
            cursor.step()?;
        }
        Ok(stored)
    }
}

/// The level of a quota group; those of subvolumes have 0.
#[must_use]
pub fn level_of(id: u64) -> u64 {
    id / QGROUP_LEVEL_ONE
}
