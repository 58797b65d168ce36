//! Send streams, both ways: ours received by btrfs-progs, and those of the kernel received by us. What is received is
//! what was sent, by both, whichever of them wrote it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use platter_btrfs::ondisk::file_extent::{FileExtent, FileExtentKind};
use platter_btrfs::ondisk::inode_item::InodeItem;
use platter_btrfs::ondisk::key::ItemKind;
use platter_btrfs::ondisk::send_stream::{Command, DiskCommandHeader, StreamRule, StreamWriter};
use platter_btrfs::ondisk::{Key, TreeId};
use platter_btrfs::{Btrfs, MountOptions, SubvolumeChoice};
use platter_ondisk::Rule;
use platter_vfs::subvolumes::SendOptions;
use platter_vfs::{Condition, Context as Caller, Filesystem, PathWalk};
use tempfile::TempDir;
use testkit::compare::Rules;
use testkit::oracle::{Verdict, btrfs};
use zerocopy::IntoBytes;

use super::check::is_clean;
use super::image::{Pool, mount, mount_writable};
use super::stream_trees::script;

/// Seeds in a normal run; `PLATTER_STREAM_TREES` has another number.
const SEEDS: u64 = 3;
const SNAPSHOTS: usize = 4;
const SIZE_KIB: u64 = 256 << 10;

/// What a received subvolume has of the one that was sent. Times are compared by [`LIST`]: times of change differ.
const RULES: Rules = Rules {
    numbers: false,
    layout: false,
    holes: false,
    times: false,
    statfs: false,
    ..Rules::KERNEL_MOUNT
};

/// Lists what the comparison does not look at, for each snapshot in its order.
const LIST: &str = r"
for snap in snap*; do
    echo $snap
    (cd $snap && find . -printf '%P %y %m %U %G %n %T@ %A@ %l\n' | LC_ALL=C sort)
done > ";

fn seeds() -> Result<u64> {
    match std::env::var("PLATTER_STREAM_TREES") {
        Ok(count) => Ok(count.parse()?),
        Err(_) => Ok(SEEDS),
    }
}

fn number(fs: &Btrfs, path: &str) -> Result<u64> {
    Ok(PathWalk::new(fs).resolve(path.as_bytes())?.id().tree)
}

/// The streams of snapshots, each from the one before.
struct Streams {
    dir: TempDir,
    paths: Vec<PathBuf>,
    is_kernels: bool,
}

impl Streams {
    fn empty(count: usize, is_kernels: bool) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let path = |at: usize| dir.path().join(format!("stream{at}"));
        let paths = (0..count).map(path).collect();
        Ok(Self {
            dir,
            paths,
            is_kernels,
        })
    }

    /// Our streams of a pool's snapshots.
    fn ours(pool: &Pool, count: usize, options: &SendOptions) -> Result<Self> {
        let streams = Self::empty(count, false)?;
        let fs = mount(&pool.devices()?, &MountOptions::default())?;
        let subvolumes = fs.subvolumes().context("subvolumes")?;
        for (at, path) in streams.paths.iter().enumerate() {
            let id = number(&fs, &format!("snap{at}"))?;
            let before = at.checked_sub(1);
            let parent = before.map(|at| number(&fs, &format!("snap{at}")));
            let options = SendOptions {
                parent: parent.transpose()?,
                ..options.clone()
            };
            let mut out = Vec::new();
            subvolumes
                .send(id, &options, &mut out)
                .with_context(|| format!("send snap{at}"))?;
            fs::write(path, out)?;
        }
        Ok(streams)
    }

    /// Those of the kernel.
    fn kernels(pool: &Pool, count: usize, options: &str) -> Result<Self> {
        let streams = Self::empty(count, true)?;
        let mut script = String::new();
        for (at, path) in streams.paths.iter().enumerate() {
            let parent = at.checked_sub(1);
            let parent = parent.map_or(String::new(), |at| format!("-p snap{at}"));
            let path = path.display();
            // Infallible.
            let _ = writeln!(
                script,
                "btrfs send -q {options} {parent} -f {path} snap{at}"
            );
        }
        pool.run_at_path("ro", &script)?;
        Ok(streams)
    }

    fn received_by_btrfs(&self) -> Result<Pool> {
        let pool = Pool::make(1, SIZE_KIB, &[])?;
        let receive = |path: &PathBuf| format!("btrfs receive -f {} .\n", path.display());
        let script: String = self.paths.iter().map(receive).collect();
        pool.run_at_path("noatime", &script)?;
        Ok(pool)
    }

    fn received_by_us(&self) -> Result<Pool> {
        let pool = Pool::make(1, SIZE_KIB, &[])?;
        let fs = mount_writable(&pool)?;
        for path in &self.paths {
            receive(&fs, &mut &fs::read(path)?[..])
                .with_context(|| format!("receive {}", path.display()))?;
        }
        fs.unmount()?;
        Ok(pool)
    }

    fn list(&self, pool: &Pool) -> Result<Vec<String>> {
        let path = self.dir.path().join("list");
        pool.run_at_path("ro", &format!("{LIST}{}", path.display()))?;
        let text = fs::read_to_string(path)?;
        // The kernel leaves out the times of a root directory that had names for some time.
        let is_shown = |line: &&str| !self.is_kernels || !line.starts_with(" d ");
        Ok(text.lines().filter(is_shown).map(str::to_owned).collect())
    }

    /// Judges what was received: it is what was sent, and the checker finds nothing.
    fn judge(&self, sent: &Pool, received: &Pool, what: &str) -> Result<()> {
        let paths: Vec<&Path> = received.paths();
        assert_eq!(btrfs::check(&paths)?, Verdict::Clean, "{what}");
        let (expected, found) = (self.list(sent)?, self.list(received)?);
        let differs = expected.iter().zip(&found).find(|(a, b)| a != b);
        assert_eq!(differs, None, "{what}");
        assert_eq!(expected.len(), found.len(), "{what}");
        for at in 0..self.paths.len() {
            let subvolume = SubvolumeChoice::Path(format!("snap{at}").into_bytes());
            let options = MountOptions {
                subvolume,
                ..MountOptions::default()
            };
            // Ours of what was sent, the kernel's of what was received.
            let outcome = {
                let ours = mount(&sent.devices()?, &options)?;
                let kernel = testkit::loopdev::Mount::images(
                    testkit::fs_type::FsType::Btrfs,
                    &paths,
                    &format!("subvol=snap{at}"),
                    testkit::loopdev::Access::ReadOnly,
                )?;
                testkit::compare::compare(&ours, kernel.root(), RULES)?
            };
            assert_eq!(outcome.differences, 0, "{what}, snap{at}: {outcome}");
        }
        Ok(())
    }
}

fn receive(fs: &Btrfs, stream: &mut dyn std::io::Read) -> platter_vfs::Result<usize> {
    let mut count = 0;
    let root = fs.root()?.id();
    let subvolumes = fs.subvolumes().ok_or(Condition::NotSupported)?;
    subvolumes.receive(&Caller::root(), root, stream, &mut |_| count += 1)?;
    Ok(count)
}

/// The filesystems that trees are made in: how many devices, and options of `mkfs.btrfs`.
const FILESYSTEMS: [(usize, &[&str]); 3] = [
    (1, &[]),
    (1, &["-O", "^no-holes"]),
    (2, &["-m", "raid1", "-d", "single"]),
];

/// A tree of a seed, written by the kernel's mount or, of every other seed, by ours.
fn random_pool(seed: u64) -> Result<Pool> {
    // With the writers, and the forms of streams, all combinations in 18 seeds.
    let (devices, options) = FILESYSTEMS[usize::try_from((seed + seed / 3) % 3)?];
    let pool = Pool::make(devices, SIZE_KIB, options)?;
    let script = script(seed, SNAPSHOTS);
    if seed.is_multiple_of(2) {
        pool.run_at_path("noatime", &script)?;
        return Ok(pool);
    }
    // FUSE passes no FICLONE on, and `btrfs` takes no mount of it.
    let script = script
        .replace("--reflink=always", "--reflink=auto")
        .replace("btrfs subvolume", "\"$PLATTER\" subvolume");
    pool.run_at_our_mount("noatime", &script)?;
    is_clean(&pool.paths())?;
    Ok(pool)
}

#[test]
fn random_trees_are_sent_and_received() -> Result<()> {
    for seed in 0..seeds()? {
        let pool = random_pool(seed)?;
        // Each form by some seeds.
        let options = SendOptions {
            version: Some(if seed % 3 == 0 { 1 } else { 2 }),
            compressed: seed % 3 == 2,
            ..SendOptions::default()
        };
        let ours = Streams::ours(&pool, SNAPSHOTS, &options)?;
        let received = ours.received_by_btrfs()?;
        ours.judge(
            &pool,
            &received,
            &format!("seed {seed}, ours by btrfs-progs"),
        )?;
        let received = ours.received_by_us()?;
        ours.judge(&pool, &received, &format!("seed {seed}, ours by us"))?;
        let options = ["", "--proto 2", "--compressed-data"];
        let options = options[usize::try_from(seed % 3)?];
        let kernels = Streams::kernels(&pool, SNAPSHOTS, options)?;
        let received = kernels.received_by_us()?;
        kernels.judge(
            &pool,
            &received,
            &format!("seed {seed}, the kernel's by us"),
        )?;
    }
    Ok(())
}

/// Names that took each other's place, a directory that was moved into its own, and what a receiver's order decides.
const MOVES: &str = "
btrfs subvolume create tree
cd tree
mkdir -p one/two/three four
echo one > one/file; echo four > four/file
head -c 400000 /dev/urandom > data
setcap cap_net_raw+ep data
setfattr -n btrfs.compression -v zstd .
setfacl -m d:u:1:rwx .
chmod 2775 four
seq 100000 > text
btrfs subvolume snapshot -r . ../snap0
mv one/two two; mv one two/three/; mv two/three/one/file two/; mv two one
mv four five; mv one four; mv five one
mv data .data; mv text data; mv .data text
cp --reflink=always text shared; chown 1:1 shared
head -c 5000 /dev/urandom | dd of=text bs=4096 seek=3 conv=notrunc status=none
fallocate -p -o 65536 -l 32768 text
truncate -s 300001 text
ln shared four/linked; rm shared
mkdir new; echo new > new/new; ln -s nothing new/link; mkfifo new/fifo
btrfs subvolume snapshot -r . ../snap1
setfacl -b .; setfattr -x btrfs.compression .
mkdir direct; chattr +C direct; echo in place > direct/file
chattr +i four/linked; chattr +a new/new
rm -r four/three
btrfs subvolume snapshot -r . ../snap2
chattr -i four/linked; chattr -a new/new
rm four/linked; echo more >> new/new; mv new old
btrfs subvolume snapshot -r . ../snap3
";

#[test]
fn moves_and_attributes_are_sent_and_received() -> Result<()> {
    let pool = Pool::make(1, SIZE_KIB, &[])?;
    pool.run_at_path("noatime", MOVES)?;
    for version in [1, 2] {
        let options = SendOptions {
            version: Some(version),
            compressed: version == 2,
            ..SendOptions::default()
        };
        let ours = Streams::ours(&pool, SNAPSHOTS, &options)?;
        let received = ours.received_by_us()?;
        ours.judge(&pool, &received, &format!("version {version} by us"))?;
        let received = ours.received_by_btrfs()?;
        ours.judge(
            &pool,
            &received,
            &format!("version {version} by btrfs-progs"),
        )?;
    }
    Ok(())
}

/// A file of extents that are shared in all ways.
const SHARED: &str = "
btrfs subvolume create tree
cd tree
head -c 1000000 /dev/urandom > data
btrfs subvolume snapshot -r . ../snap0
cp --reflink=always data copy
xfs_io -c 'reflink data 0 1003520 500000' data >/dev/null 2>&1 || :
xfs_io -f -c 'reflink data 4096 8192 40960' part >/dev/null
seq 300000 > text
setfattr -n btrfs.compression -v zlib text
cp text compressed; setfattr -n btrfs.compression -v zlib compressed
cp text compressed
sync -f .
cp --reflink=always compressed again
btrfs subvolume snapshot -r . ../snap1
";

#[test]
fn shared_extents_are_cloned() -> Result<()> {
    let pool = Pool::make(1, SIZE_KIB, &[])?;
    pool.run_at_path("noatime", SHARED)?;
    for compressed in [false, true] {
        let options = SendOptions {
            version: Some(2),
            compressed,
            ..SendOptions::default()
        };
        let ours = Streams::ours(&pool, 2, &options)?;
        // Neither the copy nor what was cloned of the file is in the second stream.
        let text_bytes = 2_100_000;
        let len_bytes = fs::metadata(&ours.paths[1])?.len();
        let most = if compressed {
            text_bytes
        } else {
            2 * text_bytes
        } + 100_000;
        assert!(len_bytes < most, "{len_bytes}");
        for received in [ours.received_by_us()?, ours.received_by_btrfs()?] {
            ours.judge(&pool, &received, "clones")?;
            let fs = mount(&received.devices()?, &MountOptions::default())?;
            for path in ["snap1/copy", "snap1/part", "snap1/again"] {
                let file = PathWalk::new(&fs).resolve(path.as_bytes())?;
                let mut all_shared = true;
                file.extents(0..u64::MAX, &mut |extent| {
                    all_shared &= extent.shared;
                    std::ops::ControlFlow::Continue(())
                })?;
                assert!(all_shared, "{path}, compressed: {compressed}");
            }
        }
    }
    Ok(())
}

/// Files whose contents are in their items.
const SHORT: &str = "
btrfs subvolume create tree
cd tree
for size in 1 419 2000; do head -c $size /dev/urandom > random.$size; done
mkdir packed
setfattr -n btrfs.compression -v zstd packed
for size in 700 4000; do yes | head -c $size > packed/$size; done
btrfs subvolume snapshot -r . ../snap0
truncate -s 100 random.2000
yes no | head -c 500 > packed/700
sync -f .
btrfs subvolume snapshot -r . ../snap1
";
const SHORT_FILES: usize = 5;

/// Makes the files with inline extents longer, and nothing else, as a logged truncation can. Returns how many.
fn lengthen_inline(pool: &Pool, path: &str, size_bytes: u64) -> Result<usize> {
    let reader = mount(&pool.devices()?, &MountOptions::default())?;
    let id = TreeId(number(&reader, path)?);
    drop(reader);
    let fs = pool.open_for_writing()?;
    let handle = fs.begin(32)?;
    let count = handle.edit(id, |tree| {
        let (mut next, mut count) = (Some(Key::MIN), 0);
        while let Some(from) = next
            && let Some((key, data)) = tree.at_or_after(from)?
        {
            next = key.successor();
            if key.kind != ItemKind::EXTENT_DATA {
                continue;
            }
            let locus = tree.tree().locus(key);
            let extent = FileExtent::decode(&data, key.offset, 4096, locus)?;
            let item_key = Key::new(key.object, ItemKind::INODE_ITEM, 0);
            if let FileExtentKind::Inline(_) = extent.kind
                && let Some(item) = tree.get(item_key)?
            {
                let mut item = InodeItem::decode(&item, locus)?;
                item.size_bytes = size_bytes;
                tree.set(item_key, item.encode().as_bytes())?;
                count += 1;
            }
        }
        Ok(count)
    })?;
    drop(handle);
    fs.sync()?;
    Ok(count)
}

#[test]
fn files_that_go_on_after_an_inline_extent_are_sent() -> Result<()> {
    let pool = Pool::make(1, SIZE_KIB, &[])?;
    pool.run_at_path("noatime", SHORT)?;
    assert_eq!(lengthen_inline(&pool, "snap0", 6000)?, SHORT_FILES);
    assert_eq!(lengthen_inline(&pool, "snap1", 9000)?, SHORT_FILES);
    is_clean(&pool.paths())?;
    for version in [1, 2] {
        let options = SendOptions {
            version: Some(version),
            ..SendOptions::default()
        };
        let ours = Streams::ours(&pool, 2, &options)?;
        let kernels = Streams::kernels(&pool, 2, &format!("--proto {version}"))?;
        for streams in [ours, kernels] {
            for received in [streams.received_by_us()?, streams.received_by_btrfs()?] {
                let what = format!("version {version}, the kernel's: {}", streams.is_kernels);
                streams.judge(&pool, &received, &what)?;
            }
        }
    }
    Ok(())
}

#[test]
fn stream_that_fails_leaves_nothing() -> Result<()> {
    let pool = Pool::make(1, SIZE_KIB, &[])?;
    pool.run_at_path("noatime", MOVES)?;
    let streams = Streams::ours(&pool, 2, &SendOptions::default())?;
    let (full, changed) = (fs::read(&streams.paths[0])?, fs::read(&streams.paths[1])?);
    let target = Pool::make(1, SIZE_KIB, &[])?;
    let fs = mount_writable(&target)?;
    let refused = |stream: &[u8]| {
        let refused = receive(&fs, &mut &*stream).unwrap_err();
        let names = platter_vfs::inode::read_dir_all(&*fs.root()?)?;
        assert!(names.is_empty(), "{refused}: {names:?}");
        Ok::<_, platter_vfs::Error>(refused.to_string())
    };
    // Its parent is not there.
    refused(&changed)?;
    for part in [10, 100, 1000, 50_000, full.len() - 3] {
        refused(&full[..part])?;
    }
    // Without its last command, which has no attributes.
    let error = refused(&full[..full.len() - size_of::<DiskCommandHeader>()])?;
    assert!(error.contains(StreamRule::Truncated.text()), "{error}");
    let mut corrupt = full.clone();
    corrupt[20_000] ^= 1;
    let error = refused(&corrupt)?;
    assert!(error.contains(StreamRule::Checksum.text()), "{error}");
    let mut outside = Vec::new();
    let mut writer = StreamWriter::begin(&mut outside, 1)?;
    writer.put(&Command::Unlink { path: b"file" })?;
    let error = refused(&outside)?;
    assert!(error.contains(StreamRule::Order.text()), "{error}");
    assert_eq!(receive(&fs, &mut &full[..])?, 1);
    fs.unmount()?;
    assert_eq!(btrfs::check(&target.paths())?, Verdict::Clean);
    Ok(())
}
