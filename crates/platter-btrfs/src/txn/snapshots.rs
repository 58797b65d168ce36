//! Snapshots, which a commit makes: no handle is open then, so that no block is changed in place that the snapshot
//! shares.

use platter_ondisk::{Corrupt, Locus, Uuid};
use platter_vfs::{Result, Timestamp};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::{CommitReport, Cow, Handle, WriteContext, quotas, trees};
use crate::context::TreesRule;
use crate::delayed_refs::Action;
use crate::ondisk::header::{Header, HeaderFlags};
use crate::ondisk::key::ItemKind;
use crate::ondisk::root_item::{DiskRootItem, RootFlags, RootItem};
use crate::ondisk::superblock::RootPointer;
use crate::ondisk::tree_block::Expected;
use crate::ondisk::{Generation, Key, TreeId};
use crate::tree::edit::{CopyOnWrite, TreeState};

/// A snapshot that is to be made.
#[derive(Debug, Clone, Copy)]
pub struct Snapshot {
    /// What it is a snapshot of.
    pub source: TreeId,
    /// Its number, which no tree has.
    pub id: TreeId,
    /// The subvolume that its name is in.
    pub container: TreeId,
    /// Its UUID.
    pub uuid: Uuid,
    /// Whether it refuses changes.
    pub is_read_only: bool,
    /// The time.
    pub now: Timestamp,
}

/// Makes the commit of this transaction take a snapshot. Its names are changed in this handle; there is no root
/// item before the commit.
pub(crate) fn add(handle: &Handle<'_>, snapshot: Snapshot) {
    handle.require_commit();
    handle
        .has_changed
        .store(true, std::sync::atomic::Ordering::Relaxed);
    handle.fs.snapshots.lock().push(snapshot);
}

/// Whether the running transaction makes snapshots.
pub(super) fn are_pending(fs: &WriteContext) -> bool {
    !fs.snapshots.lock().is_empty()
}

/// Makes the snapshots of the running transaction.
pub(super) fn create_pending(
    fs: &WriteContext,
    generation: Generation,
    report: &mut CommitReport,
) -> Result<()> {
    let snapshots = std::mem::take(&mut *fs.snapshots.lock());
    for snapshot in &snapshots {
        let ids = (snapshot.source, snapshot.id, snapshot.container);
        quotas::count_snapshot(fs, generation, ids, report)?;
        create(fs, generation, snapshot)?;
        quotas::forget_traced(fs);
    }
    Ok(())
}

fn create(fs: &WriteContext, generation: Generation, snapshot: &Snapshot) -> Result<()> {
    let source = fs.tree(snapshot.source)?;
    let mut versions = source.lock();
    let cow = Cow::new(fs, generation);
    // Its root is not copied: a root is never shared, and what is below it is older than the next change.
    versions.now.last_snapshot = generation;
    let state = versions.now;
    let root = copy_root(fs, &cow, &state, snapshot.id)?;
    drop(versions);
    // The item of the source, which the snapshot's begins with, is up to date.
    trees::store_roots(fs, generation)?;
    let key = source.item_key();
    let missing = || Corrupt::new(Locus::tree(snapshot.source.0), TreesRule::MissingTree);
    let key = key.ok_or_else(missing)?;
    let sector_bytes = fs.context.superblock.sector_bytes;
    fs.edit(generation, TreeId::ROOT, |editor| {
        let data = editor.get(key)?.ok_or_else(missing)?;
        let old = RootItem::decode(&data, sector_bytes, editor.tree().locus(key))?;
        let item = snapshot_item(&old, generation, snapshot, root);
        let mut disk = DiskRootItem::new_zeroed();
        if let Ok((inode, _)) = FromBytes::ref_from_prefix(&data) {
            disk.inode = *inode;
        }
        let key = Key::new(snapshot.id.0, ItemKind::ROOT_ITEM, generation.0);
        editor.insert(key, item.encode(Some(&disk)).as_bytes())
    })
}

/// Copies a root for a snapshot, which then refers to what it refers to as well.
fn copy_root(
    fs: &WriteContext,
    cow: &Cow<'_>,
    source: &TreeState,
    id: TreeId,
) -> Result<RootPointer> {
    let root = source.tree.root;
    let expected = Expected {
        level: Some(root.level),
        generation: Some(root.generation),
        tree: Some(source.id()),
        ..Expected::default()
    };
    let block = fs.blocks().read(root.logical, &expected)?;
    let broken = || Corrupt::new(Locus::tree(source.id().0), TreesRule::MissingTree);
    let header = block.header().ok_or_else(broken)?;
    let state = TreeState {
        tree: crate::tree::Tree { id, root },
        ..*source
    };
    let first_key = match root.level {
        0 => block.leaf().key(0),
        _ => block.node().pointer(0).map(|pointer| pointer.key),
    };
    let first_key = first_key.unwrap_or(Key::MIN);
    let logical = cow.allocate(&state, root.level, first_key, root.logical)?;
    let mut bytes: Box<[u8]> = block.bytes().into();
    let header = Header {
        logical,
        flags: HeaderFlags::WRITTEN | HeaderFlags::MIXED_BACKREF,
        generation: cow.generation(),
        owner: id,
        ..header
    };
    if let Some(front) = bytes.get_mut(..crate::ondisk::header::HEADER_BYTES) {
        front.copy_from_slice(header.encode().as_bytes());
    }
    cow.change_children(&bytes, root.level, id, None, Action::Add)?;
    fs.blocks().create(logical, bytes)?;
    Ok(RootPointer {
        logical,
        generation: cow.generation(),
        level: root.level,
    })
}

/// The root item of a snapshot.
fn snapshot_item(
    source: &RootItem,
    generation: Generation,
    snapshot: &Snapshot,
    root: RootPointer,
) -> RootItem {
    let mut item = *source;
    item.root = root;
    item.last_snapshot = generation;
    item.flags.set(RootFlags::READ_ONLY, snapshot.is_read_only);
    item.refs = 1;
    item.drop_progress = Key::MIN;
    item.drop_level = 0;
    let history = &mut item.history;
    history.parent_uuid = history.uuid;
    history.uuid = snapshot.uuid;
    history.creation_transaction = generation;
    history.created = snapshot.now;
    if !snapshot.is_read_only {
        // It may change, so it is not any more what was received.
        history.received_uuid = Uuid::nil();
        history.send_transaction = Generation(0);
        history.receive_transaction = Generation(0);
        history.sent = Timestamp::default();
        history.received = Timestamp::default();
    }
    item
}
