//! The command as people and scripts use it: words in, text and exit status out.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod btrfs;
mod check;
mod copy;
mod dedupe;
mod defrag;
mod devices;
mod du;
mod edit;
mod in_use;
mod info;
mod interrupt;
mod json;
mod schema;
mod send;
mod kept;
mod layers;
mod list;
mod mkfs;
mod mount;
mod mounted;
mod owners;
mod pool;
mod readme;
mod receive;
mod resize;
mod same_bytes;
mod stream;
mod subvolumes;
mod unmount;
mod usage;
mod xfs;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use serde_json::Value;
use tempfile::TempDir;

use schema::assert_valid;

/// A directory with images, in which the command runs.
struct Workshop(TempDir);

/// What the command did.
struct Ran {
    status: i32,
    out: String,
    err: String,
}

const UUID: &str = "11111111-2222-4333-8444-555555555555";

/// 2001-02-03 04:05:06 UTC.
const MODIFIED: u64 = 981_173_106;

impl Workshop {
    /// A directory with `disk.img`, an ext4 filesystem with a small tree.
    fn new() -> Self {
        let workshop = Self(tempfile::tempdir().unwrap());
        let source = workshop.path("source");
        fs::create_dir_all(source.join("etc")).unwrap();
        fs::create_dir_all(source.join("dir/sub")).unwrap();
        fs::write(
            source.join("etc/passwd"),
            "root:x:0:0::/:/bin/sh\nuser:x:1000:1000\n",
        )
        .unwrap();
        fs::write(source.join("etc/group"), "root:x:0:\nstaff:x:0:\n").unwrap();
        fs::write(source.join("dir/file"), "contents\n").unwrap();
        fs::write(source.join("dir/.hidden"), "").unwrap();
        fs::write(source.join("dir/esc\x1b[31m"), "red").unwrap();
        symlink("file", source.join("dir/link")).unwrap();
        fs::hard_link(source.join("dir/file"), source.join("dir/hard")).unwrap();
        let sparse = fs::File::create(source.join("sparse")).unwrap();
        sparse.set_len(1 << 20).unwrap();
        sparse.write_all_at(b"end", (1 << 20) - 3).unwrap();
        set_times(&source);
        workshop.mke2fs("disk.img", &source, "8M");
        workshop
    }

    fn mke2fs(&self, name: &str, source: &Path, size: &str) {
        let arguments = ["-q", "-F", "-t", "ext4", "-L", "data", "-U", UUID, "-d"];
        let mut mke2fs = Command::new("mke2fs");
        mke2fs
            .args(arguments)
            .arg(source)
            .arg(self.path(name))
            .arg(size);
        run_tool(&mut mke2fs, "");
    }

    /// Puts `disk.img` into partition 2 of a new `gpt.img`, with swap before it.
    fn partition(&self) {
        let filesystem = fs::read(self.path("disk.img")).unwrap();
        let disk = fs::File::create(self.path("gpt.img")).unwrap();
        disk.set_len(16 << 20).unwrap();
        disk.write_all_at(&filesystem, 4096 * 512).unwrap();
        disk.write_all_at(b"SWAPSPACE2", 2048 * 512 + 4086).unwrap();
        let script = "label: gpt\nstart=2048, size=2048, type=swap\n\
                      start=4096, size=16384, type=linux, name=root\n";
        run_tool(
            Command::new("sfdisk").arg("-q").arg(self.path("gpt.img")),
            script,
        );
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_platter"));
        command
            .args(arguments)
            .current_dir(self.0.path())
            .env("TZ", "UTC");
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(
            &self
                .command(arguments)
                .stdin(Stdio::null())
                .output()
                .unwrap(),
        )
    }

    /// What the command writes when all is well.
    fn read(&self, arguments: &[&str]) -> String {
        let ran = self.run(arguments);
        assert_eq!((ran.status, &*ran.err), (0, ""), "{arguments:?}");
        ran.out
    }

    /// What the command writes as JSON, which is as the schema of `definition` says.
    fn document(&self, definition: &str, arguments: &[&str]) -> Value {
        let ran = self.run(arguments);
        assert_eq!((ran.status, &*ran.err), (0, ""), "{arguments:?}");
        let document = serde_json::from_str(&ran.out).unwrap();
        assert_valid(definition, &document);
        document
    }

    /// The contents of a file that is UTF-8.
    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// The message of a command that refuses what it is asked for.
    fn refused(&self, arguments: &[&str]) -> String {
        let ran = self.run(arguments);
        assert_eq!(ran.status, 1, "{arguments:?}: {}", ran.err);
        ran.err
    }

    /// What the command does, run by an ordinary user.
    fn run_as_user(&self, arguments: &[&str]) -> Ran {
        let program = self.path("platter");
        if !program.exists() {
            copy_program(&program);
        }
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.arg(program).args(arguments);
        command.current_dir(self.0.path()).stdin(Stdio::null());
        Ran::of(&command.output().unwrap())
    }

    /// What the command writes when all is well, run by an ordinary user.
    fn read_as_user(&self, arguments: &[&str]) -> String {
        let ran = self.run_as_user(arguments);
        assert_eq!((ran.status, &*ran.err), (0, ""), "{arguments:?}");
        ran.out
    }
}

impl Ran {
    fn of(output: &Output) -> Self {
        Self {
            status: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Sets the same time on everything below `path`.
fn set_times(path: &Path) {
    if path.is_symlink() {
        return;
    }
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            set_times(&entry.unwrap().path());
        }
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    } else {
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
    }
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(MODIFIED);
    fs::File::open(path).unwrap().set_modified(time).unwrap();
}

fn run_tool(command: &mut Command, input: &str) {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program} is needed for this test: {error}"));
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {stderr}");
}

/// Copies the program to where others may run it. Another process writes the copy: children of this
/// one, which other threads start, would have it open for writing for a moment, and `execve(2)` would fail with ETXTBSY.
fn copy_program(path: &Path) {
    run_tool(
        Command::new("cp")
            .arg(env!("CARGO_BIN_EXE_platter"))
            .arg(path),
        "",
    );
}

/// Overwrites bytes of an image.
fn corrupt(image: &Path, offset: u64, bytes: &[u8]) {
    let file = fs::File::options().write(true).open(image).unwrap();
    file.write_all_at(bytes, offset).unwrap();
}
