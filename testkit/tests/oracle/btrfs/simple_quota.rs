//! Simple quotas: what owns an extent is stored with it, and counted.

use anyhow::Result;
use platter_btrfs::ondisk::key::ItemKind;
use platter_btrfs::ondisk::{Features, Key, TreeId};
use platter_vfs::Finding;
use testkit::fs_type::FsType;
use testkit::ioctl;
use testkit::loopdev::{Access, Mount};

use super::check;
use super::corrupt::Corpus;
use super::image::{Pool, RULES, mount};

/// `BTRFS_IOC_QUOTA_CTL`, and its argument that enables simple quotas: the command, and what it returns.
const QUOTA_CTL: u32 = 0xc010_9428;
const ENABLE_SIMPLE: u64 = 4;

/// Changes after quotas are enabled: extents of two subvolumes and of their snapshots.
const CHANGES: &str = r"
set -e
btrfs subvolume create sub
seq 100000 > sub/text
btrfs subvolume snapshot sub snap
seq 200000 > snap/text
cp --reflink=always sub/text clone
head -c 300000 /dev/urandom > random
sync -f .
rm sub/text
";

#[test]
fn simple_quotas_are_counted_as_by_the_kernel() -> Result<()> {
    let pool = Pool::make(1, 200 << 10, &[])?;
    pool.run("", "seq 1000 > $1/before")?;
    let mounted = Mount::images(FsType::Btrfs, &pool.paths(), "", Access::ReadWrite)?;
    let argument = [ENABLE_SIMPLE.to_le_bytes(), [0; 8]].concat();
    let enabled = ioctl::call(mounted.root(), 0, QUOTA_CTL, &argument)?;
    enabled.expect("the kernel has simple quotas");
    mounted.unmount_all(&pool.paths())?;
    pool.run_at_path("", CHANGES)?;
    let outcome = pool.compare(&platter_btrfs::MountOptions::default(), "", RULES)?;
    assert_eq!(outcome.differences, 0, "{outcome}");
    let ours = mount(&pool.devices()?, &platter_btrfs::MountOptions::default())?;
    let features: &Features = &ours.superblock().features;
    assert!(features.incompat_names().contains(&"squota"));
    check::is_clean_for_platter(&pool.paths())?;

    // What the kernel counted is what is counted here: more is found, and two counts that differ.
    for id in [5, 256, 257] {
        for places in [&[8][..], &[24], &[11, 27]] {
            let key = Key::new(0, ItemKind::QGROUP_INFO, id);
            let change = Corpus::new(&pool)?.change_data(TreeId::QUOTA, key, |data| {
                for at in places {
                    data[*at] ^= 1;
                }
            });
            let undo = change?.apply(&pool.images)?;
            let errors = check::check(&pool.paths())?.1.errors();
            assert_eq!(errors.len(), 1, "{errors:?}");
            assert!(errors[0].contains("qgroup"), "{errors:?}");
            undo.apply(&pool.images)?;
        }
    }
    // Less may be what an older kernel left.
    let key = Key::new(0, ItemKind::QGROUP_INFO, 256);
    let change = Corpus::new(&pool)?.change_data(TreeId::QUOTA, key, |data| {
        data[8..16].fill(0);
        data[24..32].fill(0);
    });
    let undo = change?.apply(&pool.images)?;
    let (report, findings) = check::check(&pool.paths())?;
    assert!(report.is_clean(), "{findings:?}");
    let is_reported = |finding: &Finding| finding.corruption.to_string().contains("qgroup");
    assert_eq!(findings.0.iter().filter(|it| is_reported(it)).count(), 1);
    undo.apply(&pool.images)?;
    check::is_clean_for_platter(&pool.paths())
}
