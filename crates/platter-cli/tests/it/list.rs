//! `ls`, `tree` and `stat`.

use serde_json::Value;

use super::*;

#[test]
fn names_are_sorted_one_on_each_line() {
    let workshop = Workshop::new();
    let listed = workshop.read(&["ls", "disk.img"]);
    assert_eq!(listed, "dir\netc\nlost+found\nsparse\n");
    let listed = workshop.read(&["ls", "-a", "disk.img:/dir"]);
    assert_eq!(
        listed,
        ".\n..\n.hidden\nesc\x1b[31m\nfile\nhard\nlink\nsub\n"
    );
    let listed = workshop.read(&["ls", "-A", "-b", "-r", "disk.img:dir/"]);
    assert_eq!(listed, "sub\nlink\nhard\nfile\nesc\\033[31m\n.hidden\n");
    assert_eq!(
        workshop.read(&["ls", "disk.img:/dir/link"]),
        "disk.img:/dir/link\n"
    );
    assert_eq!(
        workshop.read(&["ls", "-d", "disk.img:/dir"]),
        "disk.img:/dir\n"
    );
}

#[test]
fn the_long_form_is_that_of_ls() {
    let workshop = Workshop::new();
    let lines = workshop.read(&["ls", "-l", "disk.img:/dir"]);
    // The owner is the user that ran the test, and the link has the time of the test.
    let words: Vec<Vec<&str>> = lines
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(words[0], ["total", "4"]);
    assert_eq!(words[2][..2], ["-rw-r--r--", "2"]);
    assert_eq!(words[2][4..], ["9", "Feb", "3", "2001", "file"]);
    assert_eq!(words[4][0], "lrwxrwxrwx");
    assert_eq!(words[4][8..], ["link", "->", "file"]);
    assert_eq!(words[5][0], "drwxr-xr-x");
    let full = workshop.read(&["ls", "-n", "--full-time", "disk.img:/etc/passwd"]);
    assert!(
        full.contains(" 2001-02-03 04:05:06.000000000 +0000 disk.img:/etc/passwd"),
        "{full}"
    );
    let human = workshop.read(&["ls", "-lh", "disk.img:/sparse"]);
    assert!(human.contains(" 1.0M "), "{human}");
}

#[test]
fn recursion_has_a_heading_for_each_directory() {
    let workshop = Workshop::new();
    let listed = workshop.read(&["ls", "-R", "disk.img:/dir"]);
    let expected = "disk.img:/dir:\nesc\x1b[31m\nfile\nhard\nlink\nsub\n\ndisk.img:/dir/sub:\n";
    assert_eq!(listed, expected);
    let listed = workshop.read(&["ls", "-R", "disk.img"]);
    assert!(listed.starts_with("disk.img:\ndir\n"), "{listed}");
    assert!(
        listed.contains("\n\ndisk.img:/dir/sub:\n\ndisk.img:/etc:\ngroup\n"),
        "{listed}"
    );
}

#[test]
fn missing_files_are_reported_and_the_rest_is_listed() {
    let workshop = Workshop::new();
    let ran = workshop.run(&["ls", "disk.img:/none\x1b", "disk.img:/etc"]);
    assert_eq!(ran.status, 2);
    assert_eq!(ran.out, "disk.img:/etc:\ngroup\npasswd\n");
    assert_eq!(
        ran.err,
        "platter: disk.img:/none\\033: no such file or directory\n"
    );
}

#[test]
fn json_lists_are_for_programs() {
    let workshop = Workshop::new();
    let text = workshop.read(&["ls", "-R", "--json", "disk.img"]);
    let all: Vec<Value> = serde_json::from_str(&text).unwrap();
    let find = |path: &str| all.iter().find(|object| object["path"] == path).unwrap();
    assert_eq!(find("/dir/link")["target"], "file");
    assert_eq!(find("/dir/file")["links"], 2);
    assert_eq!(find("/dir/file")["inode"], find("/dir/hard")["inode"]);
    assert_eq!(find("/sparse")["modified"]["seconds"], MODIFIED);
    assert_eq!(find("/dir/sub")["type"], "directory");
}

#[test]
fn trees_are_drawn() {
    let workshop = Workshop::new();
    let expected = "disk.img:/dir\n├── esc\x1b[31m\n├── file\n├── hard\n├── link -> file\n\
                    └── sub\n\n1 directory, 4 files\n";
    assert_eq!(workshop.read(&["tree", "disk.img:/dir"]), expected);
    let expected = "disk.img\n├── dir\n├── etc\n└── lost+found\n\n3 directories\n";
    assert_eq!(
        workshop.read(&["tree", "-d", "-L", "1", "disk.img"]),
        expected
    );
}

#[test]
fn stat_shows_all_attributes() {
    let workshop = Workshop::new();
    let text = workshop.read(&["stat", "disk.img:/dir/link", "disk.img:/sparse"]);
    assert!(text.starts_with("  File: /dir/link -> file\n"), "{text}");
    assert!(text.contains("symbolic link\n"), "{text}");
    assert!(
        text.contains("\nAccess: (0644/-rw-r--r--)  Uid: ("),
        "{text}"
    );
    assert!(
        text.contains("\nModify: 2001-02-03 04:05:06.000000000 +0000\n"),
        "{text}"
    );
    let text = workshop.read(&["stat", "-L", "--json", "disk.img:/dir/link"]);
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value[0]["size_bytes"], 9);
    assert_eq!(value[0]["mode"], 0o644);
    assert_eq!(value[0]["image"], "disk.img");
    assert_eq!(workshop.run(&["stat", "disk.img:/none"]).status, 1);
}

#[test]
fn stat_shows_owners_without_a_name_in_the_image_as_numbers() {
    let workshop = Workshop::new();
    let set_owner = "set_inode_field /dir/file uid 7000";
    let mut debugfs = Command::new("debugfs");
    debugfs
        .args(["-w", "-R", set_owner])
        .arg(workshop.path("disk.img"));
    run_tool(&mut debugfs, "");
    let text = workshop.read(&["stat", "disk.img:/dir/file"]);
    assert!(
        text.contains("Uid: (7000)   Gid: (    0/    root)"),
        "{text}"
    );
}
