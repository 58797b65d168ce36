//! `info`.

use serde_json::Value;

use super::*;

#[test]
fn info_shows_features_and_space_of_a_filesystem() {
    let workshop = Workshop::new();
    let text = workshop.read(&["info", "disk.img"]);
    let field = |name: &str| {
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("{name}:")));
        line.unwrap_or_default()[name.len() + 1..].trim().to_owned()
    };
    assert_eq!(field("Image"), "disk.img (8.0M, 8388608 bytes)");
    assert_eq!(field("Filesystem"), "ext4");
    assert_eq!(field("Label"), "data");
    assert_eq!(field("UUID"), UUID);
    assert!(field("Features").contains("has_journal"));
    assert!(field("Journal").starts_with("clean"));
    assert!(field("Space").contains(" used, "));
}

#[test]
fn info_shows_the_partitions_of_a_disk() {
    let workshop = Workshop::new();
    workshop.partition();
    let text = workshop.read(&["info", "gpt.img"]);
    assert!(
        text.contains("gpt.img@1     1.0M at 1048576      swap"),
        "{text}"
    );
    assert!(
        text.contains("gpt.img@2     8.0M at 2097152      ext4"),
        "{text}"
    );
    assert!(text.contains(", root, label data\n"), "{text}");
    let value: Value =
        serde_json::from_str(&workshop.read(&["info", "--json", "gpt.img"])).unwrap();
    let partitions = &value[0]["partition_table"]["partitions"];
    assert_eq!(partitions[1]["contents"]["type"], "ext4");
    assert_eq!(partitions[1]["contents"]["uuid"], UUID);
    let value: Value =
        serde_json::from_str(&workshop.read(&["info", "--json", "gpt.img@2"])).unwrap();
    assert_eq!(value[0]["filesystem"]["type"], "ext4");
    assert_eq!(value[0]["image"], "gpt.img@2");
}

#[test]
fn what_is_not_served_is_named() {
    let workshop = Workshop::new();
    fs::write(workshop.path("x.qcow2"), b"QFI\xfb\0\0\0\x03").unwrap();
    let text = workshop.read(&["info", "x.qcow2"]);
    assert!(
        text.contains("Contents:              qcow2, not supported\n"),
        "{text}"
    );
    assert!(text.contains("qemu-img convert"), "{text}");
    let ran = workshop.run(&["ls", "x.qcow2"]);
    let reason = "platter: x.qcow2: holds qcow2, which is not supported: make a raw image of it \
                  with: qemu-img convert -O raw IMAGE disk.raw\n";
    assert_eq!((ran.status, &*ran.err), (2, reason));
}

#[test]
fn each_property_is_shown_once() {
    let workshop = Workshop::new();
    let text = workshop.read(&["info", "disk.img"]);
    let mut names: Vec<_> = text
        .lines()
        .filter_map(|line| line.split(':').next())
        .collect();
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count, "{text}");
}
