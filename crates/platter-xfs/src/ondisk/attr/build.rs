//! Building attributes: their short form, leaves, the nodes above them, and blocks of values.
//! Spec: `xfs/extended_attributes`, `xfs/dabtrees`.

use zerocopy::{FromBytes, IntoBytes};

use super::leaf::{DiskAttrLeafCounts, DiskAttrLeafEntry, DiskLocalName, DiskRemoteName};
use super::remote::{ATTR_REMOTE_MAGIC, DiskRemoteHeader};
use super::short::{DiskShortAttrHeader, DiskShortAttrStart};
use super::{AttrEntry, AttrFlags, AttrValue};
use crate::ondisk::checksum;
use crate::ondisk::da::{DaKind, DaLinks, DiskDaEntry, DiskDaHeaderV5, DiskDaNodeCounts};
use crate::ondisk::geometry::Geometry;
use crate::ondisk::identity::Site;

/// What follows the counts in version 5.
const PADDING: usize = 4;
const LEAF_HEADER: usize = size_of::<DiskDaHeaderV5>() + size_of::<DiskAttrLeafCounts>() + PADDING;
const NODE_HEADER: usize = size_of::<DiskDaHeaderV5>() + size_of::<DiskDaNodeCounts>() + PADDING;

fn block_bytes(geometry: &Geometry) -> usize {
    usize::try_from(geometry.block_bytes()).unwrap_or_default()
}

/// Bytes of a leaf that entries, names and values may fill.
#[must_use]
pub fn leaf_space(geometry: &Geometry) -> usize {
    block_bytes(geometry).saturating_sub(LEAF_HEADER)
}

/// The most entries of a node.
#[must_use]
pub fn node_entries_max(geometry: &Geometry) -> usize {
    let space = block_bytes(geometry).saturating_sub(NODE_HEADER);
    space
        .checked_div(size_of::<DiskDaEntry>())
        .unwrap_or_default()
}

/// Whether a value is stored with its name in a leaf: if the two take less than three quarters of it.
#[must_use]
pub fn is_local(name: &[u8], value: &[u8], geometry: &Geometry) -> bool {
    let start = size_of::<DiskLocalName>().saturating_add(name.len());
    let size = start.saturating_add(value.len()).next_multiple_of(4);
    let block = block_bytes(geometry);
    size < block.saturating_sub(block.checked_div(4).unwrap_or_default())
}

/// Bytes of name and value in a leaf. Before a name whose value is elsewhere, the format counts two bytes
/// that it does not have.
fn name_bytes(attr: &AttrEntry<'_>) -> usize {
    const COUNTED: usize = 2;
    let size = match attr.value {
        AttrValue::Local(value) => size_of::<DiskLocalName>().saturating_add(value.len()),
        AttrValue::Remote { .. } => size_of::<DiskRemoteName>().saturating_add(COUNTED),
    };
    size.saturating_add(attr.name.len()).next_multiple_of(4)
}

/// Bytes that an attribute takes in a leaf.
#[must_use]
pub fn leaf_bytes(attr: &AttrEntry<'_>) -> usize {
    name_bytes(attr).saturating_add(size_of::<DiskAttrLeafEntry>())
}

/// The attributes in their short form; `None` if they do not have one.
#[must_use]
pub fn short(attrs: &[AttrEntry<'_>]) -> Option<Vec<u8>> {
    let mut bytes = vec![0; size_of::<DiskShortAttrHeader>()];
    for attr in attrs {
        let AttrValue::Local(value) = attr.value else {
            return None;
        };
        let start = DiskShortAttrStart {
            name_len: u8::try_from(attr.name.len()).ok()?,
            value_len: u8::try_from(value.len()).ok()?,
            flags: attr.namespace.flag().bits(),
        };
        bytes.extend_from_slice(start.as_bytes());
        bytes.extend_from_slice(attr.name);
        bytes.extend_from_slice(value);
    }
    let size = u16::try_from(bytes.len()).ok()?;
    let (header, _) = DiskShortAttrHeader::mut_from_prefix(&mut bytes).ok()?;
    header.size.set(size);
    header.count = u8::try_from(attrs.len()).ok()?;
    Some(bytes)
}

/// A block with the header of hash trees, and what follows that.
fn with_header(kind: DaKind, links: DaLinks, site: &Site<'_>) -> Option<Vec<u8>> {
    let mut bytes = vec![0; block_bytes(site.geometry)];
    let (header, _) = DiskDaHeaderV5::mut_from_prefix(&mut bytes).ok()?;
    header.common.magic.set(kind.magic(true));
    header.common.next.set(links.next.unwrap_or_default());
    header
        .common
        .previous
        .set(links.previous.unwrap_or_default());
    header.block.set(site.at.0);
    header.uuid = *site.geometry.meta_uuid.as_bytes();
    header.owner.set(site.owner);
    Some(bytes)
}

/// A leaf with attributes by ascending hash, of version 5; `None` if they do not fit.
#[must_use]
pub fn leaf(attrs: &[(u32, AttrEntry<'_>)], links: DaLinks, site: &Site<'_>) -> Option<Vec<u8>> {
    let mut bytes = with_header(DaKind::AttrLeaf, links, site)?;
    let mut first_used = bytes.len();
    let mut entries = Vec::with_capacity(attrs.len());
    for (hash, attr) in attrs {
        let size = name_bytes(attr);
        let start = first_used.checked_sub(size)?;
        let slot = bytes.get_mut(start..first_used)?;
        first_used = start;
        let mut flags = attr.namespace.flag() | attr.flags & AttrFlags::INCOMPLETE;
        let name_len = u8::try_from(attr.name.len()).ok()?;
        let (rest, value) = match attr.value {
            AttrValue::Local(value) => {
                flags |= AttrFlags::LOCAL;
                let (disk, rest) = DiskLocalName::mut_from_prefix(slot).ok()?;
                disk.value_len.set(u16::try_from(value.len()).ok()?);
                disk.name_len = name_len;
                (rest, value)
            }
            AttrValue::Remote { block, len } => {
                let (disk, rest) = DiskRemoteName::mut_from_prefix(slot).ok()?;
                disk.block.set(block);
                disk.value_len.set(len);
                disk.name_len = name_len;
                (rest, &[][..])
            }
        };
        let (name, rest) = rest.split_at_mut_checked(attr.name.len())?;
        name.copy_from_slice(attr.name);
        rest.get_mut(..value.len())?.copy_from_slice(value);
        entries.push(DiskAttrLeafEntry {
            hash: (*hash).into(),
            offset: u16::try_from(start).ok()?.into(),
            flags: flags.bits(),
            padding: 0,
        });
    }
    let used = bytes.len().checked_sub(first_used)?;
    let entries = entries.as_slice().as_bytes();
    let entries_end = LEAF_HEADER.checked_add(entries.len())?;
    let free = first_used.checked_sub(entries_end)?;
    let body = bytes.get_mut(size_of::<DiskDaHeaderV5>()..)?;
    let (counts, body) = DiskAttrLeafCounts::mut_from_prefix(body).ok()?;
    counts.count.set(u16::try_from(attrs.len()).ok()?);
    counts.used_bytes.set(u16::try_from(used).ok()?);
    // Byte 65536 is stored as zero.
    counts
        .first_used
        .set(u16::try_from(first_used).unwrap_or_default());
    let [region, _, _] = &mut counts.free;
    let [base, size] = region;
    base.set(u16::try_from(entries_end).ok()?);
    size.set(u16::try_from(free).ok()?);
    let slot = body.get_mut(PADDING..)?.get_mut(..entries.len())?;
    slot.copy_from_slice(entries);
    checksum::seal(&mut bytes, DiskDaHeaderV5::CHECKSUM_OFFSET);
    Some(bytes)
}

/// A node of version 5 above blocks with their greatest hashes; `None` if they do not fit.
#[must_use]
pub fn node(
    children: &[(u32, u32)],
    level: u16,
    links: DaLinks,
    site: &Site<'_>,
) -> Option<Vec<u8>> {
    let mut bytes = with_header(DaKind::Node, links, site)?;
    let body = bytes.get_mut(size_of::<DiskDaHeaderV5>()..)?;
    let (counts, body) = DiskDaNodeCounts::mut_from_prefix(body).ok()?;
    counts.count.set(u16::try_from(children.len()).ok()?);
    counts.level.set(level);
    let entries = children.iter().map(|&(hash, child)| DiskDaEntry {
        hash: hash.into(),
        child: child.into(),
    });
    let entries: Vec<DiskDaEntry> = entries.collect();
    let entries = entries.as_slice().as_bytes();
    let slot = body.get_mut(PADDING..)?.get_mut(..entries.len())?;
    slot.copy_from_slice(entries);
    checksum::seal(&mut bytes, DiskDaHeaderV5::CHECKSUM_OFFSET);
    Some(bytes)
}

/// A block of a value, of version 5, whose part begins at `offset`; `None` if it does not fit.
#[must_use]
pub fn remote(part: &[u8], offset: u32, site: &Site<'_>) -> Option<Vec<u8>> {
    let mut bytes = vec![0; block_bytes(site.geometry)];
    let (header, body) = DiskRemoteHeader::mut_from_prefix(&mut bytes).ok()?;
    header.magic.set(ATTR_REMOTE_MAGIC);
    header.offset.set(offset);
    header.bytes.set(u32::try_from(part.len()).ok()?);
    header.uuid = *site.geometry.meta_uuid.as_bytes();
    header.owner.set(site.owner);
    header.block.set(site.at.0);
    // `NULLCOMMITLSN`: these blocks bear no LSN.
    header.lsn.set(u64::MAX);
    body.get_mut(..part.len())?.copy_from_slice(part);
    checksum::seal(&mut bytes, DiskRemoteHeader::CHECKSUM_OFFSET);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::leaf::AttrLeaf;
    use super::super::{Namespace, remote as value, short as short_form};
    use super::*;
    use crate::ondisk::da::DaNode;
    use crate::ondisk::geometry::tests::sample_geometry;
    use crate::ondisk::types::BasicBlock;

    fn attr<'a>(name: &'a [u8], value: AttrValue<'a>, namespace: Namespace) -> AttrEntry<'a> {
        AttrEntry {
            flags: namespace.flag(),
            namespace,
            name,
            value,
        }
    }

    #[test]
    fn built_forms_decode() {
        let geometry = sample_geometry();
        let site = Site::new(&geometry, BasicBlock(80), 131);
        let links = DaLinks {
            next: Some(7),
            previous: None,
        };
        let remote_value = AttrValue::Remote {
            block: 9,
            len: 5000,
        };
        let attrs = [
            (5, attr(b"one", AttrValue::Local(b"value"), Namespace::User)),
            (8, attr(b"parent", AttrValue::Local(b""), Namespace::Parent)),
            (8, attr(b"big", remote_value, Namespace::Secure)),
        ];
        let bytes = leaf(&attrs, links, &site).unwrap();
        let decoded = AttrLeaf::decode(&bytes, &site).unwrap();
        assert_eq!(decoded.links, links);
        for (entry, (hash, attr)) in decoded.entries.iter().zip(&attrs) {
            let found = decoded.attr(entry).unwrap();
            assert_eq!(entry.hash.get(), *hash);
            assert_eq!((found.name, found.namespace), (attr.name, attr.namespace));
            assert_eq!(found.value, attr.value);
        }
        let bytes = node(&[(8, 3), (9, 4)], 1, links, &site).unwrap();
        let decoded = DaNode::decode(&bytes, &site).unwrap();
        assert_eq!((decoded.child(9), decoded.links), (Some(4), links));
        let bytes = remote(&[7; 100], 4040, &site).unwrap();
        assert_eq!(value::decode(&bytes, 4040, 100, &site), Ok(&[7; 100][..]));
        let local: Vec<AttrEntry<'_>> = attrs[..2].iter().map(|(_, attr)| *attr).collect();
        let bytes = short(&local).unwrap();
        let found = short_form::entries(&bytes).unwrap();
        let names: Vec<&[u8]> = found.map(|entry| entry.unwrap().name).collect();
        assert_eq!(names, [&b"one"[..], b"parent"]);
        assert!(short(&[attrs[2].1]).is_none());
    }

    #[test]
    fn leaf_takes_what_its_space_holds() {
        let geometry = sample_geometry();
        let site = Site::new(&geometry, BasicBlock(80), 131);
        let links = DaLinks {
            next: None,
            previous: None,
        };
        let value = vec![1; 88];
        let one = attr(b"name-", AttrValue::Local(&value), Namespace::User);
        assert_eq!(leaf_bytes(&one), 104);
        let most = leaf_space(&geometry) / 104;
        assert!(leaf(&vec![(1, one); most], links, &site).is_some());
        assert!(leaf(&vec![(1, one); most + 1], links, &site).is_none());
        assert_eq!(node_entries_max(&geometry), 504);
        assert!(is_local(b"n", &[0; 3064], &geometry) && !is_local(b"n", &[0; 3070], &geometry));
    }
}
