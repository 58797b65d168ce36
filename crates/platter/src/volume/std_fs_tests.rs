//! A volume answers as the kernel does on a filesystem of the host, and behaves as `std::fs`.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread;

use platter_vfs::permission::{APPEND_ONLY, IMMUTABLE};
use platter_vfs::{RenameMode, SetAttr};

use super::*;
use crate::{FormatOptions, Image, MountOptions};

/// An empty filesystem in memory.
fn blank() -> (Image, Volume) {
    let image = Image::in_memory(4 << 20);
    FormatOptions::default().format(&image).unwrap();
    let volume = mount(&image);
    (image, volume)
}

fn mount(image: &Image) -> Volume {
    MountOptions::new().read_write().mount(image).unwrap()
}

/// A call of `std::fs` and the same of a volume.
type Call = (
    &'static str,
    fn(&Path, &Path) -> io::Result<()>,
    fn(&Volume, &Path, &Path) -> Result<()>,
);

const CALLS: [Call; 14] = [
    (
        "create",
        |a, _| fs::File::create(a).map(drop),
        |v, a, _| v.create(a).map(drop),
    ),
    (
        "create_new",
        |a, _| fs::File::create_new(a).map(drop),
        |v, a, _| v.create_new(a).map(drop),
    ),
    (
        "read",
        |a, _| fs::read(a).map(drop),
        |v, a, _| v.read(a).map(drop),
    ),
    ("append", host_append, |v, a, _| {
        v.open_with(a, OpenOptions::new().append(true)).map(drop)
    }),
    (
        "create_dir",
        |a, _| fs::create_dir(a),
        |v, a, _| v.create_dir(a),
    ),
    (
        "create_dir_all",
        |a, _| fs::create_dir_all(a),
        |v, a, _| v.create_dir_all(a),
    ),
    (
        "remove_file",
        |a, _| fs::remove_file(a),
        |v, a, _| v.remove_file(a),
    ),
    (
        "remove_dir",
        |a, _| fs::remove_dir(a),
        |v, a, _| v.remove_dir(a),
    ),
    (
        "read_dir",
        |a, _| fs::read_dir(a).map(drop),
        |v, a, _| v.read_dir(a).map(drop),
    ),
    (
        "read_link",
        |a, _| fs::read_link(a).map(drop),
        |v, a, _| v.read_link(a).map(drop),
    ),
    (
        "stat",
        |a, _| fs::metadata(a).map(drop),
        |v, a, _| v.metadata(a).map(drop),
    ),
    ("rename", |a, b| fs::rename(a, b), |v, a, b| v.rename(a, b)),
    (
        "hard_link",
        |a, b| fs::hard_link(a, b),
        |v, a, b| v.hard_link(a, b),
    ),
    (
        "symlink",
        |a, b| std::os::unix::fs::symlink(a.file_name().unwrap_or_default(), b),
        |v, a, b| v.symlink(Path::new(a.file_name().unwrap_or_default()), b),
    ),
];

fn host_append(path: &Path, _: &Path) -> io::Result<()> {
    fs::OpenOptions::new().append(true).open(path).map(drop)
}

const PATHS: [&str; 20] = [
    "file",
    "file/",
    "file/below",
    "dir",
    "dir/",
    "dir/.",
    "dir/..",
    "full",
    "full/inner",
    "none",
    "none/",
    "none/below",
    "to-file",
    "to-file/",
    "to-dir",
    "to-dir/",
    "to-dir/new",
    "dangling",
    "loop",
    "other",
];

/// All paths below a directory, sorted.
fn listing(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        found.push(entry.path());
        if entry.file_type().unwrap().is_dir() {
            found.extend(listing(&entry.path()));
        }
    }
    found.sort();
    found
}

fn volume_listing(volume: &Volume, dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in volume.read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() == "lost+found" {
            continue;
        }
        found.push(entry.path());
        if entry.file_type().unwrap() == FileKind::Directory {
            found.extend(volume_listing(volume, &entry.path()));
        }
    }
    found.sort();
    found
}

#[test]
fn volume_answers_as_the_kernel() {
    let (_, volume) = blank();
    let mut compared = 0;
    for (name, host_call, volume_call) in CALLS {
        let takes_two = matches!(name, "rename" | "hard_link" | "symlink");
        for first in PATHS {
            for second in PATHS.iter().take(if takes_two { PATHS.len() } else { 1 }) {
                let host = tempfile::tempdir().unwrap();
                let base = Path::new("/t");
                if volume.exists(base).unwrap() {
                    volume.remove_dir_all(base).unwrap();
                }
                volume.create_dir(base).unwrap();
                let at = |path: &str| PathBuf::from(format!("/t/{path}"));
                plant_below(host.path(), &volume, base);
                let theirs = host_call(&host.path().join(first), &host.path().join(second));
                let ours = volume_call(&volume, &at(first), &at(second));
                let theirs = theirs.err().map(|error| error.raw_os_error().unwrap());
                let ours = ours.err().map(|error| error.raw_os_error());
                assert_eq!(ours, theirs, "{name} {first} {second}");
                let expected: Vec<_> = listing(host.path())
                    .into_iter()
                    .map(|path| base.join(path.strip_prefix(host.path()).unwrap()))
                    .collect();
                let found = volume_listing(&volume, base);
                assert_eq!(found, expected, "{name} {first} {second}");
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 11 * PATHS.len() + 3 * PATHS.len() * PATHS.len());
}

/// The same tree below a directory of the host and of a volume.
fn plant_below(host: &Path, volume: &Volume, base: &Path) {
    for dir in ["dir", "full"] {
        fs::create_dir(host.join(dir)).unwrap();
        volume.create_dir(base.join(dir)).unwrap();
    }
    for file in ["file", "other", "full/inner"] {
        fs::write(host.join(file), file).unwrap();
        volume.write(base.join(file), file).unwrap();
    }
    for (link, target) in [
        ("to-file", "file"),
        ("to-dir", "dir"),
        ("dangling", "made"),
        ("loop", "loop"),
    ] {
        std::os::unix::fs::symlink(target, host.join(link)).unwrap();
        volume.symlink(target, base.join(link)).unwrap();
    }
}

#[test]
fn closed_volume_is_in_the_image() {
    let (image, volume) = blank();
    volume.create_dir_all("a/b/c").unwrap();
    volume.write(b"a/b/raw-\xff", "text").unwrap();
    let mut file = volume.create("a/file").unwrap();
    write!(file, "{} {}", 1, 2).unwrap();
    volume.close().unwrap();
    assert_eq!(file.write_at(0, b"x").unwrap_err().code(), "closed");

    let copy = Image::from_bytes(image.to_vec().unwrap());
    let volume = MountOptions::new().mount(copy).unwrap();
    assert_eq!(volume.read_to_string(b"a/b/raw-\xff").unwrap(), "text");
    assert_eq!(volume.read_to_string("a/file").unwrap(), "1 2");
    let refused = volume.write("a/file", "x").unwrap_err();
    assert_eq!((refused.code(), refused.raw_os_error()), ("read_only", 30));
}

#[test]
fn dropped_volume_is_in_the_image() {
    let (image, volume) = blank();
    let file = volume.create("file").unwrap();
    file.write_at(0, b"kept").unwrap();
    drop(volume);
    drop(file);
    assert_eq!(mount(&image).read("file").unwrap(), b"kept");
}

#[test]
fn files_read_write_and_seek() {
    let (_, volume) = blank();
    let mut file = volume.create_new("file").unwrap();
    file.write_all(b"0123456789").unwrap();
    file.seek(SeekFrom::Current(-4)).unwrap();
    let mut rest = String::new();
    file.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "6789");
    assert!(file.seek(SeekFrom::Current(-11)).is_err());
    volume.remove_file("file").unwrap();
    file.set_len(3).unwrap();
    file.rewind().unwrap();
    rest.clear();
    file.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "012", "an unlinked file stays open");

    let mut written = volume.create("other").unwrap();
    let refused = io::Error::from(Error::at_path(
        volume.name(),
        b"other",
        Cause::NotOpenFor { access: "reading" },
    ));
    let found = written.read(&mut [0; 1]).unwrap_err();
    assert_eq!(found.to_string(), refused.to_string());
    let read_only = volume.open("other").unwrap();
    assert_eq!(read_only.append(b"x").unwrap_err().code(), "not_open");
}

#[test]
fn appends_of_several_threads_do_not_overlap() {
    fn shared<T: Send + Sync>(value: T) -> T {
        value
    }
    let (_, volume) = blank();
    let options = OpenOptions::new().append(true).create(true);
    thread::scope(|scope| {
        for letter in b'a'..b'e' {
            let file = shared(volume.open_with("log", options).unwrap());
            scope.spawn(move || {
                for _ in 0..50 {
                    file.append(&[letter; 7]).unwrap();
                }
            });
        }
    });
    let bytes = shared(volume).read("log").unwrap();
    assert_eq!(bytes.len(), 4 * 50 * 7);
    assert!(bytes.chunks(7).all(|line| line == [line[0]; 7]));
}

#[test]
fn copy_and_remove_dir_all_as_std() {
    let (_, volume) = blank();
    volume.create_dir_all("from/deep").unwrap();
    volume.write("from/file", vec![7; 70_000]).unwrap();
    volume.set_permissions("from/file", 0o600).unwrap();
    assert_eq!(volume.copy("from/file", "copy").unwrap(), 70_000);
    assert_eq!(volume.read("copy").unwrap(), vec![7; 70_000]);
    let metadata = volume.metadata("copy").unwrap();
    assert_eq!((metadata.mode(), metadata.len()), (0o10_0600, 70_000));
    let same = volume.copy("copy", "/copy").unwrap_err();
    assert_eq!(same.code(), "same_file");
    volume.symlink("from", "link").unwrap();
    volume.remove_dir_all("link").unwrap();
    assert!(volume.exists("from/deep").unwrap());
    volume.remove_dir_all("from").unwrap();
    assert!(!volume.exists("from").unwrap());
    let wrong = volume.remove_dir_all("copy").unwrap_err();
    assert!(wrong.is(Condition::NotDirectory));
}

#[test]
fn flags_of_files_forbid_what_the_kernel_forbids() {
    let (_, volume) = blank();
    let flag = |path: &str, flags| {
        let changes = SetAttr {
            flags: Some(flags),
            ..SetAttr::default()
        };
        let file = volume.open(path).unwrap();
        super::rights::set_attr(&**file.inode(), &changes).unwrap();
    };
    for dir in ["kept", "growing"] {
        volume.create_dir(dir).unwrap();
        volume.write(format!("{dir}/inside"), "x").unwrap();
    }
    for file in ["file", "immutable", "log"] {
        volume.write(file, "12345").unwrap();
    }
    for (path, flags) in [
        ("immutable", IMMUTABLE),
        ("kept", IMMUTABLE),
        ("log", APPEND_ONLY),
        ("growing", APPEND_ONLY),
    ] {
        flag(path, flags);
    }
    for (from, to) in [
        ("immutable", "new"),
        ("log", "new"),
        ("file", "immutable"),
        ("file", "log"),
        ("file", "kept/new"),
        ("kept/inside", "new"),
        ("growing/inside", "new"),
        ("file", "growing/inside"),
    ] {
        let refused = volume.rename(from, to).unwrap_err();
        assert!(refused.is(Condition::NotPermitted), "{from} to {to}");
    }
    for (from, to) in [("immutable", "new"), ("log", "new"), ("file", "kept/new")] {
        let refused = volume.hard_link(from, to).unwrap_err();
        assert!(refused.is(Condition::NotPermitted), "{from} as {to}");
    }
    let exists = volume.rename_with("file", "log", RenameMode::NoReplace);
    assert!(exists.unwrap_err().is(Condition::Exists));
    volume.rename("file", "growing/new").unwrap();
    let log = volume.open_with("log", OpenOptions::new().append(true));
    log.unwrap().write_at(0, b"67").unwrap();
    assert_eq!(volume.read("log").unwrap(), b"1234567");
}

#[test]
fn second_close_reports_what_the_first_did() {
    let (image, volume) = blank();
    let clone = volume.clone();
    volume.clone().close().unwrap();
    volume.close().unwrap();
    assert_eq!(clone.exists("/").unwrap_err().code(), "closed");

    let volume = mount(&image);
    let clone = volume.clone();
    let fs = volume.into_filesystem();
    assert_eq!(clone.close().unwrap_err().code(), "closed");
    fs.unmount().unwrap();

    let revocable = Arc::new(RevocableDevice::new(Arc::clone(image.device())));
    let volume = mount(&Image::new(
        "revoked",
        Arc::<RevocableDevice>::clone(&revocable),
    ));
    volume.write("file", "lost").unwrap();
    revocable.revoke();
    volume.clone().close().unwrap_err();
    assert_eq!(volume.close().unwrap_err().code(), "closed");
}
