//! The images that mutation starts from.

use anyhow::{Context, Result};
use testkit::fixtures::{Fixture, catalogue};

use crate::layout::Layout;

/// A good image and where its structures lie.
#[derive(Debug)]
pub struct Seed {
    /// The fixture's name.
    pub name: &'static str,
    /// Its bytes, the same wherever the same tools made it.
    pub image: Vec<u8>,
    /// Its structures.
    pub layout: Layout,
}

/// Every seed, with all times set to one moment.
pub fn all() -> Result<Vec<Seed>> {
    fixtures().map(seed).collect()
}

/// A fixture as a seed, with all times set to one moment.
pub fn seed(fixture: &Fixture) -> Result<Seed> {
    let mut image = read(fixture)?;
    let layout = Layout::read(&image).context(fixture.name)?;
    layout.make_still(&mut image);
    Ok(Seed {
        name: fixture.name,
        image,
        layout,
    })
}

/// The seeds as the tools made them.
#[cfg(test)]
pub(crate) fn files() -> Result<Vec<(&'static str, Vec<u8>)>> {
    fixtures()
        .map(|fixture| Ok((fixture.name, read(fixture)?)))
        .collect()
}

fn fixtures() -> impl Iterator<Item = &'static Fixture> {
    let seeds = catalogue::all().filter(|fixture| fixture.name.starts_with("seed_"));
    seeds.chain(catalogue::bare())
}

fn read(fixture: &Fixture) -> Result<Vec<u8>> {
    Ok(std::fs::read(fixture.build()?.image)?)
}
