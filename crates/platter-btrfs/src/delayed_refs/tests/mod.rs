//! Delayed references against a model, on all indexes, and faults that the kernel had.

mod faults;
mod model;
mod trees;

use super::index::{ArrayIndex, HeadIndex, SideIndex, TreeIndex};
use super::layout::{AlignedHead, HotHead, LineHead, SplitHead};
use super::*;
use crate::ondisk::{LogicalAddr, TreeId};

/// Runs a test for each index.
macro_rules! on_all_indexes {
    ($test:ident) => {
        $test::<TreeIndex<SplitHead>>();
        $test::<TreeIndex<HotHead>>();
        $test::<TreeIndex<AlignedHead>>();
        $test::<TreeIndex<LineHead>>();
        $test::<SideIndex>();
        $test::<ArrayIndex>();
    };
}
use on_all_indexes;

/// A sequence of numbers (`SplitMix64`).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

const BLOCK: u64 = 16384;
const TREE_BLOCK: ExtentKind = ExtentKind::TreeBlock {
    level: 0,
    is_system: false,
};

/// A change of a reference of a tree to its block.
fn of_tree(address: u64, tree: u64, action: Action) -> Change {
    Change {
        address: LogicalAddr(address),
        len_bytes: BLOCK,
        kind: TREE_BLOCK,
        reference: RefKey::TreeBlock { tree: TreeId(tree) },
        count: 1,
        action,
        allocates: false,
        op: None,
    }
}

fn allocated(address: u64, tree: u64) -> Change {
    Change {
        allocates: true,
        ..of_tree(address, tree, Action::Add)
    }
}

/// A change of the references of a file to data.
fn of_file(address: u64, inode: u64, action: Action, count: u32) -> Change {
    Change {
        address: LogicalAddr(address),
        len_bytes: 4096,
        kind: ExtentKind::Data,
        reference: RefKey::Data {
            tree: TreeId(5),
            inode,
            offset: 0,
        },
        count,
        action,
        allocates: false,
        op: None,
    }
}

/// Runs a head to its end. Returns what was done.
fn run<I: HeadIndex>(queue: &mut RefQueue<I>, running: Running) -> (Vec<RunStep>, FinishedHead) {
    let mut steps = Vec::new();
    loop {
        match queue.next_step(&running).unwrap() {
            RunStep::Done => break,
            RunStep::Blocked => panic!("blocked"),
            step @ (RunStep::Reference { .. } | RunStep::Op { .. }) => steps.push(step),
        }
    }
    (steps, queue.finish(running).unwrap())
}
