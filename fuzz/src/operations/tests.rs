//! Operations reach what they are for: on intact images they find no corruption, and change them.

use testkit::fs_type::FsType;

use super::*;
use crate::seeds;

#[test]
fn intact_images_stay_intact() {
    let desk = Desk::new(8 << 20).unwrap();
    // Other formats are not written and not checked yet.
    for seed in seeds::of(&[FsType::Ext4]).unwrap() {
        for &operation in OPERATIONS {
            let what = format!("{operation:?} of {}", seed.name);
            let mut tally = Tally::default();
            desk.perform(operation, &seed.contents, &seed.devices, &mut tally)
                .unwrap();
            let is_corruption = |kind: &&String| kind.starts_with("corrupt") || *kind == "device";
            assert_eq!(tally.errors.keys().find(is_corruption), None, "{what}");
            let image = crate::open::image(std::fs::read(desk.image()).unwrap());
            let is_clean = crate::exercise::check(&desk.options(), &image.into(), &mut tally);
            assert!(is_clean, "{what}: {tally:?}");
        }
    }
}

#[test]
fn edits_and_growing_change_the_image() {
    let desk = Desk::new(8 << 20).unwrap();
    let seeds = seeds::of(&[FsType::Ext4]).unwrap();
    let seed = seeds
        .iter()
        .find(|seed| seed.name == "bare_bigalloc_journal");
    for &operation in &OPERATIONS[..7] {
        let seed = seed.unwrap();
        let mut tally = Tally::default();
        desk.perform(operation, &seed.contents, &seed.devices, &mut tally)
            .unwrap();
        let after = Contents::read_files(&[desk.image()]).unwrap();
        assert!(after != seed.contents, "{operation:?}: {tally:?}");
    }
}
