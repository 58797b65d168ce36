//! The three marks of entries, and their unions in the nodes above.

use super::position::Position;
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

/// Whether the slot of `index` in the last node of the path has the mark.
pub(super) fn is_set<T>(position: &Position<'_, T>, index: u64, mark: Mark) -> bool {
    match position.path.last() {
        Some(node) => node.marks(mark) & 1 << slot_offset(index, node.shift()) != 0,
        None => position.locked.array.is_any_marked(mark),
    }
}

/// Marks the slot of `index` in the last node of the path, and the unions above.
pub(super) fn set<T>(position: &Position<'_, T>, index: u64, mark: Mark) {
    for node in position.path.iter().rev() {
        let bit = 1 << slot_offset(index, node.shift());
        let bits = node.marks(mark);
        if bits & bit != 0 {
            return;
        }
        node.set_marks(mark, bits | bit);
    }
    let head_marks = &position.locked.array.head_marks;
    head_marks.fetch_or(mark.bit(), Ordering::Relaxed);
}

/// Clears the mark of the slot of `index` in the last node of the path, and the unions above
/// that become empty.
pub(super) fn clear<T>(position: &Position<'_, T>, index: u64, mark: Mark) {
    for node in position.path.iter().rev() {
        let bits = node.marks(mark) & !(1 << slot_offset(index, node.shift()));
        node.set_marks(mark, bits);
        if bits != 0 {
            return;
        }
    }
    let head_marks = &position.locked.array.head_marks;
    head_marks.fetch_and(!mark.bit(), Ordering::Relaxed);
}
