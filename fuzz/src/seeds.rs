//! The images that mutation starts from.

use std::ops::Range;

use anyhow::{Context, Result};
use testkit::fixtures::{Fixture, Place, catalogue};
use testkit::fs_type::FsType;

use crate::contents::Contents;
use crate::layout::Layout;
use crate::open;

/// A good image and where its structures lie.
#[derive(Debug)]
pub struct Seed {
    /// The fixture's name.
    pub name: &'static str,
    /// Its format.
    pub fs_type: FsType,
    /// Its bytes, the same wherever the same tools made it: its devices one after the other.
    pub contents: Contents,
    /// Where each device lies in them.
    pub devices: Vec<Range<usize>>,
    /// Its structures.
    pub layout: Layout,
}

/// Cache for a look at a seed.
const CACHE_BYTES: u64 = 4 << 20;

/// The seeds that are mutated, of these formats. All times of ext2, ext3 and ext4 are set to one moment.
pub fn of(formats: &[FsType]) -> Result<Vec<Seed>> {
    let mut seeds = Vec::new();
    for fixture in fixtures().filter(|fixture| formats.contains(&fixture.fs_type)) {
        let seed = seed(fixture)?;
        if is_served(&seed) {
            seeds.push(seed);
        }
    }
    Ok(seeds)
}

/// The seeds of all formats.
pub fn all() -> Result<Vec<Seed>> {
    of(&FsType::ALL)
}

/// Whether there is a driver for what the seed holds.
fn is_served(seed: &Seed) -> bool {
    let images = open::images(&seed.contents, &seed.devices);
    let mounted = open::options(CACHE_BYTES).mount(images);
    mounted.is_ok_and(|volume| volume.filesystem().unmount().is_ok())
}

/// A fixture as a seed, with all times set to one moment.
pub fn seed(fixture: &Fixture) -> Result<Seed> {
    let mut contents = read(fixture)?;
    let devices = devices(fixture, &contents);
    let layout = Layout::read(fixture.fs_type, &contents, &devices).context(fixture.name)?;
    layout.make_still(&mut contents);
    Ok(Seed {
        name: fixture.name,
        fs_type: fixture.fs_type,
        contents: contents.into_shared(),
        devices,
        layout,
    })
}

/// The seeds as the tools made them.
#[cfg(test)]
pub(crate) fn files() -> Result<Vec<(&'static Fixture, Contents)>> {
    fixtures()
        .map(|fixture| Ok((fixture, read(fixture)?)))
        .collect()
}

fn fixtures() -> impl Iterator<Item = &'static Fixture> {
    let seeds = catalogue::all().filter(|fixture| fixture.name.starts_with("seed_"));
    seeds.chain(catalogue::bare()).chain(catalogue::others())
}

fn read(fixture: &Fixture) -> Result<Contents> {
    Contents::read_files(&[fixture.build()?.image])
}

/// Where each device of a fixture lies in its image.
pub(crate) fn devices(fixture: &Fixture, contents: &Contents) -> Vec<Range<usize>> {
    let count = match fixture.place {
        Place::Members(count) => count as usize,
        Place::Whole | Place::Gpt(_) | Place::MbrLogical | Place::JournalApart => 1,
    };
    let len = contents.len() / count;
    (0..count)
        .map(|index| index * len..(index + 1) * len)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_serve_all_seeds_of_btrfs_and_xfs() {
        for format in [FsType::Btrfs, FsType::Xfs] {
            let fixtures = catalogue::others().filter(|fixture| fixture.fs_type == format);
            let names: Vec<_> = fixtures.map(|fixture| fixture.name).collect();
            let seeds = of(&[format]).unwrap();
            let served: Vec<_> = seeds.iter().map(|seed| seed.name).collect();
            assert_eq!(served, names);
        }
    }
}
