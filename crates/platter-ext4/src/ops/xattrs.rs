//! Extended attributes.

use platter_vfs::{Context, Result, XattrMode};

use super::{Ext4Inode, InodeState, quotas};
use crate::txn::Handle;
use crate::xattr::{self, XattrChange, change_credits};

/// See [`platter_vfs::Inode::get_xattr`].
pub(super) fn get(node: &Ext4Inode, name: &[u8]) -> Result<Vec<u8>> {
    xattr::get(node.fs(), &node.state.read().inode, name)
}

/// See [`platter_vfs::Inode::list_xattrs`].
pub(super) fn list(node: &Ext4Inode) -> Result<Vec<Vec<u8>>> {
    xattr::list(node.fs(), &node.state.read().inode)
}

/// See [`platter_vfs::Inode::set_xattr`].
pub(super) fn set(
    node: &Ext4Inode,
    context: &Context,
    name: &[u8],
    value: &[u8],
    mode: XattrMode,
) -> Result<()> {
    change(node, context, |change| {
        xattr::set_named(change, context, name, value, mode)
    })
}

/// See [`platter_vfs::Inode::remove_xattr`].
pub(super) fn remove(node: &Ext4Inode, context: &Context, name: &[u8]) -> Result<()> {
    change(node, context, |change| {
        xattr::remove_named(change, context, name)
    })
}

fn change(
    node: &Ext4Inode,
    context: &Context,
    mut change: impl FnMut(&mut XattrChange<'_, '_>) -> Result<bool>,
) -> Result<()> {
    let _order = node.order.write();
    node.retry_after_enospc(|| {
        // What is reserved of a quota is so until the inode is stored.
        let _holding = in_handle(node, |handle, state, needed| {
            let mut changing = begin(node, context, handle, state)?;
            let changed = change(&mut changing);
            *needed = changing.needed;
            let is_changed = changed?;
            let (now, holding) = (changing.now, changing.holding);
            if is_changed {
                state.inode.changed = state.inode.storable(now);
            }
            Ok(holding)
        })?;
        Ok(())
    })
}

/// Changes the inode and its attributes in one transaction: in another handle where `change` fails and
/// sets the credits that it [needs](XattrChange::needed).
pub(super) fn in_handle<R>(
    node: &Ext4Inode,
    mut change: impl FnMut(&mut Handle<'_>, &mut InodeState, &mut Option<u32>) -> Result<R>,
) -> Result<R> {
    let mut credits = change_credits(node.fs());
    loop {
        let mut needed = None;
        let changed = node.change(credits, |handle, state| change(handle, state, &mut needed));
        match needed {
            Some(more) if changed.is_err() && more > credits => credits = more,
            Some(_) | None => return changed,
        }
    }
}

/// A change of the inode's attributes, on behalf of `context`.
pub(super) fn begin<'a, 'h>(
    node: &'a Ext4Inode,
    context: &Context,
    handle: &'a mut Handle<'h>,
    state: &'a mut InodeState,
) -> Result<XattrChange<'a, 'h>> {
    Ok(XattrChange {
        fs: node.fs(),
        space: node.sb.space()?,
        handle,
        holding: quotas::hold_for_xattrs(node, context, &state.inode),
        needed: None,
        inode: &mut state.inode,
        from: node.reserve_of(context),
        now: node.sb.clock.now(),
        clock: &*node.sb.clock,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use platter_vfs::{FileKind, Inode as _};

    use super::super::data::tests::mount;
    use super::*;
    use crate::alloc;
    use crate::alloc::tests::sample::{Sample, Shape};
    use crate::inode::{self, STORE_CREDITS};
    use crate::mapping::BlockMap;
    use crate::ondisk::features::Incompat;
    use crate::ondisk::{Inode, InodeFlags, InodeNr};

    const SHAPE: Shape = Shape {
        incompat: Incompat::FILETYPE
            .union(Incompat::EXTENTS)
            .union(Incompat::EA_INODE),
        ..Shape::PLAIN
    };

    fn file() -> Arc<Ext4Inode> {
        let sample = Sample::new(SHAPE);
        let (fs, kind) = (&sample.fs, FileKind::Regular);
        let dir = FileKind::Directory;
        let root = Inode::new(InodeNr::ROOT, dir, 7, 32, &fs.geometry);
        let mut handle = fs.begin(20).unwrap();
        let space = &sample.space;
        let number = alloc::alloc_inode(space, fs, &mut handle, &root, kind, 0).unwrap();
        let mut inode = Inode::new(number, kind, 7, 32, &fs.geometry);
        inode.links = 1;
        inode.flags = InodeFlags::EXTENTS;
        let _ = BlockMap::begin(fs, &mut inode);
        inode::initialize(fs, &mut handle, &inode).unwrap();
        drop(handle);
        sample.commit();
        mount(&sample.device).find(number).unwrap().unwrap()
    }

    /// Runs `change` while another handle leaves no credits but those that a change begins with. It
    /// needs more, and waits for the next transaction.
    fn in_full_transaction(node: &Ext4Inode, change: impl FnOnce() -> Result<()> + Send) {
        let log = node.fs().log().unwrap();
        log.commit_all().unwrap();
        let credits = change_credits(node.fs()) + STORE_CREDITS;
        let other = log.begin_unheld(log.credits_max() - credits).unwrap();
        thread::scope(|scope| {
            let changing = scope.spawn(change);
            thread::sleep(Duration::from_millis(100));
            assert!(!changing.is_finished());
            drop(other);
            changing.join().unwrap().unwrap();
        });
    }

    #[test]
    fn large_values_change_while_the_transaction_is_full() {
        let node = file();
        let set = |byte: u8| {
            let value = vec![byte; 5000];
            node.set_xattr(&Context::root(), b"user.a", &value, XattrMode::Set)
        };
        set(1).unwrap();
        in_full_transaction(&node, || set(2));
        assert_eq!(node.get_xattr(b"user.a").unwrap(), [2; 5000]);
        in_full_transaction(&node, || node.remove_xattr(&Context::root(), b"user.a"));
        assert!(node.get_xattr(b"user.a").is_err());
        node.fs().log().unwrap().commit_all().unwrap();
    }
}
