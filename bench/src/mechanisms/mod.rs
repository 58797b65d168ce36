//! The mechanisms, on and off, each with what it costs and what it gives.

mod btrfs_image;
mod faults;
mod groups;
mod insertion;
mod instructions;
mod lines;
mod mount;
mod references;
mod sharing;

use anyhow::Result;
use serde::{Deserialize, Serialize};

pub(crate) use self::faults::{Run as FaultRun, Scene};
pub(crate) use self::groups::{Form, Run as GroupRun};
pub(crate) use self::insertion::{
    Before, Comparison, Count as InsertionCount, Measured as Insertion, Way,
};
pub(crate) use self::instructions::{Counted, Operation, perform};
pub(crate) use self::lines::{Distance, Run as LineRun, Shape, pauses};
pub(crate) use self::mount::{
    LAYOUTS, Measured as MountRuns, Sweep, Trees, pauses as mount_pauses,
};
pub(crate) use self::references::{
    Call, Counted as HeadCounts, Made, Measured as References, PART as HEADS_PART,
    Shape as HeadShape, Timed, all_present, perform as perform_heads,
};
pub(crate) use self::sharing::{Cell, Run as SharingRun, SETS, Variant};
use crate::peers::Choice;

/// Everything measured of the mechanisms.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) insertion: Option<Insertion>,
    pub(crate) faults: Vec<FaultRun>,
    pub(crate) sharing: Vec<SharingRun>,
    pub(crate) instructions: Vec<Counted>,
    pub(crate) lines: Vec<LineRun>,
    pub(crate) shapes: Vec<Shape>,
    #[serde(default)]
    pub(crate) mount: MountRuns,
    #[serde(default)]
    pub(crate) references: References,
    #[serde(default)]
    pub(crate) groups: Vec<GroupRun>,
}

/// Measures what was chosen.
pub(crate) fn measure(choice: &Choice) -> Result<Measured> {
    let (extent, rounds) = (choice.extent, choice.rounds);
    let mut measured = Measured {
        insertion: None,
        faults: Vec::new(),
        sharing: Vec::new(),
        instructions: Vec::new(),
        lines: Vec::new(),
        shapes: lines::shapes(),
        mount: MountRuns::default(),
        references: References::default(),
        groups: Vec::new(),
    };
    if choice.takes("insertion") {
        println!("insertion: pages added to the page cache's index");
        measured.insertion = Some(insertion::measure(extent)?);
    }
    if choice.takes("faults") {
        println!("faults: pages read by the library");
        measured.faults = faults::measure(extent, rounds)?;
    }
    if choice.takes("sharing") {
        println!("sharing: attributes set; {SETS} of each thread, by design of the cache:");
        measured.sharing = sharing::measure(extent, rounds)?;
    }
    if choice.takes("lines") {
        println!("lines: a value that is read next to one that is written");
        measured.lines = lines::measure(extent, rounds)?;
    }
    if choice.takes("mount") {
        println!(
            "mount: inode numbers checked by the mount object of XFS with concurrent transactions"
        );
        measured.mount = mount::measure(extent, rounds)?;
    }
    if choice.takes("references") {
        println!("references: heads of delayed references of btrfs, by index");
        measured.references = references::measure(extent, rounds)?;
    }
    if choice.takes("groups") {
        println!("groups: items of block groups of btrfs that a commit need not write");
        measured.groups = groups::measure(extent, rounds)?;
    }
    if choice.takes("instructions") {
        println!("instructions: counted by callgrind");
        measured.instructions = instructions::measure(extent)?;
    }
    Ok(measured)
}
