//! Extended attributes that are written here: as the kernel finds them, and lets them go again.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::sync::Arc;

use platter::Volume;
use platter_vfs::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME, AclEntry, AclSubject, PosixAcl};
use platter_vfs::{Condition, Context, CreateKind, Error, Inode, Name, SetAttr, XattrMode};
use rustix::fs::XattrFlags;
use testkit::loopdev::{self, Mount};
use testkit::oracle::mke2fs;
use testkit::prng::Prng;

use crate::images::{assert_clean, open_for_writing};

type Attributes = BTreeMap<Vec<u8>, Vec<u8>>;

const LAYOUTS: &[&[&str]] = &[
    &["-t", "ext2", "-b", "1024", "-I", "128"],
    &["-t", "ext4", "-b", "1024", "-I", "256"],
    &["-t", "ext4", "-b", "4096", "-I", "512", "-O", "inline_data"],
    &["-t", "ext4", "-b", "1024", "-I", "256", "-O", "ea_inode"],
    &[
        "-t",
        "ext4",
        "-b",
        "4096",
        "-O",
        "bigalloc,ea_inode",
        "-C",
        "16384",
    ],
];

fn inode(volume: &Volume, path: &str) -> Arc<dyn Inode> {
    Arc::clone(volume.open(path).unwrap().inode())
}

fn attributes(inode: &dyn Inode) -> Attributes {
    let names = inode.list_xattrs().unwrap().into_iter();
    names
        .map(|name| {
            let value = inode.get_xattr(&name).unwrap();
            (name, value)
        })
        .collect()
}

fn kernel_attributes(path: &Path) -> Attributes {
    let attributes = testkit::attributes::of(path).unwrap();
    attributes.into_iter().collect()
}

fn acl(permissions: u8) -> PosixAcl {
    let entry = |(subject, permissions)| AclEntry {
        subject,
        permissions,
    };
    let entries = [
        (AclSubject::Owner, 0o7),
        (AclSubject::User(1000), permissions),
        (AclSubject::OwningGroup, 0o5),
        (AclSubject::Mask, 0o7),
        (AclSubject::Other, 0o1),
    ];
    PosixAcl::new(entries.map(entry).to_vec()).unwrap()
}

/// What the kernel wrote before: attributes in all places, in blocks that files share too.
fn populate(root: &Path) {
    for file in ["one", "two", "three"] {
        let path = root.join(file);
        fs::write(&path, file).unwrap();
        for (name, length) in [("user.small", 10), ("user.shared", 500), ("trusted.t", 300)] {
            let value = vec![b's'; length];
            rustix::fs::lsetxattr(&path, name, &value, XattrFlags::empty()).unwrap();
        }
    }
    fs::create_dir(root.join("dir")).unwrap();
}

/// Sets and removes attributes at random; what has no space is left.
fn change(file: &dyn Inode, random: &mut Prng) {
    let prefixes = [&b"user."[..], b"trusted.", b"security."];
    for _ in 0..40 {
        let prefix = prefixes[usize::try_from(random.below(3)).unwrap()];
        let length = usize::try_from(random.below(12)).unwrap() + 1;
        let name = [prefix, &vec![b'n'; length]].concat();
        if random.below(3) == 0 {
            match file.remove_xattr(&Context::root(), &name) {
                Ok(()) | Err(Error::Condition(Condition::NoAttribute)) => continue,
                Err(error) => panic!("{error}"),
            }
        }
        let limit = [40, 400, 2000, 9000][usize::try_from(random.below(4)).unwrap()];
        let value = vec![b'v'; usize::try_from(random.below(limit)).unwrap()];
        match file.set_xattr(&Context::root(), &name, &value, XattrMode::Set) {
            Ok(()) | Err(Error::Condition(Condition::NoSpace)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn kernel_reads_and_changes_our_attributes() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let mut random = Prng::named(b"xattr_write");
    for layout in LAYOUTS {
        mke2fs::make(&image, 32 << 10, layout, None).unwrap();
        let mount = Mount::image(&image, "", loopdev::Access::ReadWrite).unwrap();
        populate(mount.root());
        mount.unmount(&image).unwrap();

        let volume = open_for_writing(&image);
        let dir = inode(&volume, "dir");
        let set = dir.set_xattr(
            &Context::root(),
            ACL_DEFAULT_NAME,
            &acl(6).encode(),
            XattrMode::Set,
        );
        set.unwrap();
        let name = Name::new(b"heir").unwrap();
        let heir = dir.create(&Context::root(), name, CreateKind::Regular, 0o640);
        drop(heir.unwrap());
        let one = inode(&volume, "one");
        let set = one.set_xattr(
            &Context::root(),
            ACL_ACCESS_NAME,
            &acl(4).encode(),
            XattrMode::Set,
        );
        set.unwrap();
        let changes = SetAttr {
            permissions: Some(0o700),
            uid: Some(1000),
            ..SetAttr::default()
        };
        one.set_attr(&Context::root(), &changes).unwrap();
        let mut expected = BTreeMap::new();
        for path in ["one", "two", "three", "dir", "dir/heir"] {
            let file = inode(&volume, path);
            if path != "three" {
                change(&*file, &mut random);
            }
            expected.insert(path, attributes(&*file));
        }
        drop((dir, one));
        volume.filesystem().unmount().unwrap();
        drop(volume);
        assert_clean(&image, (layout, "written here"));

        let mount = Mount::image(&image, "", loopdev::Access::ReadWrite).unwrap();
        let root = mount.root();
        for (path, attributes) in &expected {
            let found = kernel_attributes(&root.join(path));
            assert!(found == *attributes, "{layout:?}, {path}");
        }
        assert!(expected["dir/heir"].contains_key(ACL_ACCESS_NAME));
        let mode = fs::metadata(root.join("one")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
        // The kernel takes over what was written here, and releases it.
        for (path, attributes) in &expected {
            let path = root.join(path);
            for name in attributes.keys().step_by(2) {
                rustix::fs::lremovexattr(&path, name.as_slice()).unwrap();
            }
        }
        chown(root.join("one"), Some(0), None).unwrap();
        fs::remove_file(root.join("two")).unwrap();
        fs::remove_file(root.join("dir/heir")).unwrap();
        let left = kernel_attributes(&root.join("one"));
        mount.unmount(&image).unwrap();
        assert_clean(&image, (layout, "changed by the kernel"));

        let volume = open_for_writing(&image);
        assert!(attributes(&*inode(&volume, "one")) == left, "{layout:?}");
        let root = volume.filesystem().root().unwrap();
        for name in ["one", "three"] {
            let name = Name::new(name.as_bytes()).unwrap();
            root.unlink(&Context::root(), name).unwrap();
        }
        drop(root);
        volume.filesystem().unmount().unwrap();
        drop(volume);
        assert_clean(&image, (layout, "with the files gone"));
    }
}
