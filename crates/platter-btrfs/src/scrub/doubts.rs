//! What is known of the data of a row whose parity is made while devices are missing, and others are in doubt.

use std::ops::Range;

use super::units::{self, Kind, Unit};
use super::{Flow, Row, Scrubber};
use crate::chunk::{RowDoubts, Source};
use crate::context::ListedExtent;
use crate::data::Checksums;
use crate::ondisk::LogicalAddr;
use crate::ondisk::chunk_item::{BlockGroupFlags, STRIPE_BYTES};
use crate::ondisk::tree_block::Expected;

/// A unit of each data of a row.
pub(super) struct KnownUnits<'k, 's> {
    scrubber: &'k Scrubber<'s>,
    len_bytes: u64,
    units: Vec<KnownUnit>,
}

/// A unit of data.
struct KnownUnit {
    at: LogicalAddr,
    contents: Contents,
}

/// What a unit of data has to be.
enum Contents {
    /// It is not in use.
    Unused,
    /// A tree block.
    Block(Expected),
    /// A sector, with its checksum if there is one.
    Sector(Checksums),
}

impl<'k, 's> KnownUnits<'k, 's> {
    /// Reads what verifies some columns of a row, one unit of each data.
    pub(super) fn read(scrubber: &'k Scrubber<'s>, row: &Row, columns: &Range<u64>) -> Flow<Self> {
        let map = scrubber.store().map();
        let chunk = map.find(row.at)?;
        let len_bytes = columns.end - columns.start;
        let roles = 0..chunk.data_stripes() as u64;
        let first = row.number * roles.end * STRIPE_BYTES;
        let inside = roles.map(|role| first.saturating_add(role * STRIPE_BYTES + columns.start));
        let units = inside
            .filter(|inside| *inside < chunk.len_bytes)
            .map(|inside| KnownUnit::read(scrubber, LogicalAddr(chunk.start.0 + inside), len_bytes))
            .collect::<Flow<_>>()?;
        Ok(Self {
            scrubber,
            len_bytes,
            units,
        })
    }
}

impl KnownUnit {
    fn read(scrubber: &Scrubber<'_>, at: LogicalAddr, len_bytes: u64) -> Flow<Self> {
        let context = scrubber.context;
        let range = at.0..at.0.saturating_add(len_bytes);
        let contents = if ListedExtent::is_any_in(context, &range)? {
            let begun = ListedExtent::next_of(context, &mut range.clone())?;
            let block = begun.first().filter(|it| it.is_tree_block);
            match block.filter(|it| it.start == at) {
                Some(block) => Contents::Block(Expected {
                    generation: Some(block.generation),
                    ..Expected::default()
                }),
                None => Contents::Sector(Checksums::read(context, at, len_bytes)?),
            }
        } else {
            Contents::Unused
        };
        Ok(Self { at, contents })
    }
}

impl RowDoubts for KnownUnits<'_, '_> {
    fn is_doubted(&self, part: &Source) -> bool {
        units::is_doubted(self.scrubber, part, self.len_bytes)
    }

    fn is_in_use(&self, at: LogicalAddr) -> bool {
        let unit = self.units.iter().find(|unit| unit.at == at);
        unit.is_some_and(|unit| !matches!(unit.contents, Contents::Unused))
    }

    fn verify(&self, at: LogicalAddr, bytes: &[u8]) -> Option<bool> {
        let unit = self.units.iter().find(|unit| unit.at == at)?;
        let kind = match &unit.contents {
            Contents::Unused => return None,
            Contents::Block(expected) => Kind::Block(*expected),
            Contents::Sector(sums) => Kind::Sector(sums, 0),
        };
        let unit = Unit {
            at,
            len_bytes: self.len_bytes,
            kind,
        };
        units::verify(self.scrubber, &unit, bytes)
    }
}

/// The size of units where parity has to be made although data is on missing devices; `None` where parity of such rows
/// is not compared.
pub(super) fn unit_bytes(scrubber: &Scrubber<'_>, row: &Row) -> Flow<Option<u64>> {
    let store = scrubber.store();
    if !units::is_any_doubted(scrubber) || !store.is_data_missing(row.at)? {
        return Ok(None);
    }
    let map = store.map();
    let chunk = map.find(row.at)?;
    Ok(Some(if chunk.flags.contains(BlockGroupFlags::DATA) {
        scrubber.context.sector_bytes().into()
    } else {
        scrubber.context.superblock.node_bytes.into()
    }))
}
