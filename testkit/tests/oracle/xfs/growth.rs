//! Files that grow through a mount, and what they have beyond their end.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::thread;
use std::time::Duration;

use testkit::oracle::xfs;
use testkit::served;

use super::writing::{assert_clean, name, open};

const PIECE_BYTES: usize = 64 << 10;

fn append(file: &mut File) {
    file.write_all(&[7; PIECE_BYTES]).unwrap();
    file.sync_all().unwrap();
}

/// A mount whose kernel says what is opened also says what is closed.
#[test]
fn close_of_a_mounted_file_frees_what_is_beyond_its_end() {
    const TRIES: u32 = 500;
    let dir = tempfile::tempdir().unwrap();
    let (image, mountpoint) = (dir.path().join("image"), dir.path().join("mount"));
    xfs::make(&image, 64 << 10, &[]).unwrap();
    let volume = open(&image);
    let mut session = served::mount_volume(&volume, &mountpoint, "strictatime").unwrap();
    let mut options = OpenOptions::new();
    let path = mountpoint.join("file");
    let mut file = options.create(true).append(true).open(&path).unwrap();
    for _ in 0..2 {
        append(&mut file);
    }
    let root = volume.filesystem().root().unwrap();
    let found = root.lookup(name("file")).unwrap();
    let sectors = || found.attr().unwrap().sectors;
    let contents = 2 * PIECE_BYTES as u64 / 512;
    assert!(sectors() > contents);
    drop(fs::File::open(&path).unwrap());
    drop(file);
    // The kernel does not wait for the answer.
    let mut waits = (0..TRIES).map(|_| thread::sleep(Duration::from_millis(10)));
    assert!(waits.any(|()| sectors() == contents), "{}", sectors());
    drop((found, root));
    served::unmount(&mut session).unwrap();
    volume.close().unwrap();
    assert_clean(&image, ("closed", "strictatime"));
}
