//! Flipped bytes of data: each is found, on its device, with the name of its file, and nothing else is.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use platter::MountOptions;
use testkit::findings::Findings;
use testkit::prng::Prng;

use super::check::images;
use super::image::Pool;

/// How many bytes are flipped, in as many sectors.
const FLIPS: usize = 1000;
const SECTOR: usize = 4096;

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

/// Where the sectors of the files in `host` lie, found by what they hold.
fn sectors(pool: &Pool, host: &Path) -> Result<BTreeMap<Place, String>> {
    let mut owners: HashMap<Vec<u8>, String> = HashMap::new();
    for entry in std::fs::read_dir(host)? {
        let entry = entry?;
        let name = entry.file_name().into_string().unwrap();
        for sector in std::fs::read(entry.path())?.chunks_exact(SECTOR) {
            owners.insert(sector.to_vec(), name.clone());
        }
    }
    let mut found = BTreeMap::new();
    for (image, path) in pool.images.iter().enumerate() {
        let bytes = std::fs::read(path)?;
        for (index, sector) in bytes.chunks_exact(SECTOR).enumerate() {
            if let Some(name) = owners.get(sector) {
                let at = (index * SECTOR) as u64;
                found.insert(Place { image, at }, name.clone());
            }
        }
    }
    Ok(found)
}

/// What is found: image and place on it, and the name of the file.
fn verify(pool: &Pool) -> Result<BTreeMap<Place, String>> {
    let mut findings = Findings::default();
    MountOptions::new().verify_data(images(&pool.paths())?, &mut findings)?;
    let mut found = BTreeMap::new();
    for finding in &findings.0 {
        let parts = finding.corruption.locus.parts();
        let path = finding
            .path
            .clone()
            .unwrap_or_else(|| panic!("{finding:?}"));
        let path = PathBuf::from(String::from_utf8(path)?);
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let place = Place {
            image: usize::try_from(parts.member.unwrap() - 1)?,
            at: parts.offset.unwrap(),
        };
        assert!(found.insert(place, name).is_none(), "{finding:?} twice");
    }
    Ok(found)
}

/// Flips bytes of as many sectors as are wanted, and compares what is found.
fn examine(devices: usize, mkfs: &[&str]) -> Result<()> {
    let pool = Pool::make(devices, 160 << 10, mkfs)?;
    let host = tempfile::tempdir()?;
    let script = SCRIPT.replace("HOST", host.path().to_str().unwrap());
    pool.run("compress=zstd", &script)?;
    assert_eq!(verify(&pool)?, BTreeMap::new());
    let mut sectors: Vec<_> = sectors(&pool, host.path())?.into_iter().collect();
    assert!(sectors.len() >= FLIPS, "{} sectors", sectors.len());
    let mut prng = Prng::new(7);
    let mut expected = BTreeMap::new();
    for _ in 0..FLIPS {
        let index = usize::try_from(prng.below(sectors.len() as u64))?;
        let (place, name) = sectors.swap_remove(index);
        let image = std::fs::File::options()
            .read(true)
            .write(true)
            .open(&pool.images[place.image])?;
        let at = place.at + prng.below(SECTOR as u64);
        let mut byte = [0];
        image.read_exact_at(&mut byte, at)?;
        byte[0] ^= 1 << prng.below(8);
        image.write_all_at(&byte, at)?;
        expected.insert(place, name);
    }
    let found = verify(&pool)?;
    let missed: Vec<_> = expected
        .iter()
        .filter(|it| found.get(it.0) != Some(it.1))
        .collect();
    assert!(
        missed.is_empty(),
        "{} missed, such as {:?}",
        missed.len(),
        missed[0]
    );
    assert_eq!(found.len(), FLIPS);
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
