//! Help, wrong words, and what packages are made of.

use super::*;

#[test]
fn help_and_version_are_there() {
    let workshop = Workshop::new();
    assert!(workshop.read(&["--help"]).contains("Usage: platter"));
    assert!(workshop.read(&["--version"]).starts_with("platter "));
    for command in [
        "info", "ls", "tree", "stat", "cat", "cp", "mv", "rm", "mkdir", "ln", "chmod", "chown",
        "xattr", "truncate", "touch", "tar", "mount", "umount", "check", "mkfs",
    ] {
        assert!(
            workshop
                .read(&[command, "--help"])
                .contains("Usage: platter"),
            "{command}"
        );
    }
}

#[test]
fn help_is_about_what_a_command_takes() {
    let workshop = Workshop::new();
    assert!(workshop.read(&["ls", "--help"]).contains("--norecovery"));
    let help = workshop.read(&["umount", "--help"]);
    assert!(
        help.contains("--lazy") && !help.contains("Image options"),
        "{help}"
    );
}

#[test]
fn wrong_words_have_the_status_of_the_standard_tool() {
    let workshop = Workshop::new();
    for (arguments, status) in [
        (&["nonsense"][..], 2),
        (&["ls", "--nonsense"], 2),
        (&["tar"], 2),
        (&["cat"], 1),
        (&["cp"], 1),
        (&["mount"], 1),
        (&["check"], 16),
        (&["mv", "--nonsense"], 1),
        (&["chmod", "755"], 1),
    ] {
        let ran = workshop.run(arguments);
        assert_eq!(ran.status, status, "{arguments:?}");
        assert!(ran.err.contains("Usage"), "{arguments:?}");
    }
}

#[test]
fn pages_and_completions_are_generated() {
    let workshop = Workshop::new();
    workshop.read(&["generate", "man", "man"]);
    let page = fs::read_to_string(workshop.path("man/platter-ls.1")).unwrap();
    assert!(page.contains("IMAGE"), "{page}");
    for command in ["mv", "rm", "chown", "xattr-set"] {
        let name = format!("man/platter-{command}.1");
        assert!(workshop.path(&name).exists(), "{name}");
    }
    for shell in ["bash", "zsh", "fish"] {
        assert!(
            workshop
                .read(&["generate", "completions", shell])
                .contains("truncate")
        );
    }
}

#[test]
fn requests_are_told_when_asked_for() {
    let workshop = Workshop::new();
    let ran = workshop.run(&["--count-requests", "cat", "disk.img:/dir/file"]);
    assert_eq!(ran.out, "contents\n");
    assert!(ran.err.starts_with("platter: disk.img: "), "{}", ran.err);
    assert!(ran.err.contains(" read requests of "), "{}", ran.err);
}

#[test]
fn a_file_in_an_image_is_not_taken_for_the_image() {
    let workshop = Workshop::new();
    fs::create_dir(workshop.path("mnt")).unwrap();
    for (arguments, status) in [
        (&["check", "disk.img:/dir"][..], 8),
        (&["info", "disk.img:/dir"], 1),
        (&["mount", "-f", "disk.img:/dir", "mnt"], 32),
    ] {
        let ran = workshop.run(arguments);
        assert_eq!(ran.status, status, "{arguments:?}");
        let expected = "platter: disk.img:/dir: names a file in an image, \
                        where the image itself is asked for\n";
        assert_eq!(ran.err, expected);
    }
    workshop.read(&["check", "disk.img:/"]);
}
