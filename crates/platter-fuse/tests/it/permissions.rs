//! Permissions as the kernel checks them on the attributes we return, ACLs included.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::thread;

use platter_fuse::Control;
use platter_vfs::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME};
use platter_vfs::{AclEntry, AclSubject, Context, CreateKind, PosixAcl, SetAttr, Trim, XattrMode};
use rustix::fs::{AtFlags, CWD, Gid, StatxFlags, Uid, XattrFlags, setxattr, statx};
use rustix::io::Errno;
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::mounted::{Mounted, plant, refused, run};

fn acl(entries: &[(AclSubject, u8)]) -> Vec<u8> {
    let entry = |&(subject, permissions)| AclEntry {
        subject,
        permissions,
    };
    PosixAcl::new(entries.iter().map(entry).collect())
        .unwrap()
        .encode()
}

fn text(name: &[u8]) -> &str {
    std::str::from_utf8(name).unwrap()
}

/// What `user` in `groups` may do with `path`, as `rwx`.
fn rights(user: u32, groups: &str, path: &Path) -> String {
    let tests = ["r", "w", "x"].map(|right| {
        let status = Command::new("setpriv")
            .args([
                &format!("--reuid={user}"),
                "--regid=60000",
                &format!("--groups={groups}"),
            ])
            .args(["test", &format!("-{right}")])
            .arg(path)
            .status()
            .expect("setpriv (package util-linux) is needed");
        if status.success() { right } else { "-" }
    });
    tests.concat()
}

/// Makes the path to a mount searchable for all users.
fn open_way(mounted: &Mounted) {
    let way = mounted.root();
    fs::set_permissions(way.parent().unwrap(), PermissionsExt::from_mode(0o755)).unwrap();
}

#[test]
fn other_users_get_in_only_where_allowed() {
    let mounted = Mounted::with("", |fs| drop(plant(fs, "f", b"x")));
    open_way(&mounted);
    assert_eq!(rights(1234, "5", &mounted.path("f")), "---");
    mounted.unmount();
    let mounted = Mounted::with("allow_other", |fs| drop(plant(fs, "f", b"x")));
    open_way(&mounted);
    assert_eq!(rights(1234, "5", &mounted.path("f")), "r--");
    mounted.unmount();
}

/// Does something as an ordinary user: credentials belong to a thread, and this one has no others any more.
fn as_ordinary_user<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    let (user, group) = (Uid::from_raw(1234), Gid::from_raw(1234));
    let act = || {
        set_thread_groups(&[]).unwrap();
        set_thread_res_gid(group, group, group).unwrap();
        set_thread_res_uid(user, user, user).unwrap();
        act()
    };
    thread::scope(|scope| scope.spawn(act).join().unwrap())
}

#[test]
fn commands_of_a_whole_filesystem_are_for_its_administrator() {
    let mounted = Mounted::with("allow_other", |fs| {
        for name in ["one", "two"] {
            let inode = plant(fs, name, &[7; 4096]);
            let set = SetAttr {
                uid: Some(1234),
                gid: Some(1234),
                ..SetAttr::default()
            };
            inode.set_attr(&Context::root(), &set).unwrap();
        }
    });
    open_way(&mounted);
    let ask = || {
        let control = Control::open(&mounted.root()).unwrap();
        let [one, two] = ["one", "two"].map(|name| {
            let mut options = fs::File::options();
            let opened = options.read(true).write(true).open(mounted.path(name));
            opened.unwrap()
        });
        let dedupe = |dry_run| Control::dedupe(&one, &two, &(0..4096), 0, dry_run);
        let trim = Trim {
            start_bytes: 0,
            len_bytes: u64::MAX,
            min_bytes: 0,
        };
        [
            dedupe(true).map(drop),
            dedupe(false).map(drop),
            control.report().map(drop),
            control.set_label(b"label"),
            control.trim(&trim).map(drop),
        ]
    };
    for asked in as_ordinary_user(ask) {
        refused(asked, Errno::PERM);
    }
    // It was the caller, not the filesystem, which only cannot discard.
    let asked = ask().map(|asked| asked.map_err(|error| Errno::from_io_error(&error)));
    assert_eq!(asked[..4], [Ok(()); 4]);
    assert_eq!(asked[4], Err(Some(Errno::OPNOTSUPP)));
    mounted.unmount();
}

#[test]
fn acls_in_the_image_decide() {
    use AclSubject::{Group, Mask, Other, Owner, OwningGroup, User};
    let mounted = Mounted::with("allow_other,ro", |fs| {
        let value = acl(&[
            (Owner, 6),
            (User(1234), 7),
            (OwningGroup, 4),
            (Group(77), 1),
            (Mask, 5),
            (Other, 0),
        ]);
        let inode = plant(fs, "f", b"x");
        let set = SetAttr {
            uid: Some(1000),
            gid: Some(100),
            ..SetAttr::default()
        };
        inode.set_attr(&Context::root(), &set).unwrap();
        inode
            .set_xattr(&Context::root(), ACL_ACCESS_NAME, &value, XattrMode::Set)
            .unwrap();
    });
    open_way(&mounted);
    let path = mounted.path("f");
    assert_eq!(
        rights(1000, "5", &path),
        "r--",
        "the mount itself is read-only"
    );
    assert_eq!(rights(1234, "5", &path), "r-x");
    assert_eq!(rights(2000, "100", &path), "r--");
    assert_eq!(rights(2000, "77", &path), "--x");
    assert_eq!(rights(2000, "5", &path), "---");
    mounted.unmount();
}

#[test]
fn acls_are_set_inherited_and_changed_with_the_mode() {
    use AclSubject::{Mask, Other, Owner, OwningGroup, User};
    let mounted = Mounted::with("allow_other", |fs| {
        fs.plant(b"d", CreateKind::Directory, 0o755).unwrap();
    });
    open_way(&mounted);
    let (dir, file) = (mounted.path("d"), mounted.path("d/f"));
    let default = acl(&[
        (Owner, 7),
        (User(1234), 6),
        (OwningGroup, 5),
        (Mask, 7),
        (Other, 4),
    ]);
    setxattr(&dir, text(ACL_DEFAULT_NAME), &default, XattrFlags::empty()).unwrap();
    run(
        "sh",
        &["-c", &format!("umask 077; echo x > {}", file.display())],
    );
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(
        mode(&file),
        0o664,
        "the default ACL takes the umask's place"
    );
    assert_eq!(rights(1234, "5", &file), "rw-");
    fs::set_permissions(&file, PermissionsExt::from_mode(0o604)).unwrap();
    assert_eq!(
        rights(1234, "5", &file),
        "r--",
        "without a mask the others' bits count"
    );
    fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
    assert_eq!(rights(1234, "5", &file), "r--", "within the mask");
    let own = acl(&[
        (Owner, 6),
        (User(1234), 0),
        (OwningGroup, 4),
        (Mask, 4),
        (Other, 4),
    ]);
    setxattr(&file, text(ACL_ACCESS_NAME), &own, XattrFlags::empty()).unwrap();
    assert_eq!(mode(&file), 0o644);
    assert_eq!(rights(1234, "5", &file), "---");
    assert_eq!(rights(2000, "5", &file), "r--");
    mounted.unmount();
}

#[test]
fn with_owners_shown_as_another_acls_do_not_count() {
    use AclSubject::{Mask, Other, Owner, OwningGroup, User};
    let mounted = Mounted::with("allow_other,uid=1234", |fs| {
        let value = acl(&[
            (Owner, 4),
            (User(2000), 7),
            (OwningGroup, 0),
            (Mask, 7),
            (Other, 0),
        ]);
        let inode = plant(fs, "f", b"x");
        inode
            .set_xattr(&Context::root(), ACL_ACCESS_NAME, &value, XattrMode::Set)
            .unwrap();
    });
    open_way(&mounted);
    assert_eq!(rights(1234, "5", &mounted.path("f")), "r--");
    assert_eq!(rights(2000, "5", &mounted.path("f")), "---");
    mounted.unmount();
}

#[test]
fn programs_changed_by_others_no_longer_run_as_their_owner() {
    let mounted = Mounted::with("allow_other", |_| {});
    open_way(&mounted);
    let (path, shown) = (mounted.path("f"), mounted.path("f").display().to_string());
    let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
    let change = |user: u32, script: &str| {
        fs::write(&path, vec![b'x'; 8192]).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o6777)).unwrap();
        assert_eq!(mode(), 0o6777);
        let reuid = format!("--reuid={user}");
        run(
            "setpriv",
            &[
                &reuid,
                "--clear-groups",
                "sh",
                "-c",
                &script.replace("FILE", &shown),
            ],
        );
        mode()
    };
    for script in [
        "echo x >> FILE",
        "truncate -s 5 FILE",
        ": > FILE",
        "dd if=/dev/zero of=FILE bs=1 count=1 conv=notrunc 2> /dev/null",
        "fallocate -p -o 0 -l 4096 FILE",
    ] {
        assert_eq!(change(1234, script), 0o777, "{script}");
        assert_eq!(change(0, script), 0o6777, "{script}");
    }
    assert_eq!(change(0, "chown 5 FILE"), 0o777);
    assert_eq!(change(0, "chgrp 5 FILE"), 0o777);
    mounted.unmount();
}

#[test]
fn a_program_keeps_its_group_when_a_member_gives_it_an_acl() {
    let mounted = Mounted::with("allow_other", |_| {});
    open_way(&mounted);
    let path = mounted.path("f");
    let mode_after = |groups: &str| {
        let _ = fs::remove_file(&path);
        fs::write(&path, b"x").unwrap();
        std::os::unix::fs::chown(&path, Some(1234), Some(2000)).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o2755)).unwrap();
        let groups = format!("--groups={groups}");
        let shown = path.display().to_string();
        let ids = ["--reuid=1234", "--regid=60000", &groups];
        let what = ["setfacl", "-m", "u:77:rx", &shown];
        run("setpriv", &[&ids[..], &what].concat());
        fs::metadata(&path).unwrap().permissions().mode() & 0o7777
    };
    assert_eq!(mode_after("5,2000"), 0o2755);
    assert_eq!(mode_after("5"), 0o755);
    mounted.unmount();
}

#[test]
fn cached_mode_is_current_after_another_user_writes() {
    let mounted = Mounted::with("allow_other", |_| {});
    open_way(&mounted);
    let (path, shown) = (mounted.path("f"), mounted.path("f").display().to_string());
    for script in [
        "echo x >> FILE",
        "dd if=/dev/zero of=FILE bs=4096 count=1 conv=notrunc oflag=direct 2> /dev/null",
        "fallocate -p -o 0 -l 4096 FILE",
        "truncate -s 5 FILE",
    ] {
        fs::write(&path, vec![b'x'; 8192]).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o6777)).unwrap();
        let script = script.replace("FILE", &shown);
        run(
            "setpriv",
            &["--reuid=1234", "--clear-groups", "sh", "-c", &script],
        );
        // Asked for alone, as execve does, it comes out of what the kernel keeps.
        let kept = statx(CWD, &path, AtFlags::empty(), StatxFlags::MODE).unwrap();
        assert_eq!(kept.stx_mode & 0o7777, 0o777, "{script}");
    }
    mounted.unmount();
}

/// `FS_NOATIME_FL`.
const NOATIME: u32 = 0x80;
/// `FS_IMMUTABLE_FL`.
const IMMUTABLE: u32 = 0x10;

#[test]
fn flags_change_for_owners_only() {
    let mounted = Mounted::with("allow_other", |fs| drop(plant(fs, "f", b"x")));
    open_way(&mounted);
    // `FS_IOC32_SETFLAGS`, which the kernel passes on unchecked from programs of 64 bits.
    let set_flags = |user: u32, flags: u32| {
        let script = r#"open(my $file, "<", $ARGV[0]) or exit 2; my $flags = pack("L", $ARGV[1]);
                        exit(defined(ioctl($file, 0x40046602, $flags)) ? 0 : $!{EPERM} ? 1 : 3)"#;
        let status = Command::new("setpriv")
            .args([
                &format!("--reuid={user}"),
                "--regid=60000",
                "--clear-groups",
            ])
            .args(["perl", "-MErrno", "-e", script])
            .arg(mounted.path("f"))
            .arg(flags.to_string())
            .status();
        status.expect("setpriv and perl are needed").code()
    };
    assert_eq!(set_flags(1234, NOATIME), Some(1));
    assert_eq!(set_flags(1234, IMMUTABLE), Some(1));
    assert_eq!(set_flags(0, NOATIME | IMMUTABLE), Some(0));
    assert_eq!(set_flags(1234, 0), Some(1));
    assert_eq!(set_flags(0, 0), Some(0));
    // An owner without the capability.
    let file = mounted.path("f");
    run("chown", &["1234", file.to_str().unwrap()]);
    assert_eq!(set_flags(1234, NOATIME), Some(0));
    assert_eq!(set_flags(1234, IMMUTABLE), Some(1));
    mounted.unmount();
}
