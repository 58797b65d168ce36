//! The same command makes the same bytes, however much later, in each way that help names.

use super::*;

/// A moment that is not now.
const DATE: &str = "1000000000";

/// Longer than the steps of any time that is stored.
const PAUSE: Duration = Duration::from_millis(1100);

/// Runs a command line, and demands that it succeeds.
fn run(workshop: &Workshop, date: Option<&str>, arguments: &[&str]) {
    let mut command = workshop.command(arguments);
    command.env_remove("SOURCE_DATE_EPOCH");
    command.envs(date.map(|date| ("SOURCE_DATE_EPOCH", date)));
    let ran = Ran::of(&command.output().unwrap());
    assert_eq!((ran.status, &*ran.err), (0, ""), "{arguments:?}");
}

fn bytes(workshop: &Workshop, image: &str) -> Vec<u8> {
    fs::read(workshop.path(image)).unwrap()
}

#[test]
fn mkfs_makes_the_same_bytes_with_a_date_and_with_a_seed() {
    let workshop = Workshop::new();
    let ways: [(Option<&str>, &[&str]); 5] = [
        (Some(DATE), &[]),
        (Some(DATE), &["--seed", "7"]),
        (Some(DATE), &["-U", UUID]),
        (None, &["--seed", "7"]),
        (None, &["--seed", "7", "--from", "source"]),
    ];
    let make = |image: &str| {
        for (way, (date, arguments)) in ways.iter().enumerate() {
            let image = format!("{image}{way}.img");
            let asked = ["mkfs", "ext4", &image, "--size", "8M"];
            run(&workshop, *date, &[&asked[..], arguments].concat());
        }
    };
    make("first");
    std::thread::sleep(PAUSE);
    make("second");
    let read = |name: &str, way: usize| bytes(&workshop, &format!("{name}{way}.img"));
    for (way, named) in ways.iter().enumerate() {
        assert!(read("first", way) == read("second", way), "{named:?}");
    }
    assert!(
        read("first", 0) != read("first", 1),
        "a seed makes a difference"
    );
    assert!(
        read("first", 1) != read("first", 3),
        "a date makes a difference"
    );
}

/// Command lines that change `IMAGE`.
const EDITS: &[&[&str]] = &[
    &["mkdir", "-p", "IMAGE:/new/dir", "IMAGE:/more"],
    &["cp", "-r", "source/dir", "IMAGE:/new"],
    &["cp", "source/sparse", "IMAGE:/new/dir"],
    &["ln", "-s", "elsewhere", "IMAGE:/more/link"],
    &["touch", "IMAGE:/etc/group", "IMAGE:/more/empty"],
    &["xattr", "set", "user.comment", "text", "IMAGE:/etc/passwd"],
    &["truncate", "-s", "100K", "IMAGE:/more/long"],
    &["chmod", "-R", "go-w", "IMAGE:/dir"],
    &["chown", "-R", "5:6", "IMAGE:/dir"],
    &["mv", "IMAGE:/dir", "IMAGE:/new/moved"],
    &["rm", "-r", "IMAGE:/new/dir"],
    &["resize", "IMAGE", "40M"],
];

#[test]
fn edits_make_the_same_bytes_with_a_date() {
    let workshop = Workshop::new();
    for kind in ["ext2", "ext4"] {
        let image = |which: usize| format!("{kind}-{which}.img");
        let seeded = [
            "mkfs",
            kind,
            &image(0),
            "--seed",
            "1",
            "--size",
            "16M",
            "--from",
            "source",
        ];
        run(&workshop, None, &seeded);
        fs::copy(workshop.path(&image(0)), workshop.path(&image(1))).unwrap();
        for which in 0..2 {
            for edit in EDITS {
                let arguments: Vec<String> = edit
                    .iter()
                    .map(|word| word.replace("IMAGE", &image(which)))
                    .collect();
                let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                run(&workshop, Some(DATE), &arguments);
            }
            std::thread::sleep(PAUSE);
        }
        assert!(
            bytes(&workshop, &image(0)) == bytes(&workshop, &image(1)),
            "{kind}"
        );
        let stat = workshop.read(&["stat", "--json", &format!("{}:/more/empty", image(0))]);
        assert!(stat.contains("1000000000"), "{stat}");
    }
}

#[test]
fn date_that_is_no_number_is_refused() {
    let workshop = Workshop::new();
    let mut command = workshop.command(&["rm", "disk.img:/dir/file"]);
    let ran = Ran::of(&command.env("SOURCE_DATE_EPOCH", "today").output().unwrap());
    let expected = "platter: SOURCE_DATE_EPOCH is not a number of seconds\n";
    assert_eq!((ran.status, &*ran.err), (1, expected));
    workshop.read(&["cat", "disk.img:/dir/file"]);
}
