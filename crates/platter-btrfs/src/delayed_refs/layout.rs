//! Layouts of a head: which of its fields share a cache line.
//!
//! A search for an address reads the address and one link of each head on its way. What that costs depends
//! on how many cache lines these lie in, and on how many heads a page holds.

use std::fmt;
use std::mem::{align_of, offset_of};

use super::rbtree::{Links, PackedLinks, RbTree, WideLinks};
use super::slab::{PAGE_BYTES, Page, Slot, Slots};

/// Bytes of a cache line.
pub const CACHE_LINE_BYTES: usize = 64;

/// What a head says, apart from its address and its position in an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HeadState {
    /// The length of the extent.
    pub len_bytes: u64,
    /// Its references, ordered.
    pub refs: RbTree,
    /// First and last of the references that are added.
    pub adds: [Slot; 2],
    /// What is to be set in the extent item.
    pub extent_op: Slot,
    /// The sum of all changes since the head exists.
    pub total_change: i32,
    /// The sum of the changes that did not run.
    pub net_change: i32,
    /// See [`HeadFlags`].
    pub flags: HeadFlags,
}

bitflags::bitflags! {
    /// Flags of a head.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct HeadFlags: u32 {
        /// The extent was allocated and has no item yet.
        const MUST_INSERT = 1 << 0;
        /// The extent is of data.
        const DATA = 1 << 1;
        /// The extent is a block of the chunk tree.
        const SYSTEM = 1 << 2;
        /// Its references are being run.
        const PROCESSING = 1 << 3;
        /// The level of a tree block.
        const LEVEL = 0xff << 8;
    }
}

/// A head of some layout.
pub trait Head: Copy + Default + fmt::Debug + 'static {
    /// The name in reports.
    const NAME: &'static str;
    /// Heads in pages.
    type Page: Slots<Self>;

    /// A head.
    fn new(address: u64, state: HeadState) -> Self;

    /// The address of its extent.
    fn address(&self) -> u64;

    /// What it says.
    fn state(&self) -> HeadState;

    /// Changes what it says.
    fn set_state(&mut self, state: HeadState);
}

/// A head that is a node of a tree.
pub trait LinkedHead: Head {
    /// Its links.
    fn links(&self) -> Links;

    /// Changes its links.
    fn set_links(&mut self, links: Links);
}

macro_rules! head {
    ($name:ident, $text:literal, $per_page:literal) => {
        impl Head for $name {
            const NAME: &'static str = $text;
            type Page = Page<Self, $per_page>;

            fn new(address: u64, state: HeadState) -> Self {
                let mut head = Self {
                    address,
                    ..Self::default()
                };
                head.set_state(state);
                head
            }

            fn address(&self) -> u64 {
                self.address
            }

            fn state(&self) -> HeadState {
                HeadState {
                    len_bytes: self.len_bytes,
                    refs: self.refs,
                    adds: self.adds,
                    extent_op: self.extent_op,
                    total_change: self.total_change,
                    net_change: self.net_change,
                    flags: HeadFlags::from_bits_retain(self.flags),
                }
            }

            fn set_state(&mut self, state: HeadState) {
                self.len_bytes = state.len_bytes;
                self.refs = state.refs;
                self.adds = state.adds;
                self.extent_op = state.extent_op;
                self.total_change = state.total_change;
                self.net_change = state.net_change;
                self.flags = state.flags.bits();
            }
        }
    };
}

macro_rules! linked_head {
    ($name:ident, $text:literal, $per_page:literal) => {
        head!($name, $text, $per_page);

        impl LinkedHead for $name {
            fn links(&self) -> Links {
                self.links.into()
            }

            fn set_links(&mut self, links: Links) {
                self.links = links.into();
            }
        }
    };
}

/// The kernel's layout before Linux 6.5: address and links lie in different cache lines. Lock and mutex
/// of the kernel are space here.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct SplitHead {
    address: u64,
    len_bytes: u64,
    _users: u32,
    _hole: u32,
    _mutex: [u64; 4],
    _lock: u32,
    _second_hole: u32,
    refs: RbTree,
    _first_ref: [u32; 3],
    adds: [Slot; 2],
    _wide_list: u64,
    links: WideLinks,
    extent_op: Slot,
    _wide_pointer: u32,
    total_change: i32,
    net_change: i32,
    flags: u32,
    _padding: u32,
}

linked_head!(SplitHead, "rb-split-144", 28);
const _: () = assert!(size_of::<SplitHead>() == 144 && align_of::<SplitHead>() == 8);
const _: () = assert!(offset_of!(SplitHead, _mutex) == 24);
const _: () = assert!(offset_of!(SplitHead, refs) == 64);
const _: () = assert!(offset_of!(SplitHead, adds) == 80);
const _: () = assert!(offset_of!(SplitHead, links) == 96);
const _: () = assert!(offset_of!(SplitHead, extent_op) == 120);
const _: () = assert!(offset_of!(SplitHead, net_change) == 132);
const _: () = assert!(offset_of!(SplitHead, flags) == 136);

/// The kernel's layout of Linux 6.5: the links follow the address, and there are no holes.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct HotHead {
    address: u64,
    len_bytes: u64,
    links: WideLinks,
    _mutex: [u64; 4],
    _users: u32,
    _lock: u32,
    refs: RbTree,
    _first_ref: [u32; 3],
    adds: [Slot; 2],
    _wide_list: u64,
    extent_op: Slot,
    _wide_pointer: u32,
    total_change: i32,
    net_change: i32,
    flags: u32,
    _padding: u32,
}

linked_head!(HotHead, "rb-hot-136", 30);
const _: () = assert!(size_of::<HotHead>() == 136 && align_of::<HotHead>() == 8);
const _: () = assert!(offset_of!(HotHead, links) == 16);
const _: () = assert!(offset_of!(HotHead, links) + size_of::<WideLinks>() <= CACHE_LINE_BYTES);
const _: () = assert!(offset_of!(HotHead, _mutex) == 40);
const _: () = assert!(offset_of!(HotHead, _users) == 72);
const _: () = assert!(offset_of!(HotHead, refs) == 80);
const _: () = assert!(offset_of!(HotHead, adds) == 96);
const _: () = assert!(offset_of!(HotHead, extent_op) == 112);
const _: () = assert!(offset_of!(HotHead, net_change) == 124);
const _: () = assert!(offset_of!(HotHead, flags) == 128);

/// All fields of the kernel's layout in two whole cache lines: address and links never straddle two, which
/// they do in half of the heads of [`HotHead`].
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(64))]
pub struct AlignedHead {
    address: u64,
    len_bytes: u64,
    links: WideLinks,
    _users: u32,
    _lock: u32,
    _mutex: u64,
    _owner: u64,
    refs: RbTree,
    _first_ref: [u32; 3],
    adds: [Slot; 2],
    _wide_list: u64,
    extent_op: Slot,
    _wide_pointer: u32,
    total_change: i32,
    net_change: i32,
    flags: u32,
    _padding: u32,
}

linked_head!(AlignedHead, "rb-aligned-128", 32);
const _: () = assert!(size_of::<AlignedHead>() == 128 && align_of::<AlignedHead>() == 64);
const _: () = assert!(offset_of!(AlignedHead, address) + 8 <= CACHE_LINE_BYTES);
const _: () = assert!(offset_of!(AlignedHead, links) + size_of::<WideLinks>() <= CACHE_LINE_BYTES);

/// A whole head in one cache line: links are numbers of slots, and the lock is that of the index.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(64))]
pub struct LineHead {
    address: u64,
    links: PackedLinks,
    flags: u32,
    len_bytes: u64,
    refs: RbTree,
    adds: [Slot; 2],
    extent_op: Slot,
    total_change: i32,
    net_change: i32,
    _spare: u32,
}

linked_head!(LineHead, "rb-line-64", 64);
const _: () = assert!(size_of::<LineHead>() == 64 && align_of::<LineHead>() == 64);
const _: () = assert!(offset_of!(LineHead, address) + 8 <= CACHE_LINE_BYTES);
const _: () = assert!(offset_of!(LineHead, links) + size_of::<PackedLinks>() <= CACHE_LINE_BYTES);

/// A head that is in no tree: its index has its address as well.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(64))]
pub struct ColdHead {
    address: u64,
    len_bytes: u64,
    _mutex: [u64; 4],
    _users: u32,
    _lock: u32,
    refs: RbTree,
    _first_ref: [u32; 3],
    adds: [Slot; 2],
    _wide_list: u64,
    extent_op: Slot,
    _wide_pointer: u32,
    total_change: i32,
    net_change: i32,
    flags: u32,
    _padding: u32,
}

head!(ColdHead, "128", 32);
const _: () = assert!(size_of::<ColdHead>() == 128 && align_of::<ColdHead>() == 64);

/// Address and links of a head apart from it: two nodes in a cache line.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(32))]
pub struct SideNode {
    pub(super) address: u64,
    pub(super) links: PackedLinks,
    pub(super) spare: [u32; 3],
}

const _: () = assert!(size_of::<SideNode>() * 2 == CACHE_LINE_BYTES);

/// How heads of a layout lie in pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadShape {
    /// The name of the index.
    pub name: &'static str,
    /// Bytes of a head, with what its index has of it elsewhere.
    pub len_bytes: usize,
    /// Heads in a page; of those with two parts, the ones that a search reads.
    pub per_page: usize,
    /// Cache lines that a search reads at a level, in thousandths: the mean over all heads of a page and both links.
    /// `None` where it follows no links of heads.
    pub milli_lines_per_level: Option<usize>,
}

/// The shapes of all indexes.
pub const SHAPES: [HeadShape; 6] = [
    shape::<SplitHead>(offset_of!(SplitHead, links), WideLinks::CHILDREN),
    shape::<HotHead>(offset_of!(HotHead, links), WideLinks::CHILDREN),
    shape::<AlignedHead>(offset_of!(AlignedHead, links), WideLinks::CHILDREN),
    shape::<LineHead>(offset_of!(LineHead, links), PackedLinks::CHILDREN),
    HeadShape {
        name: SIDE_NAME,
        len_bytes: size_of::<SideNode>() + size_of::<ColdHead>(),
        per_page: PAGE_BYTES / size_of::<SideNode>(),
        milli_lines_per_level: Some(lines(
            size_of::<SideNode>(),
            PAGE_BYTES / size_of::<SideNode>(),
            offset_of!(SideNode, links),
            PackedLinks::CHILDREN,
        )),
    },
    HeadShape {
        name: ARRAY_NAME,
        len_bytes: size_of::<ColdHead>(),
        per_page: <<ColdHead as Head>::Page as Slots<ColdHead>>::COUNT,
        milli_lines_per_level: None,
    },
];

/// Names of indexes whose heads have no links.
pub(super) const SIDE_NAME: &str = "side-32";
pub(super) const ARRAY_NAME: &str = "xarray-128";

/// The shape of heads that have their address first.
const fn shape<H: LinkedHead>(links: usize, children: [usize; 2]) -> HeadShape {
    HeadShape {
        name: H::NAME,
        len_bytes: size_of::<H>(),
        per_page: H::Page::COUNT,
        milli_lines_per_level: Some(lines(size_of::<H>(), H::Page::COUNT, links, children)),
    }
}

/// The lines that the address, which is first, and one of two numbers of nodes lie in.
const fn lines(stride: usize, count: usize, links: usize, children: [usize; 2]) -> usize {
    let (mut sum, mut slot) = (0, 0);
    while slot < count {
        let start = slot * stride;
        let mut side = 0;
        while side < children.len() {
            let child = start + links + children[side];
            let is_same = start / CACHE_LINE_BYTES == child / CACHE_LINE_BYTES;
            sum += if is_same { 1 } else { 2 };
            side += 1;
        }
        slot += 1;
    }
    sum * 1000 / (count * children.len())
}
