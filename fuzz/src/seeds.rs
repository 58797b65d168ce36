//! The images that mutation starts from.

use anyhow::{Context, Result};
use testkit::fixtures::{Fixture, catalogue};
use testkit::fs_type::FsType;

use crate::layout::Layout;
use crate::open;

/// A good image and where its structures lie.
#[derive(Debug)]
pub struct Seed {
    /// The fixture's name.
    pub name: &'static str,
    /// Its format.
    pub fs_type: FsType,
    /// Its bytes, the same wherever the same tools made it.
    pub image: Vec<u8>,
    /// Its structures.
    pub layout: Layout,
}

/// Cache for a look at a seed.
const CACHE_BYTES: u64 = 4 << 20;

/// The seeds that are mutated: those of ext2, ext3 and ext4, with all times set to one moment. A mutant is a
/// copy of the whole image, for which the smallest images of btrfs and XFS are too large.
pub fn all() -> Result<Vec<Seed>> {
    let mut seeds = Vec::new();
    for seed in fixtures().map(seed) {
        let seed = seed?;
        if seed.fs_type == FsType::Ext4 && is_served(&seed.image) {
            seeds.push(seed);
        }
    }
    Ok(seeds)
}

/// Whether there is a driver for what the bytes hold.
fn is_served(image: &[u8]) -> bool {
    let mounted = open::options(CACHE_BYTES).mount(open::image(image.to_vec()));
    mounted.is_ok_and(|volume| volume.filesystem().unmount().is_ok())
}

/// A fixture as a seed, with all times set to one moment.
pub fn seed(fixture: &Fixture) -> Result<Seed> {
    let mut image = read(fixture)?;
    let layout = Layout::read(fixture.fs_type, &image).context(fixture.name)?;
    layout.make_still(&mut image);
    Ok(Seed {
        name: fixture.name,
        fs_type: fixture.fs_type,
        image,
        layout,
    })
}

/// The seeds as the tools made them.
#[cfg(test)]
pub(crate) fn files() -> Result<Vec<(&'static Fixture, Vec<u8>)>> {
    fixtures()
        .map(|fixture| Ok((fixture, read(fixture)?)))
        .collect()
}

fn fixtures() -> impl Iterator<Item = &'static Fixture> {
    let seeds = catalogue::all().filter(|fixture| fixture.name.starts_with("seed_"));
    seeds.chain(catalogue::bare()).chain(catalogue::others())
}

fn read(fixture: &Fixture) -> Result<Vec<u8>> {
    Ok(std::fs::read(fixture.build()?.image)?)
}
