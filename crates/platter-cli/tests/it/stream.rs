//! `cat` and `tar`.

use super::*;

#[test]
fn cat_goes_on_after_an_error() {
    let workshop = Workshop::new();
    let ran = workshop.run(&[
        "cat",
        "disk.img:/dir/file",
        "disk.img:/none",
        "disk.img:dir/link",
    ]);
    assert_eq!(ran.status, 1);
    assert_eq!(ran.out, "contents\ncontents\n");
    assert_eq!(
        ran.err,
        "platter: disk.img:/none: no such file or directory\n"
    );
    let ran = workshop.run(&["cat", "disk.img:/dir"]);
    assert_eq!(
        (ran.status, &*ran.err),
        (1, "platter: disk.img:/dir: is a directory\n")
    );
}

#[test]
fn a_closed_pipe_ends_the_command_quietly() {
    let workshop = Workshop::new();
    for arguments in [&["cat", "disk.img:/sparse"][..], &["tar", "disk.img"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        // Closed before anything is written: what is short would fit into the pipe.
        drop(reader);
        let child = workshop
            .command(arguments)
            .stdout(writer)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let ran = Ran::of(&child.wait_with_output().unwrap());
        assert_eq!((ran.status, &*ran.err), (141, ""), "{arguments:?}");
    }
}

#[test]
fn an_archive_restores_the_tree() {
    let workshop = Workshop::new();
    workshop.read(&["tar", "-o", "all.tar", "disk.img"]);
    let piped = workshop
        .command(&["tar", "--threads", "1", "disk.img:/"])
        .output()
        .unwrap();
    assert!(piped.stdout == fs::read(workshop.path("all.tar")).unwrap());
    fs::create_dir(workshop.path("out")).unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-xf")
        .arg(workshop.path("all.tar"))
        .arg("-C")
        .arg(workshop.path("out"));
    run_tool(&mut tar, "");
    fs::remove_dir(workshop.path("out/lost+found")).unwrap();
    let mut diff = Command::new("diff");
    diff.args(["-r", "--no-dereference", "source", "out"])
        .current_dir(workshop.0.path());
    run_tool(&mut diff, "");

    workshop.read(&["tar", "-o", "some.tar", "disk.img:/dir", "file", "sub"]);
    let mut list = Command::new("tar");
    let listed = list
        .arg("-tf")
        .arg(workshop.path("some.tar"))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(listed.stdout).unwrap(), "file\nsub/\n");
}

#[test]
fn corruption_is_reported_and_the_archive_is_complete() {
    let workshop = Workshop::new();
    let image = fs::read(workshop.path("disk.img")).unwrap();
    // The directory block of /etc, the only place where its names stand.
    let at = image
        .windows(6)
        .position(|bytes| bytes == b"passwd")
        .unwrap() as u64;
    corrupt(&workshop.path("disk.img"), at / 1024 * 1024 + 4, &[0xff; 2]);
    let ran = workshop.run(&["tar", "-o", "all.tar", "disk.img"]);
    assert_eq!(ran.status, 2);
    assert!(
        ran.err.starts_with("platter: disk.img:./etc/: "),
        "{}",
        ran.err
    );
    assert!(
        ran.err.ends_with(" (some entries left out)\n"),
        "{}",
        ran.err
    );
    let listed = Command::new("tar")
        .arg("-tf")
        .arg(workshop.path("all.tar"))
        .output()
        .unwrap();
    assert!(listed.status.success());
    assert!(
        String::from_utf8(listed.stdout)
            .unwrap()
            .ends_with("./etc/\n./lost+found/\n./sparse\n")
    );
}

#[test]
fn an_output_that_cannot_be_written_is_named() {
    let workshop = Workshop::new();
    for arguments in [
        &["cat", "disk.img:/dir/file"][..],
        &["ls", "disk.img"],
        &["tar", "disk.img"],
    ] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let mut command = workshop.command(arguments);
        let ran = Ran::of(&command.stdout(full).output().unwrap());
        let expected = "platter: standard output: No space left on device\n";
        assert_eq!(ran.err, expected, "{arguments:?}");
        assert_ne!(ran.status, 0, "{arguments:?}");
    }
    let ran = workshop.run(&["tar", "-o", "/dev/full", "disk.img"]);
    let expected = "platter: /dev/full: No space left on device\n";
    assert_eq!((ran.status, &*ran.err), (2, expected));
}

#[test]
fn what_has_no_contents_is_called_by_its_kind() {
    let workshop = Workshop::new();
    let mut debugfs = Command::new("debugfs");
    debugfs
        .args(["-w", "-R", "mknod pipe p"])
        .arg(workshop.path("disk.img"));
    run_tool(&mut debugfs, "");
    for (arguments, reason) in [
        (
            &["cat", "disk.img:/pipe"][..],
            "is a fifo and has no contents",
        ),
        (
            &["cp", "disk.img:/pipe", "x"],
            "is a fifo; copy it with -r or -a",
        ),
    ] {
        let ran = workshop.run(arguments);
        let expected = format!("platter: disk.img:/pipe: {reason}\n");
        assert_eq!((ran.status, ran.err), (1, expected));
    }
}

#[test]
fn a_missing_member_is_reported_by_its_path() {
    let workshop = Workshop::new();
    let ran = workshop.run(&["tar", "disk.img", "none"]);
    let expected = "platter: disk.img:/none: no such file or directory\n";
    assert_eq!((ran.status, &*ran.err), (2, expected));
}

#[test]
fn what_an_image_that_was_truncated_still_holds_can_be_read() {
    let workshop = Workshop::new();
    workshop.partition();
    let cut = |name: &str, length| {
        let file = fs::File::options().write(true).open(workshop.path(name));
        file.unwrap().set_len(length).unwrap();
    };
    cut("disk.img", 3 << 20);
    cut("gpt.img", 5 << 20);
    for image in ["disk.img", "gpt.img@2"] {
        let file = format!("{image}:/dir/file");
        assert_eq!(workshop.read(&["cat", &file]), "contents\n");
        let info = workshop.read(&["info", image]);
        assert!(info.contains("Truncated:             the last 5242880 bytes are missing"));
        let ran = workshop.run(&["check", image]);
        let rule = "bad geometry: block count exceeds size of device";
        let finding = format!("{image}: error: superblock at byte 1024: {rule}\n");
        assert_eq!(ran.status, 4);
        assert!(ran.out.starts_with(&finding), "{}", ran.out);
    }
}
