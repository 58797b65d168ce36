//! A directory in memory: names by the order they came in, so that a cursor stays valid.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use super::node::Number;
use platter_vfs::{DirCursor, Name, NameBuf};

/// `.` and `..` have the first two places of every listing.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

/// The names of one directory.
///
/// # Invariants
/// `places` and `entries` hold the same names; a place is never used twice.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) parent: Number,
    entries: BTreeMap<u64, (NameBuf, Number)>,
    places: HashMap<NameBuf, u64>,
    next_place: u64,
}

/// One line of a listing.
pub(super) struct Listed {
    pub(super) name: NameBuf,
    pub(super) number: Number,
    pub(super) next: DirCursor,
}

impl Directory {
    pub(super) fn new(parent: Number) -> Self {
        Self {
            parent,
            entries: BTreeMap::new(),
            places: HashMap::new(),
            next_place: DOT_DOT + 1,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn get(&self, name: Name<'_>) -> Option<Number> {
        let place = self.places.get(name.as_bytes())?;
        Some(self.entries[place].1)
    }

    /// Adds a name that is not there.
    pub(super) fn insert(&mut self, name: Name<'_>, number: Number) {
        let place = self.next_place;
        self.next_place += 1;
        let replaced = self.places.insert(name.to_owned(), place);
        assert!(replaced.is_none(), "{name:?} is there already");
        self.entries.insert(place, (name.to_owned(), number));
    }

    /// Lets a name that is there name another file.
    pub(super) fn replace(&mut self, name: Name<'_>, number: Number) {
        let place = self.places[name.as_bytes()];
        self.entries.insert(place, (name.to_owned(), number));
    }

    pub(super) fn remove(&mut self, name: Name<'_>) {
        let place = self.places.remove(name.as_bytes());
        self.entries
            .remove(&place.expect("only names that are there are removed"));
    }

    /// Up to `count_max` entries after `from`, `.` and `..` included.
    pub(super) fn list(&self, own: Number, from: DirCursor, count_max: usize) -> Vec<Listed> {
        let listed = |name: &[u8], number, place| Listed {
            name: Name::new(name).expect("names here are valid").to_owned(),
            number,
            next: DirCursor(place),
        };
        let dots = [(DOT, &b"."[..], own), (DOT_DOT, b"..", self.parent)];
        let dots = dots.into_iter().filter(|(place, _, _)| *place > from.0);
        let dots = dots.map(|(place, name, number)| listed(name, number, place));
        let names = self.entries.range(from.0.saturating_add(1)..);
        let names = names.map(|(place, (name, number))| listed(name, *number, *place));
        dots.chain(names).take(count_max).collect()
    }
}
