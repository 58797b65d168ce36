//! Files opened by their handles, when the kernel has forgotten them. What is expected is what the
//! kernel's own filesystem does.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use platter::{MountOptions, WriteOptions};
use platter_fuse::Session;
use rustix::io::Errno;
use rustix::mount::MountFlags;
use testkit::handle::{CONNECTABLE, FileHandle};
use testkit::loopdev::{Access, Mount};
use testkit::oracle::{debugfs, mke2fs};
use testkit::served;

use crate::images::assert_clean;

const LAYOUT: &[&str] = &["-t", "ext4", "-b", "1024"];
const IMAGE_KIB: u64 = 16 << 10;

/// Files that are made until a number is used again, at most.
const REUSE_MAX: usize = 200;

/// The errno, or the path below the mount's root and the contents.
type Outcome = Result<(String, String), Errno>;

const STALE: Outcome = Err(Errno::STALE);

/// A mount, and how the kernel is made to forget unused inodes.
struct Tried<'t> {
    root: &'t Path,
    forget: &'t dyn Fn(),
}

impl Tried<'_> {
    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn handle(&self, path: &str) -> FileHandle {
        FileHandle::of(&self.path(path), 0).unwrap()
    }

    /// What a handle leads to after the kernel forgot unused inodes.
    fn open(&self, handle: &FileHandle) -> Outcome {
        (self.forget)();
        self.open_known(handle)
    }

    fn open_known(&self, handle: &FileHandle) -> Outcome {
        let opened = handle.open(self.root).unwrap();
        opened
            .map(|(path, contents)| {
                let name = self.root.to_str().unwrap();
                let path = path.strip_prefix(name).unwrap_or(&path);
                (path.to_owned(), contents)
            })
            .map_err(Errno::from_raw_os_error)
    }
}

#[expect(clippy::unnecessary_wraps, reason = "outcomes are compared")]
fn found(path: &str, contents: &str) -> Outcome {
    Ok((path.to_owned(), contents.to_owned()))
}

/// The contents alone: of a file, `/proc` knows a path only as long as the kernel knows a name.
fn contents(outcome: Outcome) -> Result<String, Errno> {
    outcome.map(|(_, contents)| contents)
}

/// Handles of before a mount that are good after it, and one that is not.
struct Kept {
    file: FileHandle,
    dir: FileHandle,
    connectable: FileHandle,
    removed: FileHandle,
}

fn play(tried: &Tried<'_>) -> Kept {
    let path = |name: &str| tried.path(name);
    fs::create_dir_all(path("dir/below")).unwrap();
    fs::write(path("dir/below/file"), "contents").unwrap();
    let [file, dir, below] = ["dir/below/file", "dir", "dir/below"].map(|path| tried.handle(path));
    let root = tried.handle("");
    assert_eq!(contents(tried.open(&file)), Ok("contents".into()));
    assert_eq!(tried.open(&dir), found("/dir", ". .. below"));
    assert_eq!(tried.open(&below), found("/dir/below", ". .. file"));
    assert!(tried.open(&root).unwrap().1.contains("dir"));
    let connectable = FileHandle::of(&path("dir/below/file"), CONNECTABLE).unwrap();
    assert_eq!(
        tried.open(&connectable),
        found("/dir/below/file", "contents")
    );

    // A handle is of the file, whatever its names are.
    fs::hard_link(path("dir/below/file"), path("link")).unwrap();
    fs::remove_file(path("dir/below/file")).unwrap();
    assert_eq!(contents(tried.open(&file)), Ok("contents".into()));
    fs::rename(path("link"), path("dir/below/file")).unwrap();
    assert_eq!(
        tried.open(&connectable),
        found("/dir/below/file", "contents")
    );

    // An open file outlives its last name; after the close it cannot be found again.
    fs::write(path("open"), "open").unwrap();
    let (held, unlinked) = (File::open(path("open")).unwrap(), tried.handle("open"));
    fs::remove_file(path("open")).unwrap();
    assert_eq!(contents(tried.open(&unlinked)), Ok("open".into()));
    drop(held);
    assert_eq!(tried.open(&unlinked), STALE);

    // A removed file stays so, also when its number is used again.
    fs::write(path("removed"), "removed").unwrap();
    fs::create_dir(path("removed dir")).unwrap();
    let [removed, removed_dir] = ["removed", "removed dir"].map(|path| tried.handle(path));
    let number = fs::metadata(path("removed")).unwrap().ino();
    fs::remove_file(path("removed")).unwrap();
    fs::remove_dir(path("removed dir")).unwrap();
    assert_eq!(tried.open(&removed), STALE);
    assert_eq!(tried.open(&removed_dir), STALE);
    let again = (0..REUSE_MAX).find(|file| {
        let path = path(&file.to_string());
        fs::write(&path, "new").unwrap();
        fs::metadata(&path).unwrap().ino() == number
    });
    let again = again.expect("numbers are used again").to_string();
    let new = tried.handle(&again);
    assert_eq!(contents(tried.open(&new)), Ok("new".into()));
    assert_eq!(tried.open(&removed), STALE);
    assert_eq!(tried.open_known(&removed), STALE, "the kernel knows it");
    Kept {
        file,
        dir,
        connectable,
        removed,
    }
}

/// After the filesystem was mounted anew.
fn play_again(tried: &Tried<'_>, kept: &Kept) {
    assert_eq!(
        contents(tried.open_known(&kept.file)),
        Ok("contents".into())
    );
    assert_eq!(tried.open_known(&kept.dir), found("/dir", ". .. below"));
    let connected = found("/dir/below/file", "contents");
    assert_eq!(tried.open(&kept.connectable), connected);
    assert_eq!(tried.open(&kept.removed), STALE);
}

/// Makes the kernel evict unused inodes, as it does when it is short of memory: a remount does.
fn forget(session: &Session) {
    let flags = MountFlags::empty();
    rustix::mount::mount_remount(session.mountpoint(), flags, c"").unwrap();
    for _ in 0..500 {
        // What is open may stay.
        if session.nodes_held() <= 1 {
            return;
        }
        thread::sleep(Duration::from_millis(2));
    }
    panic!("the kernel holds {} inodes", session.nodes_held());
}

fn by_platter<R>(
    image: &Path,
    mountpoint: &Path,
    writes: bool,
    play: impl FnOnce(&Tried<'_>) -> R,
) -> R {
    let mut open = MountOptions::new();
    if writes {
        open = open.writing(WriteOptions::default());
    }
    let mut session = served::mount(image, &open, mountpoint, "").unwrap();
    let played = play(&Tried {
        root: mountpoint,
        forget: &|| forget(&session),
    });
    served::unmount(&mut session).unwrap();
    played
}

fn by_the_kernel<R>(image: &Path, play: impl FnOnce(&Tried<'_>) -> R) -> R {
    let mount = Mount::image(image, "", Access::ReadWrite).unwrap();
    let played = play(&Tried {
        root: mount.root(),
        forget: &|| (),
    });
    mount.unmount(image).unwrap();
    played
}

#[test]
fn files_are_opened_by_their_handles() {
    let directory = tempfile::tempdir().unwrap();
    let (image, mountpoint) = (
        directory.path().join("image"),
        directory.path().join("mount"),
    );
    mke2fs::make(&image, IMAGE_KIB, LAYOUT, None).unwrap();
    let kept = by_the_kernel(&image, play);
    by_the_kernel(&image, |tried| play_again(tried, &kept));

    mke2fs::make(&image, IMAGE_KIB, LAYOUT, None).unwrap();
    let kept = by_platter(&image, &mountpoint, true, play);
    by_platter(&image, &mountpoint, true, |tried| play_again(tried, &kept));
    by_platter(&image, &mountpoint, false, |tried| play_again(tried, &kept));
    assert_clean(&image, "written");
}

#[test]
fn made_up_handles_lead_nowhere() {
    let directory = tempfile::tempdir().unwrap();
    let (image, mountpoint) = (
        directory.path().join("image"),
        directory.path().join("mount"),
    );
    mke2fs::make(&image, IMAGE_KIB, LAYOUT, None).unwrap();
    let inodes = 4096;
    // What the table holds of inodes that were never used must not matter.
    let copy = format!("copy_inode <11> <{}>", inodes - 1);
    debugfs::change(&image, &["copy_inode <11> <100>", &copy]).unwrap();
    for writes in [true, false] {
        by_platter(&image, &mountpoint, writes, |tried| {
            let reserved = 0..11;
            let never_used = [100, 600, 2000, inodes - 1, inodes];
            let beyond = [
                inodes + 1,
                1 << 31,
                u64::from(u32::MAX),
                1 << 32,
                1 << 63,
                u64::MAX,
            ];
            for node in reserved.chain(never_used).chain(beyond) {
                for generation in [0, 1, u32::MAX] {
                    let opened = tried.open_known(&FileHandle::of_node(node, generation));
                    if (node, generation) == (1, 0) {
                        assert!(opened.unwrap().1.contains("lost+found"));
                    } else {
                        assert_eq!(opened, STALE, "node {node}, generation {generation}");
                    }
                }
            }
            assert!(tried.path("lost+found").is_dir());
        });
        assert_clean(&image, "written");
    }
}
