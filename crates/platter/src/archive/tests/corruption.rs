//! Corruption costs only what is corrupt, and the archive stays valid.

use super::*;
use crate::Effect;
use crate::sample::{CorruptFs, Fault};

/// The archive's members, its corruption as path and effect, and what GNU tar extracts from it.
fn salvage(fs: Arc<CorruptFs>) -> (Vec<String>, Vec<(String, Effect)>, tempfile::TempDir) {
    let (bytes, summary, problems) = archive_with(fs, &[b"."], &TarOptions::default());
    assert_eq!(summary.corrupt, problems.len() as u64);
    let reported = problems
        .iter()
        .map(|problem| {
            (
                String::from_utf8(problem.path.clone()).unwrap(),
                problem.effect,
            )
        })
        .collect();
    let dir = tempfile::tempdir().unwrap();
    judge("tar", &["-x"], &bytes, dir.path());
    (names(&bytes), reported, dir)
}

#[test]
fn what_cannot_be_had_is_left_out_and_the_rest_is_there() {
    let fs = empty();
    dir(&fs, b"/dir");
    dir(&fs, b"/lost");
    for path in [&b"/dir/a"[..], b"/dir/b", b"/lost/x", b"/attributes", b"/z"] {
        regular(&fs, path, path);
    }
    let target = CreateKind::Symlink(b"z".to_vec());
    fs.plant(b"/link", target, 0o777).unwrap();
    let faults = [
        (&b"/dir"[..], Fault::Listing),
        (b"/dir/b", Fault::Inode),
        (b"/lost", Fault::Inode),
        (b"/link", Fault::Link),
        (b"/attributes", Fault::Xattrs),
    ];
    let (listed, reported, dir) = salvage(CorruptFs::new(&fs, &faults));
    assert_eq!(listed, ["./", "./attributes", "./dir/", "./dir/a", "./z"]);
    assert_eq!(
        reported,
        [
            ("./attributes".to_owned(), Effect::AttributesLost),
            ("./dir/".to_owned(), Effect::EntriesLost),
            ("./dir/b".to_owned(), Effect::Omitted),
            ("./link".to_owned(), Effect::Omitted),
            ("./lost".to_owned(), Effect::Omitted),
        ]
    );
    assert_eq!(std::fs::read(dir.path().join("z")).unwrap(), b"/z");
}

#[test]
fn what_is_left_out_is_so_under_all_of_its_names() {
    let fs = empty();
    let target = CreateKind::Symlink(b"z".to_vec());
    let link = fs.plant(b"/a", target, 0o777).unwrap();
    let (root, name) = (fs.root().unwrap(), platter_vfs::Name::new(b"b").unwrap());
    root.link(&platter_vfs::Context::root(), name, link.id())
        .unwrap();
    let faults = [(&b"/a"[..], Fault::Link)];
    let (listed, reported, _) = salvage(CorruptFs::new(&fs, &faults));
    assert_eq!(listed, ["./"]);
    let omitted = |path: &str| (path.to_owned(), Effect::Omitted);
    assert_eq!(reported, [omitted("./a"), omitted("./b")]);
}

#[test]
fn unreadable_contents_are_zeros_of_the_same_length() {
    let fs = empty();
    let contents = vec![b'x'; 3 << 20];
    for path in [&b"/some"[..], b"/all", b"/map", b"/tiny"] {
        regular(
            &fs,
            path,
            &contents[..if path == b"/tiny" {
                100
            } else {
                contents.len()
            }],
        );
    }
    let faults = [
        (&b"/some"[..], Fault::Data(1_000_000..1_000_001)),
        (b"/all", Fault::Data(0..u64::MAX)),
        (b"/map", Fault::Extents),
        (b"/tiny", Fault::Data(99..100)),
    ];
    let corrupt = CorruptFs::new(&fs, &faults);
    let (bytes, summary, problems) = archive_with(corrupt, &[b"."], &TarOptions::default());
    assert_eq!(summary.corrupt, 4);
    let zeros = problems.iter().map(|problem| {
        let Effect::ZeroFilled { bytes } = problem.effect else {
            panic!("{problem:?}");
        };
        bytes
    });
    assert_eq!(zeros.sum::<u64>(), (3 << 20) + (3 << 20) + 4096 + 100);

    let dir = tempfile::tempdir().unwrap();
    judge("tar", &["-x"], &bytes, dir.path());
    let read = |name| std::fs::read(dir.path().join(name)).unwrap();
    let mut some = contents.clone();
    some[999_424..999_424 + 4096].fill(0);
    assert!(read("some") == some);
    assert!(read("all") == vec![0; 3 << 20]);
    assert!(read("map") == vec![0; 3 << 20]);
    assert_eq!(read("tiny"), [0; 100]);
}

#[test]
fn a_directory_is_entered_once_however_many_names_it_has() {
    let fs = empty();
    dir(&fs, b"/a");
    let inner = dir(&fs, b"/a/b");
    regular(&fs, b"/a/b/file", b"");
    let root = fs.root().unwrap().id();
    let faults = [
        (&b"/a/b"[..], Fault::Entry(root)),
        (b"/a", Fault::Entry(inner.id())),
    ];
    let (listed, reported, _) = salvage(CorruptFs::new(&fs, &faults));
    assert_eq!(listed, ["./", "./a/", "./a/b/", "./a/b/file"]);
    let omitted = |path: &str| (path.to_owned(), Effect::Omitted);
    assert_eq!(reported, [omitted("./a/b/loop"), omitted("./a/loop")]);
}

#[test]
fn a_failing_output_ends_the_writing() {
    #[derive(Debug)]
    struct Full(usize);
    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 = self.0.saturating_sub(bytes.len());
            if self.0 == 0 {
                return Err(std::io::ErrorKind::StorageFull.into());
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let fs = empty();
    for number in 0..100 {
        regular(&fs, format!("/{number}").as_bytes(), &vec![1; 1 << 20]);
    }
    let volume = Volume::new("memory", fs as Arc<dyn Filesystem>);
    let options = TarOptions::default();
    let mut observer = |_: TarEvent<'_>| {};
    let mut out = Full(5 << 20);
    let error = write_tar(&volume, b"/", &[b"."], &mut out, &options, &mut observer).unwrap_err();
    assert!(
        matches!(&error.cause, Cause::Host(io) if io.kind() == std::io::ErrorKind::StorageFull)
    );
}
