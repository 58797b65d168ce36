//! Where extents are on devices.

use std::fs::File;
use std::io::IoSliceMut;
use std::os::unix::fs::FileExt;

use super::image::Pool;
use crate::chunk::Placement;
use crate::context::{FsContext, ListedExtent};
use crate::ondisk::{LogicalAddr, TreeId};
use crate::txn::WriteOptions;

/// The position of a device, and a place on it.
pub(crate) type Location = (usize, u64);

/// The address of the first data extent.
pub(crate) fn first_data(context: &FsContext) -> LogicalAddr {
    let extents = ListedExtent::next_of(context, &mut (0..u64::MAX)).unwrap();
    let data = extents.iter().find(|it| !it.is_tree_block);
    data.unwrap().start
}

/// The leaves of a tree.
pub(crate) fn leaves(context: &FsContext, tree: TreeId) -> Vec<LogicalAddr> {
    let format = context.blocks.format();
    let mut bytes = vec![0; format.node_bytes as usize];
    let mut left = 0..u64::MAX;
    let mut leaves = Vec::new();
    while let found = ListedExtent::next_of(context, &mut left).unwrap()
        && !found.is_empty()
    {
        for extent in found.iter().filter(|extent| extent.is_tree_block) {
            let bufs = &mut [IoSliceMut::new(&mut bytes)];
            context.blocks.store().read(extent.start, 0, bufs).unwrap();
            let header = format.verify(extent.start, &bytes).unwrap();
            if (header.owner, header.level) == (tree, 0) {
                leaves.push(extent.start);
            }
        }
    }
    leaves
}

/// Where the copies of an address are.
pub(crate) fn copies(context: &FsContext, at: LogicalAddr) -> Vec<Location> {
    let store = context.blocks.store();
    let copies = 0..store.copies(at, 4096);
    let copies = copies.filter_map(|copy| store.location(at, copy));
    let copies = copies.map(|(member, place)| (usize::from(member.index), place.0));
    copies.collect()
}

/// Turns the first copy of each leaf of a tree into a valid one of the transaction before, whose contents `change`
/// makes. Returns how many.
pub(crate) fn make_first_copies_older(
    pool: &Pool,
    tree: TreeId,
    change: impl Fn(&mut [u8]),
) -> usize {
    let fs = pool.open(WriteOptions::default());
    let context = fs.context();
    let format = *fs.blocks().format();
    let leaves = leaves(context, tree).into_iter();
    let places: Vec<_> = leaves.map(|leaf| copies(context, leaf)[0]).collect();
    drop(fs);
    for (index, at) in &places {
        let image = &pool.images()[*index];
        let image = File::options().read(true).write(true).open(image).unwrap();
        let mut bytes = vec![0; format.node_bytes as usize];
        image.read_exact_at(&mut bytes, *at).unwrap();
        // `generation` of the header.
        let generation = u64::from_le_bytes(bytes[80..88].try_into().unwrap());
        bytes[80..88].copy_from_slice(&(generation - 1).to_le_bytes());
        change(&mut bytes);
        format.seal(&mut bytes);
        image.write_all_at(&bytes, *at).unwrap();
    }
    places.len()
}

/// Where the column of an address is in each stripe of a row with parity, by role, and the role of the address; `None`
/// without parity.
pub(crate) fn row(context: &FsContext, at: LogicalAddr) -> Option<(usize, Vec<Location>)> {
    let store = context.blocks.store();
    let map = store.map();
    let chunk = map.find(at).unwrap();
    let segment = chunk.segment(at, 4096);
    let Placement::Parity { row, data } = segment.placement else {
        return None;
    };
    let members = store.members();
    let location = |role| {
        let stripe = chunk.stripe_of_role(row, role);
        let member = members.of_stripe(&chunk.stripes[stripe]).unwrap();
        let place = chunk.device_addr(stripe, segment.offset);
        (usize::from(member.index), place.0)
    };
    let roles = 0..chunk.stripes.len();
    Some((data, roles.map(location).collect()))
}

/// Where P is in the row of an address; `None` without parity.
pub(crate) fn parity(context: &FsContext, at: LogicalAddr) -> Option<Location> {
    let store = context.blocks.store();
    let data_stripes = store.map().find(at).unwrap().data_stripes();
    let (_, row) = row(context, at)?;
    Some(row[data_stripes])
}
