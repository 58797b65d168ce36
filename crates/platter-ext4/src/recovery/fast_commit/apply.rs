//! A replay of fast commits in progress: what is known of their inodes, and changes of these.

use std::collections::{BTreeMap, BTreeSet};

use platter_ondisk::verify::Unverified;
use platter_vfs::{Clock, Condition, Error, FileKind, Result};

use super::awaited::Awaited;
use crate::FsContext;
use crate::alloc::{ALLOC_INODE_CREDITS, Allocator};
use crate::inode;
use crate::mapping::BlockMap;
use crate::ondisk::{BlockNr, GroupNr, Inode, InodeFlags, InodeNr};
use crate::orphan::OrphanRegister;
use crate::quota::Charge;
use crate::quota_file::QuotaFiles;
use crate::txn::Handle;
use crate::xattr;

/// A replay of fast commits in progress. It ends with [`finish`](super::recount::finish).
#[derive(Debug)]
pub(super) struct Apply<'f> {
    pub(super) fs: &'f FsContext,
    pub(super) space: &'f Allocator,
    pub(super) handle: Handle<'f>,
    /// Where usage is counted.
    pub(super) quota_files: Option<QuotaFiles>,
    pub(super) register: OrphanRegister,
    pub(super) clock: &'f dyn Clock,
    /// Whether it may take several transactions.
    may_restart: bool,
    is_full: bool,
    /// Inodes whose space is recounted, and what they counted for before.
    pub(super) touched: BTreeMap<InodeNr, Option<Charge>>,
    /// Directories whose links are recounted: they have no records.
    pub(super) relinked: BTreeSet<InodeNr>,
    /// Groups whose directories are recounted.
    pub(super) groups: BTreeSet<GroupNr>,
    /// Inodes without links in their last record.
    pub(super) gone: BTreeSet<InodeNr>,
    /// Inodes without links since a record of a name, to be deleted unless a later record links them.
    pub(super) doomed: BTreeSet<InodeNr>,
    /// Records that no inode record followed yet: it may be that of another inode than the present one.
    pub(super) awaited: Awaited,
    /// Inodes without extents that lack what records say of their blocks: they may be of another file, or be deleted.
    pub(super) incomplete: BTreeSet<InodeNr>,
}

/// An inode and its block mapping.
pub(super) struct Mapped {
    pub(super) inode: Inode,
    pub(super) map: BlockMap,
}

impl Mapped {
    pub(super) fn new(fs: &FsContext, inode: Inode) -> Result<Self> {
        let map = BlockMap::decode(fs, &inode)?;
        Ok(Self { inode, map })
    }
}

impl<'f> Apply<'f> {
    /// Begins a replay onto `fs`, whose transactions take more of them only if it `may_restart`. No
    /// other thread uses it.
    pub(super) fn begin(
        fs: &'f FsContext,
        space: &'f Allocator,
        quota_files: Option<QuotaFiles>,
        clock: &'f dyn Clock,
        may_restart: bool,
    ) -> Result<Self> {
        Ok(Self {
            fs,
            space,
            handle: fs.begin(0)?,
            quota_files,
            register: OrphanRegister::open(fs)?,
            clock,
            may_restart,
            is_full: false,
            touched: BTreeMap::new(),
            relinked: BTreeSet::new(),
            groups: BTreeSet::new(),
            gone: BTreeSet::new(),
            doomed: BTreeSet::new(),
            awaited: Awaited::default(),
            incomplete: BTreeSet::new(),
        })
    }

    /// Whether it failed because its only transaction is full.
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Ensures that the handle has `credits` left. All that was changed is stored by then.
    pub(super) fn ensure(&mut self, credits: u32) -> Result<()> {
        let left = self.handle.credits();
        if left >= credits || self.handle.extend(credits - left) {
            return Ok(());
        }
        if self.may_restart {
            return self.handle.restart(credits);
        }
        self.is_full = true;
        Err(Condition::NoSpace.into())
    }

    /// Marks blocks as in use.
    pub(super) fn mark(&mut self, start: BlockNr, count: u64) -> Result<()> {
        self.ensure(self.space.free_credits(count))?;
        let blocks = start..BlockNr(start.0.saturating_add(count));
        self.space.mark(self.fs, &mut self.handle, blocks, true)
    }

    /// Marks an inode as in use.
    pub(super) fn take_inode(&mut self, number: InodeNr, is_directory: bool) -> Result<()> {
        let blank = self.space.blank_table_blocks(self.fs, number)?;
        for block in (blank.start.0..blank.end.0).map(BlockNr) {
            self.ensure(1)?;
            let zeros = vec![0; self.fs.geometry.block_bytes as usize];
            self.handle.create(block, &Unverified, zeros)?;
        }
        self.ensure(ALLOC_INODE_CREDITS)?;
        self.space.mark_inode(self.fs, &mut self.handle, number)?;
        if is_directory {
            self.count_group_of(number);
        }
        Ok(())
    }

    pub(super) fn count_group_of(&mut self, number: InodeNr) {
        let group = self.fs.geometry.group_of_inode(number);
        self.groups.extend(group.map(|(group, _)| group));
    }

    /// Prepares an inode for its first change: records what it counts for, and updates its checksum if
    /// that does not match.
    pub(super) fn touch(&mut self, number: InodeNr) -> Result<()> {
        if self.touched.contains_key(&number) {
            return Ok(());
        }
        if self.in_use(number)?.is_some() && inode::find(self.fs, number).is_err() {
            self.ensure(1)?;
            inode::edit_bytes(self.fs, &mut self.handle, number, |_| ())?;
        }
        let charge = match self.fs.quotas() {
            Some(_) => self.charge(number)?,
            None => None,
        };
        self.touched.insert(number, charge);
        Ok(())
    }

    /// Returns what an inode counts for; `None` if it is not in use.
    pub(super) fn charge(&self, number: InodeNr) -> Result<Option<Charge>> {
        let inode = self.in_use(number)?;
        Ok(inode.map(|inode| xattr::charge_of(self.fs, &inode)))
    }

    pub(super) fn edit(&mut self, number: InodeNr, change: impl FnOnce(&mut Inode)) -> Result<()> {
        self.ensure(1)?;
        inode::edit(self.fs, &mut self.handle, number, |inode| {
            change(inode);
            Ok(())
        })
    }

    /// Returns the directory with this number, if there is one.
    pub(super) fn directory(&self, number: InodeNr) -> Result<Option<Inode>> {
        let inode = self.find(number)?;
        Ok(inode.filter(|inode| inode.kind == FileKind::Directory))
    }

    /// Returns the inode with this number, if it is valid and may have a name.
    pub(super) fn find(&self, number: InodeNr) -> Result<Option<Inode>> {
        if inode::is_reserved(self.fs, number) {
            return Ok(None);
        }
        let inode = self.valid(number)?;
        Ok(inode.filter(|inode| inode::unfit_to_name(inode).is_none()))
    }

    /// Returns the inode with this number, if it has a name or may get one.
    pub(super) fn find_or_unnamed(&self, number: InodeNr) -> Result<Option<Inode>> {
        match self.find(number)? {
            None => self.unnamed(number),
            found => Ok(found),
        }
    }

    /// Returns the file with this number, if it has no name and may get one: it was made without
    /// (`O_TMPFILE`), or records, maybe of an interrupted replay, removed its last one.
    pub(super) fn unnamed(&self, number: InodeNr) -> Result<Option<Inode>> {
        if inode::is_reserved(self.fs, number) {
            return Ok(None);
        }
        Ok(self.in_use(number)?.filter(|inode| {
            let holds_value = inode.flags.contains(InodeFlags::EA_INODE);
            inode.links == 0 && inode.kind != FileKind::Directory && !holds_value
        }))
    }

    /// Returns the inode with this number, if it is valid and the bitmap has it in use.
    pub(super) fn in_use(&self, number: InodeNr) -> Result<Option<Inode>> {
        if !self.space.is_inode_in_use(self.fs, number)? {
            return Ok(None);
        }
        self.valid(number)
    }

    /// Returns the inode with this number, if it is valid. The kernel writes an inode before its checksum,
    /// so that one in use may lack that after an interrupted replay.
    pub(super) fn valid(&self, number: InodeNr) -> Result<Option<Inode>> {
        let found = inode::find(self.fs, number);
        let Err(Error::Corrupt(_)) = found else {
            return found;
        };
        match self.space.is_inode_in_use(self.fs, number) {
            Ok(true) => inode::find_unsummed(self.fs, number),
            Ok(false) | Err(Error::Corrupt(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
