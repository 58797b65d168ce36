//! Names, links and attributes at random, compared with a model: `btrfs check` finds them right, and the kernel
//! lists the same.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use platter_ondisk::Rule;
use platter_vfs::{Condition, Error, FileKind, Result, XattrMode};

use super::{EntryName, NAME_ITEMS, is_empty, next_index};
use crate::context::tests::rule;
use crate::directory::DirectoryRule;
use crate::inode::change::{
    add_orphan, insert, next_number, next_orphan, remove_items, remove_orphan, update,
};
use crate::ondisk::checksum::name_hash;
use crate::ondisk::inode_item::{InodeFlags, InodeItem};
use crate::ondisk::key::ItemKind;
use crate::ondisk::types::FIRST_FREE_OBJECT;
use crate::ondisk::{Key, TreeId};
use crate::txn::tests::Random;
use crate::txn::tests::image::Pool;
use crate::txn::{Handle, WriteContext, WriteOptions};
use crate::xattr::change as xattr;

const ROOT: u64 = FIRST_FREE_OBJECT;
const CREDITS: u32 = 16 * (NAME_ITEMS + 4);

struct Model<'f> {
    fs: &'f WriteContext,
    has_extended: bool,
    names: BTreeMap<(u64, String), u64>,
    kinds: BTreeMap<u64, FileKind>,
    xattrs: BTreeMap<(u64, String), Vec<u8>>,
}

fn new_item(handle: &Handle<'_>, kind: FileKind) -> InodeItem {
    InodeItem {
        generation: handle.generation(),
        transaction: handle.generation(),
        size_bytes: 0,
        allocated_bytes: 0,
        links: 1,
        uid: 0,
        gid: 0,
        kind,
        permissions: 0o755,
        device: platter_vfs::attr::DeviceNumber { major: 0, minor: 0 },
        flags: InodeFlags::empty(),
        sequence: 0,
        accessed: platter_vfs::Timestamp::default(),
        changed: platter_vfs::Timestamp::default(),
        modified: platter_vfs::Timestamp::default(),
        created: platter_vfs::Timestamp::default(),
    }
}

fn condition<T>(result: Result<T>) -> Option<Condition> {
    match result {
        Err(Error::Condition(condition)) => Some(condition),
        Err(error) => panic!("{error}"),
        Ok(_) => None,
    }
}

impl Model<'_> {
    fn change_size(handle: &Handle<'_>, dir: u64, name: &str, is_added: bool) {
        let bytes = 2 * name.len() as u64;
        let changed = handle.edit(TreeId::FS, |tree| {
            update(tree, dir, |item| {
                item.size_bytes = if is_added {
                    item.size_bytes + bytes
                } else {
                    item.size_bytes - bytes
                };
            })
        });
        changed.unwrap();
    }

    fn add(&mut self, dir: u64, name: &str, inode: u64, kind: FileKind) -> Result<()> {
        let handle = self.fs.begin(CREDITS).unwrap();
        self.add_in(&handle, dir, name, inode, kind)
    }

    fn add_in(
        &mut self,
        handle: &Handle<'_>,
        dir: u64,
        name: &str,
        inode: u64,
        kind: FileKind,
    ) -> Result<()> {
        let entry = EntryName {
            dir,
            name: name.as_bytes(),
            inode,
        };
        handle.edit(TreeId::FS, |tree| {
            let index = next_index(tree, dir)?;
            let transaction = handle.generation();
            entry.add(tree, transaction, (kind, index), self.has_extended)
        })?;
        Self::change_size(handle, dir, name, true);
        self.names.insert((dir, name.to_owned()), inode);
        Ok(())
    }

    fn create(&mut self, dir: u64, name: &str, kind: FileKind) {
        let handle = self.fs.begin(CREDITS).unwrap();
        let number = handle.edit(TreeId::FS, |tree| next_number(tree)).unwrap();
        let added = self.add_in(&handle, dir, name, number, kind);
        if let Some(refused) = condition(added) {
            assert_eq!(refused, Condition::Exists);
            assert!(self.names.contains_key(&(dir, name.to_owned())));
            return;
        }
        let item = new_item(&handle, kind);
        let inserted = handle.edit(TreeId::FS, |tree| insert(tree, number, &item));
        inserted.unwrap();
        self.kinds.insert(number, kind);
    }

    fn link(&mut self, dir: u64, name: &str, inode: u64) -> Option<Condition> {
        let kind = self.kinds[&inode];
        let refused = condition(self.add(dir, name, inode, kind));
        if refused.is_none() {
            self.change_links(inode, 1);
        }
        refused
    }

    fn change_links(&self, inode: u64, by: i32) {
        let handle = self.fs.begin(CREDITS).unwrap();
        let changed = handle.edit(TreeId::FS, |tree| {
            update(tree, inode, |item| {
                item.links = item.links.checked_add_signed(by).unwrap();
            })
        });
        changed.unwrap();
    }

    /// Whether a directory has no names.
    fn is_empty(&self, dir: u64) -> bool {
        let names = self.names.range((dir, String::new())..);
        let empty = names.take(1).all(|((it, _), _)| *it != dir);
        let handle = self.fs.begin(CREDITS).unwrap();
        let found = handle.edit(TreeId::FS, |tree| is_empty(tree, dir));
        assert_eq!(found.unwrap(), empty);
        empty
    }

    fn unlink(&mut self, dir: u64, name: &str) {
        let Some(&inode) = self.names.get(&(dir, name.to_owned())) else {
            return;
        };
        let kind = self.kinds[&inode];
        if kind == FileKind::Directory && !self.is_empty(inode) {
            return;
        }
        let handle = self.fs.begin_freeing(CREDITS).unwrap();
        let entry = EntryName {
            dir,
            name: name.as_bytes(),
            inode,
        };
        handle.edit(TreeId::FS, |tree| entry.remove(tree)).unwrap();
        Self::change_size(&handle, dir, name, false);
        self.names.remove(&(dir, name.to_owned()));
        if self.names.values().any(|it| *it == inode) {
            drop(handle);
            return self.change_links(inode, -1);
        }
        let removed = handle.edit(TreeId::FS, |tree| {
            add_orphan(tree, inode)?;
            assert_eq!(next_orphan(tree, 0)?, Some(inode));
            remove_items(tree, inode)?;
            remove_orphan(tree, inode)?;
            next_orphan(tree, 0)
        });
        assert_eq!(removed.unwrap(), None);
        self.kinds.remove(&inode);
        self.xattrs.retain(|(it, _), _| *it != inode);
    }

    fn set_xattr(&mut self, inode: u64, name: &str, value: Vec<u8>, mode: XattrMode) {
        let handle = self.fs.begin(CREDITS).unwrap();
        let transaction = handle.generation();
        let set = handle.edit(TreeId::FS, |tree| {
            let at = (inode, name.as_bytes());
            xattr::set(tree, transaction, at, &value, mode)
        });
        let is_there = self.xattrs.contains_key(&(inode, name.to_owned()));
        let expected = match mode {
            XattrMode::Create if is_there => Some(Condition::Exists),
            XattrMode::Replace if !is_there => Some(Condition::NoAttribute),
            _ if value.len() > 3900 => Some(Condition::NoSpace),
            XattrMode::Set | XattrMode::Create | XattrMode::Replace => None,
        };
        assert_eq!(condition(set), expected);
        if expected.is_none() {
            self.xattrs.insert((inode, name.to_owned()), value);
        }
    }

    fn remove_xattr(&mut self, inode: u64, name: &str) {
        let handle = self.fs.begin_freeing(CREDITS).unwrap();
        let removed = handle.edit(TreeId::FS, |tree| {
            xattr::remove(tree, inode, name.as_bytes())
        });
        let was_there = self.xattrs.remove(&(inode, name.to_owned())).is_some();
        let expected = (!was_there).then_some(Condition::NoAttribute);
        assert_eq!(condition(removed), expected);
    }

    /// The path of each name, with the inode.
    fn paths(&self) -> Vec<(String, u64)> {
        let mut paths = Vec::new();
        let mut dirs = vec![(ROOT, String::new())];
        while let Some((dir, path)) = dirs.pop() {
            for ((_, name), inode) in self.names.iter().filter(|((it, _), _)| *it == dir) {
                let path = format!("{path}/{name}");
                if self.kinds[inode] == FileKind::Directory {
                    dirs.push((*inode, path.clone()));
                }
                paths.push((path, *inode));
            }
        }
        paths
    }

    /// What `find` and `getfattr` print.
    fn listing(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (path, inode) in self.paths() {
            let links = self.names.values().filter(|it| **it == inode).count();
            let is_directory = self.kinds[&inode] == FileKind::Directory;
            let kind = if is_directory { "d" } else { "f" };
            let mut line = format!("{path} {kind} {links} {inode}");
            for ((_, name), value) in self.xattrs.iter().filter(|((it, _), _)| *it == inode) {
                write!(line, " {name}=0x").unwrap();
                for byte in value {
                    write!(line, "{byte:02x}").unwrap();
                }
            }
            lines.push(line);
        }
        lines.sort();
        lines
    }
}

const LIST: &str = r#"
mount -t btrfs -o ro,$options $device $root
cd $root
find . -mindepth 1 | LC_ALL=C sort | while read -r path; do
    line="$(stat -c '%F %h %i' "$path" | sed 's/regular empty file/f/; s/directory/d/')"
    attrs=$(getfattr -d -m - -e hex "$path" | grep = | LC_ALL=C sort | tr '\n' ' ')
    echo "${path#.} $line $attrs" | sed 's/ *$//; s/=0x"/=0x/'
done
cd /
umount $root
"#;

fn assert_kernel_agrees(pool: &Pool, expected: &[String]) {
    let text = pool.run(LIST);
    let mut found: Vec<_> = text.lines().map(str::to_owned).collect();
    found.sort();
    assert_eq!(found, expected);
}

/// Names of which two have the same hash, and names of attributes.
fn colliding(prefix: &str, random: &mut Random) -> [String; 2] {
    let mut known = HashMap::new();
    loop {
        let name = format!("{prefix}{:012x}", random.next() >> 16);
        if let Some(other) = known.insert(name_hash(name.as_bytes()), name.clone())
            && other != name
        {
            return [other, name];
        }
    }
}

fn examine(mkfs: &[&str]) {
    let pool = Pool::make(1, 160, mkfs);
    let fs = pool.open(WriteOptions::default());
    let mut random = Random(11);
    let mut names: Vec<_> = (0..12).map(|number| format!("name{number}")).collect();
    names.extend(colliding("", &mut random));
    let mut attributes: Vec<_> = (0..4).map(|number| format!("user.a{number}")).collect();
    attributes.extend(colliding("user.", &mut random));
    let mut model = Model {
        fs: &fs,
        has_extended: true,
        names: BTreeMap::new(),
        kinds: BTreeMap::from([(ROOT, FileKind::Directory)]),
        xattrs: BTreeMap::new(),
    };
    let pick = |random: &mut Random, names: &[String]| {
        let at = random.below(names.len() as u64);
        names[usize::try_from(at).unwrap()].clone()
    };
    for step in 0..500 {
        let of_kind = |kind: FileKind| {
            let found = model.kinds.iter().filter(move |(_, it)| **it == kind);
            found.map(|(number, _)| *number).collect::<Vec<_>>()
        };
        let dirs = of_kind(FileKind::Directory);
        let files = of_kind(FileKind::Regular);
        let below = |random: &mut Random, all: &[u64]| {
            let at = random.below(all.len().max(1) as u64);
            all.get(usize::try_from(at).unwrap()).copied()
        };
        let dir = below(&mut random, &dirs).unwrap();
        let file = below(&mut random, &files);
        let name = pick(&mut random, &names);
        let attribute = pick(&mut random, &attributes);
        match (random.below(8), file) {
            (0 | 1, _) => model.create(dir, &name, FileKind::Regular),
            (2, _) => model.create(dir, &name, FileKind::Directory),
            (3, Some(file)) => drop(model.link(dir, &name, file)),
            (4, _) => model.unlink(dir, &name),
            (5 | 6, Some(file)) => {
                let len = random.below(if step % 10 == 0 { 20_000 } else { 900 });
                let value = random
                    .bytes(len.max(1))
                    .into_iter()
                    .map(|it| it | 1)
                    .collect();
                let modes = [XattrMode::Set, XattrMode::Create, XattrMode::Replace];
                let mode = modes[usize::try_from(random.below(3)).unwrap()];
                let value: Vec<u8> = value;
                // Between these sizes it depends on the others of its hash and on the node size.
                if !(1000..=17_000).contains(&value.len()) {
                    let is_large = value.len() > 17_000;
                    let value = if is_large {
                        value
                    } else {
                        value[..value.len().min(900)].to_vec()
                    };
                    model.set_xattr(file, &attribute, value, mode);
                }
            }
            (_, Some(file)) => model.remove_xattr(file, &attribute),
            (_, None) => {}
        }
        if step % 120 == 0 {
            fs.sync().unwrap();
            pool.assert_clean();
        }
    }
    fs.sync().unwrap();
    let expected = model.listing();
    assert!(fs.failure().is_none());
    drop(fs);
    pool.assert_clean();
    assert_kernel_agrees(&pool, &expected);
}

#[test]
fn names_and_attributes_are_those_of_the_model() {
    examine(&[]);
}

#[test]
fn names_and_attributes_in_small_nodes_are_those_of_the_model() {
    examine(&["-n", "4096", "--csum", "xxhash"]);
}

#[test]
fn names_that_fit_in_no_reference_item_are_extended() {
    for has_extended in [false, true] {
        let pool = Pool::make(1, 160, &["-n", "4096"]);
        let fs = pool.open(WriteOptions::default());
        let mut model = Model {
            fs: &fs,
            has_extended,
            names: BTreeMap::new(),
            kinds: BTreeMap::from([(ROOT, FileKind::Directory)]),
            xattrs: BTreeMap::new(),
        };
        model.create(ROOT, "file", FileKind::Regular);
        let name = |number: u32| format!("{number:0>240}");
        let file = ROOT + 1;
        let refused = (0..40).find_map(|number| model.link(ROOT, &name(number), file));
        let expected = (!has_extended).then_some(Condition::TooManyLinks);
        assert_eq!(refused, expected);
        for number in (0..40).step_by(3) {
            model.unlink(ROOT, &name(number));
        }
        fs.sync().unwrap();
        let listing = model.listing();
        drop(fs);
        pool.assert_clean();
        assert_kernel_agrees(&pool, &listing);
    }
}

#[test]
fn name_of_which_a_part_is_missing_is_not_removed() {
    let pool = Pool::make(1, 160, &[]);
    let fs = pool.open(WriteOptions::default());
    let mut model = Model {
        fs: &fs,
        has_extended: true,
        names: BTreeMap::new(),
        kinds: BTreeMap::from([(ROOT, FileKind::Directory)]),
        xattrs: BTreeMap::new(),
    };
    for name in ["one", "two", "three"] {
        model.create(ROOT, name, FileKind::Regular);
    }
    let handle = fs.begin(CREDITS).unwrap();
    let entry = |name: &'static str, inode| EntryName {
        dir: ROOT,
        name: name.as_bytes(),
        inode,
    };
    let remove = |name, inode| {
        let removed = handle.edit(TreeId::FS, |tree| entry(name, inode).remove(tree));
        rule(removed)
    };
    assert_eq!(remove("four", ROOT + 1), DirectoryRule::NoEntry.text());
    assert_eq!(remove("one", ROOT + 2), DirectoryRule::NoRef.text());
    assert!(fs.failure().is_none());
    let index = Key::new(ROOT, ItemKind::DIR_INDEX, 2);
    let removed = handle.edit(TreeId::FS, |tree| tree.remove(index));
    assert!(removed.unwrap());
    assert_eq!(remove("one", ROOT + 1), DirectoryRule::NoIndex.text());
    assert!(fs.failure().is_none());
}
