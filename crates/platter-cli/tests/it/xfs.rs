//! An XFS with an external log, one with a realtime device, and one that needs repair, and what is said of them.

use serde_json::Value;

use super::readme;
use super::schema::assert_valid;
use super::*;

#[test]
fn xfs_with_an_external_log_is_read_by_a_user() {
    let workshop = Workshop::new();
    workshop.xfs();
    let log = ["--logdev", "pool.log"];
    let read = |arguments: &[&str]| workshop.read_as_user(&[arguments, &log].concat());
    assert_eq!(read(&["ls", "pool.img:/etc"]), "mtab\npasswd\n");
    let passwd = fs::read_to_string(workshop.path("source/etc/passwd")).unwrap();
    for path in ["pool.img:/etc/passwd", "pool.img:/etc/mtab"] {
        assert_eq!(read(&["cat", path]), passwd);
    }
    let long = read(&["ls", "-l", "pool.img:/etc/passwd"]);
    let size = format!(" {} ", passwd.len());
    assert!(
        long.starts_with("-rw-r--r--") && long.contains(&size),
        "{long}"
    );

    let archive = workshop.path("pool.tar");
    let tar = workshop.run_as_user(&["tar", "pool.img", log[0], log[1]]);
    assert_eq!((tar.status, &*tar.err), (0, ""));
    fs::write(&archive, tar.out).unwrap();
    let unpacked = workshop.path("unpacked");
    fs::create_dir(&unpacked).unwrap();
    let mut unpack = Command::new("tar");
    unpack.arg("-C").arg(&unpacked).arg("-xf").arg(&archive);
    run_tool(&mut unpack, "");
    assert_eq!(
        fs::read_to_string(unpacked.join("etc/mtab")).unwrap(),
        passwd
    );
}

/// What a mount by an ordinary user with these options, read-only, has of `pool.img`.
fn assert_mounted_by_user(workshop: &Workshop, option: &str, passwd: &str) {
    fs::create_dir_all(workshop.path("work/disk")).unwrap();
    let mount = format!("platter mount -o ro,{option} ../pool.img disk");
    let lines = [
        &*mount,
        "ls disk/etc",
        "cat disk/etc/passwd",
        "touch disk/new 2>&1 || :",
        "platter umount disk",
    ];
    let printed = readme::run_as_user(workshop, "work", &lines);
    assert_eq!(printed[..3], ["", "mtab\npasswd\n", passwd]);
    assert!(printed[3].contains("Read-only file system"), "{printed:?}");
}

#[test]
fn xfs_with_an_external_log_is_mounted_by_a_user() {
    let workshop = Workshop::new();
    workshop.xfs();
    let passwd = fs::read_to_string(workshop.path("source/etc/passwd")).unwrap();
    assert_mounted_by_user(&workshop, "logdev=../pool.log", &passwd);
}

#[test]
fn xfs_with_a_realtime_device_is_read_by_a_user() {
    let workshop = Workshop::new();
    let options = ["-m", "reflink=0,rmapbt=0", "-r", "rtdev=pool.rt"];
    workshop.make_xfs("pool.rt", 64, &options);
    let passwd = workshop.move_to_realtime("pool.rt");
    let device = ["--rtdev", "pool.rt"];
    let read = |arguments: &[&str]| workshop.read_as_user(&[arguments, &device].concat());
    assert_eq!(read(&["ls", "pool.img:/etc"]), "mtab\npasswd\n");
    assert_eq!(read(&["cat", "pool.img:/etc/mtab"]), passwd);
    // Without it, all but realtime files is there.
    let list = ["ls", "pool.img:/etc"];
    assert_eq!(workshop.read_as_user(&list), "mtab\npasswd\n");
    let ran = workshop.run_as_user(&["cat", "pool.img:/etc/passwd"]);
    assert_eq!((ran.status, &*ran.out), (1, ""), "{}", ran.err);
    let reason = "the realtime device was not named";
    assert!(ran.err.contains(reason), "{}", ran.err);
    assert_mounted_by_user(&workshop, "rtdev=../pool.rt", &passwd);
}

#[test]
fn xfs_that_needs_repair_is_refused_for_writing_only() {
    let workshop = Workshop::new();
    workshop.make_xfs("pool.log", 0, &[]);
    workshop.set_needs_repair();
    assert_eq!(
        workshop.read_as_user(&["ls", "pool.img:/etc"]),
        "mtab\npasswd\n"
    );
    let checked = workshop.run_as_user(&["check", "pool.img"]);
    let found = "needs repair (needsrepair is set)";
    assert!(
        checked.status == 4 && checked.out.contains(found),
        "{}",
        checked.out
    );
    let before = fs::read(workshop.path("pool.img")).unwrap();
    fs::create_dir(workshop.path("mnt")).unwrap();
    for (arguments, status) in [
        (&["touch", "pool.img:/new"][..], 1),
        (&["mount", "pool.img", "mnt"], 32),
    ] {
        let ran = workshop.run(arguments);
        let reason = "writing needsrepair is not supported (only reading is)";
        assert_eq!((ran.status, &*ran.out), (status, ""), "{arguments:?}");
        assert!(ran.err.contains(reason), "{}", ran.err);
    }
    assert!(before == fs::read(workshop.path("pool.img")).unwrap());
}

#[test]
fn xfs_without_its_log_is_refused_by_name() {
    let workshop = Workshop::new();
    workshop.xfs();
    for (arguments, status) in [
        (["ls", "pool.img"], 2),
        (["cat", "pool.img:/etc/passwd"], 1),
        (["tar", "pool.img"], 2),
    ] {
        let ran = workshop.run_as_user(&arguments);
        assert_eq!((ran.status, &*ran.out), (status, ""), "{arguments:?}");
        assert!(ran.err.contains("name it with logdev="), "{}", ran.err);
    }
    let len = || fs::metadata(workshop.path("pool.img")).unwrap().len();
    let before = len();
    let refused = workshop.complaint(&["resize", "pool.img", "600M"]);
    let expected = "pool.img: xfs: resizing an image with an external log is not supported (mount it, \
                    and resize the mount)";
    assert_eq!(refused, expected);
    assert_eq!(len(), before);
    let ran = workshop.run(&["ls", "pool.img", "--logdev", "none.log"]);
    assert!(
        ran.status == 2 && ran.err.contains("none.log"),
        "{}",
        ran.err
    );
}

#[test]
fn info_shows_the_shape_of_an_xfs() {
    let workshop = Workshop::new();
    workshop.xfs();
    let arguments = ["info", "pool.img", "--logdev", "pool.log"];
    let text = workshop.read_as_user(&arguments);
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name}: {text}"))
            .trim()
            .to_owned()
    };
    assert_eq!(field("Filesystem:"), "xfs");
    assert_eq!((&*field("Label:"), &*field("UUID:")), ("data", UUID));
    assert_eq!(
        field("Log:"),
        format!("clean, external, version 2, {} bytes", 64 << 20)
    );
    let features = field("Features:");
    for feature in ["crc", "finobt", "reflink", "ftype"] {
        assert!(features.split(' ').any(|it| it == feature), "{features}");
    }
    // As `xfs_db` prints them.
    let mut xfs_db = Command::new("xfs_db");
    let print = "print dblocks blocksize agcount agblocks inodesize fdblocks icount rootino";
    let paths = ["pool.log", "pool.img"].map(|name| workshop.path(name));
    xfs_db.args(["-c", "sb 0", "-c", print, "-l"]).args(paths);
    let printed = String::from_utf8(xfs_db.output().unwrap().stdout).unwrap();
    for (name, theirs) in [
        ("Blocks:", "dblocks"),
        ("Block size:", "blocksize"),
        ("Allocation groups:", "agcount"),
        ("Blocks per group:", "agblocks"),
        ("Inode size:", "inodesize"),
        ("Free blocks:", "fdblocks"),
        ("Inodes:", "icount"),
        ("Root inode:", "rootino"),
    ] {
        let line = format!("{theirs} = {}\n", field(name));
        assert!(printed.contains(&line), "{line}: {printed}");
    }
    let json = workshop.read_as_user(&[&arguments[..], &["--json"]].concat());
    let document: Value = serde_json::from_str(&json).unwrap();
    assert_valid("info", &document);
    assert_eq!(document[0]["filesystem"]["type"], "xfs");
}

#[test]
fn corrupt_xfs_is_reported_by_check() {
    let workshop = Workshop::new();
    workshop.xfs();
    let arguments = ["check", "pool.img", "--logdev", "pool.log"];
    let text = workshop.read_as_user(&arguments);
    assert!(
        text.starts_with("pool.img: clean; checked 4 allocation groups, "),
        "{text}"
    );
    // The count of free blocks in the header of group 1.
    let mut xfs_db = Command::new("xfs_db");
    xfs_db.args(["-x", "-c", "agf 1", "-c", "write -d freeblks 3", "-l"]);
    let paths = ["pool.log", "pool.img"].map(|name| workshop.path(name));
    run_tool(xfs_db.args(paths), "");
    let ran = workshop.run_as_user(&arguments);
    assert_eq!(ran.status, 4, "{}", ran.err);
    assert!(
        ran.out.contains("pool.img: error: AGF at group 1"),
        "{}",
        ran.out
    );
    assert!(ran.out.contains("pool.img: not clean, "), "{}", ran.out);
    let ran = workshop.run_as_user(&[&arguments[..], &["--json"]].concat());
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_valid("check", &report);
    assert_eq!(report["findings"][0]["place"]["group"], 1);
    assert_eq!(report["summary"]["exit_status"], 4);
}
