//! Flipped bytes of data and of its parity: each is found, on its device, with the name of its file, and nothing else
//! is.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use platter::MountOptions;
use platter_block::sim::{Effect, Fault, FaultDevice, When};
use platter_block::{BlockDevice, Operation};
use platter_btrfs::Btrfs;
use platter_btrfs::chunk::Placement;
use platter_btrfs::context::FsContext;
use platter_btrfs::ondisk::chunk_item::{BlockGroupFlags, ChunkItem};
use platter_btrfs::ondisk::file_extent::{Compression, FileExtent, FileExtentKind};
use platter_btrfs::ondisk::key::ItemKind;
use platter_btrfs::ondisk::{Key, LogicalAddr, TreeId};
use platter_cache::MemoryBudget;
use platter_ondisk::Locus;
use platter_vfs::inode::read_dir_all;
use platter_vfs::{Filesystem, Name};
use rustix::io::Errno;
use testkit::findings::Findings;
use testkit::prng::Prng;

use super::check::images;
use super::image::{Pool, mount};

/// How many bytes are flipped, in as many sectors.
const FLIPS: usize = 1000;
const SECTOR: usize = 4096;
const STRIPE: usize = 64 << 10;
/// How many bytes of P are flipped, and of Q.
const PARITY_FLIPS: usize = 100;

/// Files of random bytes, copied to a directory of the host, too; texts that are compressed; a snapshot.
const SCRIPT: &str = r#"
set -e
cd "$1"
btrfs subvolume create sub
mkdir -p sub/dir text
for i in $(seq 0 249); do
    case $((i % 3)) in 0) to=. ;; 1) to=sub ;; 2) to=sub/dir ;; esac
    head -c 24576 /dev/urandom > $to/random.$i
    cp $to/random.$i HOST/
done
for i in $(seq 0 20); do seq $((i * 1000)) 20000 > text/text.$i; done
sync -f .
btrfs subvolume snapshot sub snap
"#;

/// A sector of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    image: usize,
    at: u64,
}

/// Where data lies.
struct Data {
    /// The sectors of files, with their logical addresses.
    sectors: BTreeMap<Place, (u64, String)>,
    /// Those of compressed extents.
    compressed: BTreeSet<Place>,
    chunks: Vec<ChunkItem>,
}

impl Data {
    /// Finds the sectors of the files in `host` by what they hold, and those of the texts by their extents.
    fn find(pool: &Pool, host: &Path) -> Result<Self> {
        let btrfs = mount(&pool.devices()?, &platter_btrfs::MountOptions::default())?;
        let context = btrfs.super_block().context();
        let store = context.blocks.store();
        let images = pool.images.iter().map(File::open);
        let images: Vec<File> = images.collect::<Result<_, _>>()?;
        let mut sector = vec![0; SECTOR];
        let owners = owners_by_content(host)?;
        let chunks: Vec<ChunkItem> = store.map().iter().cloned().collect();
        let place_of = |logical, copy| -> Option<Place> {
            let (member, at) = store.location(LogicalAddr(logical), copy)?;
            let image = usize::try_from(member.id.0 - 1).ok()?;
            Some(Place { image, at: at.0 })
        };
        let mut sectors = BTreeMap::new();
        for chunk in chunks
            .iter()
            .filter(|it| it.flags.contains(BlockGroupFlags::DATA))
        {
            for logical in (chunk.start.0..chunk.start.0 + chunk.len_bytes).step_by(SECTOR) {
                for copy in 0..chunk.profile.copies() {
                    let Some(place) = place_of(logical, copy) else {
                        continue;
                    };
                    images[place.image].read_exact_at(&mut sector, place.at)?;
                    if let Some(name) = owners.get(&sector) {
                        sectors.insert(place, (logical, name.clone()));
                    }
                }
            }
        }
        let mut compressed = BTreeSet::new();
        for (name, inode) in texts(&btrfs)? {
            for logical in compressed_sectors(context, inode)? {
                for place in (0..store.copies(LogicalAddr(logical), 1))
                    .filter_map(|copy| place_of(logical, copy))
                {
                    sectors.insert(place, (logical, name.clone()));
                    compressed.insert(place);
                }
            }
        }
        Ok(Self {
            sectors,
            compressed,
            chunks,
        })
    }

    /// The sectors of parity, of which all that they cover is data of files, with that.
    fn parity(&self, role_after_data: usize) -> Vec<(Place, BTreeMap<u64, String>)> {
        let by_address: BTreeMap<u64, &String> = self
            .sectors
            .values()
            .map(|(logical, name)| (*logical, name))
            .collect();
        let mut found = Vec::new();
        for chunk in &self.chunks {
            let width = (chunk.data_stripes() * STRIPE) as u64;
            for (logical, name) in by_address.range(chunk.start.0..chunk.start.0 + chunk.len_bytes)
            {
                let segment = chunk.segment(LogicalAddr(*logical), 1);
                let Placement::Parity { row, data: 0 } = segment.placement else {
                    continue;
                };
                let covered = (*logical..*logical + width).step_by(STRIPE);
                let names = covered.map(|at| Some((at, (*by_address.get(&at)?).clone())));
                let Some(names) = names.collect::<Option<BTreeMap<_, _>>>() else {
                    continue;
                };
                assert_eq!(names.get(logical), Some(*name));
                let stripe = chunk.stripe_of_role(row, chunk.data_stripes() + role_after_data);
                let image = usize::try_from(chunk.stripes[stripe].device.0 - 1).unwrap();
                let at = chunk.device_addr(stripe, segment.offset).0;
                found.push((Place { image, at }, names));
            }
        }
        found
    }
}

/// The names of the files in `host` by the contents of their sectors.
fn owners_by_content(host: &Path) -> Result<HashMap<Vec<u8>, String>> {
    let mut owners = HashMap::new();
    for entry in std::fs::read_dir(host)? {
        let entry = entry?;
        let name = entry.file_name().into_string().unwrap();
        for sector in std::fs::read(entry.path())?.chunks_exact(SECTOR) {
            owners.insert(sector.to_vec(), name.clone());
        }
    }
    Ok(owners)
}

/// The texts, with the numbers of their inodes.
fn texts(btrfs: &Btrfs) -> Result<Vec<(String, u64)>> {
    let dir = btrfs.root()?.lookup(Name::new(b"text")?)?;
    let mut found = Vec::new();
    for entry in read_dir_all(&*dir)? {
        let inode = dir.lookup(Name::new(&entry.name)?)?;
        found.push((String::from_utf8(entry.name.to_vec())?, inode.id().number));
    }
    Ok(found)
}

/// The logical addresses of the sectors of the compressed extents of a file at the top.
fn compressed_sectors(context: &FsContext, inode: u64) -> Result<Vec<u64>> {
    let tree = context.required_tree(TreeId::FS)?;
    let mut cursor = context.cursor(tree);
    cursor.seek(Key::new(inode, ItemKind::EXTENT_DATA, 0))?;
    let mut found = Vec::new();
    while let Some((key, data)) = cursor.item() {
        if (key.object, key.kind) != (inode, ItemKind::EXTENT_DATA) {
            break;
        }
        let extent = FileExtent::decode(data, key.offset, context.sector_bytes(), Locus::UNKNOWN)?;
        if let FileExtentKind::Regular(place) = extent.kind
            && extent.compression != Compression::None
        {
            let start = place.logical.0;
            found.extend((start..start + place.disk_bytes).step_by(SECTOR));
        }
        cursor.step()?;
    }
    Ok(found)
}

/// What is found.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    /// Image and place on it, and the name of the file.
    sectors: BTreeMap<Place, String>,
    /// Logical address of data that parity does not reconstruct, the name of its file, and in how many ways.
    parity: BTreeMap<(u64, String), usize>,
}

fn verify(pool: &Pool) -> Result<Found> {
    let mut findings = Findings::default();
    MountOptions::new().verify_data(images(&pool.paths())?, &mut findings)?;
    found_in(&findings)
}

fn found_in(findings: &Findings) -> Result<Found> {
    let mut found = Found::default();
    for finding in &findings.0 {
        let parts = finding.corruption.locus.parts();
        let path = finding
            .path
            .clone()
            .unwrap_or_else(|| panic!("{finding:?}"));
        let path = PathBuf::from(String::from_utf8(path)?);
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let Some(member) = parts.member else {
            *found
                .parity
                .entry((parts.block.unwrap(), name))
                .or_default() += 1;
            continue;
        };
        let place = Place {
            image: usize::try_from(member - 1)?,
            at: parts.offset.unwrap(),
        };
        assert!(
            found.sectors.insert(place, name).is_none(),
            "{finding:?} twice"
        );
    }
    Ok(found)
}

/// Flips a bit of a sector.
fn flip(pool: &Pool, place: Place, prng: &mut Prng) -> Result<()> {
    let image = std::fs::File::options()
        .read(true)
        .write(true)
        .open(&pool.images[place.image])?;
    let at = place.at + prng.below(SECTOR as u64);
    let mut byte = [0];
    image.read_exact_at(&mut byte, at)?;
    byte[0] ^= 1 << prng.below(8);
    Ok(image.write_all_at(&byte, at)?)
}

fn filled(devices: usize, mkfs: &[&str]) -> Result<(Pool, Data)> {
    let pool = Pool::make(devices, 160 << 10, mkfs)?;
    let host = tempfile::tempdir()?;
    let script = SCRIPT.replace("HOST", host.path().to_str().unwrap());
    pool.run("compress=zstd", &script)?;
    assert_eq!(verify(&pool)?, Found::default());
    let data = Data::find(&pool, host.path())?;
    Ok((pool, data))
}

/// Flips bytes of as many sectors as are wanted, and compares what is found.
fn examine(devices: usize, mkfs: &[&str]) -> Result<()> {
    let (pool, data) = filled(devices, mkfs)?;
    let mut sectors: Vec<_> = data.sectors.iter().collect();
    assert!(sectors.len() >= FLIPS, "{} sectors", sectors.len());
    let mut prng = Prng::new(7);
    let mut expected = Found::default();
    for _ in 0..FLIPS {
        let index = usize::try_from(prng.below(sectors.len() as u64))?;
        let (place, (_, name)) = sectors.swap_remove(index);
        flip(&pool, *place, &mut prng)?;
        expected.sectors.insert(*place, name.clone());
    }
    let flipped = |place: &&Place| expected.sectors.contains_key(place);
    let compressed = data.compressed.iter().filter(flipped).count();
    assert!(compressed > 20, "{compressed} in compressed extents");
    let found = verify(&pool)?;
    let missed: Vec<_> = expected
        .sectors
        .iter()
        .filter(|it| found.sectors.get(it.0) != Some(it.1))
        .collect();
    assert!(
        missed.is_empty(),
        "{} missed, such as {:?}",
        missed.len(),
        missed[0]
    );
    assert_eq!(found, expected);
    Ok(())
}

/// Flips bytes of parity, after the data, of which nothing is bad.
fn examine_parity(devices: usize, profile: &str, kinds: usize) -> Result<()> {
    let (pool, data) = filled(devices, &["-d", profile, "-m", "raid1"])?;
    let mut prng = Prng::new(8);
    let mut expected = Found::default();
    for kind in 0..kinds {
        let mut sectors = data.parity(kind);
        assert!(sectors.len() > PARITY_FLIPS, "{} sectors", sectors.len());
        for _ in 0..PARITY_FLIPS {
            let index = usize::try_from(prng.below(sectors.len() as u64))?;
            let (place, covered) = sectors.swap_remove(index);
            flip(&pool, place, &mut prng)?;
            for sector in covered {
                *expected.parity.entry(sector).or_default() += 1;
            }
        }
    }
    assert_eq!(verify(&pool)?, expected);
    Ok(())
}

#[test]
fn flipped_bytes_of_data_name_their_files() -> Result<()> {
    examine(1, &["-d", "single", "-m", "single", "--csum", "xxhash"])
}

#[test]
fn flipped_bytes_of_one_copy_name_their_device() -> Result<()> {
    examine(2, &["-d", "raid1", "-m", "raid1"])
}

#[test]
fn flipped_bytes_of_raid5_name_their_files() -> Result<()> {
    examine(3, &["-d", "raid5", "-m", "raid1"])
}

#[test]
fn flipped_bytes_of_raid6_name_their_files() -> Result<()> {
    examine(4, &["-d", "raid6", "-m", "raid1"])
}

#[test]
fn unreadable_sectors_of_raid5_do_not_blame_their_rows() -> Result<()> {
    let (pool, data) = filled(3, &["-d", "raid5", "-m", "raid1"])?;
    let devices = pool.devices()?;
    let faulty = devices
        .iter()
        .map(|device| FaultDevice::new(Arc::clone(device)));
    let faulty: Vec<_> = faulty.map(Arc::new).collect();
    let mut expected = Found::default();
    for (place, (_, name)) in data.sectors.iter().step_by(97) {
        faulty[place.image].arm(Fault {
            operation: Operation::Read,
            when: When::Touching(place.at..place.at + SECTOR as u64),
            effect: Effect::Fail(Errno::IO),
        });
        expected.sectors.insert(*place, name.clone());
    }
    assert!(expected.sectors.len() > 10, "{expected:?}");
    let devices: Vec<Arc<dyn BlockDevice>> = faulty
        .iter()
        .map(|device| Arc::clone(device) as Arc<dyn BlockDevice>)
        .collect();
    let budget = Arc::new(MemoryBudget::new(16 << 20));
    let options = platter_btrfs::MountOptions::default();
    let mut findings = Findings::default();
    Btrfs::verify_data(&devices, &options, &budget, &mut findings)?;
    assert_eq!(found_in(&findings)?, expected);
    Ok(())
}

#[test]
fn flipped_bytes_of_p_name_the_files_of_their_rows() -> Result<()> {
    examine_parity(3, "raid5", 1)
}

#[test]
fn flipped_bytes_of_p_and_q_name_the_files_of_their_rows() -> Result<()> {
    examine_parity(4, "raid6", 2)
}
