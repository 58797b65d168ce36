//! Id-mapped mounts: what is made through one belongs to the right users on the disk, and permissions
//! are checked with the mapped ids. The same script prints the same on the kernel's own filesystem.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use platter::{MountOptions, WriteOptions};
use testkit::idmap;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::mke2fs;
use testkit::served;

use crate::images::assert_clean;

/// Each line of output shows the owners on the disk (`$R`) or as mapped (`$M`), or what was refused.
const SCRIPT: &str = r#"
exec 2>&1
umask 022
as() { user=$1; shift; setpriv --reuid $user --regid $user --clear-groups -- "$@"; }
quiet() { "$@" >/dev/null 2>&1; echo "$?: $*" | sed "s,$M,M,g; s,$R,R,g"; }
mkdir $R/five $R/seven
chown 5:5 $R/five; chown 7:7 $R/seven; chmod 700 $R/seven
stat -c '%u:%g %n' $M/five $M/seven | sed "s,$M,M,"
as 100005 sh -c 'echo contents > $M/five/file; mkdir $M/five/dir; ln -s x $M/five/symlink; mkfifo $M/five/fifo'
as 100005 ln $M/five/file $M/five/link
stat -c '%u:%g %A %n' $R/five/* | sed "s,$R,R,"
stat -c '%u:%g %A %n' $M/five/* | sed "s,$M,M,"
quiet as 100005 ls $M/seven
quiet as 100005 touch $M/seven/file
quiet as 100005 sh -c 'echo > $M/seven/file'
quiet as 100007 touch $M/seven/file
quiet as 100007 rm $M/five/file
quiet as 5 touch $M/five/not_mapped
quiet touch $M/five/root_is_not_mapped
quiet as 100005 chown 100009 $M/five/file
chown 100009:100010 $M/five/file
stat -c '%u:%g %n' $R/five/file | sed "s,$R,R,"
quiet chown 9 $M/five/file
# Set-group-id directories hand their group down.
chown 5:8 $R/five; chmod 2755 $R/five
as 100005 touch $M/five/inherits
stat -c '%u:%g %n' $R/five/inherits | sed "s,$R,R,"
# Set-id bits go with what an ordinary user changes, and stay with what the superuser does.
for user in 100005 0; do
    for change in truncated allocated written; do
        file=five/$change.$user
        cp $R/five/inherits $R/$file; chown 5:5 $R/$file; chmod 6777 $R/$file
        case $change in
            truncated) as $user truncate -s 10 $M/$file ;;
            allocated) as $user fallocate -l 10000 $M/$file ;;
            written) as $user sh -c 'echo x >> $M/$0' $file ;;
        esac
    done
done
# The same without a mapping.
(cd $R/five && as 5 touch plain)
stat -c '%u:%g %n' $R/five/plain | sed "s,$R,R,"
"#;

fn printed(root: &Path) -> String {
    let finished = idmap::run(root, SCRIPT).unwrap();
    assert!(finished.status.success(), "{}", finished.text());
    finished.text()
}

/// The names and modes that an image has in the directory of the script.
fn modes(image: &Path) -> Vec<(OsString, u32)> {
    let mount = Mount::image(image, "", Access::ReadOnly).unwrap();
    let entries = fs::read_dir(mount.root().join("five")).unwrap();
    let modes = entries.map(|entry| {
        let entry = entry.unwrap();
        (entry.file_name(), entry.metadata().unwrap().mode())
    });
    let mut modes: Vec<_> = modes.collect();
    modes.sort();
    mount.unmount(image).unwrap();
    modes
}

#[test]
fn id_mapped_mounts_are_as_the_kernels() {
    let dir = tempfile::tempdir().unwrap();
    let (image, mountpoint) = (dir.path().join("image"), dir.path().join("mount"));
    let make = || mke2fs::make(&image, 8 << 10, &["-t", "ext4"], None).unwrap();
    make();
    let mount = Mount::image(&image, "", Access::ReadWrite).unwrap();
    let expected = printed(mount.root());
    mount.unmount(&image).unwrap();
    let expected_modes = modes(&image);
    make();
    let open = MountOptions::new().writing(WriteOptions::default());
    let mut session = served::mount(&image, &open, &mountpoint, "allow_other").unwrap();
    let found = printed(&mountpoint);
    served::unmount(&mut session).unwrap();
    drop(session);
    assert_clean(&image, "written");
    assert_eq!(found, expected);
    assert_eq!(modes(&image), expected_modes);
    // The script does what it says.
    for line in [
        "100005:100005 M/five",
        "5:5 -rw-r--r-- R/five/file",
        "9:10 R/five/file",
    ] {
        assert!(expected.contains(line), "{expected}");
    }
}
