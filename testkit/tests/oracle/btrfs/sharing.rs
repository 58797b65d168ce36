//! Which extents are shared, compared with `FIEMAP` of the kernel.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;

use anyhow::Result;
use platter_btrfs::{Btrfs, MountOptions};
use platter_vfs::PathWalk;
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::tool;

use super::image::{Pool, mount};

/// Files whose extents are shared in all ways, and not.
const SHARED: &str = r#"
set -e
cd "$1"
noise() { head -c "$1" /dev/urandom; }
noise 2000000 > alone
noise 1000000 > first
cp --reflink=always first second
noise 4096 | dd of=second bs=4096 seek=9 conv=notrunc status=none
noise 1000000 > divided
sync -f .
noise 4096 | dd of=divided bs=4096 seek=5 conv=notrunc status=none
seq 200000 > text
setfattr -n btrfs.compression -v zstd text
cp text compressed
sync -f .
cp --reflink=always compressed clone
fallocate -l 1000000 prealloc
btrfs subvolume create sub
i=0
while [ $i -lt 500 ]; do noise 5000 > sub/file.$i; i=$((i + 1)); done
noise 1000000 > sub/large
noise 1000000 > sub/kept
btrfs subvolume snapshot sub snap
noise 100000 | dd of=snap/large bs=4096 seek=20 conv=notrunc status=none
rm sub/kept
noise 1000 > sub/new
noise 9000 > snap/new
btrfs subvolume snapshot -r snap again
btrfs subvolume create gone
noise 500000 > gone/file
cp --reflink=always gone/file survivor
rm gone/file
rmdir gone
sync -f .
"#;

/// The blocks of a file, each with whether it is shared.
type Blocks = BTreeSet<(u64, bool)>;

fn kernel_blocks(file: &Path) -> Result<Blocks> {
    let listed = tool::succeed(tool::command("filefrag").arg("-v").arg(file))?.text();
    let mut blocks = Blocks::new();
    for line in listed.lines() {
        let fields: Vec<&str> = line.split(':').collect();
        let [number, logical, .., flags] = &fields[..] else {
            continue;
        };
        let Some((first, last)) = logical.split_once("..") else {
            continue;
        };
        if number.trim().parse::<u32>().is_err() || flags.contains("inline") {
            continue;
        }
        let (first, last): (u64, u64) = (first.trim().parse()?, last.trim().parse()?);
        let is_shared = flags.contains("shared");
        blocks.extend((first..=last).map(|block| (block, is_shared)));
    }
    Ok(blocks)
}

fn our_blocks(fs: &Btrfs, path: &str) -> Result<Blocks> {
    let inode = PathWalk::new(fs).resolve(path.as_bytes())?;
    let mut blocks = Blocks::new();
    inode.extents(0..u64::MAX, &mut |extent| {
        if !extent.inline {
            let range = extent.file.start / 4096..extent.file.end.div_ceil(4096);
            blocks.extend(range.map(|block| (block, extent.shared)));
        }
        ControlFlow::Continue(())
    })?;
    Ok(blocks)
}

#[test]
fn extents_are_shared_as_for_the_kernel() -> Result<()> {
    let pool = Pool::make(1, 300 << 10, &["-n", "4096"])?;
    pool.run("", SHARED)?;
    let ours = mount(&pool.devices()?, &MountOptions::default())?;
    let kernel = Mount::images(FsType::Btrfs, &pool.paths(), "", Access::ReadOnly)?;
    let mut files: Vec<String> = Vec::new();
    let names = [
        "alone",
        "first",
        "second",
        "divided",
        "text",
        "compressed",
        "clone",
        "prealloc",
        "survivor",
        "sub/large",
        "sub/new",
        "snap/large",
        "snap/kept",
        "snap/new",
        "again/large",
        "again/new",
    ];
    files.extend(names.map(String::from));
    for number in (0..500).step_by(37) {
        files.extend(["sub", "snap", "again"].map(|dir| format!("{dir}/file.{number}")));
    }
    let mut shared = 0;
    for file in &files {
        let expected = kernel_blocks(&kernel.root().join(file))?;
        assert_eq!(our_blocks(&ours, file)?, expected, "{file}");
        shared += expected.iter().filter(|block| block.1).count();
    }
    assert!(shared > 1000, "{shared} blocks are shared");
    Ok(())
}
