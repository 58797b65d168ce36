//! `resize`.

use std::os::unix::fs::MetadataExt;

use super::*;

#[test]
fn an_image_grows_with_its_filesystem() {
    let workshop = Workshop::new();
    for kind in ["ext2", "ext4"] {
        let image = format!("{kind}.img");
        workshop.read(&["mkfs", kind, &image, "--size", "16M", "--from", "source"]);
        assert_eq!(workshop.read(&["resize", &image, "100M"]), "");
        let length = fs::metadata(workshop.path(&image)).unwrap().len();
        assert_eq!(length, 100 << 20);
        let checked = workshop.read(&["check", &image]);
        assert!(checked.starts_with(&format!("{image}: clean")), "{checked}");
        let file = format!("{image}:/dir/file");
        assert_eq!(workshop.read(&["cat", &file]), "contents\n");
    }
}

#[test]
fn nothing_is_made_smaller() {
    let workshop = Workshop::new();
    workshop.read(&["mkfs", "ext4", "new.img", "--size", "16M"]);
    let before = fs::read(workshop.path("new.img")).unwrap();
    let ran = workshop.run(&["resize", "new.img", "8M"]);
    assert_eq!(ran.status, 1);
    let expected = "platter: new.img: ext4: making a filesystem smaller is not supported\n";
    assert_eq!(ran.err, expected);
    let ran = workshop.run(&["resize", "new.img"]);
    assert_eq!(ran.status, 0);
    assert!(
        ran.err.contains("is 16777216 bytes long already"),
        "{}",
        ran.err
    );
    assert!(fs::read(workshop.path("new.img")).unwrap() == before);
}

#[test]
fn size_with_a_sign_is_so_much_more() {
    let workshop = Workshop::new();
    workshop.read(&["mkfs", "ext4", "new.img", "--size", "16M"]);
    for expected in [36, 56] {
        workshop.read(&["resize", "new.img", "+20M"]);
        let length = fs::metadata(workshop.path("new.img")).unwrap().len();
        assert_eq!(length, expected << 20);
    }
    let checked = workshop.read(&["check", "new.img"]);
    assert!(checked.starts_with("new.img: clean"), "{checked}");
    for size in ["++20M", "+-1", "+"] {
        assert_ne!(
            workshop.run(&["resize", "new.img", size]).status,
            0,
            "{size}"
        );
    }
}

#[test]
fn copy_that_replaces_an_image_has_its_owner_and_acl() {
    let workshop = Workshop::new();
    let image = workshop.path("disk.img");
    let acl = || {
        let output = Command::new("getfacl").args(["-cnp"]).arg(&image).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let make = ["mkfs", "ext2", "disk.img", "--size", "4M", "--force"];
    for arguments in [&["resize", "disk.img", "8M"][..], &make] {
        workshop.read(&make);
        std::os::unix::fs::chown(&image, Some(12), Some(34)).unwrap();
        fs::set_permissions(&image, fs::Permissions::from_mode(0o600)).unwrap();
        run_tool(
            Command::new("setfacl").args(["-m", "u:77:rw"]).arg(&image),
            "",
        );
        let before = (acl(), image.metadata().unwrap().ino());
        workshop.read(arguments);
        let after = image.metadata().unwrap();
        assert_ne!(after.ino(), before.1, "{arguments:?}");
        assert_eq!((after.uid(), after.gid()), (12, 34), "{arguments:?}");
        assert_eq!(acl(), before.0, "{arguments:?}");
    }
}
