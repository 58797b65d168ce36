//! Attributes that are set and removed: compared with a model, and looked at by e2fsck.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use platter_block::sim::{Effect, Fault, FaultDevice, When};
use platter_block::{Access, BlockDevice, Operation};
use platter_ext4::{Ext4, MountOptions};
use platter_vfs::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME, AclEntry, AclSubject, PosixAcl};
use platter_vfs::{
    Condition, Context, Credentials, Error, Filesystem, Inode, Name, SetAttr, XattrMode,
};

use crate::image::{Image, mount, noise, walk};

fn root() -> Context {
    Context {
        credentials: Credentials::root(),
        umask: 0o022,
    }
}

fn begin(image: &Image) -> Ext4 {
    let options = MountOptions {
        read_only: false,
        ..MountOptions::default()
    };
    mount(image.device(Access::Write), &options).unwrap()
}

fn is(error: &Error, condition: Condition) -> bool {
    matches!(error, Error::Condition(found) if *found == condition)
}

fn set(inode: &dyn Inode, name: &str, value: &[u8]) -> Result<(), Error> {
    inode.set_xattr(&root(), name.as_bytes(), value, XattrMode::Set)
}

/// Names that collide in no way but their prefix, and lengths around what has space where.
fn drawn(random: u64) -> (String, usize) {
    let prefixes = ["user.", "trusted.", "security."];
    let prefix = prefixes[usize::try_from(random % 3).unwrap()];
    let name = format!(
        "{prefix}{}",
        "n".repeat(usize::try_from(random / 3 % 9 + 1).unwrap())
    );
    let lengths = [0, 1, 7, 30, 60, 100, 300, 700, 900, 976, 1100, 3900, 9000];
    let length = lengths[usize::try_from(random / 64 % 13).unwrap()];
    (name, length)
}

#[test]
fn attributes_that_are_set_are_there_until_they_are_removed() {
    let features = [
        &["-b", "1024", "-I", "128"][..],
        &[
            "-b",
            "1024",
            "-I",
            "256",
            "-O",
            "has_journal,extent,metadata_csum",
        ],
        &[
            "-b",
            "4096",
            "-I",
            "512",
            "-O",
            "extent,metadata_csum,inline_data",
        ],
        &[
            "-b",
            "1024",
            "-I",
            "256",
            "-O",
            "has_journal,extent,ea_inode,metadata_csum",
        ],
        &["-b", "1024", "-I", "256", "-O", "ea_inode"],
        &[
            "-b",
            "1024",
            "-I",
            "256",
            "-C",
            "4096",
            "-O",
            "extent,64bit,bigalloc,ea_inode",
        ],
    ];
    for options in features {
        let image = Image::format(options, "16M");
        let content = image.path().with_extension("content");
        crate::image::write(&content, b"content");
        image.debugfs(&format!("write {} file\n", content.display()));
        let mut model = BTreeMap::new();
        for round in 0..4 {
            let filesystem = begin(&image);
            let file = walk(&filesystem, "file").unwrap();
            for step in 0..60 {
                let word = noise(round * 1000 + step + 1, 8);
                let random = u64::from_le_bytes(word.try_into().unwrap());
                let (name, length) = drawn(random);
                if (random >> 32).is_multiple_of(4) {
                    let removed = file.remove_xattr(&root(), name.as_bytes());
                    assert_eq!(
                        removed.is_ok(),
                        model.remove(&name).is_some(),
                        "{options:?}"
                    );
                    continue;
                }
                let value = noise(random, length);
                match set(&*file, &name, &value) {
                    Ok(()) => drop(model.insert(name, value)),
                    Err(error) => assert!(is(&error, Condition::NoSpace), "{error}"),
                }
            }
            let names: Vec<_> = model.keys().map(|name| name.clone().into_bytes()).collect();
            let mut listed = file.list_xattrs().unwrap();
            listed.sort();
            assert_eq!(listed, names, "{options:?}");
            for (name, value) in &model {
                assert_eq!(&file.get_xattr(name.as_bytes()).unwrap(), value);
            }
            drop(file);
            filesystem.unmount().unwrap();
            drop(filesystem);
            assert_eq!(image.faults(), "", "{options:?}");
        }
        let filesystem = image.mount();
        let file = walk(&filesystem, "file").unwrap();
        for (name, value) in &model {
            assert_eq!(&file.get_xattr(name.as_bytes()).unwrap(), value);
        }
        assert!(!model.is_empty());
        let mut bytes = [0; 7];
        file.read_at(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"content");
    }
}

#[test]
fn large_values_change_while_transactions_are_committed() {
    let options = ["-b", "1024", "-O", "has_journal,extent,ea_inode"];
    let image = Image::format(&options, "32M");
    let filesystem = begin(&image);
    let dir = filesystem.root().unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                filesystem.sync().unwrap();
            }
        });
        let changed = (0..300).try_for_each(|round| {
            let name = format!("user.{}", round % 3);
            set(&*dir, &name, &noise(round, 9000))?;
            match round % 4 {
                0 => dir.remove_xattr(&root(), name.as_bytes()),
                _ => Ok(()),
            }
        });
        is_done.store(true, Ordering::Relaxed);
        changed.unwrap();
    });
    drop(dir);
    filesystem.unmount().unwrap();
    drop(filesystem);
    assert_eq!(image.faults(), "");
}

#[test]
fn modes_of_setting_and_limits_are_those_of_linux() {
    let image = Image::format(&["-b", "1024", "-I", "128"], "4M");
    let filesystem = begin(&image);
    let dir = filesystem.root().unwrap();
    let with = |name: &str, value: &[u8], mode| {
        dir.set_xattr(&root(), name.as_bytes(), value, mode)
            .map_err(|error| match error {
                Error::Condition(condition) => condition,
                other @ (Error::Refused(_)
                | Error::Unsupported(_)
                | Error::Corrupt(_)
                | Error::Io(_)) => {
                    panic!("{other}")
                }
            })
    };
    let replaced = with("user.a", b"1", XattrMode::Replace);
    assert_eq!(replaced, Err(Condition::NoAttribute));
    assert_eq!(with("user.a", b"1", XattrMode::Create), Ok(()));
    assert_eq!(
        with("user.a", b"2", XattrMode::Create),
        Err(Condition::Exists)
    );
    assert_eq!(with("user.a", b"3", XattrMode::Replace), Ok(()));
    assert_eq!(dir.get_xattr(b"user.a").unwrap(), b"3");
    let long = format!("user.{}", "n".repeat(251));
    assert_eq!(with(&long, b"", XattrMode::Set), Err(Condition::OutOfRange));
    let large = vec![0; 65537];
    assert_eq!(
        with("user.b", &large, XattrMode::Set),
        Err(Condition::TooBig)
    );
    assert_eq!(
        with("user.b", &large[..1000], XattrMode::Set),
        Err(Condition::NoSpace)
    );
    assert_eq!(
        with("system.data", b"", XattrMode::Set),
        Err(Condition::NotSupported)
    );
    assert_eq!(
        with("btrfs.x", b"", XattrMode::Set),
        Err(Condition::NotSupported)
    );
    let error = dir.remove_xattr(&root(), b"user.b").unwrap_err();
    assert!(is(&error, Condition::NoAttribute));
    // What was refused has changed nothing.
    assert_eq!(dir.list_xattrs().unwrap(), [b"user.a"]);
    drop(dir);
    filesystem.unmount().unwrap();
    drop(filesystem);
    assert_eq!(image.faults(), "");
}

#[test]
fn file_with_unreadable_attributes_is_removed() {
    let options = [
        "-b",
        "1024",
        "-I",
        "128",
        "-O",
        "has_journal,extent,ext_attr",
    ];
    let image = Image::format(&options, "16M");
    image.debugfs("mknod fifo p\nea_set fifo user.a value\n");
    let printed = image.debugfs("stat fifo\n");
    let block = printed.split("File ACL: ").nth(1).unwrap();
    let block: u64 = block.split_whitespace().next().unwrap().parse().unwrap();
    let faults = Arc::new(FaultDevice::new(image.device(Access::Write)));
    let options = MountOptions {
        read_only: false,
        ..MountOptions::default()
    };
    let device: Arc<dyn BlockDevice> = Arc::<FaultDevice>::clone(&faults);
    let filesystem = mount(device, &options).unwrap();
    faults.arm(Fault {
        operation: Operation::Read,
        when: When::Touching(block * 1024..(block + 1) * 1024),
        effect: Effect::Tear { seed: 1 },
    });
    let dir = filesystem.root().unwrap();
    let name = Name::new(b"fifo").unwrap();
    dir.unlink(&root(), name).unwrap();
    assert!(faults.hits() > 0);
    assert!(!filesystem.is_read_only());
    set(&*dir, "user.a", b"value").unwrap();
    faults.disarm();
    drop(dir);
    filesystem.unmount().unwrap();
    drop((filesystem, faults));
    assert_eq!(image.mount().orphans().all().len(), 1);
    begin(&image).unmount().unwrap();
    assert_eq!(image.mount().orphans().all().len(), 0);
    assert_eq!(image.faults(), "");
}

#[test]
fn value_with_a_corrupt_block_bitmap_stays() {
    let options = [
        "-b",
        "1024",
        "-O",
        "has_journal,extent,ea_inode,metadata_csum",
    ];
    let image = Image::format(&options, "32M");
    let filesystem = begin(&image);
    let value = noise(1, 5000);
    set(&*filesystem.root().unwrap(), "user.a", &value).unwrap();
    filesystem.unmount().unwrap();
    drop(filesystem);
    image.corrupt_bitmap("Block", 1000);
    let filesystem = begin(&image);
    let dir = filesystem.root().unwrap();
    for changed in [
        set(&*dir, "user.a", &noise(2, 5000)),
        dir.remove_xattr(&root(), b"user.a"),
    ] {
        assert!(matches!(changed, Err(Error::Corrupt(_))), "{changed:?}");
        assert!(!filesystem.is_read_only());
    }
    assert_eq!(dir.get_xattr(b"user.a").unwrap(), value);
    drop(dir);
    filesystem.unmount().unwrap();
}

#[test]
fn attribute_block_with_a_corrupt_block_bitmap_stays() {
    let options = [
        "-b",
        "1024",
        "-I",
        "128",
        "-O",
        "has_journal,extent,metadata_csum",
    ];
    let image = Image::format(&options, "32M");
    let filesystem = begin(&image);
    let dir = filesystem.root().unwrap();
    for name in ["user.a", "user.b"] {
        set(&*dir, name, b"value").unwrap();
    }
    drop(dir);
    filesystem.unmount().unwrap();
    drop(filesystem);
    image.corrupt_bitmap("Block", 1000);
    let filesystem = begin(&image);
    let dir = filesystem.root().unwrap();
    // The block is written again, and cannot be freed.
    dir.remove_xattr(&root(), b"user.a").unwrap();
    let removed = dir.remove_xattr(&root(), b"user.b");
    assert!(matches!(removed, Err(Error::Corrupt(_))), "{removed:?}");
    assert!(!filesystem.is_read_only());
    assert_eq!(dir.get_xattr(b"user.b").unwrap(), b"value");
    drop(dir);
    filesystem.unmount().unwrap();
}

#[test]
fn block_that_others_share_is_left_to_them() {
    let image = Image::format(&["-b", "1024", "-I", "128", "-O", "extent,ext_attr"], "4M");
    image.debugfs(&format!(
        "mkdir one\nmkdir two\nea_set one user.same {}\nea_set one user.other x\n",
        "v".repeat(100)
    ));
    let printed = image.debugfs("stat one\n");
    let block = printed.split("File ACL: ").nth(1).unwrap();
    let block: u64 = block.split_whitespace().next().unwrap().parse().unwrap();
    image.debugfs(&format!("sif two file_acl {block}\nsif two blocks 4\n"));
    let file = OpenOptions::new().write(true).open(image.path()).unwrap();
    file.write_all_at(&2u32.to_le_bytes(), block * 1024 + 4)
        .unwrap();
    assert_eq!(image.faults(), "");
    let filesystem = begin(&image);
    let [one, two] = ["one", "two"].map(|name| walk(&filesystem, name).unwrap());
    assert_eq!(two.get_xattr(b"user.other").unwrap(), b"x");
    set(&*one, "user.new", b"1").unwrap();
    assert!(two.get_xattr(b"user.new").is_err());
    assert_eq!(one.get_xattr(b"user.same").unwrap(), [b'v'; 100]);
    one.remove_xattr(&root(), b"user.same").unwrap();
    assert_eq!(two.get_xattr(b"user.same").unwrap(), [b'v'; 100]);
    two.remove_xattr(&root(), b"user.same").unwrap();
    two.remove_xattr(&root(), b"user.other").unwrap();
    drop((one, two));
    filesystem.unmount().unwrap();
    drop(filesystem);
    assert_eq!(image.faults(), "");
    let printed = image.debugfs("stat two\n");
    assert!(printed.contains("File ACL: 0"), "{printed}");
}

#[test]
fn access_control_lists_and_permission_bits_say_the_same() {
    let image = Image::format(&["-b", "1024", "-I", "256"], "4M");
    image.debugfs("mkdir dir\n");
    let filesystem = begin(&image);
    let dir = walk(&filesystem, "dir").unwrap();
    let entry = |subject, permissions| AclEntry {
        subject,
        permissions,
    };
    let acl = |mask| {
        PosixAcl::new(vec![
            entry(AclSubject::Owner, 7),
            entry(AclSubject::User(1000), 6),
            entry(AclSubject::OwningGroup, 5),
            entry(AclSubject::Mask, mask),
            entry(AclSubject::Other, 0),
        ])
        .unwrap()
    };
    let set_acl = |name: &[u8], acl: &PosixAcl| {
        dir.set_xattr(&root(), name, &acl.encode(), XattrMode::Set)
            .unwrap();
    };
    set_acl(ACL_ACCESS_NAME, &acl(4));
    assert_eq!(dir.attr().unwrap().permissions, 0o740);
    let changes = SetAttr {
        permissions: Some(0o2710),
        ..SetAttr::default()
    };
    let attr = dir.set_attr(&root(), &changes).unwrap();
    assert_eq!(attr.permissions, 0o2710);
    assert_eq!(dir.get_xattr(ACL_ACCESS_NAME).unwrap(), acl(1).encode());
    set_acl(ACL_DEFAULT_NAME, &acl(7));
    let minimal = PosixAcl::new(vec![
        entry(AclSubject::Owner, 6),
        entry(AclSubject::OwningGroup, 4),
        entry(AclSubject::Other, 4),
    ]);
    set_acl(ACL_ACCESS_NAME, &minimal.unwrap());
    assert_eq!(dir.attr().unwrap().permissions, 0o2644);
    assert_eq!(dir.list_xattrs().unwrap(), [ACL_DEFAULT_NAME]);
    drop(dir);
    filesystem.unmount().unwrap();
    drop(filesystem);
    assert_eq!(image.faults(), "");
}
