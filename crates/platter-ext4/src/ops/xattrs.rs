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
        let _holding = node.change(change_credits(node.fs()), |handle, state| {
            let mut changing = begin(node, context, handle, state)?;
            let is_changed = change(&mut changing)?;
            let (now, holding) = (changing.now, changing.holding);
            if is_changed {
                state.inode.changed = state.inode.storable(now);
            }
            Ok(holding)
        })?;
        Ok(())
    })
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
        inode: &mut state.inode,
        from: node.reserve_of(context),
        now: node.sb.clock.now(),
        clock: &*node.sb.clock,
    })
}
