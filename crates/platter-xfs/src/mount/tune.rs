//! What a filesystem says of itself, changed: the primary superblock through the log, and its copies afterwards. Records of
//! the log bear the UUID, so that a new one gets to the device in an [image commit](super::ImageCommit) only.

use platter_ondisk::{Locus, Uuid};
use platter_vfs::{Condition, Error, Result, Tune, Unsupported};

use crate::ag::inodes;
use crate::change::{Change, Cost};
use crate::context::FsContext;
use crate::ondisk::features::{Features, Incompat, RoCompat};
use crate::ondisk::superblock::{add_incompat, add_ro_compat, set_label, set_uuid};
use crate::ondisk::{AgNr, DiskSuperblock, Superblock};
use crate::superblock::write_copies;

/// The longest label.
const LABEL_LEN_MAX: usize = 12;
/// Why the trees of all groups are not made.
const REBUILT: &str = "all groups would need a new B-tree";
const ONE_WAY: &str = "it is never switched off";
const FIXED: &str = "bigtime, nrext64 and inobtcount can be switched on";
const SHORT_LOG: &str = "it makes transactions larger, and Linux refuses a log that does not hold them; it needs a log of at \
                         least 64 MiB, or 192 MiB with blocks above 16 KiB";

/// The shortest log that gets `nrext64`, for blocks up to 16 KiB, and for larger ones. Those that hold the largest transaction
/// depend on all features; mkfs.xfs makes longer ones.
const NREXT64_LOG_BYTES: u64 = 64 << 20;
const NREXT64_LARGE_LOG_BYTES: u64 = 192 << 20;
const SMALL_BLOCK_BITS: u8 = 14;

/// What becomes of the superblock.
#[derive(Debug, Default, PartialEq, Eq)]
struct Edits<'c> {
    label: Option<&'c [u8]>,
    uuid: Option<Uuid>,
    ro_compat: RoCompat,
    incompat: Incompat,
}

/// The label as it is now.
pub(super) fn label(context: &FsContext) -> Result<Vec<u8>> {
    Ok(primary(context)?.label)
}

/// Changes the superblock. Nothing changes where one of `changes` is refused.
pub(super) fn tune(context: &FsContext, changes: &[Tune]) -> Result<()> {
    let found = primary(context)?;
    let edits = Edits::of(changes, &found.features)?;
    let is_widened = edits.incompat.contains(Incompat::NREXT64);
    if is_widened && !holds_nrext64(found.log_blocks, found.block_bits) {
        return Err(refused("switching nrext64 on".to_owned(), SHORT_LOG));
    }
    if edits.uuid.is_some() && !context.space().keeps_old() {
        let reason =
            "records of the log bear it; it can be changed while the filesystem is not mounted";
        return Err(refused("changing the UUID of a mount".to_owned(), reason));
    }
    if edits == Edits::default() {
        return Ok(());
    }
    if edits.ro_compat.contains(RoCompat::INOBTCNT) {
        count_inode_trees(context)?;
    }
    let len = context.geometry().sector_bytes();
    let edited = |change: &mut Change<'_>| {
        // The superblock is changed by the thread that has the first group.
        change.groups.get(AgNr(0))?;
        let mut sector = change.groups.blocks().read(0, len)?;
        edits.apply(&mut sector);
        DiskSuperblock::seal(&mut sector);
        change.groups.blocks_mut().write(0, sector.clone());
        Ok(sector)
    };
    let done = context.change(&header_cost(context), || (), |change, ()| edited(change))?;
    let (sector, sequence) = (done.result, done.sequence);
    context.log().ok_or(Condition::ReadOnly)?.force(sequence)?;
    write_copies(&**context.device(), context.geometry(), &sector, |_| true)
}

/// The superblock as it is now.
fn primary(context: &FsContext) -> Result<Superblock> {
    let sector = context.read_superblock(AgNr(0))?;
    Ok(Superblock::decode(&sector, Locus::group(0))?)
}

/// Whether Linux mounts a filesystem with such a log once it has `nrext64`, which makes the B-trees of data forks higher.
fn holds_nrext64(log_blocks: u32, block_bits: u8) -> bool {
    let least = if block_bits > SMALL_BLOCK_BITS {
        NREXT64_LARGE_LOG_BYTES
    } else {
        NREXT64_LOG_BYTES
    };
    (u64::from(log_blocks) << block_bits) >= least
}

/// What a change of a header takes.
fn header_cost(context: &FsContext) -> Cost {
    Cost {
        bytes: 2 * u64::from(context.geometry().sector_bytes()),
        ..Cost::default()
    }
}

/// Counts the blocks of the inode B-trees of all groups, which nothing looks at before the superblock says that they are
/// counted.
fn count_inode_trees(context: &FsContext) -> Result<()> {
    let count =
        |change: &mut Change<'_>, ag| inodes::count_tree_blocks(&mut change.groups.get(ag)?);
    for ag in context.geometry().groups() {
        context.change(&header_cost(context), || (), |change, ()| count(change, ag))?;
    }
    Ok(())
}

impl<'c> Edits<'c> {
    fn of(changes: &'c [Tune], features: &Features) -> Result<Self> {
        let mut edits = Self::default();
        for change in changes {
            match change {
                Tune::Label(label) if label.len() > LABEL_LEN_MAX || label.contains(&0) => {
                    let text = format!("a label has at most {LABEL_LEN_MAX} bytes, and no zeros");
                    return Err(Condition::InvalidArgument.because(text));
                }
                Tune::Label(label) => edits.label = Some(label),
                Tune::Uuid(uuid) if uuid.is_nil() => {
                    return Err(Condition::InvalidArgument.because("a UUID is not all zeros"));
                }
                Tune::Uuid(uuid) => edits.uuid = Some(*uuid),
                Tune::Feature { name, on } => edits.switch(name, *on, features)?,
            }
        }
        Ok(edits)
    }

    /// Switches a feature on or off, by its name in `xfs_admin`.
    fn switch(&mut self, name: &str, on: bool, features: &Features) -> Result<()> {
        let switching = || format!("switching {name} {}", if on { "on" } else { "off" });
        let (none, no_incompat) = (RoCompat::empty(), Incompat::empty());
        let (ro_compat, incompat) = match name {
            "bigtime" => (none, Incompat::BIGTIME),
            "nrext64" => (none, Incompat::NREXT64),
            "inobtcount" => (RoCompat::INOBTCNT, no_incompat),
            "finobt" => (RoCompat::FINOBT, no_incompat),
            "reflink" => (RoCompat::REFLINK, no_incompat),
            "rmapbt" => (RoCompat::RMAPBT, no_incompat),
            _ => return Err(refused(switching(), FIXED)),
        };
        let is_on = features.ro_compat.contains(ro_compat) && features.incompat.contains(incompat);
        if is_on == on {
            return Ok(());
        }
        if !on {
            return Err(refused(switching(), ONE_WAY));
        }
        if matches!(name, "finobt" | "reflink" | "rmapbt") {
            return Err(refused(switching(), REBUILT));
        }
        if name == "inobtcount" && !features.has_finobt() {
            let reason = "inobtcount requires finobt";
            return Err(refused(switching(), reason));
        }
        self.ro_compat |= ro_compat;
        self.incompat |= incompat;
        Ok(())
    }

    /// Changes a sector with the superblock.
    fn apply(&self, sector: &mut [u8]) {
        if let Some(label) = self.label {
            set_label(sector, label);
        }
        if let Some(uuid) = self.uuid {
            set_uuid(sector, uuid);
        }
        add_ro_compat(sector, self.ro_compat);
        add_incompat(sector, self.incompat);
    }
}

fn refused(feature: String, reason: &'static str) -> Error {
    Unsupported {
        filesystem: "xfs",
        feature,
        reason: Some(reason),
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mkfs::MkfsOptions;

    fn feature(name: &str, on: bool) -> Tune {
        let name = name.to_owned();
        Tune::Feature { name, on }
    }

    /// Features of a new filesystem without these.
    fn features(without: &[&str]) -> Features {
        let mut options = MkfsOptions::new(Uuid::from_bytes([7; 16]));
        for name in without {
            options.set_feature(name, false).unwrap();
        }
        options.features
    }

    #[test]
    fn changes_are_refused_together_and_by_name() {
        let old = features(&["bigtime", "inobtcount", "reflink"]);
        let fine = Tune::Label(b"label".to_vec());
        for (change, expected) in [
            (feature("reflink", true), "switching reflink on"),
            (feature("rmapbt", true), "need a new B-tree"),
            (feature("finobt", false), "never switched off"),
            (feature("parent", true), "switching parent on"),
            (feature("no such", false), "switching no such off"),
        ] {
            let changes = [fine.clone(), change];
            let error = Edits::of(&changes, &old).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        for change in [
            Tune::Uuid(Uuid::nil()),
            Tune::Label(b"thirteen byte".to_vec()),
            Tune::Label(b"a\0b".to_vec()),
        ] {
            let error = Edits::of(&[change], &old).unwrap_err();
            let invalid = Error::from(Condition::InvalidArgument);
            assert_eq!(error.errno(), invalid.errno());
        }
    }

    #[test]
    fn blocks_are_counted_of_filesystems_with_finobt() {
        let counted = [feature("inobtcount", true)];
        let old = features(&["inobtcount"]);
        let edits = Edits::of(&counted, &old).unwrap();
        assert_eq!(edits.ro_compat, RoCompat::INOBTCNT);
        let oldest = features(&["inobtcount", "finobt"]);
        let error = Edits::of(&counted, &oldest).unwrap_err().to_string();
        assert!(error.contains("requires finobt"), "{error}");
    }

    #[test]
    fn nrext64_goes_with_a_log_that_holds_its_transactions() {
        for (log_blocks, block_bits, expected) in [
            (1368, 12, false),
            (16383, 12, false),
            (16384, 12, true),
            (16384, 10, false),
            (65536, 10, true),
            (4096, 14, true),
            (2048, 15, false),
            (3071, 16, false),
            (3072, 16, true),
        ] {
            let found = holds_nrext64(log_blocks, block_bits);
            assert_eq!(found, expected, "{log_blocks} blocks, {block_bits} bits");
        }
    }

    #[test]
    fn features_that_are_as_asked_for_change_nothing() {
        let changes = [
            feature("bigtime", true),
            feature("inobtcount", true),
            feature("nrext64", false),
            feature("rmapbt", false),
        ];
        let edits = Edits::of(&changes, &features(&[])).unwrap();
        assert_eq!(edits, Edits::default());
    }
}
