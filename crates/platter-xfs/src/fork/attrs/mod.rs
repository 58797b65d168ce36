//! The attributes of an inode under change, one by one: in the inode, in a leaf, in leaves below nodes, and with
//! values in blocks of their own. A form is left when it is full, and again when what is left fits the smaller one.
//! Spec: `xfs/extended_attributes`; parent pointers: `xfs-headers/xfs_da_format.h`.

mod blocks;
mod tree;

use platter_ondisk::{Corrupt, Locus, Rule};
use platter_vfs::{Error, Result};

use super::{ForkEdit, InodeEdit};
use crate::ag::Groups;
use crate::ondisk::attr::{
    AttrEntry, AttrFlags, AttrValue, Namespace, VALUE_BYTES_MAX, build, short,
};
use crate::ondisk::da;
use crate::ondisk::inode::edit::StoredFork;
use crate::ondisk::{ForkFormat, ForkKind, InodeNr};
use blocks::Blocks;

/// An attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attr {
    /// Its namespace.
    pub namespace: Namespace,
    /// Its name there.
    pub name: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
}

/// What one attribute of an inode differs in from all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttrKey<'a> {
    namespace: Namespace,
    name: &'a [u8],
    /// The value of a pointer to a parent: there may be several of one name.
    parent: Option<&'a [u8]>,
    /// Whether an incomplete attribute has this key, too.
    may_be_incomplete: bool,
}

impl<'a> AttrKey<'a> {
    /// The attribute of this name; one in the namespace of parent pointers has the value as well.
    #[must_use]
    pub fn new(namespace: Namespace, name: &'a [u8], value: &'a [u8]) -> Self {
        Self {
            namespace,
            name,
            parent: Some(value).filter(|_| namespace == Namespace::Parent),
            may_be_incomplete: false,
        }
    }

    /// The hash of the name; parent pointers of one name differ by the parent.
    fn hash(&self) -> u32 {
        let parent = self.parent.and_then(<[u8]>::first_chunk);
        let parent = parent.map_or(0, |parent| u64::from_be_bytes(*parent));
        let half = |half: u64| u32::try_from(half & u64::from(u32::MAX)).unwrap_or_default();
        da::hash(self.name) ^ half(parent >> 32) ^ half(parent)
    }

    fn is(&self, attr: &Stored) -> bool {
        attr.namespace == self.namespace
            && attr.name == self.name
            && (self.may_be_incomplete || attr.flags.is_complete())
            && self.parent.is_none_or(
                |parent| matches!(&attr.value, StoredValue::Local(value) if value == parent),
            )
    }
}

impl Attr {
    /// What it differs in from all others.
    #[must_use]
    pub fn key(&self) -> AttrKey<'_> {
        AttrKey::new(self.namespace, &self.name, &self.value)
    }
}

/// An attribute as it is stored.
#[derive(Debug, Clone)]
struct Stored {
    hash: u32,
    flags: AttrFlags,
    namespace: Namespace,
    name: Vec<u8>,
    value: StoredValue,
}

#[derive(Debug, Clone)]
enum StoredValue {
    Local(Vec<u8>),
    Remote { block: u32, len: u32 },
}

impl Stored {
    fn of(hash: u32, attr: &AttrEntry<'_>) -> Self {
        Self {
            hash,
            flags: attr.flags,
            namespace: attr.namespace,
            name: attr.name.to_vec(),
            value: match attr.value {
                AttrValue::Local(value) => StoredValue::Local(value.to_vec()),
                AttrValue::Remote { block, len } => StoredValue::Remote { block, len },
            },
        }
    }

    fn entry(&self) -> AttrEntry<'_> {
        AttrEntry {
            flags: self.flags,
            namespace: self.namespace,
            name: &self.name,
            value: match &self.value {
                StoredValue::Local(value) => AttrValue::Local(value),
                StoredValue::Remote { block, len } => AttrValue::Remote {
                    block: *block,
                    len: *len,
                },
            },
        }
    }
}

/// Where attributes are.
#[derive(Debug)]
enum Form {
    /// In the inode.
    Short(Vec<Stored>),
    /// In blocks of the fork.
    Blocks(ForkEdit),
}

/// The attributes of an inode of version 3 under change.
#[derive(Debug)]
pub struct AttrEdit<'g> {
    groups: &'g mut Groups,
    inode: &'g mut InodeEdit,
    owner: InodeNr,
    /// Bytes of the inode that the fork fills.
    len: usize,
    form: Form,
    /// Blocks that a fork which is left had more than before.
    blocks: i64,
    /// Whether incomplete attributes are set and removed as others.
    is_recovery: bool,
}

fn broken<R: Rule>(inode: InodeNr, rule: R) -> Error {
    Corrupt::new(Locus::inode(inode.get()), rule).into()
}

/// The short form, if attributes that are whole have one of at most so many bytes.
fn short_form(attrs: &[Stored], most: usize) -> Option<Vec<u8>> {
    if !attrs.iter().all(|attr| attr.flags.is_complete()) {
        return None;
    }
    let entries: Vec<AttrEntry<'_>> = attrs.iter().map(Stored::entry).collect();
    build::short(&entries).filter(|bytes| bytes.len() <= most)
}

impl<'g> AttrEdit<'g> {
    /// The attributes of an inode that has a fork for them.
    pub fn open(groups: &'g mut Groups, inode: &'g mut InodeEdit) -> Result<Self> {
        let owner = inode.inode().number;
        let fork = inode.fork(ForkKind::Attr)?;
        let len = fork.bytes.len();
        let form = match fork.format {
            ForkFormat::Local => {
                let corrupt = |rule| broken(owner, rule);
                let mut attrs = Vec::new();
                for attr in short::entries(fork.bytes).map_err(corrupt)? {
                    let mut stored = Stored::of(0, &attr.map_err(corrupt)?);
                    stored.hash = stored.key().hash();
                    attrs.push(stored);
                }
                Form::Short(attrs)
            }
            ForkFormat::Extents if fork.extents == 0 => Form::Short(Vec::new()),
            ForkFormat::Device
            | ForkFormat::Extents
            | ForkFormat::Btree
            | ForkFormat::MetaBtree => {
                Form::Blocks(ForkEdit::open(&fork, owner, groups.geometry())?)
            }
        };
        Ok(Self {
            groups,
            inode,
            owner,
            len,
            form,
            blocks: 0,
            is_recovery: false,
        })
    }

    /// Has incomplete attributes set and removed as others: a change that a crash interrupted left them
    /// (`XFS_DA_OP_RECOVERY`).
    #[must_use]
    pub fn for_recovery(self) -> Self {
        Self {
            is_recovery: true,
            ..self
        }
    }

    fn key_of_change<'a>(&self, key: &AttrKey<'a>) -> AttrKey<'a> {
        AttrKey {
            may_be_incomplete: self.is_recovery,
            ..*key
        }
    }

    /// The value of an attribute.
    pub fn get(&mut self, key: &AttrKey<'_>) -> Result<Option<Vec<u8>>> {
        let fork = match &mut self.form {
            Form::Short(attrs) => {
                let found = attrs.iter().find(|attr| key.is(attr));
                return Ok(found.and_then(|attr| match &attr.value {
                    StoredValue::Local(value) => Some(value.clone()),
                    StoredValue::Remote { .. } => None,
                }));
            }
            Form::Blocks(fork) => fork,
        };
        let mut blocks = Blocks::new(self.groups, fork, self.owner);
        let Some((path, index)) = blocks.find(key.hash(), |attr| key.is(attr))? else {
            return Ok(None);
        };
        Ok(match path.attr(index).map(|attr| &attr.value) {
            Some(StoredValue::Local(value)) => Some(value.clone()),
            Some(&StoredValue::Remote { block, len }) => Some(blocks.read_value(block, len)?),
            None => None,
        })
    }

    /// Whether an attribute is there.
    pub fn has(&mut self, key: &AttrKey<'_>) -> Result<bool> {
        let fork = match &mut self.form {
            Form::Short(attrs) => return Ok(attrs.iter().any(|attr| key.is(attr))),
            Form::Blocks(fork) => fork,
        };
        let mut blocks = Blocks::new(self.groups, fork, self.owner);
        Ok(blocks.find(key.hash(), |attr| key.is(attr))?.is_some())
    }

    /// Sets an attribute, in the place of the one that it has the key of.
    pub fn set(&mut self, attr: &Attr) -> Result<()> {
        let key = self.key_of_change(&attr.key());
        let mut stored = Stored {
            hash: key.hash(),
            flags: attr.namespace.flag(),
            namespace: attr.namespace,
            name: attr.name.clone(),
            value: StoredValue::Local(attr.value.clone()),
        };
        if let Form::Short(attrs) = &mut self.form {
            attrs.retain(|old| !key.is(old));
            attrs.push(stored);
            return match short_form(attrs, self.len) {
                Some(_) => Ok(()),
                None => self.leave_inode(),
            };
        }
        self.take_from_blocks(&key)?;
        let Form::Blocks(fork) = &mut self.form else {
            return Ok(());
        };
        let mut blocks = Blocks::new(self.groups, fork, self.owner);
        blocks.place_value(&mut stored)?;
        blocks.insert(stored)
    }

    /// Removes an attribute. Returns whether it was there.
    pub fn remove(&mut self, key: &AttrKey<'_>) -> Result<bool> {
        let key = &self.key_of_change(key);
        if let Form::Short(attrs) = &mut self.form {
            let before = attrs.len();
            attrs.retain(|old| !key.is(old));
            return Ok(attrs.len() < before);
        }
        if !self.take_from_blocks(key)? {
            return Ok(false);
        }
        self.enter_inode()?;
        Ok(true)
    }

    /// Stores the fork in the inode.
    pub fn finish(self) -> Result<()> {
        let geometry = self.groups.geometry();
        match self.form {
            Form::Short(attrs) if !attrs.is_empty() => {
                let bytes = short_form(&attrs, self.len);
                let bytes =
                    bytes.ok_or_else(|| broken(self.owner, short::ShortAttrRule::Length))?;
                let stored = StoredFork {
                    kind: ForkKind::Attr,
                    format: ForkFormat::Local,
                    extents: 0,
                    bytes: &bytes,
                };
                self.inode.set_fork(&stored, self.blocks)?;
            }
            Form::Short(_) => {
                let mut fork = ForkEdit::empty(ForkKind::Attr, self.owner, self.len);
                fork.blocks = self.blocks;
                fork.store(self.inode)?;
            }
            Form::Blocks(fork) => fork.store(self.inode)?,
        }
        self.inode.refresh(geometry)
    }

    /// Removes the attribute that matches the key; in recovery all that do, as there may be a complete one and
    /// incomplete ones. Returns whether there was one.
    fn take_from_blocks(&mut self, key: &AttrKey<'_>) -> Result<bool> {
        let was_there = self.take_one_from_blocks(key)?;
        while was_there && self.is_recovery && self.take_one_from_blocks(key)? {}
        Ok(was_there)
    }

    fn take_one_from_blocks(&mut self, key: &AttrKey<'_>) -> Result<bool> {
        let Form::Blocks(fork) = &mut self.form else {
            return Ok(false);
        };
        let mut blocks = Blocks::new(self.groups, fork, self.owner);
        let Some((path, index)) = blocks.find(key.hash(), |attr| key.is(attr))? else {
            return Ok(false);
        };
        // An incomplete one may have no value, and no length that is one.
        if let Some(&StoredValue::Remote { block, len }) = path.attr(index).map(|attr| &attr.value)
            && block != 0
            && len <= VALUE_BYTES_MAX
        {
            blocks.drop_value(block, len)?;
        }
        blocks.remove(path, index)?;
        Ok(true)
    }

    /// Moves attributes that the inode has no space for to blocks.
    fn leave_inode(&mut self) -> Result<()> {
        let Form::Short(attrs) = &mut self.form else {
            return Ok(());
        };
        let attrs = std::mem::take(attrs);
        let mut fork = ForkEdit::empty(ForkKind::Attr, self.owner, self.len);
        fork.blocks = self.blocks;
        let mut blocks = Blocks::new(self.groups, &mut fork, self.owner);
        blocks.plant()?;
        for mut attr in attrs {
            blocks.place_value(&mut attr)?;
            blocks.insert(attr)?;
        }
        self.form = Form::Blocks(fork);
        Ok(())
    }

    /// Moves the attributes of a single leaf to the inode if they fit there.
    fn enter_inode(&mut self) -> Result<()> {
        let len = self.len;
        let Form::Blocks(fork) = &mut self.form else {
            return Ok(());
        };
        let mut blocks = Blocks::new(self.groups, fork, self.owner);
        let Some(attrs) = blocks.only_leaf()? else {
            return Ok(());
        };
        let fits = attrs.is_empty() || short_form(&attrs, len).is_some();
        // Values that were being written have blocks, which the leaf leads to.
        if !fits || !blocks.has_only_root()? {
            return Ok(());
        }
        blocks.drop_root()?;
        self.blocks = fork.blocks;
        self.form = Form::Short(attrs);
        Ok(())
    }
}

impl Stored {
    fn key(&self) -> AttrKey<'_> {
        let value = match &self.value {
            StoredValue::Local(value) => &value[..],
            StoredValue::Remote { .. } => &[],
        };
        AttrKey::new(self.namespace, &self.name, value)
    }
}

#[cfg(test)]
impl AttrEdit<'_> {
    /// All attributes, in the order of their hashes where they are in blocks.
    pub(super) fn all(&mut self) -> Result<Vec<Attr>> {
        let stored = match &mut self.form {
            Form::Short(attrs) => attrs.clone(),
            Form::Blocks(fork) => Blocks::new(self.groups, fork, self.owner).all()?,
        };
        let attrs = stored.iter().map(|attr| {
            let value = self.get(&attr.key())?;
            Ok(Attr {
                namespace: attr.namespace,
                name: attr.name.clone(),
                value: value.expect("an attribute that is listed is found"),
            })
        });
        attrs.collect()
    }
}
