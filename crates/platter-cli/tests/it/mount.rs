//! `mount` and `umount`: in the background, with errors until then reported in the foreground.
//!
//! Needs the FUSE device and the superuser.

use super::*;

/// Takes the mount off however the test ends.
pub(super) struct Mounted<'a>(pub(super) &'a Workshop);

impl<'a> Mounted<'a> {
    /// Mounts an image on a new directory `mnt`.
    pub(super) fn of(workshop: &'a Workshop, image: &str) -> Self {
        Self::on_new_directory(workshop, &["mount", image, "mnt"])
    }

    /// The same, with options.
    pub(super) fn with(workshop: &'a Workshop, options: &str, image: &str) -> Self {
        Self::on_new_directory(workshop, &["mount", "-o", options, image, "mnt"])
    }

    fn on_new_directory(workshop: &'a Workshop, arguments: &[&str]) -> Self {
        fs::create_dir(workshop.path("mnt")).unwrap();
        let mounted = Self(workshop);
        assert_eq!(workshop.read(arguments), "");
        mounted
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = self.0.run(&["umount", "-l", "mnt"]);
    }
}

#[test]
fn mount_returns_when_mounted_and_umount_ends_it() {
    let workshop = Workshop::new();
    workshop.partition();
    let mounted = Mounted::with(&workshop, "ro", "gpt.img@2");
    let file = workshop.path("mnt/dir/file");
    assert_eq!(fs::read_to_string(file).unwrap(), "contents\n");
    let table = fs::read_to_string("/proc/mounts").unwrap();
    let source = workshop.path("gpt.img").canonicalize().unwrap();
    let line = table
        .lines()
        .find(|line| line.contains("/mnt fuse.platter ro,"));
    assert!(
        table.contains(&format!("{}@2 ", source.display())),
        "{line:?}"
    );
    assert_eq!(workshop.read(&["umount", "mnt"]), "");
    drop(mounted);
    assert!(!workshop.path("mnt/dir").exists());
}

#[test]
fn changes_in_a_mount_are_in_the_image_after_umount() {
    let workshop = Workshop::new();
    workshop.partition();
    let mounted = Mounted::of(&workshop, "gpt.img@2");
    let refused = workshop.run(&["ls", "gpt.img@2:/"]);
    assert_ne!(refused.status, 0);
    let file = workshop.path("mnt/dir/file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let mut appended = fs::File::options().append(true).open(&file).unwrap();
    appended.write_all(b"and more\n").unwrap();
    drop(appended);
    let owned = workshop.path("mnt/etc/passwd");
    std::os::unix::fs::chown(owned, Some(1000), Some(1000)).unwrap();
    workshop.read(&["umount", "mnt"]);
    drop(mounted);
    assert_eq!(
        workshop.read(&["cat", "gpt.img@2:dir/file"]),
        "contents\nand more\n"
    );
    let shown = workshop.read(&["stat", "gpt.img@2:dir/file"]);
    assert!(shown.contains("(0600/"), "{shown}");
    let checked = workshop.run(&["check", "gpt.img@2"]);
    assert_eq!(checked.status, 0, "{}", checked.out);
}

#[test]
fn what_cannot_be_written_is_refused_for_writing_only() {
    let workshop = Workshop::new();
    fs::create_dir(workshop.path("mnt")).unwrap();
    run_tool(
        Command::new("tune2fs")
            .args(["-O", "read-only"])
            .arg(workshop.path("disk.img")),
        "",
    );
    let ran = workshop.run(&["mount", "disk.img", "mnt"]);
    let expected = "platter: disk.img: ext4: read-only is not supported (only reading is)\n";
    assert_eq!((ran.status, &*ran.err), (32, expected));
    workshop.read(&["mount", "-o", "ro", "disk.img", "mnt"]);
    let mounted = Mounted(&workshop);
    assert!(workshop.path("mnt/dir/file").exists());
    drop(mounted);
}

#[test]
fn seed_of_btrfs_is_mounted_for_reading() {
    let workshop = Workshop::new();
    workshop.btrfs("echo contents > file");
    let image = workshop.path("pool.img");
    run_tool(
        Command::new("btrfstune").args(["-f", "-S", "1"]).arg(image),
        "",
    );
    fs::create_dir(workshop.path("mnt")).unwrap();
    let ran = workshop.run(&["mount", "-o", "rw", "pool.img", "mnt"]);
    assert_eq!(ran.status, 32, "{}", ran.err);
    let mounted = Mounted(&workshop);
    let ran = workshop.run(&["mount", "pool.img", "mnt"]);
    let notice = "platter: pool.img: is write-protected, mounted read-only\n";
    assert_eq!((ran.status, &*ran.err), (0, notice));
    let file = workshop.path("mnt/file");
    assert_eq!(fs::read_to_string(&file).unwrap(), "contents\n");
    let refused = fs::write(&file, "changed").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    workshop.read(&["umount", "mnt"]);
    drop(mounted);
    let ran = workshop.run(&["rm", "pool.img:/file"]);
    assert_ne!(ran.status, 0);
    assert!(ran.err.contains("writing to a seed device"), "{}", ran.err);
}

#[test]
fn mount_helpers_are_understood() {
    let workshop = Workshop::new();
    fs::create_dir(workshop.path("mnt")).unwrap();
    let mounted = Mounted(&workshop);
    // As mount(8) calls /sbin/mount.platter, and as mount.fuse3(8) calls the type's program.
    for words in [
        &[
            "mount.platter",
            "disk.img",
            "mnt",
            "-n",
            "-o",
            "rw,nosuid,nofail",
        ][..],
        &["platter", "disk.img", "mnt", "-o", "rw,dev,suid"],
    ] {
        use std::os::unix::process::CommandExt;
        let mut helper = workshop.command(&words[1..]);
        let ran = Ran::of(&helper.arg0(words[0]).output().unwrap());
        assert_eq!((ran.status, &*ran.err), (0, ""), "{words:?}");
        assert!(workshop.path("mnt/dir/file").exists());
        workshop.read(&["umount", "mnt"]);
    }
    drop(mounted);
}

#[test]
fn a_mount_is_taken_off_by_a_symbolic_link_to_it() {
    let workshop = Workshop::new();
    fs::create_dir(workshop.path("mnt")).unwrap();
    symlink("mnt", workshop.path("link")).unwrap();
    let mounted = Mounted(&workshop);
    workshop.read(&["mount", "disk.img", "link"]);
    assert!(workshop.path("mnt/dir/file").exists());
    workshop.read(&["umount", "link"]);
    assert!(!workshop.path("mnt/dir").exists());
    drop(mounted);
}

#[test]
fn errors_reach_the_caller_with_their_status() {
    let workshop = Workshop::new();
    fs::create_dir(workshop.path("mnt")).unwrap();
    for (arguments, status, reason) in [
        (
            &["mount", "none.img", "mnt"][..],
            32,
            "none.img: No such file or directory",
        ),
        (
            &["mount", "-o", "nonsense", "disk.img", "mnt"],
            2,
            "mount option nonsense is not known",
        ),
        (&["umount", "mnt"], 32, "mnt: not mounted"),
    ] {
        let ran = workshop.run(arguments);
        assert_eq!(
            (ran.status, ran.err),
            (status, format!("platter: {reason}\n"))
        );
    }
    let ran = workshop.run(&["mount", "-f", "disk.img", "nowhere"]);
    assert_eq!(ran.status, 32);
    assert!(ran.err.starts_with("platter: nowhere: "), "{}", ran.err);
    assert_eq!(workshop.run(&["mount", "disk.img"]).status, 2);
    // As mount(8) expects it of its helpers.
    let ran = workshop.run(&["disk.img", "mnt", "-o", "nonsense"]);
    assert_eq!(ran.status, 1);
}

#[test]
fn what_is_no_directory_is_not_mounted_on() {
    let workshop = Workshop::new();
    for program in ["-f", "-o rw"] {
        let words: Vec<&str> = ["mount"].into_iter().chain(program.split(' ')).collect();
        let ran = workshop.run(&[words, vec!["disk.img", "source/dir/file"]].concat());
        let expected = "platter: source/dir/file: Not a directory\n";
        assert_eq!((ran.status, &*ran.err), (32, expected));
    }
    workshop.read(&["touch", "disk.img:/free"]);
}

#[test]
fn frozen_directories_are_refused_before_not_empty() {
    use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
    let workshop = Workshop::new();
    let mounted = Mounted::of(&workshop, "disk.img");
    let path = |path: &str| workshop.path("mnt").join(path);
    fs::create_dir_all(path("d/full/x")).unwrap();
    fs::create_dir_all(path("d/empty")).unwrap();
    let refused = |result: std::io::Result<()>| result.unwrap_err().raw_os_error();
    for (dir, flags) in [
        ("d", IFlags::IMMUTABLE),
        ("d", IFlags::APPEND),
        ("d/full", IFlags::IMMUTABLE),
        ("d/full", IFlags::APPEND),
    ] {
        let dir = fs::File::open(path(dir)).unwrap();
        let before = ioctl_getflags(&dir).unwrap();
        ioctl_setflags(&dir, before | flags).unwrap();
        assert_eq!(
            refused(fs::remove_dir(path("d/full"))),
            Some(1),
            "{flags:?}"
        );
        let replaced = fs::rename(path("d/empty"), path("d/full"));
        assert_eq!(refused(replaced), Some(1), "{flags:?}");
        ioctl_setflags(&dir, before).unwrap();
    }
    assert_eq!(refused(fs::remove_dir(path("d/full"))), Some(39));
    workshop.read(&["umount", "mnt"]);
    drop(mounted);
}
