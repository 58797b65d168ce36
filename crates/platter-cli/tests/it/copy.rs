//! `cp`.

use std::os::unix::fs::MetadataExt;

use super::*;

#[test]
fn files_land_where_cp_puts_them() {
    let workshop = Workshop::new();
    fs::create_dir(workshop.path("into")).unwrap();
    workshop.read(&["cp", "disk.img:/dir/file", "new"]);
    workshop.read(&["cp", "disk.img:/dir/file", "disk.img:/etc/passwd", "into"]);
    workshop.read(&["cp", "-t", "into", "disk.img:/dir/hard"]);
    workshop.read(&["cp", "disk.img:/etc/group", "new"]);
    let read = |name: &str| fs::read_to_string(workshop.path(name)).unwrap();
    assert_eq!(read("new"), "root:x:0:\nstaff:x:0:\n");
    assert_eq!(read("into/file"), "contents\n");
    assert_eq!(read("into/hard"), "contents\n");
    assert!(read("into/passwd").starts_with("root:"));

    workshop.read(&["cp", "-r", "disk.img:/dir", "fresh"]);
    workshop.read(&["cp", "-r", "disk.img:/dir", "into"]);
    workshop.read(&["cp", "-r", "disk.img:/dir/.", "into"]);
    workshop.read(&["cp", "-rT", "disk.img:/etc", "into"]);
    for name in [
        "fresh/file",
        "into/dir/link",
        "into/.hidden",
        "into/sub",
        "into/group",
    ] {
        assert!(workshop.path(name).exists(), "{name}");
    }
}

#[test]
fn an_archive_copy_keeps_links_times_and_holes() {
    let workshop = Workshop::new();
    let ran = workshop.run(&["cp", "-a", "-v", "disk.img:/", "out"]);
    assert_eq!(ran.status, 0);
    assert!(
        ran.err.contains("disk.img:/dir/file -> out/dir/file\n"),
        "{}",
        ran.err
    );
    let of = |name: &str| workshop.path(name).symlink_metadata().unwrap();
    assert_eq!(of("out/dir/file").ino(), of("out/dir/hard").ino());
    assert!(of("out/dir/link").is_symlink());
    assert_eq!(of("out/sparse").mtime(), i64::try_from(MODIFIED).unwrap());
    assert_eq!(of("out/dir").mtime(), i64::try_from(MODIFIED).unwrap());
    assert!(of("out/sparse").blocks() * 512 < of("out/sparse").size());
    fs::remove_dir(workshop.path("out/lost+found")).unwrap();
    let mut diff = Command::new("diff");
    diff.args(["-r", "--no-dereference", "source", "out"])
        .current_dir(workshop.0.path());
    run_tool(&mut diff, "");
}

#[test]
fn files_that_cannot_be_copied_are_reported() {
    let workshop = Workshop::new();
    for (arguments, reason) in [
        (
            &["cp", "disk.img:/dir", "x"][..],
            "disk.img:/dir: is a directory; copy it with -r or -a",
        ),
        (
            &["cp", "disk.img:/none", "x"],
            "disk.img:/none: no such file or directory",
        ),
        (
            &["cp", "disk.img:/dir/file"],
            "no target after 'disk.img:/dir/file'",
        ),
        (
            &["cp", "disk.img:/dir/file", "disk.img:/etc/group", "x"],
            "target 'x' is not a directory",
        ),
        (
            &["cp", "disk.img:/dir/file", "none/x"],
            "none: No such file or directory",
        ),
        (
            &["cp", "source/sparse", "x"],
            "source/sparse: no filesystem and no partition table was recognised",
        ),
    ] {
        let ran = workshop.run(arguments);
        let is_usage = reason.starts_with("no target");
        assert_eq!(ran.status, 1 + i32::from(is_usage), "{arguments:?}");
        assert_eq!(ran.err, format!("platter: {reason}\n"));
    }
}

/// Adds to `disk.img` what a backup with hard links looks like: `one/f` and `three/f` are a file, with `one/g`.
fn add_backups(workshop: &Workshop) {
    let backups = workshop.path("backups");
    for day in ["one", "two", "three"] {
        fs::create_dir_all(backups.join(day)).unwrap();
    }
    fs::write(backups.join("one/f"), "old").unwrap();
    fs::hard_link(backups.join("one/f"), backups.join("one/g")).unwrap();
    fs::hard_link(backups.join("one/f"), backups.join("three/f")).unwrap();
    fs::write(backups.join("two/f"), "changed").unwrap();
    workshop.read(&["cp", "-a", "backups", "disk.img:/"]);
}

#[test]
fn further_names_are_no_links_to_overwritten_copies() {
    let workshop = Workshop::new();
    add_backups(&workshop);
    fs::create_dir(workshop.path("out")).unwrap();
    let [f, other, g] = ["one/f", "two/f", "one/g"].map(|name| format!("disk.img:/backups/{name}"));
    workshop.read(&["cp", "-a", &f, &other, &g, "out"]);
    assert_eq!(workshop.text("out/f"), "changed");
    assert_eq!(workshop.text("out/g"), "old");
    // What was not overwritten is still linked to.
    workshop.read(&["cp", "-a", &other, &f, &g, "out"]);
    let inode = |name: &str| workshop.path(name).metadata().unwrap().ino();
    assert_eq!(inode("out/f"), inode("out/g"));
    assert_eq!(workshop.text("out/g"), "old");

    let days = ["one", "two", "three"].map(|day| format!("disk.img:/backups/{day}/."));
    workshop.read(&["cp", "-a", &days[0], &days[1], &days[2], "out"]);
    assert_eq!(workshop.text("out/f"), "old");
}

#[test]
fn image_is_not_overwritten_by_what_it_holds() {
    let workshop = Workshop::new();
    workshop.read(&["cp", "source/dir/file", "disk.img:/disk.img"]);
    workshop.partition();
    symlink("disk.img", workshop.path("alias")).unwrap();
    let before = ["disk.img", "gpt.img"].map(|name| fs::read(workshop.path(name)).unwrap());
    let refused = "is the image that is read from, and would be overwritten";
    for arguments in [
        &["cp", "disk.img:/dir/file", "disk.img"][..],
        &["cp", "-a", "disk.img:/dir/file", "alias"],
        &["cp", "alias:/disk.img", "."],
        &["cp", "gpt.img@2:/dir/file", "gpt.img"],
        &["tar", "disk.img", "-o", "disk.img"],
        &["tar", "gpt.img@2:/dir", "-o", "gpt.img"],
    ] {
        let ran = workshop.run(arguments);
        assert_ne!(ran.status, 0, "{arguments:?}");
        assert!(ran.err.contains(refused), "{arguments:?}: {}", ran.err);
    }
    let after = ["disk.img", "gpt.img"].map(|name| fs::read(workshop.path(name)).unwrap());
    assert!(before == after);
    assert!(workshop.path("alias").is_symlink());
}

#[test]
fn archive_copy_onto_a_file_keeps_what_it_is() {
    let workshop = Workshop::new();
    workshop.read(&["chmod", "640", "disk.img:/dir/file"]);
    workshop.read(&["chown", "12:34", "disk.img:/dir/file"]);
    workshop.read(&["cp", "disk.img:/etc/passwd", "onto"]);
    let target = workshop.path("onto");
    fs::set_permissions(&target, fs::Permissions::from_mode(0o666)).unwrap();
    run_tool(
        Command::new("setfacl").args(["-m", "u:77:rw"]).arg(&target),
        "",
    );
    let before = target.metadata().unwrap().ino();
    workshop.read(&["cp", "-a", "disk.img:/dir/file", "onto"]);
    let found = target.metadata().unwrap();
    assert_eq!(workshop.text("onto"), "contents\n");
    assert_eq!(found.mode() & 0o7777, 0o640);
    assert_eq!((found.uid(), found.gid()), (12, 34));
    assert_eq!(found.mtime(), i64::try_from(MODIFIED).unwrap());
    assert_eq!(found.ino(), before);
    assert!(!acl(&target).contains("user:77"));

    // What has no contents takes the place of what is there.
    workshop.read(&["cp", "-a", "disk.img:/dir/link", "onto"]);
    assert_eq!(fs::read_link(&target).unwrap(), Path::new("file"));
}

/// The ACLs of a file of the host, as getfacl shows them.
fn acl(path: &Path) -> String {
    let mut getfacl = Command::new("getfacl");
    let output = getfacl.args(["-cnp"]).arg(path).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn modes_are_kept_with_their_acls() {
    let workshop = Workshop::new();
    let [limited, plain] = ["limited", "plain"].map(|name| workshop.path(name));
    let setfacl = |arguments: &[&str], path: &Path| {
        run_tool(Command::new("setfacl").args(arguments).arg(path), "");
    };
    for path in [&limited, &plain] {
        fs::write(path, "secret").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o660)).unwrap();
    }
    setfacl(&["-m", "u:1234:rw,g::-,m::rw"], &limited);
    fs::create_dir(workshop.path("shared")).unwrap();
    setfacl(&["-d", "-m", "g::r,u:4321:r"], &workshop.path("shared"));
    workshop.read(&["cp", "-a", "limited", "plain", "shared", "disk.img:/dir"]);

    workshop.read(&["cp", "-p", "disk.img:/dir/limited", "alone"]);
    assert_eq!(acl(&workshop.path("alone")), acl(&limited));
    // A default ACL of the host's directory grants nothing.
    let into = workshop.path("into");
    fs::create_dir(&into).unwrap();
    setfacl(&["-d", "-m", "u:77:rwx"], &into);
    workshop.read(&["cp", "-rp", "disk.img:/dir", "into"]);
    workshop.read(&["cp", "-p", "disk.img:/dir/plain", "into"]);
    assert_eq!(acl(&into.join("plain")), acl(&plain));
    for name in ["limited", "plain", "shared"] {
        let copy = acl(&into.join("dir").join(name));
        assert_eq!(copy, acl(&workshop.path(name)), "{name}");
    }
}
