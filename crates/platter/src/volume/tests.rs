//! Paths lead where they should, and errors say where they did not.

use std::io::{Read, Seek, SeekFrom};

use platter_memfs::{MemFs, MemFsLimits};
use platter_vfs::clock::FixedClock;
use platter_vfs::{Context, CreateKind, Credentials, FileKind, SeekTarget, Timestamp, XattrMode};

use std::path::Path;

use super::*;

fn volume() -> Volume {
    let clock = Arc::new(FixedClock::new(Timestamp::default(), 1));
    let fs = MemFs::new(clock, MemFsLimits::default());
    fs.plant(b"/dir", CreateKind::Directory, 0o755).unwrap();
    let file = fs.plant(b"/dir/file", CreateKind::Regular, 0o644).unwrap();
    file.write_at(0, b"contents").unwrap();
    file.write_at(1 << 20, b"far").unwrap();
    let context = Context {
        credentials: Credentials::root(),
        umask: 0,
    };
    file.set_xattr(&context, b"user.a", b"b", XattrMode::Set)
        .unwrap();
    let link = CreateKind::Symlink(b"/dir/file".to_vec());
    fs.plant(b"/link", link, 0o777).unwrap();
    Volume::new("disk.img@1", Arc::new(fs))
}

#[test]
fn paths_count_from_the_root_with_or_without_a_slash() {
    let volume = volume();
    for path in ["", "/", ".", "dir/.."] {
        assert_eq!(volume.metadata(path).unwrap().kind(), FileKind::Directory);
    }
    let names: Vec<_> = volume.read_dir("dir").unwrap().collect();
    assert_eq!(names.len(), 1);
    assert_eq!(names[0].as_ref().unwrap().path(), Path::new("dir/file"));
    assert_eq!(volume.metadata("link").unwrap().kind(), FileKind::Regular);
    assert_eq!(
        volume.symlink_metadata("link").unwrap().kind(),
        FileKind::Symlink
    );
    assert_eq!(volume.read_link("link").unwrap(), b"/dir/file");
}

#[test]
fn a_file_is_read_at_offsets_and_as_a_stream() {
    let file = volume().open("/link").unwrap();
    let size_bytes = (1 << 20) + 3;
    assert_eq!(file.len().unwrap(), size_bytes);
    assert_eq!(file.seek_to(1, SeekTarget::Data).unwrap(), Some(1));
    assert_eq!(file.seek_to(4096, SeekTarget::Data).unwrap(), Some(1 << 20));
    assert_eq!(file.seek_to(size_bytes, SeekTarget::Data).unwrap(), None);
    assert_eq!(
        file.xattrs().unwrap(),
        [(b"user.a".to_vec(), b"b".to_vec())]
    );
    assert_eq!(file.read_all(1 << 21).unwrap().len(), (1 << 20) + 3);

    let mut reader = file.clone();
    reader.seek(SeekFrom::End(-3)).unwrap();
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "far");
    assert!(reader.seek(SeekFrom::Current(-(1 << 30))).is_err());
}

#[test]
fn contents_are_written_out_whole() {
    let file = volume().open("link").unwrap();
    let mut out = Vec::new();
    assert_eq!(file.write_to(&mut out).unwrap(), (1 << 20) + 3);
    assert!(out == file.read_all(1 << 21).unwrap());
    let full = &mut [0; 5][..];
    let error = file.write_to(&mut { full }).unwrap_err();
    assert!(matches!(error.cause, crate::Cause::Host(_)), "{error}");
}

#[test]
fn errors_name_image_and_path() {
    let volume = volume();
    let file = volume.open("link").unwrap();
    for (error, shown) in [
        (
            volume.open("/none").err(),
            "disk.img@1:/none: no such file or directory",
        ),
        (
            volume.open("link/x").err(),
            "disk.img@1:link/x: not a directory",
        ),
        (
            volume.read_link("dir").err(),
            "disk.img@1:dir: invalid argument",
        ),
        (volume.read("dir").err(), "disk.img@1:dir: is a directory"),
        (file.read_all(9).err(), "disk.img@1:link: file too large"),
    ] {
        assert_eq!(error.unwrap().to_string(), shown);
    }
}
