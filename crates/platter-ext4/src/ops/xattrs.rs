//! Extended attributes.

use platter_vfs::writing::retry_no_space;
use platter_vfs::{Context, Result, XattrMode};

use super::Ext4Inode;
use crate::alloc::Reserve;
use crate::txn::Handle;
use crate::xattr::{self, XattrChange, change_credits};

use super::InodeState;

impl Ext4Inode {
    pub(super) fn xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        xattr::get(self.fs(), &self.state.read().inode, name)
    }

    pub(super) fn xattr_names(&self) -> Result<Vec<Vec<u8>>> {
        xattr::list(self.fs(), &self.state.read().inode)
    }

    pub(super) fn set_named_xattr(
        &self,
        context: &Context,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let credentials = &context.credentials;
        self.change_xattrs(context, |change| {
            let gid = change.inode.gid;
            let keeps_group_id = credentials.is_superuser() || credentials.is_in_group(gid);
            change.set_named(name, value, mode, keeps_group_id)
        })
    }

    pub(super) fn remove_named_xattr(&self, context: &Context, name: &[u8]) -> Result<()> {
        self.change_xattrs(context, |change| change.remove_named(name))
    }

    fn change_xattrs(
        &self,
        context: &Context,
        mut change: impl FnMut(&mut XattrChange<'_, '_>) -> Result<bool>,
    ) -> Result<()> {
        let _order = self.order.write();
        self.retry_after_enospc(|| {
            // What is reserved of a quota is so until the inode is stored.
            let _holding = self.change(change_credits(self.fs()), |handle, state| {
                let mut changing = self.xattr_change(context, handle, state)?;
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

    /// Tries again what found no space, once what was freed before may be used. The caller has no
    /// handle.
    pub(super) fn retry_after_enospc<R>(&self, attempt: impl FnMut() -> Result<R>) -> Result<R> {
        self.sb.space()?;
        retry_no_space(&*self.sb, attempt)
    }

    /// A change of the inode's attributes, on behalf of `context`.
    pub(super) fn xattr_change<'a, 'h>(
        &'a self,
        context: &Context,
        handle: &'a mut Handle<'h>,
        state: &'a mut InodeState,
    ) -> Result<XattrChange<'a, 'h>> {
        Ok(XattrChange {
            fs: self.fs(),
            space: self.sb.space()?,
            handle,
            holding: self.hold_for_xattrs(context, &state.inode),
            inode: &mut state.inode,
            from: self.reserve_of(context),
            now: self.sb.clock.now(),
            clock: &*self.sb.clock,
        })
    }

    /// What space a user may take.
    pub(super) fn reserve_of(&self, context: &Context) -> Reserve {
        let superblock = &self.fs().superblock;
        let credentials = &context.credentials;
        let is_privileged = credentials.is_superuser()
            || credentials.uid == superblock.reserved_uid
            || superblock.reserved_gid != 0 && credentials.is_in_group(superblock.reserved_gid);
        if is_privileged {
            Reserve::Privileged
        } else {
            Reserve::Ordinary
        }
    }
}
