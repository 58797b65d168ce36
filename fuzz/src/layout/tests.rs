//! Sealing what the tools made changes nothing, and everything that must be found is.

use super::*;
use crate::seeds;

#[test]
fn checksums_of_good_images_are_right_already() {
    for (name, image) in seeds::files().unwrap() {
        let layout = Layout::read(&image).unwrap();
        let mut sealed = image.clone();
        layout.seal(&mut sealed, &layout.parts);
        let changed = image.iter().zip(&sealed).position(|(old, new)| old != new);
        let parts: Vec<_> = changed
            .into_iter()
            .flat_map(|at| layout.touched(at, at + 1))
            .collect();
        assert_eq!((changed, &*parts), (None, &[][..]), "{name}");
    }
}

#[test]
fn every_kind_of_part_occurs() {
    let mut kinds = std::collections::BTreeSet::new();
    for (_, image) in seeds::files().unwrap() {
        for part in Layout::read(&image).unwrap().parts {
            let name = format!("{:?}", part.kind);
            let end = name.find(['(', ' ']).unwrap_or(name.len());
            kinds.insert(name[..end].to_owned());
        }
    }
    assert_eq!(kinds.len(), 15, "{kinds:?}");
}

#[test]
fn seeds_do_not_depend_on_when_they_were_made() {
    for seed in seeds::all().unwrap() {
        let mut later = seed.image.clone();
        for part in &seed.layout.parts {
            let at = part.range.start;
            if matches!(part.kind, Kind::Inode(_)) && !still::holds_value(&later, at) {
                later[part.range.start + 0x0c] ^= 0x55;
            }
        }
        seed.layout.seal(&mut later, &seed.layout.parts);
        assert!(later != seed.image, "{}", seed.name);
        seed.layout.make_still(&mut later);
        assert!(later == seed.image, "{}", seed.name);
    }
}
