//! Instructions that an operation takes, counted by callgrind: the same on any machine. What a run takes
//! besides, one run of few operations and one of many have in common.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::insertion::{self, Before, Way};
use super::sharing::{self, Variant};
use crate::measure::instructions_each;
use crate::record::Extent;

/// An operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Operation {
    /// A page added to the index.
    Add { before: Before, way: Way },
    /// An attribute set, one of 10 values on one of 100 files.
    Set { variant: Variant },
}

/// What one takes.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Counted {
    pub(crate) operation: Operation,
    pub(crate) instructions: f64,
}

/// Input of the process.
#[derive(Debug, Serialize, Deserialize)]
struct Orders {
    operation: Operation,
    count: u64,
}

/// Counts operations.
pub(crate) fn measure(mut operations: Vec<Operation>, extent: Extent) -> Result<Vec<Counted>> {
    if extent == Extent::Quick {
        // A debugging build's instructions are of no interest, but that they can be counted is.
        operations.truncate(1);
    }
    let mut counted = Vec::new();
    for operation in operations {
        let [few, many] = operation.counts();
        let orders = |count| Orders { operation, count };
        let instructions = instructions_each("perform", [few, many], orders)?;
        println!("  {instructions:>8.0} instructions: {operation:?}");
        counted.push(Counted {
            operation,
            instructions,
        });
    }
    Ok(counted)
}

/// The process' part, which callgrind looks at.
pub(crate) fn perform(orders: &str) -> Result<()> {
    let Orders { operation, count } = serde_json::from_str(orders)?;
    match operation {
        Operation::Add { before, way } => insertion::add_some(before, way, count),
        Operation::Set { variant } => sharing::set_some_alone(variant, count),
    }
}

impl Operation {
    /// Pages added to the index, in each way.
    pub(crate) fn additions() -> Vec<Self> {
        let ways = |before: Before| before.ways().map(|way| Self::Add { before, way });
        Before::ALL.into_iter().flat_map(ways).collect()
    }

    /// Attributes set, with each design of the cache.
    pub(crate) fn sets() -> Vec<Self> {
        Variant::ALL.map(|variant| Self::Set { variant }).to_vec()
    }

    /// Two numbers of operations to compare.
    const fn counts(self) -> [u64; 2] {
        match self {
            Self::Add {
                before: Before::LargeFolios,
                ..
            } => [128, 1024],
            Self::Add { .. } => [4096, 32_768],
            Self::Set { .. } => [2000, 6000],
        }
    }
}
