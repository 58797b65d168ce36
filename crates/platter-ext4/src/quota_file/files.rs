//! The quota files of a filesystem that is mounted for writing.

use std::collections::BTreeMap;
use std::sync::Arc;

use platter_block::lock::{Mutex, rank};
use platter_ondisk::Corrupt;
use platter_vfs::{Clock, Condition, Result, Unsupported};

use super::QuotaFile;
use crate::FsContext;
use crate::alloc::{Allocator, SpaceRule};
use crate::inode;
use crate::mapping::Backing;
use crate::ondisk::FileBlock;
use crate::ondisk::features::RoCompat;
use crate::ondisk::quota::{QUOTA_BLOCK_BYTES, QUOTA_ROOT_BLOCK, QuotaKind, QuotaRule};
use crate::quota::{Dquot, KindUsage, Owners, QuotaTable};

/// Maximum number of ids of one kind: all are in memory.
const IDS_MAX: usize = 1 << 18;

/// The files, where entries are added and removed.
#[derive(Debug)]
pub struct QuotaFiles {
    /// The quota files, by kind of owner.
    files: Mutex<[Option<QuotaFile>; 3], { rank(5, 9) }>,
}

impl QuotaFiles {
    /// Reads the files of a filesystem that counts usage: them, and what they record.
    ///
    /// # Errors
    /// `Corrupt` if a file is: then nothing may be changed. `Unsupported` with too many ids.
    pub fn open(
        fs: &FsContext,
        space: &Allocator,
        enforced: [bool; 3],
        clock: Arc<dyn Clock>,
    ) -> Result<Option<(Self, QuotaTable)>> {
        let inodes = fs.superblock.quota_inodes;
        let mut wanted = QuotaKind::ALL.into_iter().zip(enforced).zip(inodes);
        if let Some(((kind, _), _)) = wanted.find(|((_, on), file)| *on && file.is_none()) {
            let unsupported = Unsupported {
                filesystem: "ext4",
                feature: format!("a limit of {}", kind.name()),
                reason: Some("the filesystem has no quota file of that kind"),
            };
            return Err(unsupported.into());
        }
        if !fs.geometry.features.ro_compat.contains(RoCompat::QUOTA) {
            return Ok(None);
        }
        let mut files = [const { None }; 3];
        let mut usages = [const { None }; 3];
        for (kind, number) in QuotaKind::ALL.into_iter().zip(fs.superblock.quota_inodes) {
            let Some(number) = number else { continue };
            let file = QuotaFile::open(fs, kind, inode::read(fs, number)?)?;
            check_blocks(&file, fs, space)?;
            usages[kind.index()] = Some(usage(&file, fs)?);
            files[kind.index()] = Some(file);
        }
        let table = QuotaTable::new(usages, enforced, clock);
        let files = Self {
            files: Mutex::new(files),
        };
        Ok(Some((files, table)))
    }

    /// Adds entries for those of `owners` that have none. The caller has no handle.
    ///
    /// # Errors
    /// `NoSpace`: some may have got one.
    pub fn add_missing(
        &self,
        fs: &FsContext,
        space: &Allocator,
        table: &QuotaTable,
        owners: &Owners,
    ) -> Result<()> {
        if table.missing(owners).is_empty() {
            return Ok(());
        }
        let mut files = self.files.lock();
        // Another thread may have added them.
        for (kind, id) in table.missing(owners) {
            let Some(file) = &mut files[kind.index()] else {
                continue;
            };
            let mut handle = fs.begin(file.add_credits())?;
            file.add_owner(fs, space, &mut handle, table, (kind, id))?;
        }
        Ok(())
    }

    /// Returns the file of one kind to the only user of the files.
    pub fn file_mut(&mut self, kind: QuotaKind) -> Option<&mut QuotaFile> {
        self.files.get_mut()[kind.index()].as_mut()
    }

    /// Removes the entries that record nothing. The caller has no handle, and no usage changes meanwhile.
    ///
    /// # Errors
    /// Those of changing the files.
    pub fn remove_unused(&self, fs: &FsContext, table: &QuotaTable) -> Result<()> {
        let mut files = self.files.lock();
        for (kind, file) in QuotaKind::ALL.into_iter().zip(&mut *files) {
            let Some(file) = file else { continue };
            for id in table.unused(kind) {
                // As the kernel does, which has it in use as long as the filesystem is mounted.
                if id == 0 {
                    continue;
                }
                let mut handle = fs.begin(QuotaFile::remove_credits())?;
                let removed = file.remove(fs, &mut handle, id);
                removed.map_err(|error| handle.abort(error))?;
                table.remove_entry(kind, id);
            }
        }
        Ok(())
    }
}

/// Reads all entries.
fn usage(file: &QuotaFile, fs: &FsContext) -> Result<KindUsage> {
    let mut dquots = BTreeMap::new();
    file.visit(fs, &mut |entry, place| {
        let id = entry.id.get();
        if dquots.insert(id, Dquot::decode(entry, place)).is_some() {
            return Err(file.broken(QUOTA_ROOT_BLOCK, QuotaRule::Duplicate).into());
        }
        if dquots.len() > IDS_MAX {
            let unsupported = Unsupported {
                filesystem: "ext4",
                feature: format!("writing with quotas of more than {IDS_MAX} ids"),
                reason: None,
            };
            return Err(unsupported.into());
        }
        Ok(())
    })?;
    Ok(KindUsage::new(file.head(), dquots))
}

/// Checks that the file has blocks of its own: what is written to them is no other metadata.
fn check_blocks(file: &QuotaFile, fs: &FsContext, space: &Allocator) -> Result<()> {
    let geometry = &fs.geometry;
    let size = u64::from(file.head.blocks.get()) * QUOTA_BLOCK_BYTES as u64;
    let end = u32::try_from(size.div_ceil(u64::from(geometry.block_bytes)));
    let end = end.map_err(|_| Condition::FileTooLarge)?;
    let mut at = FileBlock(0);
    while at.0 < end {
        let run = file.map.lookup(fs, at)?.truncated(end - at.0);
        if let Backing::Written(start) = run.backing
            && !space.may_hold_contents(start, u64::from(run.count))
        {
            let locus = file.locus().at_block(start.0);
            return Err(Corrupt::new(locus, SpaceRule::Overlap).into());
        }
        at = run.end();
    }
    Ok(())
}
