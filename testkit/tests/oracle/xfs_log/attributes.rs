//! Intents to change attributes, which the kernel logs for pointers to parents alone.

use anyhow::{Context, Result};
use platter_xfs::ondisk::log::ItemKind;

use super::chains;
use super::cut::last_point;
use super::many::{Tally, compare_with};
use super::scene::Scene;
use super::shapes::PARENTS;

/// Recordings, until one leaves an intent open in a log that the kernel recovers.
const RECORDINGS_MAX: usize = 4;

/// Finishes an open intent to change an attribute, by a recovery in memory and by a mount for writing.
pub(super) fn finish(tally: &mut Tally) {
    finish_one(tally).unwrap_or_else(|error| panic!("{error:#}"));
    let kind = format!("{:?}", ItemKind::Attr);
    assert!(tally.intents.contains_key(&kind), "{tally:?}");
}

fn finish_one(tally: &mut Tally) -> Result<()> {
    let mut found = None;
    for _ in 0..RECORDINGS_MAX {
        let made = Scene::make(&PARENTS)?;
        let recording = made.recorded(chains::links)?;
        found = last_point(&made, &recording, |scene| {
            let intents = scene.open_intents()?;
            Ok(intents.iter().any(|intent| intent.kind() == ItemKind::Attr))
        })
        .ok();
        if found.is_some() {
            break;
        }
    }
    let scene = found.context("no log leaves such an intent open")?;
    compare_with(&scene.recovered_by_the_kernel()?, &scene, tally)
}

#[test]
fn open_attribute_intents_finish_as_in_the_kernel() {
    let mut tally = Tally::with_mounts();
    finish(&mut tally);
    println!("{tally:?}");
}
