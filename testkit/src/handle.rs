//! File handles, as `name_to_handle_at(2)` and `open_by_handle_at(2)` have them.
//!
//! No crate here wraps these calls, so a child process makes them.

use std::path::Path;

use anyhow::{Result, bail, ensure};

use crate::tool;

/// `AT_HANDLE_CONNECTABLE`: the handle names the parent directory, too.
pub const CONNECTABLE: u32 = 2;

/// The numbers of the two calls.
const CALLS: (u32, u32) = if cfg!(target_arch = "x86_64") {
    (303, 304)
} else {
    (264, 265)
};

/// Prints `OK` and an answer, or `ERR` and an errno.
const SCRIPT: &str = r#"
use strict;
use Fcntl;
my ($op, $call, @rest) = @ARGV;
$| = 1;
sub failed { printf "ERR %d", $! + 0; exit 0 }
if ($op eq "encode") {
    my ($path, $flags) = @rest;
    my $handle = pack("Ii", 128, 0) . ("\0" x 128);
    my $mount = "\0" x 8;
    syscall($call, -100, $path, $handle, $mount, $flags + 0) == 0 or failed();
    my ($bytes) = unpack("I", $handle);
    print "OK ", unpack("H*", substr($handle, 0, 8 + $bytes));
} else {
    my ($root, $hex) = @rest;
    sysopen(my $mount, $root, O_RDONLY) or die "$root: $!";
    my $handle = pack("H*", $hex);
    my $number = syscall($call, fileno($mount), $handle, O_RDONLY);
    failed() if $number < 0;
    open(my $file, "<&=", $number) or die $!;
    my $path = readlink("/proc/self/fd/$number");
    print "OK $path\n";
    if (-d $file) {
        opendir(my $dir, "/proc/self/fd/$number") or failed();
        print join(" ", sort(readdir($dir)));
    } else {
        local $/;
        my $contents = <$file>;
        print $contents;
    }
}
"#;

/// What a handle leads to: the errno, or the path as `/proc` has it and the contents; of a directory,
/// its names.
pub type Opened = Result<(String, String), i32>;

/// A file handle: its length and type, which are 32 bits each, and what the filesystem put in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileHandle(String);

impl FileHandle {
    /// The handle of a file that need not be opened.
    pub fn of(path: &Path, flags: u32) -> Result<Self> {
        let (call, flags) = (CALLS.0.to_string(), flags.to_string());
        let path = path.as_os_str();
        let mut command = tool::command("perl");
        command.args(["-e", SCRIPT, "encode", &call]);
        match run(command.arg(path).arg(flags))? {
            Ok(hex) => Ok(Self(hex)),
            Err(errno) => bail!("name_to_handle_at {}: errno {errno}", path.display()),
        }
    }

    /// A handle as FUSE makes it, of a node id and a generation.
    #[must_use]
    pub fn of_node(node: u64, generation: u32) -> Self {
        let [high, low] = [(node >> 32), node & u64::from(u32::MAX)];
        let words = [12, 0x81, high, low, u64::from(generation)];
        let words = words.map(|word| u32::try_from(word).unwrap_or_default());
        let bytes = words.iter().flat_map(|word| word.to_ne_bytes());
        let digits: Vec<_> = bytes.map(|byte| format!("{byte:02x}")).collect();
        Self(digits.concat())
    }

    /// Opens it on the mount at `root`.
    pub fn open(&self, root: &Path) -> Result<Opened> {
        let mut command = tool::command("perl");
        command.args(["-e", SCRIPT, "open", &CALLS.1.to_string()]);
        let answer = run(command.arg(root).arg(&self.0))?;
        Ok(answer.map(|answer| {
            let (path, contents) = answer.split_once('\n').unwrap_or_default();
            (path.to_owned(), contents.to_owned())
        }))
    }
}

fn run(command: &mut std::process::Command) -> Result<Result<String, i32>> {
    let finished = tool::finish(command)?;
    ensure!(finished.status.success(), "perl: {}", finished.text());
    let answer = String::from_utf8(finished.stdout)?;
    if let Some(answer) = answer.strip_prefix("OK ") {
        return Ok(Ok(answer.to_owned()));
    }
    match answer.strip_prefix("ERR ") {
        Some(errno) => Ok(Err(errno.parse()?)),
        None => bail!("perl: {answer}"),
    }
}
