//! An index that is chosen when a filesystem is mounted: benchmarks compare them all by one program.

use super::index::{ArrayIndex, HeadIndex, Inserted, SideIndex, TreeIndex};
use super::layout::{AlignedHead, HeadState, HotHead, LineHead, SplitHead};
use super::slab::Slot;

macro_rules! chosen {
    ($($kind:ident($index:ty)),*) => {
        /// Which index.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum IndexKind {
            $(
                #[doc = concat!("[`", stringify!($index), "`].")]
                $kind,
            )*
        }

        impl IndexKind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// The name in reports.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => <$index as HeadIndex>::NAME,)*
                }
            }
        }

        /// One of the indexes.
        #[derive(Debug)]
        pub enum ChosenIndex {
            $(
                #[doc = concat!("[`", stringify!($index), "`].")]
                $kind($index),
            )*
        }

        impl ChosenIndex {
            /// An empty index.
            #[must_use]
            pub fn new(kind: IndexKind) -> Self {
                match kind {
                    $(IndexKind::$kind => Self::$kind(<$index>::default()),)*
                }
            }
        }

        impl HeadIndex for ChosenIndex {
            const NAME: &'static str = "chosen";

            fn insert(&mut self, address: u64, state: HeadState) -> Inserted {
                match self { $(Self::$kind(index) => index.insert(address, state),)* }
            }

            fn find(&self, address: u64) -> Option<Slot> {
                match self { $(Self::$kind(index) => index.find(address),)* }
            }

            fn at_or_after(&self, address: u64) -> Option<Slot> {
                match self { $(Self::$kind(index) => index.at_or_after(address),)* }
            }

            fn remove(&mut self, slot: Slot) {
                match self { $(Self::$kind(index) => index.remove(slot),)* }
            }

            fn address(&self, slot: Slot) -> u64 {
                match self { $(Self::$kind(index) => index.address(slot),)* }
            }

            fn state(&self, slot: Slot) -> HeadState {
                match self { $(Self::$kind(index) => index.state(slot),)* }
            }

            fn set_state(&mut self, slot: Slot, state: HeadState) {
                match self { $(Self::$kind(index) => index.set_state(slot, state),)* }
            }

            fn len(&self) -> usize {
                match self { $(Self::$kind(index) => index.len(),)* }
            }

            #[cfg(test)]
            fn assert_invariants(&self) {
                match self { $(Self::$kind(index) => index.assert_invariants(),)* }
            }
        }
    };
}

chosen!(
    Split(TreeIndex<SplitHead>),
    Hot(TreeIndex<HotHead>),
    Aligned(TreeIndex<AlignedHead>),
    Line(TreeIndex<LineHead>),
    Side(SideIndex),
    Array(ArrayIndex)
);

impl Default for ChosenIndex {
    fn default() -> Self {
        Self::new(IndexKind::Line)
    }
}
