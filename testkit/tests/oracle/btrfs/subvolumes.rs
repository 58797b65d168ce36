//! Subvolumes, snapshots and the choice of the root.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use anyhow::{Context, Result};
use platter_btrfs::{MountOptions, SubvolumeChoice};
use platter_vfs::inode::read_dir_all;
use platter_vfs::subvolumes::Subvolume;
use platter_vfs::{Filesystem, Name};
use testkit::loopdev::{Access, LoopDevice};
use testkit::tool;

use super::image::{Pool, RULES, mount};

const SCRIPT: &str = r#"
set -e
cd "$1"
btrfs subvolume create sub
echo one > sub/file
mkdir sub/dir
btrfs subvolume create sub/dir/inner
head -c 300000 /dev/urandom > sub/dir/inner/data
btrfs subvolume snapshot sub snap
btrfs subvolume snapshot -r sub/dir/inner sub/ro
echo two >> snap/file
btrfs subvolume snapshot snap sub/again
btrfs subvolume create gone
echo x > gone/x
rm gone/x
rmdir gone
btrfs subvolume create outer
mkdir outer/plain
echo three > outer/three
ln outer/three outer/plain/hard
btrfs subvolume create default
echo default > default/file
btrfs subvolume set-default default
"#;

fn pool() -> Result<Pool> {
    let pool = Pool::make(1, 160 << 10, &[])?;
    pool.run("", SCRIPT)?;
    Ok(pool)
}

fn of(subvolume: SubvolumeChoice) -> MountOptions {
    MountOptions {
        subvolume,
        ..MountOptions::default()
    }
}

#[test]
fn root_is_that_which_is_asked_for() -> Result<()> {
    let pool = pool()?;
    let by_path = |path: &str| SubvolumeChoice::Path(path.as_bytes().to_vec());
    // How many files `SCRIPT` makes below each root, itself and directories that stand for subvolumes included.
    for (choice, kernel, files) in [
        (SubvolumeChoice::Default, "", 2),
        (by_path("/"), "subvol=/", 22),
        (by_path("sub"), "subvol=sub", 11),
        (by_path("sub/dir/inner"), "subvol=sub/dir/inner", 2),
        (by_path("snap"), "subvol=snap", 4),
        (by_path("sub/again"), "subvol=sub/again", 4),
        (by_path("/outer"), "subvol=/outer", 4),
        (SubvolumeChoice::Id(256), "subvolid=256", 11),
    ] {
        let outcome = pool.compare(&of(choice), kernel, RULES)?;
        assert_eq!(outcome.differences, 0, "{kernel}: {outcome}");
        assert_eq!(outcome.files, files, "{kernel}: {outcome}");
    }
    Ok(())
}

#[test]
fn root_that_does_not_exist_is_refused() -> Result<()> {
    let pool = pool()?;
    let devices = pool.devices()?;
    for (choice, expected) in [
        (
            SubvolumeChoice::Id(9999),
            "has no subvolume with the number 9999",
        ),
        (
            SubvolumeChoice::Path(b"none".to_vec()),
            "has no subvolume 'none'",
        ),
        (
            SubvolumeChoice::Path(b"outer/plain".to_vec()),
            "is not a subvolume",
        ),
    ] {
        let error = mount(&devices, &of(choice)).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    Ok(())
}

#[test]
fn inode_numbers_are_unique_in_the_mount() -> Result<()> {
    let pool = pool()?;
    let btrfs = mount(&pool.devices()?, &of(SubvolumeChoice::Id(5)))?;
    let mut pending = vec![btrfs.root()?];
    let mut numbers = Vec::new();
    while let Some(dir) = pending.pop() {
        for entry in read_dir_all(&*dir)? {
            let inode = dir.lookup(Name::new(&entry.name)?)?;
            let attr = inode.attr()?;
            assert_eq!(inode.id(), entry.id);
            assert_eq!(btrfs.shown_number(entry.id), attr.inode);
            assert_eq!(btrfs.inode_shown_as(attr.inode), Some(entry.id));
            assert_eq!(btrfs.inode(entry.id)?.attr()?, attr);
            if attr.kind == platter_vfs::FileKind::Directory {
                let above = inode.lookup(Name::new(b"..")?)?;
                assert_eq!(above.id(), dir.id());
                pending.push(inode);
            }
            if attr.links == 1 {
                numbers.push(attr.inode);
            }
        }
    }
    let count = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    assert!(count > 15 && numbers.len() == count, "{numbers:?}");
    Ok(())
}

/// Prints what `btrfs` lists and shows, in a mount namespace that ends with the shell.
const LIST: &str = r#"
set -e
mount -t tmpfs none /mnt
mkdir /mnt/fs
mount -t btrfs -o ro,subvolid=5 "$1" /mnt/fs
btrfs subvolume list -pcuqR /mnt/fs
echo read-only
btrfs subvolume list -r /mnt/fs
echo deleted
btrfs subvolume list -d /mnt/fs
echo shown
for path in sub sub/dir/inner snap sub/ro sub/again outer default; do
    btrfs subvolume show /mnt/fs/$path
done
umount /mnt/fs
"#;

/// The words after each of `names` in a line.
fn fields<'l>(line: &'l str, names: &[&str]) -> Option<Vec<&'l str>> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let after = |name: &&str| {
        let at = words.iter().position(|word| word == name)?;
        words.get(at + 1).copied()
    };
    names.iter().map(after).collect()
}

/// A subvolume in the words of `btrfs subvolume list`.
fn words(subvolume: &Subvolume) -> Vec<String> {
    let uuid = |uuid: Option<platter_ondisk::Uuid>| {
        uuid.map_or_else(|| "-".to_owned(), |uuid| uuid.to_string())
    };
    vec![
        subvolume.id.to_string(),
        subvolume.generation.to_string(),
        subvolume.created_generation.to_string(),
        subvolume.parent.unwrap_or_default().to_string(),
        uuid(subvolume.parent_uuid),
        uuid(subvolume.received_uuid),
        subvolume.uuid.to_string(),
        String::from_utf8_lossy(&subvolume.path).into_owned(),
    ]
}

#[test]
fn subvolumes_are_listed_as_by_btrfs() -> Result<()> {
    let pool = pool()?;
    let btrfs = mount(&pool.devices()?, &MountOptions::default())?;
    let subvolumes = btrfs.subvolumes().context("subvolumes")?;
    let mut all = BTreeMap::new();
    subvolumes.list(&mut |subvolume| {
        all.insert(subvolume.id, subvolume);
        ControlFlow::Continue(())
    })?;
    for (id, subvolume) in &all {
        assert_eq!(subvolumes.get(*id)?, *subvolume);
    }
    let top = all.remove(&5).context("the top-level subvolume")?;
    assert_eq!((top.parent, &top.path[..]), (None, &b""[..]));
    let device = LoopDevice::attach(&pool.images[0], Access::ReadOnly)?;
    let mut unshare = tool::command("unshare");
    unshare
        .args(["--mount", "sh", "-c", LIST, "sh"])
        .arg(device.path());
    let text = tool::succeed(&mut unshare)?.text();
    let (list, rest) = text.split_once("read-only\n").context("a list")?;
    let (read_only, rest) = rest.split_once("deleted\n").context("a list")?;
    let (deleted, shown) = rest.split_once("shown\n").context("a list")?;

    let names = [
        "ID",
        "gen",
        "cgen",
        "parent",
        "parent_uuid",
        "received_uuid",
        "uuid",
        "path",
    ];
    let theirs: Vec<_> = list
        .lines()
        .filter_map(|line| fields(line, &names))
        .collect();
    let ours: Vec<_> = all.values().map(words).collect();
    assert_eq!(ours, theirs, "{list}");
    assert!(ours.len() >= 7, "{list}");

    let ids = |list: &str| -> BTreeSet<String> {
        let fields = list.lines().filter_map(|line| fields(line, &["ID"]));
        fields.map(|id| id[0].to_owned()).collect()
    };
    let ours = all.values().filter(|it| it.read_only);
    let ours: BTreeSet<_> = ours.map(|it| it.id.to_string()).collect();
    assert_eq!(ours, ids(read_only));
    let ours = btrfs.super_block().context().deleted_subvolumes()?;
    let ours: BTreeSet<_> = ours.iter().map(|it| it.id.to_string()).collect();
    assert_eq!(ours, ids(deleted));

    let default = all.values().find(|it| it.path == b"default");
    assert_eq!(Some(subvolumes.default_id()?), default.map(|it| it.id));
    for subvolume in all.values() {
        let uuid = subvolume.uuid.to_string();
        let at = shown.find(&format!("UUID: \t\t\t{uuid}"));
        let of_one = shown.get(at.context("no UUID")?..).unwrap_or_default();
        let value = |name: &str| {
            let line = of_one.lines().find(|line| line.trim().starts_with(name));
            line.and_then(|line| Some(line.split_once(':')?.1.trim().to_owned()))
        };
        let numbers = [subvolume.generation, subvolume.created_generation];
        let numbers = numbers.map(|number| Some(number.to_string()));
        assert_eq!([value("Generation"), value("Gen at creation")], numbers);
        let flags = if subvolume.read_only { "readonly" } else { "-" };
        assert_eq!(value("Flags").as_deref(), Some(flags));
        let created = value("Creation time").context("a time")?;
        let mut date = tool::command("date");
        date.args(["-d", &created, "+%s"]);
        let seconds: i64 = tool::succeed(&mut date)?.text().trim().parse()?;
        assert_eq!(seconds, subvolume.created.seconds, "{created}");
    }
    Ok(())
}
