//! How often devices are read, and extents decompressed.

use std::sync::Arc;

use anyhow::Result;
use platter::archive::{TarOptions, write_tar};
use platter::{Image, MountOptions as OpenOptions, Volume};
use platter_block::{Access, BlockDevice, CountingDevice};
use platter_btrfs::{Btrfs, MountOptions};
use platter_vfs::inode::read_dir_all;
use platter_vfs::{FileKind, Filesystem, Inode, Name, PathWalk};

use super::image::{Pool, mount};

/// Directories with files of a few bytes, and of a few thousand.
const MANY: &str = r#"
set -e
cd "$1"
head -c 3000 /dev/urandom > noise
for dir in 0 1 2 3 4 5 6 7 8 9; do
    mkdir -p $dir/below
    i=0
    while [ $i -lt 200 ]; do
        echo $i > $dir/name.$i
        cp --reflink=never noise $dir/below/name.$i
        i=$((i + 1))
    done
done
"#;

/// Visits everything in the order of directories, as `ls -lR` does. Returns how many files there are.
fn list(dir: &Arc<dyn Inode>) -> Result<usize> {
    let mut count = 0;
    let mut below = Vec::new();
    for entry in read_dir_all(&**dir)? {
        let inode = dir.lookup(Name::new(&entry.name)?)?;
        count += 1;
        if inode.attr()?.kind == FileKind::Directory {
            below.push(inode);
        }
    }
    for dir in &below {
        count += list(dir)?;
    }
    Ok(count)
}

#[test]
fn listing_reads_leaves_ahead() -> Result<()> {
    let pool = Pool::make(1, 160 << 10, &["-n", "4096"])?;
    pool.run("", MANY)?;
    let device = Arc::new(CountingDevice::new(pool.devices()?.remove(0)));
    let devices = [Arc::clone(&device) as Arc<dyn BlockDevice>];
    let btrfs = mount(&devices, &MountOptions::default())?;
    let before = device.counts().reads;
    assert_eq!(list(&btrfs.root()?)?, 4021);
    let reads = device.counts().reads - before;
    let fs = btrfs.super_block();
    let item = fs.context().root_item(platter_btrfs::ondisk::TreeId::FS)?;
    let blocks = item.unwrap().bytes_used / 4096;
    assert!(blocks > 400, "{blocks} blocks");
    assert!(reads * 2 < blocks, "{reads} reads of {blocks} blocks");
    Ok(())
}

fn archive(volume: &Volume) -> Result<Vec<u8>> {
    let mut archive = Vec::new();
    let options = TarOptions::default();
    let members: &[&[u8]] = &[b"."];
    let summary = write_tar(volume, b"/", members, &mut archive, &options, &mut |_| {})?;
    assert_eq!((summary.members, summary.corrupt), (4022, 0));
    Ok(archive)
}

#[test]
fn archive_reads_small_files_together() -> Result<()> {
    let pool = Pool::make(1, 160 << 10, &[])?;
    pool.run("", MANY)?;
    let device = Arc::new(CountingDevice::new(pool.devices()?.remove(0)));
    let devices = [Arc::clone(&device) as Arc<dyn BlockDevice>];
    // Nothing can be announced to devices that the volume does not know.
    let alone = Volume::new(
        "image",
        Arc::new(mount(&devices, &MountOptions::default())?),
    );
    let expected = archive(&alone)?;
    let reads_alone = device.counts().reads;
    assert!(reads_alone > 2000, "{reads_alone} reads");
    let image = Image::open(pool.paths()[0], Access::Read)?;
    let volume = OpenOptions::new().count_requests().mount(&image)?;
    assert!(archive(&volume)? == expected);
    let reads = volume.request_counts().unwrap().reads;
    assert!(reads * 8 < reads_alone, "{reads} reads, not {reads_alone}");
    Ok(())
}

/// Files whose extents are compressed, one longer than the page cache reads at once.
const COMPRESSED: &str = r#"
set -e
cd "$1"
seq 3000000 > long
seq 40000 > short
"#;

fn compressed(compressor: &str) -> Result<Pool> {
    let pool = Pool::make(1, 160 << 10, &[])?;
    pool.run(&format!("compress-force={compressor}"), COMPRESSED)?;
    Ok(pool)
}

fn mounted(pool: &Pool) -> Result<Btrfs> {
    mount(&pool.devices()?, &MountOptions::default())
}

/// How many extents a file has.
fn extents(inode: &dyn Inode) -> Result<u64> {
    let mut count = 0;
    inode.extents(0..u64::MAX, &mut |extent| {
        assert!(extent.encoded);
        count += 1;
        std::ops::ControlFlow::Continue(())
    })?;
    Ok(count)
}

#[test]
fn extents_are_decompressed_once_in_order() -> Result<()> {
    for compressor in ["zlib", "lzo", "zstd"] {
        let pool = compressed(compressor)?;
        for piece in [4096, 10_000, 131_072, 300_000, 4 << 20] {
            let btrfs = mounted(&pool)?;
            let inode = PathWalk::new(&btrfs).resolve(b"long")?;
            let mut buf = vec![0; piece];
            let mut at = 0;
            loop {
                let count = inode.read_at(at, &mut buf)?;
                if count == 0 {
                    break;
                }
                at += count as u64;
            }
            let count = btrfs.super_block().decompressed.decompressions();
            assert_eq!(count, extents(&*inode)?, "{compressor} by {piece}");
        }
    }
    Ok(())
}

#[test]
fn extents_are_decompressed_once_at_random() -> Result<()> {
    let btrfs = mounted(&compressed("zstd")?)?;
    let inode = PathWalk::new(&btrfs).resolve(b"short")?;
    let size = inode.attr()?.size_bytes;
    let mut prng = testkit::prng::Prng::new(7);
    let mut buf = [0; 4096];
    for _ in 0..500 {
        inode.read_at(prng.below(size), &mut buf)?;
    }
    let count = btrfs.super_block().decompressed.decompressions();
    assert!(
        count <= extents(&*inode)?,
        "{count} extents were decompressed"
    );
    Ok(())
}
