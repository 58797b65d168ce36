//! Names that change without a request of the kernel.

use std::fs;

use platter_vfs::{Context, Filesystem, Name};

use crate::mounted::{Mounted, plant};

#[test]
fn name_made_without_the_kernel_is_seen_after_a_notice() {
    let mounted = Mounted::new();
    let path = mounted.path("new");
    assert!(!path.exists());
    assert_eq!(fs::read_dir(mounted.root()).unwrap().count(), 0);
    plant(&mounted.fs, "new", b"contents");
    assert!(!path.exists(), "the kernel remembers that it is missing");
    let notifier = mounted.session().notifier().unwrap();
    let root = mounted.fs.root().unwrap().id();
    notifier.name_changed(root, b"new");
    assert_eq!(fs::read(&path).unwrap(), b"contents");
    assert_eq!(fs::read_dir(mounted.root()).unwrap().count(), 1);
    mounted.unmount();
}

#[test]
fn name_removed_without_the_kernel_is_gone_after_a_notice() {
    let mounted = Mounted::with("", |fs| {
        plant(fs, "first", b"1");
        plant(fs, "second", b"2");
    });
    let root = mounted.fs.root().unwrap();
    let notifier = mounted.session().notifier().unwrap();
    for (number, name) in ["first", "second"].into_iter().enumerate() {
        let path = mounted.path(name);
        assert!(path.exists());
        let name = Name::new(name.as_bytes()).unwrap();
        let child = root.lookup(name).unwrap().id();
        root.unlink(&Context::root(), name).unwrap();
        assert!(path.exists(), "the kernel remembers it");
        if number == 0 {
            notifier.name_removed(root.id(), name.as_bytes(), child);
        } else {
            notifier.name_changed(root.id(), name.as_bytes());
        }
        assert!(!path.exists());
    }
    assert_eq!(fs::read_dir(mounted.root()).unwrap().count(), 0);
    mounted.unmount();
}
