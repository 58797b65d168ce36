//! `send` of what platter has mounted.
//!
//! Needs the FUSE device and the superuser.

use std::io::Read;
use std::process::{Child, ChildStdout};

use rustix::process::{Pid, Signal, kill_process};

use super::mount::Mounted;
use super::mounted::{SENT, as_user};
use super::*;

/// A snapshot of which more is sent than waits anywhere for a reader.
const LARGE: &str = "
btrfs subvolume create sub
head -c 12000000 /dev/urandom > sub/large
btrfs subvolume snapshot -r sub snap
echo more > sub/more
btrfs subvolume snapshot -r sub later
btrfs subvolume create other
echo apart > other/file
btrfs subvolume snapshot -r other apart
";

/// A stream that waits for its reader.
struct Sending {
    command: Child,
    out: Option<ChildStdout>,
    begun: Vec<u8>,
}

impl Sending {
    /// Begins a stream, and reads a little of it.
    fn begin(workshop: &Workshop, arguments: &[&str]) -> Self {
        let mut command = workshop.command(&[&["send"][..], arguments].concat());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut command = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut out = command.stdout.take().unwrap();
        let mut begun = vec![0; 1000];
        out.read_exact(&mut begun).unwrap();
        Self {
            command,
            out: Some(out),
            begun,
        }
    }

    /// Reads the rest. Returns all of the stream.
    fn finish(mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.begun);
        let mut out = self.out.take().unwrap();
        out.read_to_end(&mut bytes).unwrap();
        assert_eq!(self.end(), (Some(0), String::new()));
        bytes
    }

    /// Waits for the end of the command. Returns its status and its message.
    fn end(&mut self) -> (Option<i32>, String) {
        self.out = None;
        let mut text = String::new();
        let mut err = self.command.stderr.take().unwrap();
        err.read_to_string(&mut text).unwrap();
        (self.command.wait().unwrap().code(), text)
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        let _ = self.command.kill();
        let _ = self.command.wait();
    }
}

/// Waits until a command succeeds.
fn wait_for(workshop: &Workshop, arguments: &[&str]) {
    let mut attempts = 0;
    loop {
        let ran = workshop.run(arguments);
        if ran.status == 0 {
            return;
        }
        attempts += 1;
        assert!(attempts < 300, "{}", ran.err);
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn stream_of_a_mount_is_that_of_its_image() {
    let workshop = Workshop::new();
    let mounted = workshop.mount_btrfs(SENT, "rw,workers=2");
    fs::write(workshop.path("mnt/sub/two"), "three\n").unwrap();
    fs::write(workshop.path("mnt/sub/mapped"), vec![9; 200_000]).unwrap();
    workshop.read(&["subvolume", "snapshot", "-r", "mnt/sub", "mnt/third"]);
    let variants = [
        &["first"][..],
        &["third", "--proto", "2"],
        &["second", "--compressed-data"],
        &["second", "-p", "first"],
        &["third", "-p", "second", "--proto", "2"],
        &["third", "-p", "first", "-c", "second", "--compressed-data"],
        &["second", "-c", "first"],
        &["third", "-p", "second", "--no-data"],
    ];
    let send = |at: &str, number: usize| {
        let mut arguments = vec!["send".to_owned()];
        for word in variants[number] {
            let is_name = ["first", "second", "third"].contains(word);
            let prefix = if is_name { at } else { "" };
            arguments.push(format!("{prefix}{word}"));
        }
        let file = format!("{}-{number}", at.trim_end_matches(['/', ':']));
        arguments.extend(["-f".to_owned(), file.clone()]);
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        assert_eq!(workshop.read(&arguments), "");
        fs::read(workshop.path(&file)).unwrap()
    };
    let of_mount: Vec<_> = (0..variants.len()).map(|it| send("mnt/", it)).collect();
    let piped = workshop.command(&["send", "mnt/first"]).output().unwrap();
    assert!(piped.status.success() && piped.stdout == of_mount[0]);
    workshop.unmount_and_check(mounted);
    for (number, stream) in of_mount.iter().enumerate() {
        assert!(stream.len() > 100, "{:?}", variants[number]);
        assert!(
            *stream == send("pool.img:/", number),
            "{:?}",
            variants[number]
        );
    }

    // Mounted read-only, it is the same.
    workshop.read(&["mount", "-o", "ro", "pool.img", "mnt"]);
    let mounted = Mounted(&workshop);
    assert!(send("mnt/", 4) == of_mount[4]);
    workshop.read(&["umount", "mnt"]);
    drop(mounted);

    // It is received, by btrfs-progs and by platter.
    fs::rename(workshop.path("pool.img"), workshop.path("source.img")).unwrap();
    let streams = workshop.path("mnt-").display().to_string();
    workshop.btrfs(&format!(
        "for number in 0 3 4; do btrfs receive -f {streams}$number .; done"
    ));
    workshop.read(&["tar", "-o", "kernel.tar", "pool.img:/third"]);
    workshop.btrfs("mkdir backup");
    for number in [0, 3, 4] {
        let stream = format!("mnt-{number}");
        workshop.read(&["receive", "pool.img:/backup", "-f", &stream]);
    }
    workshop.read(&["tar", "-o", "ours.tar", "pool.img:/backup/third"]);
    workshop.read(&["tar", "-o", "sent.tar", "source.img:/third"]);
    let read = |name| fs::read(workshop.path(name)).unwrap();
    assert!(read("sent.tar") == read("kernel.tar") && read("sent.tar") == read("ours.tar"));
}

#[test]
fn mounts_refuse_to_send_what_images_refuse() {
    let workshop = Workshop::new();
    workshop.btrfs(SENT);
    let refusals = [
        (&["sub"][..], "sub"),
        (&["first/dir"], "first/dir"),
        (&["first", "-p", "sub"], "sub"),
        (&["second", "-p", "first", "-c", "sub"], "sub"),
        (&["none"], "none"),
    ];
    let refuse = |at: &str| {
        refusals.map(|(words, named)| {
            let path = |word: &str| match word {
                "-p" | "-c" => word.to_owned(),
                word => format!("{at}{word}"),
            };
            let words: Vec<_> = words.iter().map(|word| path(word)).collect();
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            let refused = workshop.refused(&[&["send", "-f", "stream"][..], &words].concat());
            let named = format!("platter: {at}{named}: ");
            let words = refused.strip_prefix(&*named);
            words.unwrap_or_else(|| panic!("{refused}")).to_owned()
        })
    };
    let of_image = refuse("pool.img:/");
    assert!(
        of_image[0].starts_with("is not read-only; "),
        "{}",
        of_image[0]
    );
    let mounted = Mounted::with(&workshop, "rw,allow_other", "pool.img");
    assert_eq!(refuse("mnt/"), of_image);
    for (arguments, status, message) in [
        (
            &["mnt/second", "-p", "source.img:/first"][..],
            2,
            "some in mounts",
        ),
        (
            &["mnt/first", "-f", "pool.img"],
            1,
            "pool.img: is the image ",
        ),
        (&["--offset", "0", "mnt/first"], 2, "--offset"),
    ] {
        let ran = workshop.run(&[&["send"][..], arguments].concat());
        assert_eq!(ran.status, status, "{}", ran.err);
        assert!(ran.err.contains(message), "{}", ran.err);
    }
    let printed = as_user(
        &workshop,
        "echo before > own\n\
         if platter send mnt/first -f own 2>message; then exit 9; fi; cat message own\n",
    );
    assert_eq!(
        printed,
        "platter: mnt/first: operation not permitted\nbefore\n"
    );
    workshop.unmount_and_check(mounted);
    workshop.read(&["mount", "disk.img", "mnt"]);
    let mounted = Mounted(&workshop);
    let refused = workshop.refused(&["send", "mnt", "-f", "stream"]);
    assert_eq!(refused, "platter: mnt: operation not supported\n");
    drop(mounted);
}

#[test]
fn subvolumes_of_two_mounts_are_not_in_one_stream() {
    let workshop = Workshop::new();
    workshop.btrfs(SENT);
    fs::copy(workshop.path("pool.img"), workshop.path("copy.img")).unwrap();
    run_tool(
        Command::new("btrfstune")
            .arg("-fu")
            .arg(workshop.path("copy.img")),
        "",
    );
    let mounted = Mounted::of(&workshop, "pool.img");
    fs::create_dir(workshop.path("other")).unwrap();
    workshop.read(&["mount", "copy.img", "other"]);
    let ran = workshop.run(&["send", "mnt/second", "-p", "other/first", "-f", "stream"]);
    // The image of another mount is not taken for that of this one.
    let locked = workshop.refused(&["send", "mnt/second", "-f", "copy.img"]);
    workshop.read(&["umount", "other"]);
    let message = "platter: other/first: is not in the mount of the subvolume that is sent\n";
    assert_eq!((ran.status, &*ran.err), (2, message));
    let message =
        "copy.img: is locked by another process, and may be the image that is read from\n";
    assert_eq!(locked, format!("platter: {message}"));
    drop(mounted);
}

#[test]
fn mount_is_used_while_a_stream_waits_for_its_reader() {
    let workshop = Workshop::new();
    workshop.btrfs(LARGE);
    workshop.read(&["send", "pool.img:/snap", "-f", "snap"]);
    workshop.read(&[
        "send",
        "pool.img:/later",
        "-p",
        "pool.img:/snap",
        "-f",
        "later",
    ]);
    let mounted = Mounted::with(&workshop, "rw,workers=2", "pool.img");
    let sending = Sending::begin(&workshop, &["mnt/snap", "-c", "mnt/apart"]);
    for path in ["mnt/snap", "mnt/apart"] {
        for action in [&["delete"][..], &["set-read-only", "--off"]] {
            let refused = workshop.refused(&[&["subvolume"][..], action, &[path]].concat());
            let expected = format!("platter: {path}: operation not permitted\n");
            assert_eq!(refused, expected);
        }
    }
    // All of these read or write through the two threads, and commit.
    let second = fs::File::create(workshop.path("second.img")).unwrap();
    second.set_len(400 << 20).unwrap();
    workshop.read(&["resize", "mnt", "400M"]);
    fs::write(workshop.path("mnt/sub/large"), vec![1; 3_000_000]).unwrap();
    workshop.read(&["subvolume", "snapshot", "-r", "mnt/snap", "mnt/copy"]);
    workshop.read(&["subvolume", "delete", "mnt/copy"]);
    workshop.read(&["sync", "mnt"]);
    workshop.read(&["device", "add", "mnt", "second.img"]);
    workshop.read(&["balance", "mnt", "-d=convert=raid1", "-m=convert=raid1"]);
    let single = ["-d=convert=single", "-m=convert=single"];
    workshop.read(&[&["balance", "mnt", "--force"][..], &single].concat());
    workshop.read(&["device", "remove", "mnt", "2"]);
    fs::write(workshop.path("mnt/new"), vec![2; 9_000_000]).unwrap();
    workshop.read(&["sync", "mnt"]);
    workshop.read(&["subvolume", "delete", "mnt/sub"]);
    workshop.read(&["sync", "mnt"]);
    assert!(sending.finish() == fs::read(workshop.path("snap")).unwrap());
    let later = ["send", "mnt/later", "-p", "mnt/snap", "-f", "again"];
    workshop.read(&later);
    let read = |name| fs::read(workshop.path(name)).unwrap();
    assert!(read("again") == read("later"));
    workshop.read(&["subvolume", "delete", "mnt/snap", "mnt/apart"]);
    workshop.unmount_and_check(mounted);
}

#[test]
fn stream_ends_with_its_reader_or_its_mount() {
    let workshop = Workshop::new();
    workshop.btrfs(LARGE);
    let closed = Sending::begin(&workshop, &["pool.img:/snap"]).end();
    assert_eq!(closed, (Some(141), String::new()));
    fs::create_dir(workshop.path("mnt")).unwrap();
    let mut server = Command::new("env");
    server.arg("--default-signal=TERM");
    server.arg(env!("CARGO_BIN_EXE_platter"));
    server.args(["mount", "-f", "pool.img", "mnt"]);
    let mut server = server.current_dir(workshop.path("")).spawn().unwrap();
    let mounted = Mounted(&workshop);
    let root = workshop.path("mnt/sub");
    let mut attempts = 0;
    while !root.is_dir() {
        attempts += 1;
        let ended = server.try_wait().unwrap();
        assert!(attempts < 6000 && ended.is_none(), "{ended:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    let again = ["subvolume", "set-read-only", "--off", "mnt/snap"];
    let back = ["subvolume", "set-read-only", "mnt/snap"];
    // Killed, it cannot end its stream itself.
    let mut sending = Sending::begin(&workshop, &["mnt/snap"]);
    workshop.refused(&again);
    sending.command.kill().unwrap();
    wait_for(&workshop, &again);
    drop(sending);
    workshop.read(&back);
    // Nothing reads from its pipe any more.
    let mut sending = Sending::begin(&workshop, &["mnt/snap"]);
    assert_eq!(sending.end(), closed);
    wait_for(&workshop, &again);
    workshop.read(&back);
    let mut sending = Sending::begin(&workshop, &["mnt/snap"]);
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    server.wait().unwrap();
    // Nothing of the image is in use.
    workshop.read(&["mkdir", "pool.img:/after"]);
    let mut out = sending.out.take().unwrap();
    out.read_to_end(&mut sending.begun).unwrap();
    let (status, message) = sending.end();
    assert_eq!(status, Some(1), "{message}");
    drop(mounted);
}
