//! The images that mutation starts from.

use anyhow::{Context, Result};
use testkit::fixtures::catalogue;

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
    files()?
        .into_iter()
        .map(|(name, mut image)| {
            let layout = Layout::read(&image).context(name)?;
            layout.make_still(&mut image);
            Ok(Seed {
                name,
                image,
                layout,
            })
        })
        .collect()
}

/// The seeds as the tools made them.
pub(crate) fn files() -> Result<Vec<(&'static str, Vec<u8>)>> {
    catalogue::all()
        .filter(|fixture| fixture.name.starts_with("seed_"))
        .map(|fixture| {
            let built = fixture.build()?;
            Ok((fixture.name, std::fs::read(built.image)?))
        })
        .collect()
}
