//! Names of all kinds that are made, linked and renamed, and renames that are refused: these change nothing.

use platter_vfs::{
    Condition, Context, CreateKind, Error, FileKind, Filesystem, Inode, Name, RenameMode,
};

use super::write_tests::{colliding, finish, mount, name};
use crate::directory::change::EntryName;
use crate::ondisk::key::ItemKind;
use crate::ondisk::types::LAST_FREE_OBJECT;
use crate::ondisk::{Key, TreeId};
use crate::txn::WriteOptions;
use crate::txn::tests::image::Pool;

#[test]
fn names_of_all_kinds_are_those_that_were_made() {
    let pool = Pool::make(1, 128, &["-m", "single"]);
    let context = Context::root();
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let dir = CreateKind::Directory;
    let one = root
        .create(&context, name("one"), dir.clone(), 0o755)
        .unwrap();
    let two = root.create(&context, name("two"), dir, 0o755).unwrap();
    let target = vec![b't'; 3000];
    let link = CreateKind::Symlink(target.clone());
    let link = one.create(&context, name("link"), link, 0o777).unwrap();
    assert_eq!(link.read_link().unwrap(), target);
    one.create(&context, name("pipe"), CreateKind::Fifo, 0o600)
        .unwrap();
    let file = one
        .create(&context, name("file"), CreateKind::Regular, 0o600)
        .unwrap();
    two.link(&context, name("again"), file.id()).unwrap();
    let exchange = RenameMode::Exchange;
    one.rename(&context, name("pipe"), two.id(), name("again"), exchange)
        .unwrap();
    assert_eq!(one.lookup(name("pipe")).unwrap().id(), file.id());
    let whiteout = RenameMode::Whiteout;
    one.rename(&context, name("link"), two.id(), name("link"), whiteout)
        .unwrap();
    root.remove_dir(&context, name("two")).unwrap_err();
    root.rename(
        &context,
        name("two"),
        one.id(),
        name("below"),
        RenameMode::Replace,
    )
    .unwrap();
    assert_eq!(two.lookup(name("..")).unwrap().id(), one.id());
    let unnamed = one.create_unnamed(&context, 0o600).unwrap();
    unnamed.write_at(0, b"late").unwrap();
    one.link(&context, name("late"), unnamed.id()).unwrap();
    one.create_unnamed(&context, 0o600)
        .unwrap()
        .write_at(0, &[1; 5000])
        .unwrap();
    drop((root, one, two, link, file, unnamed));
    finish(&pool, mounted);
    let seen = pool.run(
        "mount -t btrfs -o ro \"$device\" \"$root\"\ncd \"$root\"\nfind . -printf '%y %n %P\\n' | sort\ncat one/late\ncd /\n",
    );
    let expected = "c 1 one/link\nd 1 \nd 1 one\nd 1 one/below\nf 1 one/late\nf 2 one/file\nf 2 one/pipe\nl 1 one/below/link\np 1 one/below/again\nlate";
    assert_eq!(seen.trim(), expected);
}

/// References of an inode with one hash, beyond those that fit into the items of two directories.
#[test]
fn name_whose_reference_does_not_fit_replaces_no_other() {
    const FILLING: u32 = 62;
    const COLLIDING: u8 = 30;
    let pool = Pool::make(1, 128, &["-m", "single"]);
    let mounted = mount(&pool);
    let (context, root) = (Context::root(), mounted.root().unwrap());
    let create = |dir: &dyn Inode, name: &[u8], kind| {
        let made = dir.create(&context, Name::new(name).unwrap(), kind, 0o755);
        made.unwrap()
    };
    let file = create(&*root, b"file", CreateKind::Regular);
    let dirs = [&b"one"[..], b"two"].map(|it| create(&*root, it, CreateKind::Directory));
    let long = |number: u32| format!("{number:0250}");
    let link =
        |dir: &dyn Inode, name: &[u8]| dir.link(&context, Name::new(name).unwrap(), file.id());
    for dir in &dirs {
        for number in 0..FILLING {
            link(&**dir, long(number).as_bytes()).unwrap();
        }
        // The hash of a reference begins with the number of the directory.
        let [low, ..] = (dir.id().number ^ dirs[0].id().number).to_le_bytes();
        for number in 0..COLLIDING {
            let mut name = colliding(number);
            name[0] ^= low;
            link(&**dir, &name).unwrap();
        }
    }
    let last = colliding(COLLIDING);
    let is_refused = |result| matches!(result, Err(Error::Condition(Condition::TooManyLinks)));
    assert!(is_refused(link(&*dirs[0], &last)));
    let other = create(&*dirs[0], &last, CreateKind::Regular);
    let (old, new) = (long(0), Name::new(&last).unwrap());
    for mode in [RenameMode::Replace, RenameMode::Exchange] {
        let renamed = dirs[0].rename(&context, name(&old), dirs[0].id(), new, mode);
        assert!(is_refused(renamed));
    }
    // The filesystem goes on.
    create(&*root, b"after", CreateKind::Regular);
    assert_eq!(dirs[0].lookup(new).unwrap().id(), other.id());
    drop((file, dirs, other, root));
    finish(&pool, mounted);
}

/// Directories with one index left and with none, of hostile images.
#[test]
fn rename_that_lacks_an_index_changes_nothing() {
    let pool = Pool::make(1, 128, &["-m", "single"]);
    let context = Context::root();
    let create = |dir: &dyn Inode, path, kind| {
        let made = dir.create(&context, name(path), kind, 0o755);
        made.unwrap()
    };
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let numbers = ["one", "two"].map(|path| {
        let dir = create(&*root, path, CreateKind::Directory);
        create(&*dir, "old", CreateKind::Regular);
        let there = create(&*dir, "there", CreateKind::Regular);
        (dir.id().number, there.id().number)
    });
    drop(root);
    mounted.unmount().unwrap();
    drop(mounted);
    let fs = pool.open(WriteOptions::default());
    let handle = fs.begin(64).unwrap();
    for ((dir, inode), index) in numbers.into_iter().zip([u64::MAX - 1, u64::MAX]) {
        let name = b"there";
        let entry = EntryName { dir, name, inode };
        let moved = handle.edit(TreeId::FS, |tree| {
            entry.remove(tree)?;
            let (generation, kind) = (handle.generation(), FileKind::Regular);
            entry.add(tree, generation, (kind, index), true)
        });
        moved.unwrap();
    }
    drop(handle);
    fs.sync().unwrap();
    drop(fs);
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let [one, two] = ["one", "two"].map(|path| root.lookup(name(path)).unwrap());
    let (exchange, whiteout) = (RenameMode::Exchange, RenameMode::Whiteout);
    for (from, to, new, mode) in [
        (&one, &one, "there", exchange),
        (&one, &two, "there", exchange),
        (&one, &one, "there", whiteout),
        (&one, &one, "new", whiteout),
        (&two, &root, "new", whiteout),
    ] {
        let renamed = from.rename(&context, name("old"), to.id(), name(new), mode);
        let is_refused = matches!(renamed, Err(Error::Condition(Condition::NoSpace)));
        assert!(is_refused, "{new}, {mode:?}");
    }
    // The filesystem goes on.
    create(&*root, "after", CreateKind::Regular);
    for dir in [&one, &two] {
        for path in ["old", "there"] {
            dir.lookup(name(path)).unwrap();
        }
    }
    drop((one, two, root));
    finish(&pool, mounted);
}

/// A subvolume whose last inode number is in use.
#[test]
fn whiteout_that_lacks_an_inode_number_changes_nothing() {
    let pool = Pool::make(1, 128, &["-m", "single"]);
    let context = Context::root();
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let [file, last] = ["file", "last"].map(|path| {
        let made = root.create(&context, name(path), CreateKind::Regular, 0o644);
        made.unwrap().id().number
    });
    let dir = root.id().number;
    drop(root);
    mounted.unmount().unwrap();
    drop(mounted);
    let fs = pool.open(WriteOptions::default());
    let handle = fs.begin(64).unwrap();
    let entry = |inode| {
        let name = b"last";
        EntryName { dir, name, inode }
    };
    let item_key = |inode| Key::new(inode, ItemKind::INODE_ITEM, 0);
    let moved = handle.edit(TreeId::FS, |tree| {
        let item = tree.get(item_key(last))?.unwrap();
        let index = entry(last).remove_with_inode(tree)?;
        tree.insert(item_key(LAST_FREE_OBJECT), &item)?;
        let (generation, kind) = (handle.generation(), FileKind::Regular);
        entry(LAST_FREE_OBJECT).add(tree, generation, (kind, index), true)
    });
    moved.unwrap();
    drop(handle);
    fs.sync().unwrap();
    drop(fs);
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let rename = |mode| root.rename(&context, name("file"), root.id(), name("new"), mode);
    let refused = rename(RenameMode::Whiteout);
    assert!(matches!(refused, Err(Error::Condition(Condition::NoSpace))));
    assert_eq!(root.lookup(name("file")).unwrap().id().number, file);
    // The filesystem goes on.
    rename(RenameMode::Replace).unwrap();
    drop(root);
    finish(&pool, mounted);
}
