//! The mechanisms, on and off, each with what it costs and what it gives.

mod load;
mod btrfs_image;
mod faults;
mod groups;
mod head_loads;
mod insertion;
mod instructions;
mod lines;
mod mount;
mod references;
mod removal;
mod sharing;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

pub(crate) use self::faults::{Run as FaultRun, Scene};
pub(crate) use self::groups::{Form, Run as GroupRun};
pub(crate) use self::head_loads::{Queued, Work};
pub(crate) use self::insertion::{
    Before, Comparison, Count as InsertionCount, Measured as Insertion, Way,
};
pub(crate) use self::instructions::{Counted, Operation, perform};
pub(crate) use self::lines::{Distance, Run as LineRun, Shape, pauses};
pub(crate) use self::load::Load;
pub(crate) use self::mount::{LAYOUTS, Measured as MountRuns, Sweep, pauses as mount_pauses};
pub(crate) use self::references::{
    Call, Counted as HeadCounts, Measured as References, PART as HEADS_PART, Shape as HeadShape,
    Timed, all_present, perform as perform_heads,
};
pub(crate) use self::removal::{
    PART as REMOVAL_PART, THREADS as TREE_THREADS, Trees, run as remove,
};
pub(crate) use self::sharing::{Cell, Run as SharingRun, SETS, Variant};
use crate::growing::Growing;
use crate::peers::Choice;
use crate::record::Extent;

/// One of the mechanisms. Each has raw runs of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mechanism {
    /// Delayed reference heads of btrfs.
    M0,
    /// The mount object of XFS.
    M1,
    /// Items of block groups of btrfs.
    M2,
    /// Insertion into the page cache.
    M3,
    /// The metadata block cache.
    M4,
}

/// What was measured of a mechanism; the rest is empty.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Measured {
    pub(crate) insertion: Option<Insertion>,
    pub(crate) faults: Vec<FaultRun>,
    pub(crate) sharing: Vec<SharingRun>,
    pub(crate) instructions: Vec<Counted>,
    pub(crate) lines: Vec<LineRun>,
    pub(crate) shapes: Vec<Shape>,
    pub(crate) mount: MountRuns,
    pub(crate) references: References,
    pub(crate) groups: Vec<GroupRun>,
}

impl Mechanism {
    pub(crate) const ALL: [Self; 5] = [Self::M0, Self::M1, Self::M2, Self::M3, Self::M4];

    /// The word for it on a command line.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::M0 => "m0",
            Self::M1 => "m1",
            Self::M2 => "m2",
            Self::M3 => "m3",
            Self::M4 => "m4",
        }
    }

    pub(crate) fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.word() == word)
    }

    /// The name of its raw runs.
    pub(crate) fn record_name(self) -> String {
        format!("mechanisms-{}", self.word())
    }

    /// Measures it, on and off, part by part. Returns what failed.
    pub(crate) fn measure(
        self,
        choice: &Choice,
        mut growing: Growing<Measured>,
    ) -> Result<Vec<String>> {
        let (extent, rounds) = (choice.extent, choice.rounds);
        match self {
            Self::M0 => {
                println!("m0: heads of delayed references of btrfs, by index");
                growing.add("indexes alone", |measured| {
                    references::measure(&mut measured.references, extent, rounds)
                });
                for doer in head_loads::Doer::ALL {
                    growing.add(&doer.name(), |measured| {
                        let made = head_loads::measure(doer, extent, rounds)?;
                        measured.references.made.extend(made);
                        Ok(())
                    });
                }
            }
            Self::M2 => {
                println!("m2: items of block groups of btrfs that a commit need not write");
                for &form in Form::of(extent) {
                    growing.add(&form.name(), |measured| {
                        measured
                            .groups
                            .extend(groups::measure(form, extent, rounds)?);
                        Ok(())
                    });
                }
            }
            Self::M1 | Self::M3 | Self::M4 => growing.add(self.word(), |measured| {
                *measured = self.measure_at_once(extent, rounds)?;
                Ok(())
            }),
        }
        Ok(growing.end()?.1)
    }

    fn measure_at_once(self, extent: Extent, rounds: Option<usize>) -> Result<Measured> {
        let mut measured = Measured::default();
        match self {
            Self::M0 | Self::M2 => bail!("it has parts"),
            Self::M1 => {
                removal::demand_programs(extent)?;
                println!("m1: a value that is read next to one that is written");
                measured.shapes = lines::shapes();
                measured.lines = lines::measure(extent, rounds)?;
                println!(
                    "m1: inode numbers checked by the mount object of XFS with concurrent transactions"
                );
                measured.mount = mount::measure(extent, rounds)?;
            }
            Self::M3 => {
                println!("m3: pages added to the page cache's index");
                measured.insertion = Some(insertion::measure(extent)?);
                println!("m3: pages read by the library");
                measured.faults = faults::measure(extent, rounds)?;
                measured.instructions = instructions::measure(Operation::additions(), extent)?;
            }
            Self::M4 => {
                println!("m4: attributes set; {SETS} of each thread, by design of the cache:");
                measured.sharing = sharing::measure(extent, rounds)?;
                measured.instructions = instructions::measure(Operation::sets(), extent)?;
            }
        }
        Ok(measured)
    }
}
