//! Images that are in use by another process.
//!
//! Needs the FUSE device and the superuser.

use super::mount::Mounted;
use super::*;

#[test]
fn two_partitions_of_a_disk_are_used_at_once() {
    let workshop = Workshop::new();
    two_partitions(&workshop);
    fs::create_dir(workshop.path("mnt2")).unwrap();
    let first = Mounted::of(&workshop, "two.img@1");
    workshop.read(&["mkdir", "two.img@2:/edited"]);
    workshop.read(&["mount", "two.img@2", "mnt2"]);
    fs::write(workshop.path("mnt/one"), "1").unwrap();
    fs::write(workshop.path("mnt2/two"), "2").unwrap();
    for operand in ["two.img@1:/", "two.img@2:/"] {
        let refused = workshop.run(&["rm", "-r", operand]);
        assert!(
            refused.err.contains("in use by another writer: process "),
            "{}",
            refused.err
        );
    }
    let refused = workshop.run(&["mkfs", "--force", "ext4", "two.img"]);
    assert!(refused.err.contains("in use by"), "{}", refused.err);
    workshop.read(&["umount", "mnt2"]);
    assert!(workshop.read(&["ls", "two.img@2:/"]).contains("edited\n"));
    workshop.read(&["umount", "mnt"]);
    drop(first);
    assert_eq!(
        workshop.read(&["cat", "two.img@1:/one", "two.img@2:/two"]),
        "12"
    );
}

#[test]
fn the_error_of_an_image_in_use_names_process_and_mountpoint() {
    let workshop = Workshop::new();
    let mounted = Mounted::of(&workshop, "disk.img");
    let refused = workshop.run(&["ls", "disk.img:/"]);
    let place = workshop.path("mnt").canonicalize().unwrap();
    let place = format!(" (platter), mounted on {}\n", place.display());
    assert!(
        refused
            .err
            .starts_with("platter: disk.img: in use by another writer: process ")
            && refused.err.ends_with(&place),
        "{}",
        refused.err
    );
    workshop.read(&["umount", "mnt"]);
    drop(mounted);
}

/// A disk with two empty filesystems.
fn two_partitions(workshop: &Workshop) {
    fs::File::create(workshop.path("two.img"))
        .unwrap()
        .set_len(24 << 20)
        .unwrap();
    let script = "label: gpt\nstart=2048, size=20480\nstart=22528, size=20480\n";
    run_tool(
        Command::new("sfdisk")
            .arg("-q")
            .arg(workshop.path("two.img")),
        script,
    );
    for partition in ["two.img@1", "two.img@2"] {
        workshop.read(&["mkfs", "ext4", partition]);
    }
}
