//! Damage costs only what is damaged, and the archive stays valid.

use std::ops::Range;

use platter_ondisk::{Corruption, Locus};
use platter_vfs::path::PathWalk;
use platter_vfs::{
    Attr, Description, DirCursor, DirEntry, DirSink, ExtentSink, InodeId, Name, SeekTarget, StatFs,
};

use super::*;
use crate::Effect;

/// What is wrong with an inode.
#[derive(Debug, Clone)]
enum Fault {
    Inode,
    /// No byte of this range can be read.
    Data(Range<u64>),
    Extents,
    Link,
    Xattrs,
    /// The listing breaks off in the middle.
    Listing,
    /// The directory also names this inode, as `loop`.
    Entry(InodeId),
}

/// A filesystem some of whose inodes are damaged.
#[derive(Debug)]
struct DamagedFs {
    inner: Arc<MemFs>,
    faults: Vec<(InodeId, Fault)>,
}

#[derive(Debug)]
struct DamagedInode {
    inner: Arc<dyn Inode>,
    fault: Option<Fault>,
}

fn corrupt() -> platter_vfs::Error {
    Corruption::new("test", Locus::default(), "broken on purpose").into()
}

impl DamagedFs {
    fn new(inner: &Arc<MemFs>, faults: &[(&[u8], Fault)]) -> Arc<Self> {
        let walk = PathWalk::new(&**inner);
        let faults = faults
            .iter()
            .map(|(path, fault)| (walk.resolve_no_follow(path).unwrap().id(), fault.clone()))
            .collect();
        let inner = Arc::clone(inner);
        Arc::new(Self { inner, faults })
    }

    fn wrap(&self, inner: Arc<dyn Inode>) -> Arc<dyn Inode> {
        let fault = self.faults.iter().find(|(id, _)| *id == inner.id());
        let fault = fault.map(|(_, fault)| fault.clone());
        Arc::new(DamagedInode { inner, fault })
    }
}

impl Filesystem for DamagedFs {
    fn describe(&self) -> Description {
        self.inner.describe()
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn root(&self) -> platter_vfs::Result<Arc<dyn Inode>> {
        Ok(self.wrap(self.inner.root()?))
    }

    fn inode(&self, id: InodeId) -> platter_vfs::Result<Arc<dyn Inode>> {
        let is_broken = |(broken, fault): &(_, _)| *broken == id && matches!(fault, Fault::Inode);
        if self.faults.iter().any(is_broken) {
            return Err(corrupt());
        }
        Ok(self.wrap(self.inner.inode(id)?))
    }

    fn stat_fs(&self) -> platter_vfs::Result<StatFs> {
        self.inner.stat_fs()
    }

    fn sync(&self) -> platter_vfs::Result<()> {
        Ok(())
    }

    fn unmount(&self) -> platter_vfs::Result<()> {
        Ok(())
    }
}

impl Inode for DamagedInode {
    fn id(&self) -> InodeId {
        self.inner.id()
    }

    fn attr(&self) -> platter_vfs::Result<Attr> {
        self.inner.attr()
    }

    fn lookup(&self, name: Name<'_>) -> platter_vfs::Result<Arc<dyn Inode>> {
        self.inner.lookup(name)
    }

    fn read_dir(&self, from: DirCursor, sink: &mut DirSink<'_>) -> platter_vfs::Result<()> {
        if let Some(Fault::Entry(id)) = &self.fault {
            let _ = sink(DirEntry {
                name: Name::new(b"loop")?,
                id: *id,
                kind: None,
                next: from,
            });
        }
        self.inner.read_dir(from, sink)?;
        match self.fault {
            Some(Fault::Listing) => Err(corrupt()),
            _ => Ok(()),
        }
    }

    fn read_link(&self) -> platter_vfs::Result<Vec<u8>> {
        match self.fault {
            Some(Fault::Link) => Err(corrupt()),
            _ => self.inner.read_link(),
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> platter_vfs::Result<usize> {
        if let Some(Fault::Data(range)) = &self.fault
            && offset < range.end
            && range.start < offset + buf.len() as u64
        {
            buf.fill(0xee);
            return Err(corrupt());
        }
        self.inner.read_at(offset, buf)
    }

    fn seek(&self, offset: u64, target: SeekTarget) -> platter_vfs::Result<u64> {
        self.inner.seek(offset, target)
    }

    fn extents(&self, range: Range<u64>, sink: &mut ExtentSink<'_>) -> platter_vfs::Result<()> {
        match self.fault {
            Some(Fault::Extents) => Err(corrupt()),
            _ => self.inner.extents(range, sink),
        }
    }

    fn get_xattr(&self, name: &[u8]) -> platter_vfs::Result<Vec<u8>> {
        self.inner.get_xattr(name)
    }

    fn list_xattrs(&self) -> platter_vfs::Result<Vec<Vec<u8>>> {
        match self.fault {
            Some(Fault::Xattrs) => Err(corrupt()),
            _ => self.inner.list_xattrs(),
        }
    }
}

/// The archive's members, its damage as path and effect, and what GNU tar extracts from it.
fn salvage(fs: Arc<DamagedFs>) -> (Vec<String>, Vec<(String, Effect)>, tempfile::TempDir) {
    let (bytes, summary, problems) = archive_with(fs, &[b"."], &TarOptions::default());
    assert_eq!(summary.damaged, problems.len() as u64);
    let told = problems
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
    (names(&bytes), told, dir)
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
    let (listed, told, dir) = salvage(DamagedFs::new(&fs, &faults));
    assert_eq!(listed, ["./", "./attributes", "./dir/", "./dir/a", "./z"]);
    assert_eq!(
        told,
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
    let damaged = DamagedFs::new(&fs, &faults);
    let (bytes, summary, problems) = archive_with(damaged, &[b"."], &TarOptions::default());
    assert_eq!(summary.damaged, 4);
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
    let (listed, told, _) = salvage(DamagedFs::new(&fs, &faults));
    assert_eq!(listed, ["./", "./a/", "./a/b/", "./a/b/file"]);
    let omitted = |path: &str| (path.to_owned(), Effect::Omitted);
    assert_eq!(told, [omitted("./a/b/loop"), omitted("./a/loop")]);
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
