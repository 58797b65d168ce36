//! Deletions of subvolumes that the kernel began and did not finish.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use platter_vfs::{Context, CreateKind, Filesystem, Inode};

use super::MountOptions;
use super::write_tests::name;
use crate::ondisk::Key;
use crate::ondisk::key::ItemKind;
use crate::ops::dead_subvolumes;
use crate::subvolume;
use crate::txn::WriteOptions;
use crate::txn::tests::image::Pool;

/// Files in items of a tree of three levels and more.
const FILL: &str = r#"
mount -t btrfs -o "$options" "$device" "$root"
btrfs -q subvolume create "$root"/sub
text=$(head -c 900 /dev/zero | tr '\0' x)
dir=0
while [ $dir -lt 12 ]; do
    mkdir "$root"/sub/$dir
    file=0
    while [ $file -lt 500 ]; do
        echo "$dir $file $text" > "$root"/sub/$dir/$file
        file=$((file + 1))
    done
    dir=$((dir + 1))
done
head -c 3000000 /dev/urandom > "$root"/sub/data
sync -f "$root"
"#;

/// The second half of the tree stays shared.
const SHARE: &str = r#"
mount -t btrfs -o "$options" "$device" "$root"
btrfs -q subvolume snapshot "$root"/sub "$root"/snap
for dir in 0 1 2 3 4 5; do
    for file in 1 30 60 90 120 150 180 210 240 270 300 330 360 390 420 450 480; do
        echo changed > "$root"/sub/$dir/$file
    done
done
sync -f "$root"
btrfs -q subvolume snapshot "$root"/sub "$root"/later
echo more > "$root"/sub/11/1
echo more > "$root"/sub/0/0
sync -f "$root"
"#;

/// What the subvolumes hold that are left, and that no other one is.
const SUMS: &str = r#"
mount -t btrfs -o "ro,$options" "$device" "$root"
btrfs subvolume list -d "$root"
cd "$root"
for dir in snap later; do
    test ! -d $dir || tar -c --sort=name $dir | md5sum
done
cd /
"#;

fn copy(from: &Path, to: &Path) {
    let mut cp = Command::new("cp");
    assert!(
        cp.arg("--sparse=always")
            .args([from, to])
            .status()
            .unwrap()
            .success()
    );
}

/// The progress of deletions in an image, where there are any.
fn progress(pool: &Pool) -> Vec<(Key, u8)> {
    let fs = pool.open_with(&MountOptions::default()).unwrap();
    let deleted = fs.context().deleted_subvolumes().unwrap();
    let progress =
        |item: &crate::ondisk::root_item::RootItem| (item.drop_progress, item.drop_level);
    deleted.iter().map(|it| progress(&it.item)).collect()
}

/// How far a deletion came, and an image that has it so.
struct Interrupted {
    progress: (Key, u8),
    image: PathBuf,
}

/// Makes the kernel delete a subvolume of the image `whole`, and interrupts that at two places.
fn interrupt(pool: &Pool, whole: &Path) -> [Interrupted; 2] {
    let image = &pool.images()[0];
    let mut first: Option<Interrupted> = None;
    // It takes a moment only.
    let mut delay_ms = 0;
    for _ in 0..400 {
        fs::remove_file(image).unwrap();
        copy(whole, image);
        pool.run(&format!(
            "mount -t btrfs -o \"$options\" \"$device\" \"$root\"\n\
             btrfs -q subvolume delete \"$root\"/sub\n\
             btrfs filesystem sync \"$root\"\n\
             sleep 0.{delay_ms:03}\n\
             umount \"$root\"\n"
        ));
        let known = first.as_ref().map(|first| first.progress);
        let is_new = |it: &(Key, u8)| it.0 != Key::MIN && Some(*it) != known;
        let Some(progress) = progress(pool).into_iter().find(is_new) else {
            delay_ms = (delay_ms + 2) % 12;
            continue;
        };
        let place = if first.is_some() { "second" } else { "first" };
        let kept = image.with_extension(place);
        copy(image, &kept);
        let interrupted = Interrupted {
            progress,
            image: kept,
        };
        match first.take() {
            Some(first) => return [first, interrupted],
            // The same delay may interrupt it somewhere else.
            None => first = Some(interrupted),
        }
    }
    let found = first.map(|first| first.progress);
    panic!("the kernel is not interrupted: {found:?}");
}

fn assert_same(pool: &Pool, sums: &str) {
    pool.assert_clean();
    assert!(progress(pool).is_empty());
    assert_eq!(pool.run(SUMS), sums);
}

fn examine(options: &[&str], prepare: &str) {
    let pool = Pool::make(1, 512, options);
    pool.run(FILL);
    pool.run(prepare);
    let whole = pool.images()[0].with_extension("whole");
    copy(&pool.images()[0], &whole);
    let sums = {
        let mounted = pool.mount_without_thread();
        let root = mounted.root().unwrap();
        let (subvolumes, context) = (mounted.subvolumes().unwrap(), Context::root());
        let deleted = subvolumes.delete(&context, root.id(), name("sub"), None);
        deleted.unwrap();
        drop(root);
        mounted.sync().unwrap();
        mounted.unmount().unwrap();
        drop(mounted);
        pool.run(SUMS)
    };
    // The steps before a crash: few at one place, and more at the other.
    for (interrupted, steps) in interrupt(&pool, &whole).into_iter().zip([1, 4]) {
        let (start, level) = interrupted.progress;
        println!("{options:?}: {start:?} at level {level}");
        assert!(level > 0);
        copy(&interrupted.image, &pool.images()[0]);
        pool.assert_clean();

        // To the end.
        let mounted = pool.mount_without_thread();
        mounted.sync().unwrap();
        assert!(mounted.super_block().dead_subvolumes.is_empty());
        mounted.unmount().unwrap();
        drop(mounted);
        assert_same(&pool, &sums);

        // What a crash leaves after some steps, and what the kernel makes of that.
        copy(&interrupted.image, &pool.images()[0]);
        let mounted = pool.mount_without_thread();
        for _ in 0..steps {
            dead_subvolumes::drop_some(mounted.super_block()).unwrap();
        }
        mounted.super_block().writing().unwrap().sync().unwrap();
        // As after a crash.
        drop(mounted);
        pool.assert_clean();
        let left = progress(&pool);
        assert!(left.iter().all(|it| *it == (Key::MIN, 0)), "{left:?}");
        pool.run(
            "mount -t btrfs -o \"$options\" \"$device\" \"$root\"\n\
             btrfs subvolume sync \"$root\"\n\
             echo more > \"$root\"/more\n",
        );
        assert_same(&pool, &sums);
    }
}

#[test]
fn deletion_goes_on_where_the_kernel_stopped() {
    examine(&["-m", "single", "-n", "4096"], "");
}

#[test]
fn interrupted_deletion_leaves_shared_blocks_to_others() {
    examine(&["-m", "single", "-n", "4096"], SHARE);
    examine(&["-m", "single"], SHARE);
}

#[test]
fn deletion_that_cannot_have_been_begun_is_left_alone() {
    let pool = Pool::make(1, 128, &["-m", "single", "-n", "4096"]);
    let context = Context::root();
    let create = |dir: &dyn Inode, path| {
        let file = dir.create(&context, name(path), CreateKind::Regular, 0o644);
        drop(file.unwrap());
    };
    let mounted = pool.mount_without_thread();
    let (root, subvolumes) = (mounted.root().unwrap(), mounted.subvolumes().unwrap());
    for path in ["one", "two"] {
        let sub = subvolumes.create(&context, root.id(), name(path)).unwrap();
        create(&*sub, "file");
    }
    mounted.sync().unwrap();
    for path in ["one", "two"] {
        let deleted = subvolumes.delete(&context, root.id(), name(path), None);
        deleted.unwrap();
    }
    drop(root);
    // As after a crash.
    mounted.super_block().writing().unwrap().sync().unwrap();
    drop(mounted);
    assert_eq!(progress(&pool), [(Key::MIN, 0); 2]);
    // The root of a tree is at level 0 here.
    let impossible = (Key::new(256, ItemKind::INODE_ITEM, 0), 7);
    let fs = pool.open(WriteOptions::default());
    let first = fs.context().deleted_subvolumes().unwrap()[0].id;
    let handle = fs.begin(64).unwrap();
    let changed = subvolume::change_root(&handle, first, |item| {
        (item.drop_progress, item.drop_level) = impossible;
    });
    changed.unwrap();
    drop(handle);
    fs.sync().unwrap();
    drop(fs);
    let mounted = pool.mount_without_thread();
    create(&*mounted.root().unwrap(), "late");
    mounted.sync().unwrap();
    // As after a crash: the sync has committed.
    drop(mounted);
    assert_eq!(progress(&pool), [impossible]);
    let mounted = pool.mount_without_thread();
    mounted.root().unwrap().lookup(name("late")).unwrap();
    mounted.unmount().unwrap();
    drop(mounted);
    assert_eq!(progress(&pool), [impossible]);
}
