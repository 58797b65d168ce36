//! Images as the tests write and judge them.

use std::fmt::Debug;
use std::path::Path;

use platter::{MountOptions, Volume, WriteOptions};
use platter_vfs::{Context, CreateKind, Name};
use testkit::oracle::e2fsck;

/// Opens an image whose changes are committed only when that is asked for.
pub(crate) fn open_for_writing(image: &Path) -> Volume {
    let options = WriteOptions {
        commit_interval: None,
        ..WriteOptions::default()
    };
    let spec = platter::ImageSpec::parse(image).unwrap();
    MountOptions::new().writing(options).open(&spec).unwrap()
}

/// Makes a file in the root directory.
pub(crate) fn write(volume: &Volume, name: &str, contents: &[u8]) {
    let root = volume.filesystem().root().unwrap();
    let name = Name::new(name.as_bytes()).unwrap();
    let made = root.create(&Context::root(), name, CreateKind::Regular, 0o644);
    made.unwrap().write_at(0, contents).unwrap();
}

/// Demands that `e2fsck` finds nothing; `what` is shown if it does.
pub(crate) fn assert_clean(image: &Path, what: impl Debug) {
    let (verdict, report) = e2fsck::report(image).unwrap();
    assert!(verdict.is_clean(), "{what:?}: {report}");
}
