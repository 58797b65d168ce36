//! The extents, in order of address.

use platter_ondisk::Locus;

use super::units::{Kind, Unit};
use super::{Flow, Row, Scrubber};
use crate::block_group::Ranges;
use crate::chunk::Placement;
use crate::data::Checksums;
use crate::ondisk::chunk_item::STRIPE_BYTES;
use crate::ondisk::extent_item::{ExtentItem, ExtentKind};
use crate::ondisk::key::ItemKind;
use crate::ondisk::tree_block::Expected;
use crate::ondisk::{Generation, Key, LogicalAddr, TreeId};

/// Data that is read at once.
const READ_BYTES: u64 = 1 << 20;

impl Scrubber<'_> {
    /// Reads all extents.
    pub(super) fn scrub_extents(&mut self) -> Flow {
        let context = self.context;
        let tree = context.required_tree(TreeId::EXTENT)?;
        let mut cursor = context.cursor(tree);
        cursor.seek(Key::MIN)?;
        let mut done = 0u64;
        let total = context.superblock.bytes_used;
        while let Some((key, data)) = cursor.item() {
            let start = LogicalAddr(key.object);
            let len_bytes = match key.kind {
                ItemKind::METADATA_ITEM => u64::from(context.superblock.node_bytes),
                ItemKind::EXTENT_ITEM => key.offset,
                ItemKind(_) => 0,
            };
            if len_bytes > 0 {
                let item = ExtentItem::decode(key, data, tree.locus(key))?;
                match item.kind {
                    ExtentKind::TreeBlock { .. } => self.scrub_block(start, item.generation)?,
                    ExtentKind::Data => self.scrub_data(start, len_bytes)?,
                }
                done = done.saturating_add(len_bytes);
                self.progress(done.min(total), total)?;
            }
            cursor.step()?;
        }
        Ok(())
    }

    fn scrub_block(&mut self, at: LogicalAddr, generation: Generation) -> Flow {
        self.counts.tree_extents += 1;
        let expected = Expected {
            generation: Some(generation),
            ..Expected::default()
        };
        let len_bytes = u64::from(self.context.superblock.node_bytes);
        self.enter_rows(at, len_bytes)?;
        let unit = Unit {
            at,
            len_bytes,
            kind: Kind::Block(expected),
        };
        self.scrub_unit(&unit)
    }

    fn scrub_data(&mut self, start: LogicalAddr, len_bytes: u64) -> Flow {
        self.counts.data_extents += 1;
        let mut at = start;
        let end = LogicalAddr(start.0.saturating_add(len_bytes));
        while at < end {
            let map = self.store().map();
            let chunk = map.find(at)?;
            let segment = chunk.segment(at, (end.0 - at.0).min(READ_BYTES));
            let len_bytes = segment.len_bytes.max(1);
            self.enter_rows(at, len_bytes)?;
            let sums = Checksums::read(self.context, at, len_bytes)?;
            self.scrub_run(at, len_bytes, &sums)?;
            at.0 = at.0.saturating_add(len_bytes);
        }
        Ok(())
    }

    /// Says that what follows is in the rows of a range: those before are complete.
    fn enter_rows(&mut self, at: LogicalAddr, len_bytes: u64) -> Flow {
        let mut at = at;
        let mut left = len_bytes;
        while left > 0 {
            let map = self.store().map();
            let chunk = map.find(at)?;
            let segment = chunk.segment(at, left);
            if let Placement::Parity { row, .. } = segment.placement {
                let known = self.row.as_ref().map(|row| (row.chunk, row.number));
                if known != Some((chunk.start, row)) {
                    self.finish_row()?;
                    self.row = Some(Row {
                        at,
                        chunk: chunk.start,
                        number: row,
                        columns: Ranges::default(),
                        is_lost: false,
                    });
                }
                let start = segment.offset % STRIPE_BYTES;
                let columns = start..start + segment.len_bytes;
                if let Some(row) = &mut self.row {
                    row.columns.exclude(&columns);
                    row.columns.add(columns);
                }
            } else {
                self.finish_row()?;
            }
            let step = segment.len_bytes.max(1);
            at.0 = at.0.saturating_add(step);
            left = left.saturating_sub(step);
        }
        Ok(())
    }

    /// Compares the parity of the row that was read last.
    pub(super) fn finish_row(&mut self) -> Flow {
        let Some(row) = self.row.take().filter(|row| !row.is_lost) else {
            return Ok(());
        };
        let context = self.context;
        let store = context.blocks.store();
        let mut wrong = Vec::new();
        for columns in row.columns.iter() {
            wrong.extend(store.check_parity(row.at, &columns, self.repairs)?);
        }
        wrong.sort_unstable();
        wrong.dedup();
        for member in wrong {
            self.counts.parity_errors += 1;
            self.counts.corrected_errors += 1;
            let locus = Locus::block(row.at.0).on_member(member.0);
            self.found("parity", locus, "is not that of the data")?;
        }
        Ok(())
    }
}
