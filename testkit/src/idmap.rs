//! Id-mapped mounts (`mount_setattr(2)`). No crate here wraps the calls, so a child process makes them.

use std::path::Path;

use anyhow::Result;

use crate::tool::{self, Finished};

/// The user or group that id 0 on the disk is shown as; the next 65535 follow.
pub const FIRST: u32 = 100_000;

/// `unshare(2)`.
pub(crate) const UNSHARE: u32 = if cfg!(target_arch = "x86_64") {
    272
} else {
    97
};

/// Makes a user namespace in a child, clones the mount, maps it, and runs a command with its root in `M`.
const SCRIPT: &str = r#"
use strict;
use Fcntl;
my ($unshare, $first, $root, @command) = @ARGV;
pipe(my $ready, my $says_ready) or die;
pipe(my $end, my $says_end) or die;
my $child = fork();
if ($child == 0) {
    close($says_end);
    syscall($unshare + 0, 0x10000000) == 0 or die "unshare: $!";
    syswrite($says_ready, "x");
    sysread($end, my $byte, 1);
    exit(0);
}
close($says_ready);
sysread($ready, my $byte, 1) == 1 or die "the child failed";
for my $map ("uid_map", "gid_map") {
    open(my $file, ">", "/proc/$child/$map") or die "$map: $!";
    print $file "0 $first 65536";
    close($file) or die "$map: $!";
}
sysopen(my $namespace, "/proc/$child/ns/user", O_RDONLY) or die "namespace: $!";
my $tree = syscall(428, -100, $root, 1);
$tree >= 0 or die "open_tree: $!";
my $attributes = pack("QQQQ", 0x100000, 0, 0, fileno($namespace));
my $empty = "";
syscall(442, $tree, $empty, 0x1000, $attributes, 32) == 0 or die "mount_setattr: $!";
close($says_end);
waitpid($child, 0);
$ENV{M} = "/proc/self/fd/$tree";
exec(@command) or die "exec: $!";
"#;

/// Runs a shell script that finds the mount at `root`, with ids mapped, in `$M`, and as it is in `$R`.
pub fn run(root: &Path, script: &str) -> Result<Finished> {
    let mut command = tool::command("perl");
    command.args(["-e", SCRIPT, &UNSHARE.to_string(), &FIRST.to_string()]);
    command.arg(root).args(["sh", "-c", script]).env("R", root);
    tool::finish(&mut command)
}
