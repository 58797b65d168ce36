//! btrfs.

mod mkfs;
mod resize;
pub(super) mod stream;

use std::mem;
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_btrfs::ondisk::DeviceId;
use platter_btrfs::txn::WriteOptions;
use platter_btrfs::{Btrfs, Method, MountOptions, Rescue};
use platter_ondisk::Corruption;
use platter_vfs::{CheckReport, CheckSink, Filesystem, Result};

use super::{
    Driver, EditStrategy, Identity, Mkfs, MountRequest, Pool, Purpose, Resize, unsupported,
};
use crate::Format;
use crate::devices::{DeviceRole, Devices, Member, Members};
use crate::options::{MountOption, OptionError, OtherOptions, Recovery};

/// The driver.
pub(super) struct BtrfsDriver;

impl Driver for BtrfsDriver {
    fn format(&self) -> Format {
        Format::Btrfs
    }

    fn identify(&self, devices: &Devices) -> Result<Identity> {
        let devices: Vec<_> = devices.iter().map(|it| Arc::clone(&it.device)).collect();
        let found = platter_btrfs::identify_all(&devices)?;
        let member = |&(id, uuid): &(DeviceId, _)| Member {
            role: DeviceRole::Data,
            id: Some(id.0),
            uuid: Some(uuid),
        };
        let superblock = found.superblock;
        Ok(Identity {
            kind: "btrfs",
            label: superblock.label,
            uuid: superblock.fsid,
            members: (superblock.device_count > 1).then(|| Members {
                count: superblock.device_count,
                present: found.present.iter().map(member).collect(),
                missing: found.missing.iter().map(member).collect(),
            }),
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
        Some(platter_btrfs::find_superblock_copy(device)? / 1024)
    }

    fn accepts_superblock_at(&self, device: &dyn BlockDevice, kib: u64) -> bool {
        platter_btrfs::find_superblock_copy(device) == kib.checked_mul(1024)
    }

    fn check_option(&self, option: &MountOption) -> Result<(), OptionError> {
        set(&mut MountOptions::default(), option)
    }

    fn defragments(&self) -> bool {
        true
    }

    fn shares_extents(&self) -> bool {
        true
    }

    fn compresses_by(&self, method: &str) -> bool {
        Method::parse(method).is_some()
    }

    fn gathers_reads(&self) -> bool {
        true
    }

    fn edit_strategy(&self) -> EditStrategy<'_> {
        EditStrategy::InPlace
    }

    fn resize(&self) -> Option<&dyn Resize> {
        Some(self)
    }

    fn mkfs_types(&self) -> &'static [&'static str] {
        &["btrfs"]
    }

    fn mkfs(&self, kind: &str) -> Option<Box<dyn Mkfs>> {
        (kind == "btrfs").then(|| -> Box<dyn Mkfs> { Box::new(mkfs::NewBtrfs::new()) })
    }

    fn mount(&self, request: MountRequest) -> Result<Arc<dyn Filesystem>> {
        let options = options_of(&request);
        let devices = devices_of(&request)?;
        let (budget, clock) = (request.budget, request.clock);
        let mounted = if request.writing.is_some() {
            Btrfs::mount_writable(&devices, &options, budget, clock)?
        } else {
            Btrfs::mount(&devices, &options, budget, clock)?
        };
        Ok(Arc::new(mounted))
    }

    fn check(&self, request: MountRequest, sink: &mut dyn CheckSink) -> Result<CheckReport> {
        let devices = devices_of(&request)?;
        Btrfs::check(&devices, &options_of(&request), &request.budget, sink)
    }

    fn pool(&self) -> Option<&dyn Pool> {
        Some(self)
    }

    fn verify_data(&self, request: MountRequest, sink: &mut dyn CheckSink) -> Result<CheckReport> {
        let devices = devices_of(&request)?;
        Btrfs::verify_data(&devices, &options_of(&request), &request.budget, sink)
    }
}

/// How to mount.
pub(super) fn options_of(request: &MountRequest) -> MountOptions {
    let mut options = MountOptions {
        superblock_offset: request.superblock_kib.map(|kib| kib.saturating_mul(1024)),
        commit_interval: request
            .writing
            .as_ref()
            .and_then(|writing| writing.commit_interval),
        transactions: match request.purpose {
            Purpose::EditInPlace => WriteOptions::TOGETHER,
            Purpose::Use | Purpose::EditOnScratch => WriteOptions::default(),
        },
        ..MountOptions::default()
    };
    options.rescue.skips_log = request.recovery == Recovery::Skip;
    for option in &request.options {
        // Each was accepted before.
        let _ = set(&mut options, option);
    }
    options
}

/// The devices of the filesystem.
pub(super) fn devices_of(request: &MountRequest) -> Result<Vec<Arc<dyn BlockDevice>>> {
    if request.devices.of_role(DeviceRole::Log).is_some() {
        return Err(unsupported(Format::Btrfs, "an external log"));
    }
    let devices = request.devices.iter();
    Ok(devices.map(|device| Arc::clone(&device.device)).collect())
}

/// Sets a mount option by its name in the kernel.
fn set(options: &mut MountOptions, option: &MountOption) -> Result<(), OptionError> {
    let value = option.value.as_deref();
    match (option.name.as_str(), value) {
        ("subvol", Some("")) => return Err(OptionError::Invalid("the path of a subvolume")),
        ("subvol", Some(path)) => {
            let choice = mem::take(&mut options.subvolume);
            options.subvolume = choice.with_path(path.as_bytes().to_vec());
        }
        ("subvolid", Some(number)) => {
            let parsed = match number.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16),
                None => number.parse(),
            };
            let invalid = OptionError::Invalid("the number of a subvolume");
            let id = parsed.map_err(|_| invalid)?;
            options.subvolume = mem::take(&mut options.subvolume).with_id(id);
        }
        ("degraded", None) => options.degraded = true,
        ("nologreplay" | "norecovery", None) => options.rescue.skips_log = true,
        ("usebackuproot" | "recovery", None) => options.rescue.uses_backup_root = true,
        ("rescue", Some(names)) => {
            let mut rescue: Rescue = options.rescue;
            if !rescue.add(names) {
                return Err(OptionError::Invalid(
                    "usebackuproot, nologreplay, ignorebadroots, ignoredatacsums, ignoremetacsums, \
                     ignoresuperflags or all",
                ));
            }
            options.rescue = rescue;
        }
        ("compress", value) => set_compression(options, value, false)?,
        ("compress-force", value) => set_compression(options, value, true)?,
        ("nodatacow", None) => options.data.in_place = true,
        ("datacow", None) => options.data.in_place = false,
        ("nodatasum", None) => options.data.unsummed = true,
        ("discard", None | Some("sync" | "async")) => options.transactions.discards = true,
        ("nodiscard", None) => options.transactions.discards = false,
        ("discard", Some(_)) => return Err(OptionError::Invalid("sync or async")),
        ("datasum", None) => {
            options.data.unsummed = false;
            options.data.in_place = false;
        }
        ("subvol" | "subvolid" | "rescue", None) => {
            return Err(OptionError::Invalid("a value"));
        }
        (
            "degraded" | "nologreplay" | "norecovery" | "usebackuproot" | "recovery" | "nodatacow"
            | "datacow" | "nodatasum" | "datasum" | "nodiscard",
            Some(_),
        ) => {
            return Err(OptionError::Invalid("no value"));
        }
        ("space_cache", Some("v1" | "v2")) => {}
        ("space_cache", Some(_)) => return Err(OptionError::Invalid("v1 or v2")),
        _ => return OTHERS.check(option),
    }
    Ok(())
}

/// The other options of the kernel.
const OTHERS: OtherOptions = OtherOptions {
    passed_over: &[
        "ssd",
        "ssd_spread",
        "nossd",
        "nossd_spread",
        "space_cache",
        "nospace_cache",
        "autodefrag",
        "noautodefrag",
        "acl",
        "barrier",
        // Caches of devices are flushed all the same.
        "nobarrier",
        "treelog",
        // A file is durable after fsync(2) with a log tree as well.
        "notreelog",
        "noflushoncommit",
        // No balance goes on by itself.
        "skip_balance",
        "enospc_debug",
        "noenospc_debug",
    ],
    with_size: &["thread_pool", "max_inline", "metadata_ratio"],
    unsupported: &[
        "noacl",
        "flushoncommit",
        "clear_cache",
        "rescan_uuid_tree",
        "fatal_errors",
    ],
};

/// Sets how files are compressed: not at all, or by a form with a level.
fn set_compression(
    options: &mut MountOptions,
    value: Option<&str>,
    is_forced: bool,
) -> Result<(), OptionError> {
    let invalid = OptionError::Invalid("zlib[:1-9], lzo, zstd[:-15-15] or no");
    options.data.compression = match value {
        None => Some(Method::DEFAULT),
        Some("no" | "none") => None,
        Some(text) => Some(Method::parse(text).ok_or(invalid)?),
    };
    options.data.is_forced = is_forced && options.data.compression.is_some();
    Ok(())
}

#[cfg(test)]
mod tests {
    use platter_btrfs::SubvolumeChoice;

    use super::*;

    fn options(words: &[&str]) -> Result<MountOptions, OptionError> {
        let mut options = MountOptions::default();
        for word in words {
            set(&mut options, &MountOption::parse(word))?;
        }
        Ok(options)
    }

    #[test]
    fn options_have_the_names_of_the_kernel() {
        let given = options(&["subvolid=0x100", "degraded", "rescue=nologreplay"]).unwrap();
        assert_eq!(given.subvolume, SubvolumeChoice::Id(256));
        assert!(given.degraded && given.rescue.skips_log);
        let given = options(&["subvol=a/b", "rescue=all"]).unwrap();
        assert_eq!(given.subvolume, SubvolumeChoice::Path(b"a/b".to_vec()));
        assert_eq!(given.rescue, Rescue::ALL);
        for words in [["subvol=a", "subvolid=256"], ["subvolid=256", "subvol=a"]] {
            let both = SubvolumeChoice::PathAndId(b"a".to_vec(), 256);
            assert_eq!(options(&words).unwrap().subvolume, both);
        }
        let given = options(&["compress-force=zstd:7", "nodatasum"]).unwrap();
        let method = given.data.compression.unwrap();
        assert_eq!((method.name(), method.level), ("zstd", 7));
        assert!(given.data.is_forced && given.data.unsummed);
        let given = options(&["discard=async"]).unwrap();
        assert!(given.transactions.discards);
        assert_eq!(options(&["data=ordered"]), Err(OptionError::Unknown));
        let fstab = "space_cache=v2,ssd,autodefrag,acl,nobarrier,notreelog,noflushoncommit,skip_balance,\
                     thread_pool=4,max_inline=2K,space_cache";
        let words: Vec<_> = fstab.split(',').collect();
        assert_eq!(options(&words), Ok(MountOptions::default()));
        for word in [
            "flushoncommit",
            "clear_cache",
            "noacl",
            "fatal_errors=panic",
        ] {
            assert_eq!(options(&[word]), Err(OptionError::Unsupported), "{word}");
        }
        for word in [
            "space_cache=v3",
            "ssd=1",
            "thread_pool",
            "max_inline=few",
            "compress=gzip",
            "discard=later",
            "subvolid=x",
            "rescue=x",
            "degraded=1",
            "subvol",
            "subvol=",
        ] {
            let refused = options(&[word]);
            assert!(matches!(refused, Err(OptionError::Invalid(_))), "{word}");
        }
    }
}
