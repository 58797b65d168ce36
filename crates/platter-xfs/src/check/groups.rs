//! Headers of allocation groups, free lists, and what lies at a fixed place. Spec:
//! `xfs/allocation_groups`.

use bitflags::bitflags;
use platter_ondisk::{Corrupt, Locus};
use zerocopy::FromBytes;

use super::{Checker, Flow, GroupUseRule, free_space, inode_trees};
use crate::ondisk::agfl::{Agfl, DiskAgflHeader};
use crate::ondisk::btree::{InodeChunk, RmapOwner};
use crate::ondisk::{AgBlock, AgNr, Agf};
use platter_vfs::check::Checking as _;

/// Sectors of headers at the start of a group.
const HEADER_SECTORS: u32 = 4;

bitflags! {
    /// What could be read of a group as a whole.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub(super) struct Known: u8 {
        /// The group's own metadata: all its blocks are claimed.
        const CLAIMS = 1;
        /// The B-tree of free extents by block.
        const FREE = 2;
        /// The reverse mapping B-tree.
        const OWNERS = 4;
        /// The reference count B-tree.
        const REFERENCES = 8;
    }
}

/// What is known of a group after its headers and B-trees were read.
#[derive(Debug, Default)]
pub(super) struct GroupState {
    /// What could be read as a whole.
    pub(super) known: Known,
    /// Inode chunks.
    pub(super) chunks: Vec<InodeChunk>,
    /// Sums for the superblock, unless a header is corrupt.
    pub(super) totals: Option<Totals>,
}

/// What the headers of a group add to the counters of the superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Totals {
    pub(super) free_blocks: u64,
    pub(super) inodes: u64,
    pub(super) free_inodes: u64,
}

/// Checks headers and B-trees of all groups, and claims their blocks.
pub(super) fn check(checker: &mut Checker<'_>) -> Flow {
    let count = u64::from(checker.context.geometry().ag_count());
    for ag in checker.context.geometry().groups() {
        checker
            .report
            .progress("allocation groups", ag.0.into(), count)?;
        let state = check_group(checker, ag)?;
        checker.groups.insert(ag.0, state);
    }
    checker.report.count("allocation groups", count);
    Ok(())
}

fn check_group(checker: &mut Checker<'_>, ag: AgNr) -> Flow<GroupState> {
    claim_fixed(checker, ag);
    let locus = Locus::group(ag.0.into());
    let mut state = GroupState::default();
    let agf = checker.context.agf(ag);
    let agf = checker.tolerate("AGF", locus, agf)?;
    let agi = checker.context.agi(ag);
    let agi = checker.tolerate("AGI", locus, agi)?;
    let mut free_list = None;
    if let Some(agf) = &agf {
        checker.note_lsn(agf.lsn.0, locus);
        free_list = check_free_list(checker, ag, agf)?;
        free_space::check(checker, agf, &mut state)?;
    }
    if let Some(agi) = &agi {
        checker.note_lsn(agi.lsn.0, locus);
        inode_trees::check(checker, agi, &mut state)?;
    }
    if let (Some(agf), Some(agi)) = (&agf, &agi) {
        let lazy = if checker.context.geometry().features.has_lazy_count() {
            agf.btree_blocks
        } else {
            0
        };
        let free = [agf.free_blocks, agf.free_list_count, lazy];
        state.totals = Some(Totals {
            free_blocks: free.into_iter().map(u64::from).sum(),
            inodes: agi.count.into(),
            free_inodes: agi.free_count.into(),
        });
    }
    if agi.is_none() {
        checker.lose_chunks();
    }
    if agf.is_none() || agi.is_none() || free_list.is_none() {
        state.known.remove(Known::CLAIMS);
    }
    Ok(state)
}

/// Claims headers and log.
fn claim_fixed(checker: &mut Checker<'_>, ag: AgNr) {
    let geometry = checker.context.geometry();
    let bytes = geometry.sector_bytes().saturating_mul(HEADER_SECTORS);
    let headers = bytes.div_ceil(geometry.block_bytes());
    checker
        .claims
        .add_special(ag, AgBlock(0), headers, RmapOwner::FS);
    let superblock = &checker.context.superblock;
    if let Some(start) = superblock.log_start {
        let (log_ag, start) = geometry.split(start);
        if log_ag == ag {
            let count = superblock.log_blocks;
            checker.claims.add_special(ag, start, count, RmapOwner::LOG);
        }
    }
}

/// Checks the free list and claims its blocks. `None` if not all are known.
fn check_free_list(checker: &mut Checker<'_>, ag: AgNr, agf: &Agf) -> Flow<Option<()>> {
    let locus = Locus::group(ag.0.into());
    let sector = checker.context.read_agfl(ag);
    let Some(sector) = checker.tolerate("AGFL", locus, sector)? else {
        return Ok(None);
    };
    let geometry = checker.context.geometry();
    let list = Agfl::decode_unsealed(&sector, geometry, ag);
    let list = list.map_err(|rule| Corrupt::new(locus, rule).into());
    let Some(list) = checker.tolerate("AGFL", locus, list)? else {
        return Ok(None);
    };
    if geometry.features.is_v5()
        && let Ok((header, _)) = DiskAgflHeader::ref_from_prefix(&sector)
    {
        checker.note_lsn(header.lsn.get(), locus);
    }
    let slots = crate::ondisk::agfl::slots(geometry);
    let (first, last) = (agf.free_list_first, agf.free_list_last);
    let active = (last + slots - first) % slots + 1;
    if agf.free_list_count != 0 && active != agf.free_list_count {
        checker.found(locus, GroupUseRule::FreeListCount)?;
    }
    let mut is_whole = true;
    for block in list.blocks(agf) {
        match block {
            Ok(block) => checker.claims.add_special(ag, block, 1, RmapOwner::AG),
            Err(rule) => {
                is_whole = false;
                checker.found(locus, rule)?;
            }
        }
    }
    Ok(is_whole.then_some(()))
}
