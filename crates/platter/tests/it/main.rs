//! The library on images that mke2fs and sfdisk make.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod check;
mod examples;
mod open;
mod probe;

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use platter::{
    DeviceRole, FormatOptions, Image, ImageSet, ImageSpec, MountOption, MountOptions, Volume,
    WriteOptions,
};
use tempfile::TempDir;

/// A directory for the images of one test.
struct Workshop(TempDir);

impl Workshop {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A file of zeros with `bytes` at an offset.
    fn file(&self, name: &str, len_bytes: u64, contents: &[(u64, &[u8])]) -> PathBuf {
        let path = self.path(name);
        let file = fs::File::create(&path).unwrap();
        file.set_len(len_bytes).unwrap();
        for (offset, bytes) in contents {
            file.write_all_at(bytes, *offset).unwrap();
        }
        path
    }

    /// A filesystem of [`KIND`] and 8 MiB, labelled `data`, with `/dir/file` in it.
    fn filesystem(&self, name: &str) -> PathBuf {
        self.filesystem_of(name, "8M")
    }

    /// The same filesystem in another size.
    fn filesystem_of(&self, name: &str, size: &str) -> PathBuf {
        let source = self.path("source");
        fs::create_dir_all(source.join("dir")).unwrap();
        fs::write(source.join("dir/file"), "contents\n").unwrap();
        let path = self.path(name);
        let arguments = ["-q", "-F", "-t", *KIND, "-L", "data", "-U", UUID, "-d"];
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.args(arguments).arg(&source).arg(&path).arg(size);
        run(&mut mke2fs, "");
        path
    }

    /// A GPT disk with swap in partition 1 and that [filesystem](Self::filesystem) in 2.
    fn disk(&self, name: &str) -> PathBuf {
        let filesystem = fs::read(self.filesystem("part")).unwrap();
        let swap = (PARTITION_1 + 4086, &b"SWAPSPACE2"[..]);
        let contents = [swap, (PARTITION_2, &filesystem[..])];
        let path = self.file(name, 16 << 20, &contents);
        let script = format!(
            "label: gpt\nstart=2048, size=2048, type=swap\n\
             start=4096, size=16384, type=linux, name=root, uuid={PARTUUID}\n"
        );
        run(Command::new("sfdisk").arg("-q").arg(&path), &script);
        path
    }
}

/// The type that the library makes where none is named.
static KIND: LazyLock<&str> = LazyLock::new(|| {
    let image = Image::in_memory(16 << 20);
    FormatOptions::default().format(&image).unwrap();
    let description = MountOptions::new().mount(&image).unwrap().describe();
    description.kind.into_owned().leak()
});
const UUID: &str = "11111111-2222-4333-8444-555555555555";
const PARTUUID: &str = "66666666-7777-4888-9999-AAAAAAAAAAAA";
const PARTITION_1: u64 = 2048 * 512;
const PARTITION_2: u64 = 4096 * 512;

fn run(command: &mut Command, input: &str) {
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
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {message}");
}

fn spec(image: &Path, rest: &str) -> ImageSpec {
    format!("{}{rest}", image.display()).parse().unwrap()
}

fn open(image: &Path, rest: &str) -> platter::Result<Volume> {
    MountOptions::new().open(&spec(image, rest))
}

/// The error without the directory it is in.
fn refusal(workshop: &Workshop, result: platter::Result<Volume>) -> String {
    let dir = format!("{}/", workshop.0.path().display());
    result
        .map(|_| ())
        .unwrap_err()
        .to_string()
        .replace(&dir, "")
}
