//! XFS.

mod mkfs;
mod resize;

use std::sync::Arc;

use platter_block::{BlockDevice, ScratchDevice};
use platter_ondisk::Corruption;
use platter_vfs::{CheckReport, CheckSink, Filesystem, Result};
use platter_xfs::{Logging, MountOptions, Preallocation, RealtimeDevice, Unused};

use super::{
    Driver, EditStrategy, FreeRanges, Identity, ImageCommit, JournaledEdits, Mkfs, MountRequest,
    Purpose, Resize, unsupported,
};
use crate::Format;
use crate::devices::{DeviceRole, Devices};
use crate::options::{MountOption, OptionError, OtherOptions, Recovery};

/// What `allocsize=` may be.
const ALLOCATION_BYTES: std::ops::RangeInclusive<u64> = 4096..=1 << 30;

/// The driver.
pub(super) struct Xfs;

impl Driver for Xfs {
    fn format(&self) -> Format {
        Format::Xfs
    }

    fn identify(&self, devices: &Devices) -> Result<Identity> {
        let superblock = platter_xfs::Xfs::identify(&**devices.first())?;
        Ok(Identity {
            kind: "xfs",
            label: superblock.label,
            uuid: superblock.uuid,
            members: None,
        })
    }

    fn superblock_copy(
        &self,
        device: &dyn BlockDevice,
        corruption: Option<&Corruption>,
    ) -> Option<u64> {
        if corruption.is_some_and(|corruption| corruption.structure != "superblock") {
            return None;
        }
        Some(platter_xfs::superblock::find_copy(device)? / 1024)
    }

    fn accepts_superblock_at(&self, device: &dyn BlockDevice, kib: u64) -> bool {
        let at = kib.checked_mul(1024);
        at.is_some_and(|at| platter_xfs::superblock::is_copy(device, at))
    }

    fn check_option(&self, option: &MountOption) -> Result<(), OptionError> {
        set(&mut MountOptions::default(), option)
    }

    fn gathers_reads(&self) -> bool {
        true
    }

    fn shares_extents(&self) -> bool {
        true
    }

    fn mount(&self, request: MountRequest) -> Result<Arc<dyn Filesystem>> {
        let options = options(&request)?;
        let device = Arc::clone(request.devices.first());
        if request.writing.is_some() {
            let (budget, clock) = (request.budget, request.clock);
            let xfs = platter_xfs::Xfs::mount_writable(device, &options, budget, clock)?;
            return Ok(Arc::new(xfs));
        }
        let xfs = platter_xfs::Xfs::mount(device, &options, request.budget)?;
        Ok(Arc::new(xfs))
    }

    fn check(&self, request: MountRequest, sink: &mut dyn CheckSink) -> Result<CheckReport> {
        if request.superblock_kib.is_some() {
            return Err(unsupported(Format::Xfs, "a copy of the superblock"));
        }
        let options = options(&request)?;
        let device = request.devices.first();
        platter_xfs::check::check(device, &options, &request.budget, sink)
    }

    fn edit_strategy(&self) -> EditStrategy<'_> {
        EditStrategy::Journaled(self)
    }

    fn resize(&self) -> Option<&dyn Resize> {
        Some(self)
    }

    fn mkfs_types(&self) -> &'static [&'static str] {
        &["xfs"]
    }

    fn mkfs(&self, kind: &str) -> Option<Box<dyn Mkfs>> {
        (kind == "xfs").then(|| -> Box<dyn Mkfs> { Box::new(mkfs::NewXfs::new()) })
    }
}

impl JournaledEdits for Xfs {
    fn free_ranges(&self, request: &MountRequest) -> Result<Option<Box<FreeRanges>>> {
        let options = options(request)?;
        let found = Unused::of(request.devices.first(), &options, &request.budget)?;
        let boxed =
            |unused: Unused| -> Box<FreeRanges> { Box::new(move |range| unused.contains(range)) };
        Ok(found.map(boxed))
    }

    fn commit_image(&self, commit: ImageCommit<'_>) -> Result<()> {
        let ImageCommit {
            mount,
            unbatched,
            new,
            ..
        } = commit;
        let commit = platter_xfs::ImageCommit {
            options: options(&mount)?,
            device: Arc::clone(mount.devices.first()),
            unseen: unbatched,
            written: new.written(),
            new: Arc::<ScratchDevice>::clone(new),
            budget: mount.budget,
        };
        commit.run()
    }
}

fn options(request: &MountRequest) -> Result<MountOptions> {
    let mut options = MountOptions {
        recovery: match request.recovery {
            Recovery::Replay => platter_xfs::Recovery::InMemory,
            Recovery::Skip => platter_xfs::Recovery::Skip,
        },
        superblock_offset: request.superblock_kib.map(|kib| kib.saturating_mul(1024)),
        // What is missing does not matter to a reader that does not reach it.
        truncated: true,
        logging: match request.purpose {
            Purpose::EditOnScratch => Logging::Scratch,
            Purpose::Use | Purpose::EditInPlace => Logging::Logged,
        },
        commit_interval: request.writing.and_then(|writing| writing.commit_interval),
        ..MountOptions::default()
    };
    for option in &request.options {
        // They were validated.
        let _ = set(&mut options, option);
    }
    for (member, device) in (0..).zip(request.devices.iter()).skip(1) {
        let named = Arc::clone(&device.device);
        match device.role {
            DeviceRole::Log if options.log.is_none() => options.log = Some(named),
            DeviceRole::Realtime if options.realtime.is_none() => {
                options.realtime = Some(RealtimeDevice {
                    device: named,
                    member,
                });
            }
            DeviceRole::Data | DeviceRole::Log | DeviceRole::Realtime => {
                return Err(unsupported(Format::Xfs, "several data devices"));
            }
        }
    }
    Ok(options)
}

/// Sets one of the options that only XFS has.
fn set(options: &mut MountOptions, option: &MountOption) -> Result<(), OptionError> {
    match (option.name.as_str(), option.value.as_deref()) {
        ("allocsize", value) => {
            let bytes = value.and_then(allocation_bytes);
            let bytes = bytes.ok_or(OptionError::Invalid("a power of two from 4k to 1g"))?;
            options.preallocation = Preallocation::Fixed(bytes);
        }
        _ => return OTHERS.check(option),
    }
    Ok(())
}

/// The other options of the kernel.
const OTHERS: OtherOptions = OtherOptions {
    passed_over: &[
        "inode64",
        "noikeep",
        "attr2",
        "largeio",
        "nolargeio",
        "swalloc",
        "filestreams",
        "nouuid",
        // A mount for writing marks quotas as not up to date.
        "noquota",
        "nodiscard",
        "nogrpid",
        "sysvgroups",
    ],
    with_size: &["logbufs", "logbsize"],
    unsupported: &[
        "discard",
        "inode32",
        "ikeep",
        "noattr2",
        "wsync",
        "noalign",
        "sunit",
        "swidth",
        "grpid",
        "bsdgroups",
        "dax",
        "quota",
        "usrquota",
        "uquota",
        "uqnoenforce",
        "qnoenforce",
        "grpquota",
        "gquota",
        "gqnoenforce",
        "prjquota",
        "pquota",
        "pqnoenforce",
    ],
};

/// A size as `allocsize=` has it.
fn allocation_bytes(text: &str) -> Option<u64> {
    let (digits, unit_bits) = match text.char_indices().last()? {
        (end, 'k' | 'K') => (&text[..end], 10),
        (end, 'm' | 'M') => (&text[..end], 20),
        (end, 'g' | 'G') => (&text[..end], 30),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().ok()?;
    let bytes = number.checked_mul(1 << unit_bits)?;
    let is_sound = bytes.is_power_of_two() && ALLOCATION_BYTES.contains(&bytes);
    is_sound.then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocsize_takes_powers_of_two() {
        let set = |word: &str| {
            let mut options = MountOptions::default();
            set(&mut options, &MountOption::parse(word))?;
            Ok(options.preallocation)
        };
        for (word, bytes) in [
            ("allocsize=4k", 4096),
            ("allocsize=65536", 65536),
            ("allocsize=1G", 1 << 30),
        ] {
            assert_eq!(set(word), Ok(Preallocation::Fixed(bytes)), "{word}");
        }
        for word in ["allocsize", "allocsize=2k", "allocsize=3m", "allocsize=2g"] {
            assert!(matches!(set(word), Err(OptionError::Invalid(_))), "{word}");
        }
    }

    #[test]
    fn options_of_the_kernel_are_passed_over_or_refused_by_name() {
        let set = |word| set(&mut MountOptions::default(), &MountOption::parse(word));
        for word in "inode64,logbsize=256k,logbufs=8,noquota,nodiscard,attr2".split(',') {
            assert_eq!(set(word), Ok(()), "{word}");
        }
        for word in ["discard", "inode32", "sunit=128", "uquota"] {
            assert_eq!(set(word), Err(OptionError::Unsupported), "{word}");
        }
        for word in ["logbufs", "logbsize=few", "inode64=1"] {
            assert!(matches!(set(word), Err(OptionError::Invalid(_))), "{word}");
        }
        assert_eq!(set("data=ordered"), Err(OptionError::Unknown));
    }
}
