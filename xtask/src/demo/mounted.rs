//! The mounts: by an ordinary user where FUSE is there, else skipped with a message. The first only
//! reads; through the second a copy of the image is changed.

use std::path::Path;

use anyhow::Result;

use super::stage::{Stage, verify_with_e2fsck};
use crate::command::{self, command};
use crate::packages;

/// Mounts, compares with the directory through the kernel, and unmounts. Where the device is closed
/// to users, as in many containers, root opens a copy of it in a mount namespace of its own.
const SCRIPT: &str = r#"
set -e
if [ "$(id -u)" = 0 ] && [ "$(stat -L -c %a /dev/fuse)" != 666 ]; then
    mount -t tmpfs -o mode=755 tmpfs "$1/out"
    mknod -m 666 "$1/out/fuse" c 10 229
    mount --bind "$1/out/fuse" /dev/fuse
fi
shift
exec "$@"
"#;

/// What the ordinary user does.
const SCENE: &str = r#"
set -e
cd "$1"
echo "$ platter mount -o ro disk.img mountpoint"
./platter mount -o ro disk.img mountpoint
trap './platter umount --lazy mountpoint' EXIT
grep mountpoint /proc/self/mounts
echo "$ ls -l mountpoint/odd | head -5"
ls -l mountpoint/odd | head -5
diff --recursive --no-dereference --exclude lost+found source mountpoint
echo "diff: the mount is the same as the directory the image was made from"
if touch mountpoint/new 2>/dev/null; then echo "a read-only mount took a file"; exit 1; fi
trap - EXIT
echo "$ platter umount mountpoint"
./platter umount mountpoint
if grep mountpoint /proc/self/mounts; then echo "still mounted"; exit 1; fi
"#;

/// What the ordinary user changes, in files that belong to him.
const CHANGES: &str = r#"
set -e
cd "$1"
cp --sparse=always disk.img changed/disk.img
chmod u+w changed/disk.img
echo "$ platter mount changed/disk.img mountpoint"
./platter mount changed/disk.img mountpoint
trap '"$1/platter" umount --lazy "$1/mountpoint"' EXIT
grep mountpoint /proc/self/mounts
cd mountpoint/open
mkdir project
cp -R ../project/docs ../project/xtask project
diff --recursive project/docs ../project/docs
mv project/docs moved
ln moved/design/*.md project
ln -s ../moved project/link
truncate -s 3M "grown"
printf 'the end' >> grown
for number in $(seq 500); do echo "$number" > "file $number"; done
rm "file "*5
if command -v setfattr > /dev/null; then setfattr -n user.colour -v green moved; fi
sync grown
cd ../..
(cd mountpoint/open && find . | wc -l)
tar -C mountpoint/open -cf changed/disk.tar .
trap - EXIT
echo "$ platter umount mountpoint"
./platter umount mountpoint
echo "$ platter check changed/disk.img"
./platter check changed/disk.img
echo "$ platter cp -a changed/disk.img:/open changed/open"
./platter cp -a changed/disk.img:/open changed/open
mkdir changed/expected
tar -C changed/expected -xf changed/disk.tar
diff --recursive --no-dereference changed/expected changed/open
echo "diff: the image holds what was written through the mount"
"#;

/// Mounts the image for reading only.
pub(super) fn show(stage: &Stage) -> Result<()> {
    play(stage, SCENE)
}

/// Mounts a copy of the image for writing, changes it, and looks at what is in it then.
pub(super) fn change(stage: &Stage) -> Result<()> {
    play(stage, CHANGES)?;
    let changed = stage.path("changed/disk.img");
    verify_with_e2fsck(&changed)
}

fn play(stage: &Stage, script: &str) -> Result<()> {
    let dir = stage.path("");
    let user = stage.as_user(Path::new("sh"));
    let mut scene = command("sh");
    if packages::is_root()? {
        scene = command("unshare");
        scene.args(["--mount", "--propagation", "private", "--", "sh"]);
    }
    scene.args(["-c", SCRIPT, "sh"]).arg(&dir);
    scene.arg(user.get_program()).args(user.get_args());
    scene.args(["-c", script, "sh"]).arg(&dir);
    let output = command::output(&mut scene)?;
    print!("{}", String::from_utf8_lossy(&output));
    Ok(())
}

/// Returns the reason why mounting is impossible on this machine, if it is.
pub(super) fn obstacle() -> Result<Option<&'static str>> {
    let device = Path::new("/dev/fuse");
    if !device.exists() || command::find("fusermount3").is_none() {
        return Ok(Some(
            "there is no FUSE on this machine, that is /dev/fuse and fusermount3 of the package fuse3; \
             nothing else needs it",
        ));
    }
    if packages::is_root()? {
        let mut unshare = command("unshare");
        unshare.args(["--mount", "--propagation", "private", "--", "true"]);
        let may_mount = command::output(&mut unshare).is_ok();
        return Ok((!may_mount).then_some("root may not mount in this container"));
    }
    let opened = std::fs::File::options().read(true).write(true).open(device);
    Ok(opened.is_err().then_some("FUSE is closed to this user"))
}
