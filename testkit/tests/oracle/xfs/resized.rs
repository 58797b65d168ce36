//! Filesystems that become longer and shorter, before `xfs_repair` and a kernel that writes to them.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use platter::resize::{NewSize, grow};
use platter::{ImageSpec, MemoryBudget, Progress};
use platter_vfs::{Clock, FixedClock, Timestamp};
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::{Verdict, xfs};

const MIB: u64 = 1 << 20;

fn resize(image: &Path, size: u64) -> platter::Result<u64> {
    let spec = ImageSpec::parse(image).unwrap();
    let budget = Arc::new(MemoryBudget::new(8 << 20));
    let clock: Arc<dyn Clock> = Arc::new(FixedClock::new(Timestamp::default(), 1));
    let (size, progress) = (NewSize::Bytes(size), Progress::new());
    Ok(grow(&spec, size, &budget, &clock, &progress)?.after_bytes)
}

fn assert_clean(image: &Path, context: &str) {
    let (verdict, text) = xfs::report(&[image]).unwrap();
    assert_eq!(verdict, Verdict::Clean, "{context}: {text}");
}

fn write_by_kernel(image: &Path, file: &str, bytes: &[u8]) {
    let mount = Mount::images(FsType::Xfs, &[image], "", Access::ReadWrite).unwrap();
    fs::write(mount.root().join(file), bytes).unwrap();
    mount.unmount_all(&[image]).unwrap();
}

#[test]
fn filesystem_becomes_longer_and_shorter() {
    for options in [
        &["-d", "agsize=64m"][..],
        &["-d", "agsize=64m", "-m", "rmapbt=1"],
        &["-d", "agsize=32m", "-b", "size=1024"],
        &["-d", "agsize=64m", "-s", "size=4096"],
    ] {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        xfs::make(&image, 300 << 10, options).unwrap();
        write_by_kernel(&image, "first", &vec![1; 1 << 20]);
        for mib in [310, 500, 501, 1000] {
            let context = format!("{options:?}: {mib} MiB");
            let found = resize(&image, mib * MIB).unwrap();
            assert!(mib * MIB - found < MIB, "{context}: {found}");
            assert_eq!(fs::metadata(&image).unwrap().len(), mib * MIB);
            assert_clean(&image, &context);
        }
        write_by_kernel(&image, "second", &vec![2; 200 << 20]);
        assert_clean(&image, "after a kernel wrote to it");
        let before = fs::read(&image).unwrap();
        let refused = resize(&image, 200 * MIB).unwrap_err().to_string();
        assert!(refused.contains("in use"), "{refused}");
        assert!(fs::read(&image).unwrap() == before, "it was refused");
        let mount = Mount::images(FsType::Xfs, &[&image], "", Access::ReadWrite).unwrap();
        fs::remove_file(mount.root().join("second")).unwrap();
        mount.unmount_all(&[&image]).unwrap();
        for mib in [990, 700] {
            let context = format!("{options:?}: {mib} MiB");
            let found = resize(&image, mib * MIB).unwrap();
            assert_eq!(found, mib * MIB, "{context}");
            assert_eq!(fs::metadata(&image).unwrap().len(), found, "{context}");
            assert_clean(&image, &context);
        }
        write_by_kernel(&image, "third", &vec![3; 1 << 20]);
        assert_clean(&image, "after a kernel wrote to it again");
        let mount = Mount::images(FsType::Xfs, &[&image], "", Access::ReadOnly).unwrap();
        let first = fs::read(mount.root().join("first")).unwrap();
        assert!(first == vec![1; 1 << 20]);
        mount.unmount_all(&[&image]).unwrap();
    }
}
