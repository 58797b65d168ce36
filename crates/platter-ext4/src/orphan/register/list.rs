//! The orphan list: it begins in the superblock, and each inode stores the next one in `i_dtime`.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};

use platter_block::lock::{Mutex, rank};
use platter_vfs::Result;

use super::super::sound;
use crate::FsContext;
use crate::inode;
use crate::ondisk::InodeNr;
use crate::superblock;
use crate::txn::Handle;

/// The list. The lock is held while its links change, in memory and in the transaction.
#[derive(Debug, Default)]
pub(super) struct OrphanList {
    /// The orphan list.
    links: Mutex<Links, { rank(8, 3) }>,
    /// Number of orphans, as of the last change: read without the lock to skip an empty list.
    len: AtomicUsize,
}

/// The order of the list: the last added one is its head.
#[derive(Debug, Default)]
struct Links {
    by_turn: BTreeMap<u64, InodeNr>,
    turns: HashMap<InodeNr, u64>,
    next_turn: u64,
}

impl OrphanList {
    pub(super) fn open(fs: &FsContext) -> Result<Self> {
        let mut links = Links {
            // The head was added last.
            next_turn: u64::from(u32::MAX),
            ..Links::default()
        };
        let mut turn = links.next_turn;
        let mut next = fs.superblock.last_orphan;
        while let Some(number) = next {
            if links.turns.contains_key(&number) || inode::is_reserved(fs, number) {
                break;
            }
            let Some(inode) = sound(inode::find(fs, number))?.flatten() else {
                break;
            };
            turn = turn.saturating_sub(1);
            links.by_turn.insert(turn, number);
            links.turns.insert(number, turn);
            next = InodeNr::new(inode.deleted);
        }
        let len = AtomicUsize::new(links.turns.len());
        Ok(Self {
            links: Mutex::new(links),
            len,
        })
    }

    pub(super) fn all(&self) -> Vec<InodeNr> {
        let links = self.links.lock();
        links.by_turn.values().rev().copied().collect()
    }

    pub(super) fn contains(&self, number: InodeNr) -> bool {
        self.len.load(Ordering::Acquire) > 0 && self.links.lock().turns.contains_key(&number)
    }

    pub(super) fn add(
        &self,
        fs: &FsContext,
        handle: &mut Handle<'_>,
        number: InodeNr,
    ) -> Result<()> {
        let mut links = self.links.lock();
        if links.turns.contains_key(&number) {
            return Ok(());
        }
        let head = links.by_turn.values().next_back().copied();
        inode::store_deleted(fs, handle, number, head.map_or(0, InodeNr::get))?;
        store_head(fs, handle, Some(number))?;
        let turn = links.next_turn;
        links.next_turn = turn.saturating_add(1);
        links.by_turn.insert(turn, number);
        links.turns.insert(number, turn);
        self.len.store(links.turns.len(), Ordering::Release);
        Ok(())
    }

    /// Removes an inode; returns whether it was found. The caller updates its own `i_dtime`.
    pub(super) fn remove(
        &self,
        fs: &FsContext,
        handle: &mut Handle<'_>,
        number: InodeNr,
    ) -> Result<bool> {
        if self.len.load(Ordering::Acquire) == 0 {
            return Ok(false);
        }
        let mut links = self.links.lock();
        let Some(&turn) = links.turns.get(&number) else {
            return Ok(false);
        };
        let next = links.by_turn.range(..turn).next_back();
        let next = next.map(|(_, &next)| next);
        let mut later = links.by_turn.range(turn.saturating_add(1)..);
        match later.next() {
            Some((_, &before)) => {
                inode::store_deleted(fs, handle, before, next.map_or(0, InodeNr::get))?;
            }
            None => store_head(fs, handle, next)?,
        }
        links.by_turn.remove(&turn);
        links.turns.remove(&number);
        self.len.store(links.turns.len(), Ordering::Release);
        Ok(true)
    }
}

fn store_head(fs: &FsContext, handle: &mut Handle<'_>, head: Option<InodeNr>) -> Result<()> {
    superblock::edit(fs, handle, |disk| {
        disk.last_orphan = head.map_or(0, InodeNr::get).into();
    })
}
