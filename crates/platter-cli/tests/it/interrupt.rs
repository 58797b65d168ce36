//! Signals that end commands: nothing half done is left, and the status is that of the signal.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};

use rustix::process::{Pid, Signal, kill_process};

use super::*;

/// More files than whose names a pipe takes.
const FILES: usize = 3000;

/// A command that is running.
struct Running(Child);

impl Running {
    /// Starts a command that does not ignore the signals, even if this process does.
    fn start(workshop: &Workshop, arguments: &[&str]) -> Self {
        let mut command = Command::new("env");
        command
            .arg("--default-signal=HUP,INT,TERM")
            .arg(env!("CARGO_BIN_EXE_platter"))
            .args(arguments)
            .current_dir(workshop.0.path())
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Waits until it reports a first file, and so until it waits for the others to be read.
    fn first_line(&mut self) -> BufReader<impl Read + use<>> {
        let mut err = BufReader::new(self.0.stderr.take().unwrap());
        err.read_line(&mut String::new()).unwrap();
        err
    }

    fn end(mut self, mut err: impl Read) -> (ExitStatus, String) {
        let mut text = String::new();
        err.read_to_string(&mut text).unwrap();
        (self.0.wait().unwrap(), text)
    }
}

fn many_files(workshop: &Workshop) {
    let tree = workshop.path("tree");
    fs::create_dir(&tree).unwrap();
    for number in 0..FILES {
        let contents = number.to_le_bytes().repeat(5 << 10);
        fs::write(tree.join(format!("{number:0>60}")), contents).unwrap();
    }
}

fn names(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

fn assert_cancelled(ended: &(ExitStatus, String), signal: Signal) {
    assert_eq!(ended.0.signal(), Some(signal.as_raw()), "{ended:?}");
    assert!(ended.1.ends_with("operation canceled\n"), "{}", ended.1);
}

#[test]
fn interrupted_mkfs_leaves_no_draft() {
    let workshop = Workshop::new();
    many_files(&workshop);
    fs::create_dir(workshop.path("dir")).unwrap();
    fs::write(workshop.path("dir/old.img"), "old").unwrap();
    let make = ["mkfs", "ext4", "--force", "--from", "tree", "--minimize"];
    for (image, signal, left) in [
        ("dir/old.img", Signal::INT, 1),
        ("dir/new.img", Signal::TERM, 1),
        ("dir/old.img", Signal::HUP, 1),
    ] {
        let mut running = Running::start(&workshop, &[&make[..], &[image]].concat());
        while names(&workshop.path("dir")).len() == left {
            assert!(running.0.try_wait().unwrap().is_none(), "it ended");
        }
        running.signal(signal);
        let err = running.0.stderr.take().unwrap();
        assert_cancelled(&running.end(err), signal);
        assert_eq!(names(&workshop.path("dir")), ["old.img"]);
        assert_eq!(workshop.text("dir/old.img"), "old");
    }
}

#[test]
fn interrupted_edit_changes_nothing() {
    let workshop = Workshop::new();
    many_files(&workshop);
    workshop.read(&["mkfs", "ext4", "empty.img", "--size", "200M"]);
    let before = fs::read(workshop.path("empty.img")).unwrap();
    let copy = ["cp", "-rv", "tree", "empty.img:/"];
    let mut running = Running::start(&workshop, &copy);
    let err = running.first_line();
    running.signal(Signal::INT);
    assert_cancelled(&running.end(err), Signal::INT);

    // What waits for a stream, and for one that comes.
    run_tool(Command::new("mkfifo").arg(workshop.path("fifo")), "");
    for is_open in [false, true] {
        let mut running = Running::start(&workshop, &["cp", "fifo", "empty.img:/x"]);
        let fifo = workshop.path("fifo");
        let writer = is_open.then(|| fs::File::options().write(true).open(fifo).unwrap());
        // It catches the signal before it opens the image.
        while !holds(&running, "empty.img") {
            assert!(running.0.try_wait().unwrap().is_none(), "it ended");
        }
        running.signal(Signal::TERM);
        let err = running.0.stderr.take().unwrap();
        assert_cancelled(&running.end(err), Signal::TERM);
        drop(writer);
    }
    assert!(fs::read(workshop.path("empty.img")).unwrap() == before);
}

/// Whether a process has a file open.
fn holds(running: &Running, name: &str) -> bool {
    let Ok(open) = fs::read_dir(format!("/proc/{}/fd", running.0.id())) else {
        return false;
    };
    let mut open = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    open.any(|path| path.ends_with(name))
}

#[test]
fn interrupted_copy_leaves_whole_files() {
    let workshop = Workshop::new();
    many_files(&workshop);
    workshop.read(&["mkfs", "ext4", "full.img", "--from", "tree"]);
    let mut running = Running::start(&workshop, &["cp", "-rv", "full.img:/", "out"]);
    let err = running.first_line();
    running.signal(Signal::INT);
    assert_cancelled(&running.end(err), Signal::INT);
    let copied = names(&workshop.path("out"));
    assert!(copied.len() < FILES, "all were copied");
    for name in copied.iter().filter(|name| *name != "lost+found") {
        let [out, tree] = ["out", "tree"].map(|dir| workshop.path(dir).join(name));
        assert!(fs::read(out).unwrap() == fs::read(tree).unwrap(), "{name}");
    }
}

#[test]
fn ignored_signal_stays_ignored() {
    let workshop = Workshop::new();
    let fifo = workshop.path("fifo");
    run_tool(Command::new("mkfifo").arg(&fifo), "");
    let mut command = Command::new("env");
    command
        .args(["--ignore-signal=HUP", env!("CARGO_BIN_EXE_platter")])
        .args(["cp", "fifo", "disk.img:/new"])
        .current_dir(workshop.0.path())
        .stderr(Stdio::piped());
    let mut running = Running(command.spawn().unwrap());
    // That waits until the command has opened it.
    let mut writer = fs::File::options().write(true).open(fifo).unwrap();
    running.signal(Signal::HUP);
    writer.write_all(b"text").unwrap();
    drop(writer);
    let err = running.0.stderr.take().unwrap();
    let (status, text) = running.end(err);
    assert_eq!((status.code(), &*text), (Some(0), ""));
    assert_eq!(workshop.read(&["cat", "disk.img:/new"]), "text");
}
