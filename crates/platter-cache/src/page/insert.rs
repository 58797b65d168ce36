//! Folios entering the index and leaving it, with what follows in the eviction order.

use super::Core;
use super::folio::Folio;
use crate::budget::{LruId, NodeCounts, Owner, Shadow, Verdict};
use crate::sync::Ordering;
#[cfg(any(test, feature = "bench"))]
use crate::xarray::{Adding, Insertion, Step};
use crate::xarray::{Content, Cursor, Locked, Mark, New, Occupied, Old, Order, Ref, reserve_nodes};

/// Entries that have to be written.
pub(super) const DIRTY: Mark = Mark::A;
/// Entries that are being written.
pub(super) const WRITEBACK: Mark = Mark::B;
/// Entries that a writeback has found dirty and not yet come to, or has given up.
pub(super) const TOWRITE: Mark = Mark::C;

/// Shadows that are looked at under one hold of the lock.
const SHADOW_SWEEP_PAGES: u64 = 1 << 16;

impl<E: Clone + Send + Sync + 'static> Core<E> {
    /// Puts a folio, already charged, where there is none: one walk. Its return after an eviction
    /// decides how long it is kept.
    pub(super) fn add_folio(&self, folio: &Ref<Folio<E>>) -> Result<(), Occupied<Folio<E>>> {
        let shadow = self.add_to_index(folio)?;
        self.added(folio, shadow);
        Ok(())
    }

    /// Adds a folio to the index. Returns the last value of its range.
    fn add_to_index(&self, folio: &Ref<Folio<E>>) -> Result<Option<u64>, Occupied<Folio<E>>> {
        #[cfg(any(test, feature = "bench"))]
        if self.budget.insertion().is_earlier() {
            return self.add_in_steps(folio);
        }
        reserve_nodes();
        self.change(|locked| {
            let mut cursor = locked.cursor(folio.index(), folio.order());
            cursor.add(folio.clone())
        })
    }

    /// As earlier page caches did.
    #[cfg(any(test, feature = "bench"))]
    fn add_in_steps(&self, folio: &Ref<Folio<E>>) -> Result<Option<u64>, Occupied<Folio<E>>> {
        let insertion = self.budget.insertion();
        let mut adding = Adding::new(insertion, folio.index(), folio.order(), folio.clone());
        loop {
            match self.change(|locked| adding.step(locked))? {
                Step::Added(shadow) => return Ok(shadow),
                Step::Again(next) => adding = next.prepared(),
            }
        }
    }

    /// Puts folios that lie side by side into the index under one hold of the lock, up to the
    /// first that overlaps another. Returns how many.
    pub(super) fn add_folios(&self, folios: &[Ref<Folio<E>>]) -> usize {
        let Some(first) = folios.first() else {
            return 0;
        };
        #[cfg(any(test, feature = "bench"))]
        if self.budget.insertion() != Insertion::Batched {
            let added = folios
                .iter()
                .take_while(|folio| self.add_folio(folio).is_ok());
            return added.count();
        }
        let items = folios.iter().map(|folio| (folio.clone(), folio.order()));
        let mut shadows = Vec::with_capacity(folios.len());
        reserve_nodes();
        let count = self.change(|locked| {
            locked.add_range(first.index(), items, |_, shadow| shadows.push(shadow))
        });
        for (folio, shadow) in folios.iter().zip(shadows) {
            self.added(folio, shadow);
        }
        count
    }

    fn added(&self, folio: &Folio<E>, shadow: Option<u64>) {
        self.page_count
            .fetch_add(folio.order().span(), Ordering::Relaxed);
        let shadow = shadow.map(Shadow::from_bits);
        let list = self.budget.list_after(shadow, folio.bytes());
        let lru = self.budget.lru();
        let owner = self.registration.id();
        folio.set_lru(lru.insert(owner, folio.index(), folio.bytes(), list));
    }

    /// Takes a folio out of the index if it is still there. Whether it was.
    pub(super) fn detach(&self, folio: &Ref<Folio<E>>) -> bool {
        let detached = self.change(|locked| {
            let mut cursor = locked.cursor(folio.index(), folio.order());
            let removed = is_at(&mut cursor, folio).then(|| self.remove_at(&mut cursor));
            removed.is_some()
        });
        self.budget.lru().remove(folio.lru());
        detached
    }

    /// Takes the folio at the cursor out of the index. The caller removes its place in the
    /// eviction order, without the lock.
    pub(super) fn remove_at(&self, cursor: &mut Cursor<'_, Folio<E>>) -> Option<Ref<Folio<E>>> {
        let Old::Item(folio) = cursor.remove() else {
            return None;
        };
        folio.set_detached();
        if folio.is_unwritten() {
            self.budget.sub_dirty(folio.bytes());
        }
        self.page_count
            .fetch_sub(folio.order().span(), Ordering::Relaxed);
        Some(folio)
    }

    /// Runs a change of the index under its lock, and follows its size in the budget.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut Locked<'_, Folio<E>>) -> R) -> R {
        let mut locked = self.pages.lock();
        let before = self.node_counts();
        let result = change(&mut locked);
        let after = self.node_counts();
        if before != after {
            self.budget.recount_nodes(before, after);
        }
        result
    }

    fn node_counts(&self) -> NodeCounts {
        NodeCounts {
            nodes: self.pages.node_count(),
            shadow_nodes: self.pages.value_node_count(),
        }
    }
}

/// Whether the entry at the cursor is this folio.
pub(super) fn is_at<E>(cursor: &mut Cursor<'_, Folio<E>>, folio: &Ref<Folio<E>>) -> bool {
    let found = cursor.load();
    found.is_some_and(|found| matches!(found.content, Content::Item(item) if item.is(folio)))
}

impl<E: Clone + Send + Sync + 'static> Owner for Core<E> {
    fn take_heat(&self, index: u64, id: LruId) -> bool {
        let folio = self.pages.get_item(index);
        folio.is_some_and(|folio| folio.lru() == id && folio.heat().take_any())
    }

    fn evict(&self, index: u64, id: LruId) -> Verdict {
        self.change(|locked| {
            let mut cursor = locked.cursor(index, Order::ZERO);
            let Some(found) = cursor.load() else {
                return Verdict::Gone;
            };
            let Content::Item(item) = found.content else {
                return Verdict::Gone;
            };
            let Some(folio) = item.try_get() else {
                return Verdict::Busy;
            };
            if folio.lru() == LruId::NONE {
                // In the order already, but the thread that added it has yet to record where.
                return Verdict::Busy;
            }
            if folio.lru() != id {
                return Verdict::Gone;
            }
            if folio.is_unwritten() || !folio.is_uptodate() {
                return Verdict::Busy;
            }
            if folio.heat().take_hot() {
                return Verdict::Hot;
            }
            // The index has one reference and this function the other: the folio is not in use.
            let Ok(folio) = folio.freeze(2) else {
                return Verdict::Busy;
            };
            let bytes = folio.bytes();
            let shadow = self.budget.shadow(bytes).to_bits();
            cursor.seek(folio.index(), folio.order());
            let stored = cursor.store(New::Value(shadow));
            debug_assert!(stored.is_ok(), "the entry has the folio's order");
            folio.set_detached();
            self.page_count
                .fetch_sub(folio.order().span(), Ordering::Relaxed);
            Verdict::Evicted(bytes)
        })
    }

    fn drop_shadows(&self) {
        if self.pages.value_node_count() == 0 {
            return;
        }
        let mut first: Option<u64> = Some(0);
        while let Some(from) = first {
            first = self.change(|locked| {
                let last = from.saturating_add(SHADOW_SWEEP_PAGES - 1);
                locked.remove_values(from, last);
                // Files may be sparse: go on where there is something.
                let mut cursor = locked.cursor(from, Order::ZERO);
                cursor.seek(last, Order::ZERO);
                let next = cursor.find_next(u64::MAX);
                next.map(|found| found.index.max(last + 1))
            });
        }
    }
}
