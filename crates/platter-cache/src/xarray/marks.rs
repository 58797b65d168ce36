//! The three marks of entries, and their unions in the nodes above.

use super::cursor::Cursor;
use super::slot_offset;
use crate::sync::Ordering;

/// One of the three marks of an entry, whose meaning is defined by the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mark {
    /// The first.
    A,
    /// The second.
    B,
    /// The third.
    C,
}

impl Mark {
    /// All of them.
    pub const ALL: [Self; Self::COUNT] = [Self::A, Self::B, Self::C];

    pub(super) const COUNT: usize = 3;

    pub(super) fn index(self) -> usize {
        self as usize
    }

    pub(super) fn bit(self) -> u8 {
        1 << self.index()
    }
}

impl<T> Cursor<'_, T> {
    /// Marks the entry that covers the cursor's index. Returns whether there is one.
    pub fn set_mark(&mut self, mark: Mark) -> bool {
        let Some(found) = self.load() else {
            return false;
        };
        self.mark_at(found.index, mark);
        true
    }

    /// Clears the mark of the entry that covers the cursor's index. Returns whether it was set.
    pub fn clear_mark(&mut self, mark: Mark) -> bool {
        let Some(found) = self.load() else {
            return false;
        };
        let had = self.is_marked_at(found.index, mark);
        if had {
            self.unmark_at(found.index, mark);
        }
        had
    }

    /// Whether the entry that covers the cursor's index has the mark.
    pub fn is_marked(&mut self, mark: Mark) -> bool {
        self.load()
            .is_some_and(|found| self.is_marked_at(found.index, mark))
    }

    /// Whether the slot of `index` in the last node of the path has the mark.
    pub(super) fn is_marked_at(&self, index: u64, mark: Mark) -> bool {
        match self.path.last() {
            Some(node) => node.marks(mark) & 1 << slot_offset(index, node.shift()) != 0,
            None => self.locked.array.is_any_marked(mark),
        }
    }

    /// Marks the slot of `index` in the last node of the path, and the unions above.
    pub(super) fn mark_at(&self, index: u64, mark: Mark) {
        for node in self.path.iter().rev() {
            let bit = 1 << slot_offset(index, node.shift());
            let bits = node.marks(mark);
            if bits & bit != 0 {
                return;
            }
            node.set_marks(mark, bits | bit);
        }
        let head_marks = &self.locked.array.head_marks;
        head_marks.fetch_or(mark.bit(), Ordering::Relaxed);
    }

    /// Clears the mark of the slot of `index` in the last node of the path, and the unions above
    /// that become empty.
    pub(super) fn unmark_at(&self, index: u64, mark: Mark) {
        for node in self.path.iter().rev() {
            let bits = node.marks(mark) & !(1 << slot_offset(index, node.shift()));
            node.set_marks(mark, bits);
            if bits != 0 {
                return;
            }
        }
        let head_marks = &self.locked.array.head_marks;
        head_marks.fetch_and(!mark.bit(), Ordering::Relaxed);
    }
}
