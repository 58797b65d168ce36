//! Attributes that change one by one, compared with what they should be.

use super::super::attrs::{Attr, AttrEdit};
use super::*;
use crate::context::tests::broken_rule;
use crate::ondisk::Site;
use crate::ondisk::attr::{AttrFlags, Namespace, build};
use crate::ondisk::da::{DaNode, DaNodeRule};

/// Changes the attributes of an inode.
fn edit_attributes<T>(
    sample: &Sample,
    number: InodeNr,
    change: impl FnOnce(&mut AttrEdit<'_>) -> T,
) -> T {
    let mut groups = sample.groups();
    let mut inode = InodeEdit::read(&groups, number).unwrap();
    let mut attrs = AttrEdit::open(&mut groups, &mut inode).unwrap();
    let result = change(&mut attrs);
    attrs.finish().unwrap();
    inode.store(&mut groups).unwrap();
    groups.write_all().unwrap();
    result
}

fn sorted(mut attrs: Vec<Attr>) -> Vec<Attr> {
    attrs.sort_by(|one, other| (&one.name, &one.value).cmp(&(&other.name, &other.value)));
    attrs
}

pub(crate) fn read(sample: &Sample, number: InodeNr) -> Vec<Attr> {
    let mut groups = sample.groups();
    let mut inode = InodeEdit::read(&groups, number).unwrap();
    if inode.inode().attr_format.is_none() {
        return Vec::new();
    }
    let mut attrs = AttrEdit::open(&mut groups, &mut inode).unwrap();
    sorted(attrs.all().unwrap())
}

fn free_blocks(sample: &Sample) -> u32 {
    let free: Vec<DiskFreeExtent> = sample.records(BtreeKind::Bno);
    free.iter().map(|free| free.count.get()).sum()
}

#[test]
fn attributes_survive_all_their_forms() {
    let (sample, number) = sample(56);
    let mut numbers = Numbers(3);
    let mut model: Vec<Attr> = Vec::new();
    let mut forms = std::collections::BTreeSet::new();
    for round in 0..90 {
        for step in 0..8 {
            let grows = round < 50 && numbers.below(4) > 0;
            if grows || model.is_empty() && round < 80 {
                let name_len = usize::try_from(1 + numbers.below(200)).unwrap();
                let most = [20, 20, 300, 3000, 9000][usize::try_from(numbers.below(5)).unwrap()];
                let value_len = usize::try_from(numbers.below(most)).unwrap();
                let mut name = format!("{round}-{step}").into_bytes();
                name.resize(name_len.max(name.len()), b'n');
                let spaces = [Namespace::User, Namespace::Root, Namespace::Secure];
                let new = Attr {
                    namespace: spaces[usize::try_from(numbers.below(3)).unwrap()],
                    name,
                    value: vec![u8::try_from(step).unwrap(); value_len],
                };
                edit_attributes(&sample, number, |attrs| attrs.set(&new).unwrap());
                model.push(new);
            } else if !model.is_empty() {
                let at = usize::try_from(numbers.below(model.len() as u64)).unwrap();
                if numbers.below(3) == 0 {
                    let value_len = usize::try_from(numbers.below(5000)).unwrap();
                    model[at].value = vec![77; value_len];
                    edit_attributes(&sample, number, |attrs| attrs.set(&model[at]).unwrap());
                } else {
                    let gone = model.swap_remove(at);
                    let was_there = edit_attributes(&sample, number, |attrs| {
                        let was_there = attrs.remove(&gone.key()).unwrap();
                        assert!(!attrs.remove(&gone.key()).unwrap());
                        was_there
                    });
                    assert!(was_there);
                }
            }
        }
        assert_eq!(
            read(&sample, number),
            sorted(model.clone()),
            "round {round}"
        );
        let inode = InodeEdit::read(&sample.groups(), number).unwrap();
        let form = inode.inode().attr_format.unwrap() as u8;
        forms.insert((form, inode.inode().blocks.min(30) / 2));
    }
    while let Some(gone) = model.pop() {
        edit_attributes(&sample, number, |attrs| attrs.remove(&gone.key()).unwrap());
    }
    // In a leaf, in leaves below a node, and with a B-tree of mappings.
    assert!(
        forms.is_superset(&[(2, 0), (2, 15), (3, 15)].into()),
        "{forms:?}"
    );
    let inode = InodeEdit::read(&sample.groups(), number).unwrap();
    assert_eq!((inode.inode().attr_extents, inode.inode().blocks), (0, 0));
    assert_eq!(free_blocks(&sample), 1000);
    let short = Attr {
        namespace: Namespace::User,
        name: b"short".to_vec(),
        value: vec![1; 255],
    };
    let form = || {
        let inode = InodeEdit::read(&sample.groups(), number).unwrap();
        inode.inode().attr_format.unwrap() as u8
    };
    edit_attributes(&sample, number, |attrs| attrs.set(&short).unwrap());
    assert_eq!(form(), 1);
    let second = Attr {
        name: b"second".to_vec(),
        ..short.clone()
    };
    edit_attributes(&sample, number, |attrs| attrs.set(&second).unwrap());
    assert_eq!(form(), 2);
    edit_attributes(&sample, number, |attrs| attrs.remove(&short.key()).unwrap());
    assert_eq!((form(), read(&sample, number)), (1, vec![second]));
    assert_eq!(free_blocks(&sample), 1000);
}

#[test]
fn pointers_to_parents_of_one_name_are_distinct() {
    let (sample, number) = sample(56);
    let parent = |parent: u64| Attr {
        namespace: Namespace::Parent,
        name: b"name".to_vec(),
        value: [&parent.to_be_bytes()[..], &[0, 0, 0, 1]].concat(),
    };
    // Hashes mix both halves of the number: these have one.
    let twins = [parent(0x1_0000_0002), parent(0x2_0000_0001)];
    let all: Vec<Attr> = twins.into_iter().chain((10..200).map(parent)).collect();
    for one in &all {
        edit_attributes(&sample, number, |attrs| attrs.set(one).unwrap());
    }
    assert_eq!(read(&sample, number), sorted(all.clone()));
    edit_attributes(&sample, number, |attrs| {
        assert!(attrs.remove(&all[1].key()).unwrap());
        assert!(attrs.has(&all[0].key()).unwrap() && !attrs.has(&all[1].key()).unwrap());
    });
    assert_eq!(read(&sample, number).len(), all.len() - 1);
}

/// A removal of the kernel marks an attribute as incomplete first, and a crash may come then; one that is replaced
/// without an intent is there twice.
#[test]
fn recovery_removes_incomplete_attributes() {
    let sized = |name: &[u8], len| Attr {
        namespace: Namespace::User,
        name: name.to_vec(),
        value: vec![1; len],
    };
    let (attr, large) = (sized(b"name", 5), sized(b"large", 3000));
    let (key, others) = (attr.key(), [large.clone()]);
    for is_twice in [false, true] {
        let (sample, number) = sample(56);
        edit_attributes(&sample, number, |attrs| attrs.set(&attr).unwrap());
        let mut groups = sample.groups();
        let mut inode = InodeEdit::read(&groups, number).unwrap();
        let mut bytes = inode.fork(ForkKind::Attr).unwrap().bytes.to_vec();
        // The header, and the lengths of the name and the value, are before the flags.
        bytes[6] |= AttrFlags::INCOMPLETE.bits();
        let fork = StoredFork {
            kind: ForkKind::Attr,
            format: ForkFormat::Local,
            extents: 0,
            bytes: &bytes,
        };
        inode.set_fork(&fork, 0).unwrap();
        inode.refresh(&sample.geometry).unwrap();
        let mut attrs = AttrEdit::open(&mut groups, &mut inode).unwrap();
        assert!(!attrs.remove(&key).unwrap());
        // Moves it to a leaf as it is.
        attrs.set(&large).unwrap();
        if is_twice {
            attrs.set(&attr).unwrap();
        }
        attrs.finish().unwrap();
        inode.store(&mut groups).unwrap();
        groups.write_all().unwrap();
        let change = |work: &dyn Fn(&mut AttrEdit<'_>)| {
            let mut inode = InodeEdit::read(&groups, number).unwrap();
            let mut groups = sample.groups();
            let mut attrs = AttrEdit::open(&mut groups, &mut inode).unwrap();
            attrs = attrs.for_recovery();
            work(&mut attrs);
            attrs.finish().unwrap();
            inode.store(&mut groups).unwrap();
            groups.write_all().unwrap();
        };
        change(&|attrs| attrs.set(&attr).unwrap());
        assert_eq!(read(&sample, number), [large.clone(), attr.clone()]);
        edit_attributes(&sample, number, |attrs| {
            assert!(attrs.remove(&key).unwrap() && !attrs.has(&key).unwrap());
        });
        // None is left that only recovery sees.
        change(&|attrs| assert!(!attrs.remove(&key).unwrap()));
        assert_eq!(read(&sample, number), others);
    }
}

#[test]
fn attribute_between_two_large_ones_gets_a_leaf_of_its_own() {
    let (sample, number) = sample(56);
    let sized = |name: &[u8], len: usize| Attr {
        namespace: Namespace::User,
        name: name.to_vec(),
        value: vec![1; len],
    };
    // By hash: a, b, c.
    let all = [sized(b"a", 1000), sized(b"c", 2900), sized(b"b", 3000)];
    for one in &all {
        edit_attributes(&sample, number, |attrs| attrs.set(one).unwrap());
    }
    assert_eq!(read(&sample, number), sorted(all.to_vec()));
}

#[test]
fn leaf_that_the_tree_leads_to_again_is_a_cycle() {
    let (sample, number) = sample(56);
    let mut all: Vec<Attr> = (0..12)
        .map(|index| Attr {
            namespace: Namespace::User,
            name: format!("{index}").into_bytes(),
            value: vec![1; 700],
        })
        .collect();
    for one in &all {
        edit_attributes(&sample, number, |attrs| attrs.set(one).unwrap());
    }
    all.sort_by_key(|attr| crate::ondisk::da::hash(&attr.name));
    let last = all.last().unwrap().key();
    let has_last = || edit_attributes(&sample, number, |attrs| attrs.has(&last));
    assert!(has_last().unwrap());

    let mut groups = sample.groups();
    let mut inode = InodeEdit::read(&groups, number).unwrap();
    let fork = inode.fork(ForkKind::Attr).unwrap();
    let mut fork = ForkEdit::open(&fork, number, &sample.geometry).unwrap();
    let (mappings, _) = fork.contents(&mut groups).unwrap();
    let places = by_block(&mappings);
    let root = FsBlock(places[&0]);
    let at = sample.geometry.byte_offset(root);
    let mut bytes = vec![0; 4096];
    sample.device.read_at(at, &mut bytes).unwrap();
    let site = Site::new(
        &sample.geometry,
        sample.geometry.basic_block(root),
        number.get(),
    );
    let node = DaNode::decode(&bytes, &site).unwrap();
    let children = node.entries.iter().map(|entry| entry.child.get());
    let mut children: Vec<u32> = children.collect();
    // A block that is not the first leaf's, but lies where that does.
    let other = children.iter().max().unwrap() + 1;
    let first = places[&u64::from(children[0])];
    fork.map(
        &mut groups,
        Mapping {
            offset: FileBlock(other.into()),
            start: first,
            count: 1,
            is_unwritten: false,
        },
    )
    .unwrap();
    fork.store(&mut inode).unwrap();
    inode.store(&mut groups).unwrap();
    groups.write_all().unwrap();
    children.insert(1, other);
    let children: Vec<(u32, u32)> = children.iter().map(|&child| (u32::MAX, child)).collect();
    let bytes = build::node(&children, node.level, node.links, &site).unwrap();
    sample.device.write_at(at, &bytes).unwrap();
    assert_eq!(broken_rule(has_last()), DaNodeRule::Cycle.text());
}
