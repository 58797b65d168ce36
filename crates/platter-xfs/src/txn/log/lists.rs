//! The committed item list (CIL) and the active item list (AIL): what the running checkpoint holds, and what
//! is in the log and not in its place on the disk yet.

use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use super::item::{Content, Dirty, InodeVersion, ItemKey};
use super::record::Shape;
use crate::ondisk::{Geometry, InodeNr, Lsn};

/// A log item from its first commit until it is in its place.
#[derive(Debug)]
struct Item {
    /// The newest committed version.
    content: Content,
    dirty: Dirty,
    /// What it takes in the running checkpoint, if it is part of it.
    running_bytes: Option<u64>,
    /// It is part of the checkpoint that is being written.
    is_closing: bool,
    /// The version that recovery would find, and the checkpoint that holds it.
    logged: Option<(Lsn, Content)>,
}

/// What a transaction changed of an item.
#[derive(Debug)]
pub(in crate::txn) struct Change {
    pub(in crate::txn) key: ItemKey,
    pub(in crate::txn) content: Content,
    pub(in crate::txn) dirty: Dirty,
    /// What the item takes in a checkpoint after it; found when it is committed.
    log_bytes: u64,
}

impl Change {
    pub(in crate::txn) fn new(key: ItemKey, content: Content, dirty: Dirty) -> Self {
        Self {
            key,
            content,
            dirty,
            log_bytes: 0,
        }
    }
}

/// A checkpoint that takes no more transactions.
#[derive(Debug)]
pub(super) struct Closed {
    pub(super) items: Vec<(ItemKey, Content, Dirty)>,
    /// Intents that were done.
    done: Vec<ItemKey>,
    /// The most that it takes in the log.
    pub(super) log_bytes: u64,
}

/// Items to be written to their places.
pub(super) type Batch = Vec<(ItemKey, Lsn, Content)>;

/// Both lists.
///
/// # Invariants
/// - An item is in `active` under the LSN of the newest checkpoint that is durable and holds it.
/// - What an item is written back as is the version of that checkpoint: never one that is not durable in
///   the log.
/// - What is dirty of an item grows until the newest committed version is in its place.
#[derive(Debug)]
pub(super) struct Lists {
    shape: Shape,
    items: HashMap<ItemKey, Item>,
    active: BTreeSet<(Lsn, ItemKey)>,
    /// What recovery has to begin with, whatever is active.
    kept_tail: Option<Lsn>,
    /// The running checkpoint: its number, items in the order of their first commit, and bytes.
    sequence: u64,
    running: Vec<ItemKey>,
    running_bytes: u64,
    /// The most that the running checkpoint was to take in the log so far: items may become smaller.
    charged: u64,
    done: Vec<(ItemKey, Arc<[Vec<u8>]>)>,
}

impl Lists {
    pub(super) fn new(shape: Shape) -> Self {
        Self {
            shape,
            items: HashMap::new(),
            active: BTreeSet::new(),
            kept_tail: None,
            sequence: 1,
            running: Vec::new(),
            running_bytes: 0,
            charged: 0,
            done: Vec::new(),
        }
    }

    /// The number of the running checkpoint.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The most that the running checkpoint takes in the log.
    pub(super) fn pending_bytes(&self) -> u64 {
        self.charged
    }

    /// What these changes would add to the running checkpoint. Each becomes what its item is after it.
    pub(super) fn growth(
        &self,
        changes: &mut [Change],
        done: &[(ItemKey, Arc<[Vec<u8>]>)],
        geometry: &Geometry,
    ) -> u64 {
        let done = done.iter().map(|(_, regions)| done_bytes(regions));
        let mut bytes = self.running_bytes + done.sum::<u64>();
        for change in changes {
            let item = self.items.get(&change.key);
            if let Some(item) = item {
                change.dirty.add(&item.dirty);
            }
            let counted = item.and_then(|item| item.running_bytes).unwrap_or_default();
            change.log_bytes = change.content.log_bytes(&change.dirty, geometry);
            bytes = (bytes + change.log_bytes).saturating_sub(counted);
        }
        self.shape.log_bytes(bytes).saturating_sub(self.charged)
    }

    /// Adds what a transaction changed, [grown](Self::growth) under the same lock, to the running checkpoint, and which
    /// intents are done. Returns the number of the checkpoint.
    pub(super) fn commit(
        &mut self,
        changes: Vec<Change>,
        done: Vec<(ItemKey, Arc<[Vec<u8>]>)>,
    ) -> (u64, Vec<Content>) {
        let mut before = Vec::with_capacity(changes.len());
        for change in changes {
            let (key, bytes) = (change.key, change.log_bytes);
            let counted = match self.items.entry(key) {
                Entry::Occupied(item) => {
                    let item = item.into_mut();
                    item.dirty = change.dirty;
                    before.push(std::mem::replace(&mut item.content, change.content));
                    item.running_bytes.replace(bytes)
                }
                Entry::Vacant(free) => {
                    free.insert(Item {
                        content: change.content,
                        dirty: change.dirty,
                        running_bytes: Some(bytes),
                        is_closing: false,
                        logged: None,
                    });
                    None
                }
            };
            if let Some(counted) = counted {
                self.running_bytes -= counted;
            } else {
                self.running.push(key);
            }
            self.running_bytes += bytes;
        }
        for (intent, regions) in done {
            self.running_bytes += done_bytes(&regions);
            self.done.push((intent, regions));
        }
        let log_bytes = self.shape.log_bytes(self.running_bytes);
        self.charged = self.charged.max(log_bytes);
        (self.sequence, before)
    }

    /// Takes the running checkpoint, and begins the next; `None` if it is empty.
    pub(super) fn close(&mut self) -> Option<Closed> {
        if self.running.is_empty() && self.done.is_empty() {
            return None;
        }
        let log_bytes = self.pending_bytes();
        let mut items = Vec::with_capacity(self.running.len() + self.done.len());
        for key in std::mem::take(&mut self.running) {
            if let Some(item) = self.items.get_mut(&key) {
                item.running_bytes = None;
                item.is_closing = true;
                items.push((key, item.content.clone(), item.dirty));
            }
        }
        let done = std::mem::take(&mut self.done);
        let intents = done.iter().map(|(intent, _)| *intent).collect();
        for (intent, regions) in done {
            items.push((intent, Content::Intent(regions), Dirty::default()));
        }
        self.running_bytes = 0;
        self.charged = 0;
        self.sequence += 1;
        Some(Closed {
            items,
            done: intents,
            log_bytes,
        })
    }

    /// A closed checkpoint is durable, from `lsn` on. Returns the blocks that were freed.
    pub(super) fn committed(
        &mut self,
        closed: Closed,
        lsn: Lsn,
    ) -> Vec<(ItemKey, Option<Content>)> {
        let mut freed = Vec::new();
        for (key, content, _) in closed.items {
            let Some(item) = self.items.get_mut(&key).filter(|item| item.is_closing) else {
                continue;
            };
            item.is_closing = false;
            let before = match &content {
                Content::Cancelled { .. } | Content::Gone => item.logged.take(),
                Content::Block { .. }
                | Content::Inode { .. }
                | Content::Chunk { .. }
                | Content::Intent(_) => item.logged.replace((lsn, content.clone())),
            };
            if let Some((before, _)) = &before {
                self.active.remove(&(*before, key));
            }
            if item.logged.is_some() {
                self.active.insert((lsn, key));
            } else {
                freed.push((key, before.map(|(_, content)| content)));
                if item.running_bytes.is_none() {
                    self.items.remove(&key);
                }
            }
        }
        for intent in closed.done {
            if let Some((lsn, _)) = self.items.remove(&intent).and_then(|item| item.logged) {
                self.active.remove(&(lsn, intent));
            }
        }
        freed
    }

    /// What recovery has to begin with; `None` if everything is in its place.
    pub(super) fn tail(&self) -> Option<Lsn> {
        let active = self.active.first().map(|(lsn, _)| *lsn);
        self.kept_tail.or(active)
    }

    /// Has recovery begin with what the log held when it was opened; `None` ends that.
    pub(super) fn keep_tail(&mut self, tail: Option<Lsn>) {
        self.kept_tail = tail;
    }

    /// The LSN that the first `1 / parts` of the active items have at most.
    pub(super) fn oldest(&self, parts: usize) -> Option<Lsn> {
        let index = self.active.len().div_ceil(parts.max(1)).checked_sub(1)?;
        self.active.iter().nth(index).map(|(lsn, _)| *lsn)
    }

    /// Up to `count` items that were logged at `last` or before, in the order of the log. Intents have no
    /// place to be written to.
    pub(super) fn to_write(&self, last: Lsn, count: usize) -> Batch {
        let old = self.active.iter().take_while(|(lsn, _)| *lsn <= last);
        let old = old.filter(|(_, key)| !matches!(key, ItemKey::Intent(..)));
        let logged = |&(lsn, key): &(Lsn, ItemKey)| {
            let (_, content) = self.items.get(&key)?.logged.as_ref()?;
            Some((key, lsn, content.clone()))
        };
        old.filter_map(logged).take(count).collect()
    }

    /// Items are in their places. Returns those whose newest version that is.
    pub(super) fn written(&mut self, batch: &Batch) -> Vec<ItemKey> {
        let mut clean = Vec::new();
        for (key, lsn, _) in batch {
            let Some(item) = self.items.get_mut(key) else {
                continue;
            };
            if item.logged.as_ref().is_none_or(|(logged, _)| logged != lsn) {
                continue;
            }
            item.logged = None;
            self.active.remove(&(*lsn, *key));
            if item.running_bytes.is_none() && !item.is_closing {
                self.items.remove(key);
                clean.push(*key);
            }
        }
        clean
    }

    /// The newest committed version of an inode that is not in its place.
    pub(super) fn inode(&self, number: InodeNr) -> Option<InodeVersion> {
        match &self.items.get(&ItemKey::Inode(number))?.content {
            Content::Inode { version, .. } => Some(version.clone()),
            Content::Block { .. }
            | Content::Cancelled { .. }
            | Content::Gone
            | Content::Chunk { .. }
            | Content::Intent(_) => None,
        }
    }

    /// Whether something is logged, or to be logged, under this key.
    pub(super) fn has(&self, key: ItemKey) -> bool {
        self.items.contains_key(&key)
    }

    /// How many items the active item list has, and how many the running checkpoint.
    pub(super) fn len(&self) -> (usize, usize) {
        (self.active.len(), self.running.len())
    }
}

/// What an item that says that an intent is done takes in a checkpoint.
pub(super) fn done_bytes(regions: &[Vec<u8>]) -> u64 {
    let bytes = regions.iter().map(|region| region.len() as u64);
    bytes
        .map(|bytes| bytes + super::record::OPERATION_BYTES)
        .sum()
}
