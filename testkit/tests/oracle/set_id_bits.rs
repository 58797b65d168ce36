//! Set-id bits of files that others than their owners change: by platter as by the kernel's own
//! filesystem, whatever the change is.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use platter::{MountOptions, WriteOptions};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use testkit::loopdev::{Access, Mount};
use testkit::oracle::mke2fs;
use testkit::{served, tool};

use crate::images::assert_clean;

const LAYOUT: &[&str] = &["-t", "ext4", "-b", "4096"];
const IMAGE_KIB: u64 = 32 << 10;

/// Others may write, whatever else is allowed.
const MODES: [u32; 8] = [
    0o6777, 0o6666, 0o4777, 0o4666, 0o2777, 0o2767, 0o6776, 0o7676,
];
/// Commands that take a file as their last word.
const CHANGES: [(&str, &str); 8] = [
    (
        "write",
        "dd if=/dev/zero bs=100 count=1 conv=notrunc status=none of=",
    ),
    (
        "direct",
        "dd if=/dev/zero bs=4096 count=1 conv=notrunc oflag=direct status=none of=",
    ),
    ("truncate", "truncate -s 5 "),
    ("extend", "truncate -s 50000 "),
    ("allocate", "fallocate -l 65536 "),
    ("keep-size", "fallocate -n -o 65536 -l 65536 "),
    ("punch", "fallocate -p -o 0 -l 4096 "),
    ("zero", "fallocate -z -o 0 -l 4096 "),
];
/// User, group, and another group: the superuser, a stranger, the owner, and members of the group.
const USERS: [(u32, u32, u32); 5] = [
    (0, 0, 0),
    (1234, 1234, 5),
    (77, 1234, 5),
    (78, 88, 5),
    (79, 5, 88),
];

/// The modes as the kernel keeps them after the changes, and as `stat` returns them.
fn modes(root: &Path) -> BTreeMap<String, [u32; 2]> {
    let mut modes = BTreeMap::new();
    for (user, group, other) in USERS {
        let mut script = String::new();
        let mut names = Vec::new();
        for mode in MODES {
            for (change, command) in CHANGES {
                let name = format!("{change}.{mode:o}.{user}");
                let path = root.join(&name);
                fs::write(&path, vec![b'x'; 8192]).unwrap();
                std::os::unix::fs::chown(&path, Some(77), Some(88)).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
                assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, mode);
                script.extend([command, &name, "\n"]);
                names.push(name);
            }
        }
        let mut command = tool::command("setpriv");
        command
            .args(["--reuid", &user.to_string(), "--regid", &group.to_string()])
            .args(["--groups", &other.to_string(), "sh", "-euc", &script])
            .current_dir(root);
        tool::succeed(&mut command).unwrap();
        for name in names {
            let path = root.join(&name);
            // Asked for alone, as execve does, it comes out of what the kernel keeps.
            let kept = statx(CWD, &path, AtFlags::empty(), StatxFlags::MODE).unwrap();
            let shown = fs::metadata(&path).unwrap().mode();
            modes.insert(
                name,
                [u32::from(kept.stx_mode), shown].map(|mode| mode & 0o7777),
            );
        }
    }
    modes
}

#[test]
fn set_id_bits_go_as_on_the_kernels_filesystem() {
    let dir = tempfile::tempdir().unwrap();
    let (image, mountpoint) = (dir.path().join("image"), dir.path().join("mount"));
    mke2fs::make(&image, IMAGE_KIB, LAYOUT, None).unwrap();
    let mount = Mount::image(&image, "", Access::ReadWrite).unwrap();
    let expected = modes(mount.root());
    mount.unmount(&image).unwrap();
    assert_eq!(expected["write.6777.1234"], [0o777; 2]);
    assert_eq!(expected["write.6777.0"], [0o6777; 2]);

    mke2fs::make(&image, IMAGE_KIB, LAYOUT, None).unwrap();
    let open = MountOptions::new().writing(WriteOptions::default());
    let mut session = served::mount(&image, &open, &mountpoint, "allow_other").unwrap();
    let found = modes(&mountpoint);
    served::unmount(&mut session).unwrap();
    drop(session);
    assert_clean(&image, "written");
    let octal = |modes: &[u32; 2]| modes.map(|mode| format!("{mode:o}"));
    let wrong: Vec<_> = expected
        .iter()
        .filter(|(name, modes)| found[*name] != **modes)
        .map(|(name, modes)| (name, octal(&found[name]), octal(modes)))
        .collect();
    assert!(wrong.is_empty(), "found and expected: {wrong:#?}");
}
