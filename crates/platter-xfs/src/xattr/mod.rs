//! Attributes of an inode: in the inode, in leaves, and values in blocks of their own.

pub(crate) mod acl;
mod names;
mod tree;
pub(crate) mod value;
#[cfg(test)]
mod tests;

use std::ops::ControlFlow;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, Result};

use crate::context::FsContext;
use crate::mapping::ForkMap;
use crate::ondisk::attr::{AttrEntry, AttrValue, Namespace, short};
use crate::ondisk::{ForkFormat, Inode, da};
pub(crate) use names::AttrName;

pub use acl::AclRule;

/// Takes attributes until it breaks.
type AttrSink<'s> = dyn FnMut(&AttrEntry<'_>) -> Result<ControlFlow<()>> + 's;

/// Where the attributes of an inode are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// There are none.
    Empty,
    /// In the inode.
    Short,
    /// In leaves.
    Leaves,
}

/// The attributes of one inode.
#[derive(Debug)]
pub struct Attributes<'a> {
    context: &'a FsContext,
    inode: &'a Inode,
    map: ForkMap,
}

impl<'a> Attributes<'a> {
    /// The attributes of an inode.
    pub fn open(context: &'a FsContext, inode: &'a Inode) -> Result<Self> {
        Ok(Self {
            context,
            inode,
            map: ForkMap::of_attrs(context, inode)?,
        })
    }

    /// The value of the attribute with this full name, such as `user.comment`. Access control lists
    /// come in the form of [`platter_vfs::PosixAcl`].
    ///
    /// # Errors
    /// `NoAttribute`; `NotSupported` for a prefix that is not known; `InvalidArgument` for a prefix
    /// alone; `OutOfRange` for a name longer than 255 bytes.
    pub fn get(&self, name: &[u8]) -> Result<Vec<u8>> {
        let name = AttrName::parse(name)?;
        let stored = self.get_stored(name.namespace, name.name)?;
        if name.is_acl {
            return acl::to_attribute(self.inode, &stored);
        }
        Ok(stored)
    }

    /// The value of an attribute by its namespace and its name there.
    pub fn get_stored(&self, namespace: Namespace, name: &[u8]) -> Result<Vec<u8>> {
        let mut found = None;
        let mut take = |attr: &AttrEntry<'_>| {
            let is_it = attr.namespace == namespace && attr.name == name;
            if !is_it || !attr.flags.is_complete() {
                return Ok(ControlFlow::Continue(()));
            }
            found = Some(match attr.value {
                AttrValue::Local(value) => value.to_vec(),
                AttrValue::Remote { block, len } => value::remote(self, block, len)?,
            });
            Ok(ControlFlow::Break(()))
        };
        match self.form() {
            Form::Empty => {}
            Form::Short => self.in_inode(&mut take)?,
            Form::Leaves => self.with_hash(da::hash(name), &mut take)?,
        }
        found.ok_or_else(|| Condition::NoAttribute.into())
    }

    /// The full names of all attributes but parent pointers, in the order they are stored. An
    /// access control list has two: its own, and that of the attribute that holds it.
    pub fn names(&self) -> Result<Vec<Vec<u8>>> {
        let mut all = Vec::new();
        self.visit(&mut |attr| {
            if attr.flags.is_complete() {
                all.extend(names::full_names(attr.namespace, attr.name));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(all)
    }

    /// Passes all attributes, as they are stored, to `sink` until it breaks.
    pub fn visit(&self, sink: &mut AttrSink<'_>) -> Result<()> {
        match self.form() {
            Form::Empty => Ok(()),
            Form::Short => self.in_inode(sink),
            Form::Leaves => self.in_leaves(sink),
        }
    }

    /// A fork that has no blocks is empty, as when all attributes were removed.
    fn form(&self) -> Form {
        match self.inode.attr_format {
            Some(ForkFormat::Local) => Form::Short,
            Some(ForkFormat::Extents) if self.inode.attr_extents == 0 => Form::Empty,
            Some(ForkFormat::Extents | ForkFormat::Btree) => Form::Leaves,
            Some(ForkFormat::Device | ForkFormat::MetaBtree) | None => Form::Empty,
        }
    }

    fn in_inode(&self, sink: &mut AttrSink<'_>) -> Result<()> {
        let fork = self.inode.attr_fork();
        let bytes = fork.map_or(&[][..], |fork| fork.bytes);
        let corrupt = |rule| Corrupt::new(self.locus(), rule);
        for attr in short::entries(bytes).map_err(corrupt)? {
            if sink(&attr.map_err(corrupt)?)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    fn locus(&self) -> Locus {
        Locus::inode(self.inode.number.get())
    }
}
