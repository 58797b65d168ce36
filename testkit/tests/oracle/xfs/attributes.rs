//! Attributes that are set and removed one by one, in all forms, with `xfs_repair` and the kernel, which go on.

use std::collections::BTreeMap;
use std::fs::File;

use platter::Volume;
use platter_vfs::{Context, CreateKind, XattrMode};
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::xfs;
use testkit::prng::Prng;

use super::writing::{assert_clean, assert_equal, name, open};

/// Options of `mkfs.xfs`, and how many attributes a file gets: above so many leaves there are nodes below a root.
const SHAPES: &[(&[&str], u64)] = &[
    (&["-b", "size=1024", "-m", "rmapbt=1"], 1600),
    (&["-i", "size=1024", "-m", "rmapbt=1"], 300),
    (&["-m", "reflink=0"], 300),
];

type Model = BTreeMap<String, Vec<u8>>;

fn value(numbers: &mut Prng) -> Vec<u8> {
    let most = [8, 100, 300, 300, 700, 6000][usize::try_from(numbers.below(6)).unwrap()];
    let len = usize::try_from(numbers.below(most)).unwrap();
    vec![u8::try_from(numbers.below(250)).unwrap(); len]
}

/// Changes so many attributes; of those that are there as many are removed as `removed` of ten.
fn change(volume: &Volume, model: &mut Model, numbers: &mut Prng, (count, removed): (u64, u64)) {
    let context = Context::root();
    let root = volume.filesystem().root().unwrap();
    let file = root.lookup(name("file")).unwrap();
    for _ in 0..count {
        let number = numbers.below(1 << 40);
        let pick = usize::try_from(number).unwrap() % model.len().max(1);
        let known = model.keys().nth(pick).cloned();
        match known {
            Some(known) if numbers.below(10) < removed => {
                file.remove_xattr(&context, known.as_bytes()).unwrap();
                model.remove(&known);
            }
            Some(known) if numbers.below(4) == 0 => {
                let new = value(numbers);
                file.set_xattr(&context, known.as_bytes(), &new, XattrMode::Replace)
                    .unwrap();
                model.insert(known, new);
            }
            _ => {
                let spaces = ["user", "trusted", "security"];
                let space = spaces[usize::try_from(numbers.below(3)).unwrap()];
                let long = "n".repeat(usize::try_from(numbers.below(120)).unwrap());
                let text = format!("{space}.{number}{long}");
                let new = value(numbers);
                file.set_xattr(&context, text.as_bytes(), &new, XattrMode::Create)
                    .unwrap();
                model.insert(text, new);
            }
        }
    }
}

fn assert_there(volume: &Volume, model: &Model) {
    let root = volume.filesystem().root().unwrap();
    let file = root.lookup(name("file")).unwrap();
    for (text, value) in model {
        assert_eq!(&file.get_xattr(text.as_bytes()).unwrap(), value, "{text}");
    }
    assert_eq!(file.list_xattrs().unwrap().len(), model.len());
}

#[test]
fn attributes_change_one_by_one_in_all_forms() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for &(options, count) in SHAPES {
        let what = |state| (options[1], state);
        xfs::make(&image, 96 << 10, options).unwrap();
        let mut numbers = Prng::new(count);
        let mut model = Model::new();
        let volume = open(&image);
        let root = volume.filesystem().root().unwrap();
        root.create(&Context::root(), name("file"), CreateKind::Regular, 0o644)
            .unwrap();
        drop(root);
        for (state, changes) in [
            ("some", (12, 1)),
            ("many", (count, 1)),
            ("fewer", (count, 6)),
            ("few", (model.len() as u64 + count, 9)),
        ] {
            change(&volume, &mut model, &mut numbers, changes);
            assert_there(&volume, &model);
            volume.filesystem().sync().unwrap();
            let copy = dir.path().join("copy");
            std::fs::copy(&image, &copy).unwrap();
            // The kernel replays the log, and goes on.
            let mount = Mount::images(FsType::Xfs, &[&copy], "", Access::ReadWrite).unwrap();
            let file = File::open(mount.root().join("file")).unwrap();
            let mut buffer = vec![0; 65536];
            for (index, (text, value)) in model.iter().enumerate() {
                let len = rustix::fs::fgetxattr(&file, text.as_str(), &mut buffer[..]).unwrap();
                assert!(buffer[..len] == value[..], "{state}: {text}");
                match index % 3 {
                    0 => rustix::fs::fremovexattr(&file, text.as_str()).unwrap(),
                    1 => {
                        let flags = rustix::fs::XattrFlags::REPLACE;
                        rustix::fs::fsetxattr(&file, text.as_str(), &[9; 500], flags).unwrap();
                    }
                    _ => {}
                }
            }
            drop(file);
            mount.unmount_all(&[&copy]).unwrap();
            assert_clean(&copy, what(state));
        }
        volume.filesystem().unmount().unwrap();
        drop(volume);
        assert_clean(&image, what("unmounted"));
        assert_equal(&image, what("unmounted"));
        let volume = open(&image);
        assert_there(&volume, &model);
        let root = volume.filesystem().root().unwrap();
        let file = root.lookup(name("file")).unwrap();
        for text in model.keys() {
            file.remove_xattr(&Context::root(), text.as_bytes())
                .unwrap();
        }
        drop((file, root));
        volume.filesystem().unmount().unwrap();
        drop(volume);
        assert_clean(&image, what("none left"));
        assert_equal(&image, what("none left"));
    }
}

/// Options of `mkfs.xfs`, and lengths of targets that leave no space for attributes in inodes of these sizes.
const FULL_INODES: &[(&[&str], &[usize])] = &[
    (&["-m", "rmapbt=1"], &[296, 297, 300, 330, 336]),
    (&["-b", "size=1024"], &[297, 336]),
    (&["-i", "size=1024"], &[808, 809, 848]),
];

#[test]
fn target_that_fills_its_inode_leaves_it_for_attributes() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let copy = dir.path().join("copy");
    let context = Context::root();
    let link_name = |len: usize| format!("link-{len}");
    for &(options, lens) in FULL_INODES {
        let what = |state| (options[1], state);
        xfs::make(&image, 96 << 10, options).unwrap();
        let volume = open(&image);
        let root = volume.filesystem().root().unwrap();
        for &len in lens {
            let kind = CreateKind::Symlink(vec![b't'; len]);
            let link = root.create(&context, name(&link_name(len)), kind, 0o777);
            let link = link.unwrap();
            link.set_xattr(&context, b"security.selinux", b"label", XattrMode::Create)
                .unwrap();
            link.set_xattr(&context, b"trusted.more", &[7; 700], XattrMode::Create)
                .unwrap();
            assert_eq!(link.read_link().unwrap(), vec![b't'; len], "{len}");
        }
        volume.filesystem().sync().unwrap();
        std::fs::copy(&image, &copy).unwrap();
        // The kernel replays the log, and goes on.
        let mount = Mount::images(FsType::Xfs, &[&copy], "", Access::ReadWrite).unwrap();
        for &len in lens {
            let link = mount.root().join(link_name(len));
            let target = std::fs::read_link(&link).unwrap();
            assert_eq!(target.as_os_str().len(), len);
            let mut buffer = vec![0; 1000];
            let found = rustix::fs::lgetxattr(&link, "security.selinux", &mut buffer[..]).unwrap();
            assert_eq!(&buffer[..found], b"label");
            std::fs::remove_file(&link).unwrap();
        }
        mount.unmount_all(&[&copy]).unwrap();
        assert_clean(&copy, what("replayed by the kernel"));
        root.unlink(&context, name(&link_name(lens[1]))).unwrap();
        drop(root);
        volume.filesystem().unmount().unwrap();
        drop(volume);
        assert_clean(&image, what("unmounted"));
        assert_equal(&image, what("unmounted"));
    }
}
