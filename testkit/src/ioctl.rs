//! Ioctls of files. No crate here wraps those that tests are about, so a child process makes them.

use std::path::Path;

use anyhow::{Result, bail, ensure};

use crate::idmap::UNSHARE;
use crate::tool;

/// The superuser in a user namespace of its own: capabilities count there only.
pub const ROOT_OF_NAMESPACE: u32 = u32::MAX;

/// The descriptor of the file, for arguments that name one.
pub const DESCRIPTOR: i64 = 3;

/// Prints `OK` and the buffer afterwards, or `ERR` and an errno.
const SCRIPT: &str = r#"
use strict;
use Fcntl;
use POSIX ();
my ($path, $unshare, $uid, $number, $hex) = @ARGV;
sysopen(my $file, $path, O_RDONLY) or die "$path: $!";
POSIX::dup2(fileno($file), 3) or die "dup2: $!";
my $buffer = pack("H*", $hex);
if ($uid == 0xffffffff) {
    syscall($unshare + 0, 0x10000000) == 0 or die "unshare: $!";
    open(my $map, ">", "/proc/self/uid_map") or die "uid_map: $!";
    print $map "0 0 1";
    close($map) or die "uid_map: $!";
} elsif ($uid) {
    $> = $uid;
}
if (ioctl($file, $number, $buffer)) {
    print "OK ", unpack("H*", $buffer);
} else {
    printf "ERR %d", $! + 0;
}
"#;

/// Calls an ioctl of the file at `path`, which the superuser opens, as the user `uid` or as
/// [`ROOT_OF_NAMESPACE`]. Returns the buffer as the ioctl left it, or the errno.
pub fn call(path: &Path, uid: u32, number: u32, buffer: &[u8]) -> Result<Result<Vec<u8>, i32>> {
    let hex: Vec<_> = buffer.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut command = tool::command("perl");
    command.args(["-e", SCRIPT]).arg(path);
    let numbers = [UNSHARE, uid, number].map(|number| number.to_string());
    command.args(numbers).arg(hex.concat());
    let finished = tool::finish(&mut command)?;
    ensure!(finished.status.success(), "perl: {}", finished.text());
    let answer = String::from_utf8(finished.stdout)?;
    if let Some(hex) = answer.strip_prefix("OK ") {
        let bytes = hex.as_bytes().chunks_exact(2);
        let bytes = bytes.map(|pair| Ok(u8::from_str_radix(str::from_utf8(pair)?, 16)?));
        return Ok(Ok(bytes.collect::<Result<_>>()?));
    }
    match answer.strip_prefix("ERR ") {
        Some(errno) => Ok(Err(errno.parse()?)),
        None => bail!("perl: {answer}"),
    }
}
