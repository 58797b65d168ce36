//! All trees, from the chunk tree to the log trees. Spec: `btrfs/header`, `btrfs/leaf`, `btrfs/node`,
//! `btrfs/root_item`, `btrfs/file_extent`, `btrfs/csum_item`.

use std::collections::HashSet;

use super::super::bytes::{byte, le16, le32, le64};
use super::super::{Kind as AnyKind, Part};
use super::{Format, Kind, Sums};
use crate::contents::Contents;

/// The header of a node; an item's entry in a leaf; a pointer in a node.
const HEADER: usize = 101;
const ITEM_LEN: usize = 25;
const POINTER_LEN: usize = 33;

const INODE_ITEM: u8 = 1;
const EXTENT_DATA: u8 = 108;
const EXTENT_CSUM: u8 = 128;
const ROOT_ITEM: u8 = 132;
const CHUNK_ITEM: u8 = 228;
/// The address of the root node in a root item.
const ROOT_ADDRESS: usize = 176;

struct Walk<'a> {
    image: &'a Contents,
    format: &'a mut Format,
    parts: &'a mut Vec<Part>,
    seen: HashSet<u64>,
    /// Roots that items name and are still to be walked.
    roots: Vec<u64>,
}

/// Walks the trees at `roots`, the chunk tree first, and all that their items name.
pub(super) fn walk(image: &Contents, format: &mut Format, roots: [u64; 3], parts: &mut Vec<Part>) {
    let mut walk = Walk {
        image,
        format,
        parts,
        seen: HashSet::new(),
        roots: Vec::new(),
    };
    for root in roots {
        walk.tree(root);
        while let Some(root) = walk.roots.pop() {
            walk.tree(root);
        }
    }
}

impl Walk<'_> {
    fn tree(&mut self, root: u64) {
        let mut rest = vec![root];
        while let Some(address) = rest.pop() {
            if address == 0 || !self.seen.insert(address) {
                continue;
            }
            let (places, _) = self.format.chunks.places(address);
            let Some(&first) = places.first() else {
                continue;
            };
            let is_leaf = byte(self.image, first + 0x64) == 0;
            for &at in &places {
                let kind = if is_leaf { Kind::Leaf } else { Kind::Node };
                self.add(kind, at, self.format.node_bytes, address);
            }
            let count = usize::try_from(le32(self.image, first + 0x60)).unwrap_or(0);
            if is_leaf {
                for index in 0..count {
                    self.item(&places, first + HEADER + index * ITEM_LEN, address);
                }
            } else {
                let pointer = |index| first + HEADER + index * POINTER_LEN + 17;
                rest.extend((0..count).map(|index| le64(self.image, pointer(index))));
            }
        }
    }

    fn add(&mut self, kind: Kind, start: usize, len: usize, address: u64) {
        // Some items are keys alone.
        if len > 0 && start + len <= self.image.len() {
            self.parts.push(Part {
                kind: AnyKind::Btrfs(kind),
                range: start..start + len,
                address,
            });
        }
    }

    /// One item of a leaf, of which copies lie at `leaves`; its entry lies at `entry` in the first.
    fn item(&mut self, leaves: &[usize], entry: usize, address: u64) {
        let image = self.image;
        let kind = byte(image, entry + 8);
        let (object, offset) = (le64(image, entry), le64(image, entry + 9));
        let from_leaf = HEADER + usize::try_from(le32(image, entry + 17)).unwrap_or(0);
        let len = usize::try_from(le32(image, entry + 21)).unwrap_or(0);
        let at = leaves[0] + from_leaf;
        for leaf in leaves {
            self.add(Kind::Item(kind), leaf + from_leaf, len, address);
        }
        match kind {
            INODE_ITEM => self.format.inodes = self.format.inodes.max(object + 1),
            ROOT_ITEM => self.roots.push(le64(image, at + ROOT_ADDRESS)),
            CHUNK_ITEM => self.format.chunks.add(image, offset, at),
            EXTENT_DATA => self.data(at),
            EXTENT_CSUM => {
                let items = leaves
                    .iter()
                    .map(|leaf| (leaf + from_leaf, *leaf))
                    .collect();
                self.format.sums.push(Sums {
                    logical: offset,
                    sectors: len / self.format.checksum_bytes(),
                    items,
                });
            }
            _ => {}
        }
    }

    /// The data of a file extent that is not inline, in the pieces it has on the devices.
    fn data(&mut self, at: usize) {
        const INLINE: u8 = 0;
        let image = self.image;
        let address = le64(image, at + 21);
        let is_plain = le16(image, at + 18) == 0;
        if byte(image, at + 20) == INLINE || address == 0 || !is_plain {
            return;
        }
        let kind = match byte(image, at + 16) {
            0 => Kind::Data,
            _ => Kind::Compressed,
        };
        let (mut address, mut left) = (address, usize::try_from(le64(image, at + 29)).unwrap_or(0));
        while left > 0 {
            let (places, here) = self.format.chunks.places(address);
            if places.is_empty() {
                return;
            }
            let len = here.min(left);
            for place in places {
                self.add(kind, place, len, address);
            }
            address += len as u64;
            left -= len;
        }
    }
}
