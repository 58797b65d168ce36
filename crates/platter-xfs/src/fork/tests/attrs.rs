//! Attributes that change, beside what they should be.

use super::super::attrs::{Attr, AttrSet, levels};
use super::*;
use crate::ondisk::attr::Namespace;

/// Changes the attributes of an inode to others.
fn write(sample: &Sample, number: InodeNr, attrs: &[Attr]) {
    let mut groups = sample.groups();
    let mut inode = InodeEdit::read(&groups, number).unwrap();
    let set = AttrSet(attrs.to_vec());
    set.write(&mut groups, &mut inode).unwrap();
    inode.store(&mut groups);
    groups.write_all().unwrap();
}

pub(crate) fn read(sample: &Sample, number: InodeNr) -> Vec<Attr> {
    let mut groups = sample.groups();
    let inode = InodeEdit::read(&groups, number).unwrap();
    let mut found = AttrSet::read(&mut groups, &inode).unwrap().0;
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found
}

#[test]
fn attributes_survive_all_their_forms() {
    let (sample, number) = sample(56);
    let mut numbers = Numbers(3);
    let mut model: Vec<Attr> = Vec::new();
    let mut forms = std::collections::BTreeSet::new();
    for round in 0..40 {
        for step in 0..5 {
            if round < 25 {
                let name_len = usize::try_from(1 + numbers.below(200)).unwrap();
                let most = [20, 20, 300, 9000][usize::try_from(numbers.below(4)).unwrap()];
                let value_len = usize::try_from(numbers.below(most)).unwrap();
                let spaces = [Namespace::User, Namespace::Root, Namespace::Parent];
                let mut name = format!("{round}-{step}").into_bytes();
                name.resize(name_len.max(name.len()), b'n');
                model.push(Attr {
                    namespace: spaces[usize::try_from(numbers.below(3)).unwrap()],
                    name,
                    value: vec![u8::try_from(step).unwrap(); value_len],
                });
            } else if !model.is_empty() {
                let at = numbers.below(model.len() as u64);
                model.swap_remove(usize::try_from(at).unwrap());
            }
        }
        if round == 37 {
            model = vec![Attr {
                namespace: Namespace::User,
                name: b"short".to_vec(),
                value: vec![1; 255],
            }];
        }
        if round == 39 {
            model.clear();
        }
        write(&sample, number, &model);
        model.sort_by(|one, other| one.name.cmp(&other.name));
        assert_eq!(read(&sample, number), model, "round {round}");
        let inode = InodeEdit::read(&sample.groups(), number).unwrap();
        let form = inode.inode().attr_format.unwrap() as u8;
        forms.insert((form, inode.inode().blocks > 1));
    }
    // In the inode, in leaves below a node, and nothing.
    assert!(forms.is_superset(&[(1, false), (2, true), (2, false)].into()));
    let inode = InodeEdit::read(&sample.groups(), number).unwrap();
    assert_eq!((inode.inode().attr_extents, inode.inode().blocks), (0, 0));
    let free: Vec<DiskFreeExtent> = sample.records(BtreeKind::Bno);
    let free: u32 = free.iter().map(|free| free.count.get()).sum();
    assert_eq!(free, 1000);
}

#[test]
fn nodes_stand_above_as_many_leaves_as_there_are() {
    assert_eq!(levels(1, 504), []);
    assert_eq!(levels(2, 504), [1]);
    assert_eq!(levels(505, 504), [2, 1]);
    assert_eq!(levels(300_000, 504), [596, 2, 1]);
}
