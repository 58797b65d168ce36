//! What a filesystem says of itself, changed: the primary superblock through the log, and its copies afterwards.

use platter_ondisk::Locus;
use platter_vfs::{Condition, Result, Tune, Unsupported};

use crate::change::{Change, Cost};
use crate::context::FsContext;
use crate::ondisk::features::Incompat;
use crate::ondisk::superblock::{add_incompat, set_label};
use crate::ondisk::{AgNr, DiskSuperblock, Superblock};

/// The longest label.
const LABEL_LEN_MAX: usize = 12;

/// The label as it is now.
pub(super) fn label(context: &FsContext) -> Result<Vec<u8>> {
    let sector = context.read_superblock(AgNr(0))?;
    Ok(Superblock::decode(&sector, Locus::group(0))?.label)
}

/// Changes the superblock.
pub(super) fn tune(context: &FsContext, changes: &[Tune]) -> Result<()> {
    if changes.is_empty() {
        return Ok(());
    }
    let mut incompat = Incompat::empty();
    for change in changes {
        match change {
            Tune::Label(label) if label.len() > LABEL_LEN_MAX || label.contains(&0) => {
                return Err(Condition::InvalidArgument.into());
            }
            Tune::Label(_) => {}
            Tune::Feature { name, on: true } if name == "bigtime" => incompat |= Incompat::BIGTIME,
            Tune::Feature { name, on: true } if name == "nrext64" => incompat |= Incompat::NREXT64,
            Tune::Feature { name, on } => {
                let sign = if *on { "on" } else { "off" };
                return Err(refused(format!("switching {name} {sign}")));
            }
            Tune::Uuid(_) => return Err(refused("a new UUID".to_owned())),
        }
    }
    let len = context.geometry().sector_bytes();
    let cost = Cost {
        bytes: 2 * u64::from(len),
        ..Cost::default()
    };
    let edited = |change: &mut Change<'_>| {
        // The superblock is changed by the thread that has the first group.
        change.groups.get(AgNr(0))?;
        let mut sector = change.groups.blocks().read(0, len)?;
        for change in changes {
            if let Tune::Label(label) = change {
                set_label(&mut sector, label);
            }
        }
        add_incompat(&mut sector, incompat);
        DiskSuperblock::seal(&mut sector);
        change.groups.blocks_mut().write(0, sector.clone());
        Ok(sector)
    };
    let done = context.change(&cost, || (), |change, ()| edited(change))?;
    let (sector, sequence) = (done.result, done.sequence);
    context.log().ok_or(Condition::ReadOnly)?.force(sequence)?;
    for ag in context.geometry().groups().skip(1) {
        let at = context.geometry().ag_offset(ag);
        context.device().write_at(at, &sector)?;
    }
    Ok(context.device().flush()?)
}

fn refused(feature: String) -> platter_vfs::Error {
    Unsupported {
        filesystem: "xfs",
        feature,
        reason: Some("the label can change, and bigtime and nrext64 be switched on"),
    }
    .into()
}
