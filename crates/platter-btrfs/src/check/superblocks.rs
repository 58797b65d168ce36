//! The superblocks of all devices and their copies, and the log.

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;
use platter_vfs::check::{Checking as _, Finding, Severity};

use super::{Checker, Flow, SuperblockUseRule};
use crate::chunk::Member;
use crate::ondisk::key::ItemKind;
use crate::ondisk::root_item::RootItem;
use crate::ondisk::superblock::{
    DiskSuperblock, MAGIC, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, SuperblockFlags,
};
use crate::ondisk::{Key, Superblock, TreeId};
use crate::tree::{Cursor, Tree};

impl Checker<'_> {
    /// Compares the superblocks of all devices, and their copies.
    pub(super) fn check_superblocks(&mut self) -> Flow {
        let context = self.context;
        let total = context.blocks.store().members().iter().count() as u64;
        self.report.progress("superblocks", 0, total)?;
        for member in context.blocks.store().members().iter() {
            self.report.count("devices", 1);
            for (copy, at) in (0u16..).zip(SUPERBLOCK_OFFSETS) {
                self.check_superblock(member, copy, at)?;
            }
        }
        Ok(())
    }

    fn check_superblock(&mut self, member: &Member, copy: u16, at: u64) -> Flow {
        let Some(device) = &member.device else {
            return Ok(());
        };
        let end = at.saturating_add(SUPERBLOCK_BYTES as u64);
        if end > device.geometry().len_bytes {
            return Ok(());
        }
        let locus = Locus::UNKNOWN.on_member(member.id.0).of_copy(copy);
        let mut bytes = [0; SUPERBLOCK_BYTES];
        let read = device.read_at(at, &mut bytes);
        let Some(()) = self.tolerate("superblock", locus, read.map_err(Into::into))? else {
            return Ok(());
        };
        let disk: DiskSuperblock = zerocopy::transmute!(bytes);
        // Devices that were small when they were added have no copy there.
        if copy > 0 && disk.magic != MAGIC {
            return self.noticed(locus.at_offset(at), SuperblockUseRule::Copy);
        }
        let newest = &self.context.superblock;
        match Superblock::decode(&disk, at) {
            Ok(found) => {
                if found.flags.refused().is_some() {
                    let flags = locus.at_offset(at);
                    let severity = if copy == 0 {
                        Severity::Error
                    } else {
                        Severity::Notice
                    };
                    let corrupt = Corrupt::new(flags, SuperblockUseRule::Flags);
                    let mut finding = Finding::error(corrupt.into());
                    finding.severity = severity;
                    self.report_finding(finding)?;
                }
                // A seed stays as it was when it became one.
                if found.flags.contains(SuperblockFlags::SEEDING) && found.fsid != newest.fsid {
                    return Ok(());
                }
                if found.generation == newest.generation {
                    return Ok(());
                }
                let rule = if copy == 0 {
                    SuperblockUseRule::Stale
                } else {
                    SuperblockUseRule::Copy
                };
                self.noticed(locus.at_offset(at), rule)
            }
            Err(mut corrupt) => {
                corrupt.locus = locus.at_offset(at);
                let mut finding = Finding::error(corrupt.into());
                if copy > 0 {
                    finding.severity = Severity::Notice;
                }
                self.report_finding(finding)
            }
        }
    }

    /// Reads the log trees, which a mount replays. What is wrong with them loses files that were synced
    /// since the last commit, and leaves the filesystem as it was then.
    pub(super) fn check_log(&mut self) -> Flow {
        let Some(root) = self.context.superblock.log_root else {
            return Ok(());
        };
        let log = Tree {
            id: TreeId::TREE_LOG,
            root,
        };
        self.noticed(
            Locus::tree(log.id.0).at_block(root.logical.0),
            SuperblockUseRule::Log,
        )?;
        let logs = self.log_trees(log);
        let trees = match logs {
            Ok(trees) => trees,
            Err(error) => return self.report_log(error),
        };
        for tree in trees {
            if let Err(error) = self.read_log(tree) {
                self.report_log(error)?;
            }
        }
        Ok(())
    }

    /// Reports why the log cannot be replayed: a mount fails on it.
    fn report_log(&mut self, error: platter_vfs::Error) -> Flow {
        let locus = Locus::tree(TreeId::TREE_LOG.0);
        self.report_finding(Finding::of_error("log tree", locus, error))
    }

    fn log_trees(&self, log: Tree) -> Result<Vec<Tree>> {
        let mut trees = Vec::new();
        let mut cursor = Cursor::new(&self.context.blocks, log);
        cursor.seek(Key::MIN)?;
        while let Some((key, data)) = cursor.item() {
            if key.kind == ItemKind::ROOT_ITEM {
                let item = RootItem::decode(data, self.format.sector_bytes, log.locus(key))?;
                let (id, root) = (TreeId::TREE_LOG, item.root);
                trees.push(Tree { id, root });
            }
            cursor.step()?;
        }
        Ok(trees)
    }

    fn read_log(&self, tree: Tree) -> Result<()> {
        let mut cursor = Cursor::new(&self.context.blocks, tree);
        cursor.seek(Key::MIN)?;
        while let Some((key, data)) = cursor.item() {
            self.format.check(key, data, tree.locus(key))?;
            cursor.step()?;
        }
        Ok(())
    }
}
