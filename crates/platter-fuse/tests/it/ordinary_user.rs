//! Mounting without privilege, through `fusermount3`.
//!
//! The FUSE device may be for the superuser only, as on a bare machine. Each test therefore runs a
//! script in a mount namespace of its own, where a copy of the device that all users may open lies
//! over it, and drops to an ordinary user there. All that the script leaves goes with the
//! namespace.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use tempfile::TempDir;

use crate::lifecycle::example;
use crate::mounted::RingsOffered;

/// The overflow uid: an unprivileged user on every distribution.
const USER: u32 = 65_534;

/// An account of no user, whose processes are this test's alone.
const LONE_USER: u32 = 5;

fn as_user(script: &str) -> String {
    as_user_of(USER, script)
}

/// Runs `script` as the ordinary user `user` with the server as `$serve` and a directory as `$mount`, and
/// returns what it printed.
fn as_user_of(user: u32, script: &str) -> String {
    let dir = TempDir::with_prefix("platter-fuse-").unwrap();
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let mount = dir.path().join("mount");
    fs::create_dir(&mount).unwrap();
    std::os::unix::fs::chown(&mount, Some(user), Some(user)).unwrap();
    let device = dir.path().join("fuse");
    let mode = Mode::from_raw_mode(0o666);
    mknodat(
        CWD,
        &device,
        FileType::CharacterDevice,
        mode,
        makedev(10, 229),
    )
    .unwrap();
    fs::set_permissions(&device, PermissionsExt::from_mode(0o666)).unwrap();
    // The build directory may be closed to others, so the server is copied out of it.
    let serve = dir.path().join("serve");
    fs::copy(example("memory_mount"), &serve).unwrap();
    let script = format!(
        "set -eu\n\
         mount --bind {device} /dev/fuse\n\
         exec setpriv --reuid={user} --regid={user} --clear-groups \
             timeout 60 sh -euc '\n\
         ready() {{ read -r line < \"$1\"; test \"$line\" = ready; }}\n\
         {script}'",
        device = device.display(),
    );
    let fifo = dir.path().join("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, mode, 0).unwrap();
    fs::set_permissions(&fifo, PermissionsExt::from_mode(0o666)).unwrap();
    let output = Command::new("unshare")
        .args(["--mount", "--propagation=private", "sh", "-c", &script])
        .env("mount", &mount)
        .env("serve", &serve)
        .env("fifo", &fifo)
        .stdin(Stdio::null())
        .output()
        .expect("unshare (package util-linux) is needed");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn an_ordinary_user_mounts_uses_and_unmounts() {
    let printed = as_user(
        r#"
        "$serve" "$mount" > "$fifo" & server=$!
        ready "$fifo"
        grep -o " $mount fuse.platter rw,nosuid,nodev" /proc/self/mounts | cut -d" " -f3-
        echo contents > "$mount/f"
        mkdir "$mount/d"
        cat "$mount/f"
        stat -c "%u %g %F" "$mount/f" "$mount/d"
        ls "$mount"
        fusermount3 -u "$mount"
        wait $server && echo "ended well"
        ls "$mount"
        "#,
    );
    let expected = "fuse.platter rw,nosuid,nodev\ncontents\n65534 65534 regular file\n\
                    65534 65534 directory\nd\nf\nended well\n";
    assert_eq!(printed, expected);
}

#[test]
fn a_signal_unmounts_for_an_ordinary_user() {
    let printed = as_user(
        r#"
        "$serve" "$mount" ro,fsname=image > "$fifo" & server=$!
        ready "$fifo"
        grep -c "^image $mount fuse.platter ro" /proc/self/mounts
        kill -TERM $server
        wait $server && echo "ended well"
        grep -c "$mount" /proc/self/mounts || true
        "#,
    );
    assert_eq!(printed, "1\nended well\n0\n");
}

#[test]
fn a_killed_server_can_be_cleaned_up_by_its_user() {
    let printed = as_user(
        r#"
        "$serve" "$mount" > "$fifo" & server=$!
        ready "$fifo"
        kill -KILL $server
        wait $server || true
        # A ring of a process that is gone ends a little later: until then requests are aborted.
        until stat "$mount/f" 2>&1 | grep -o "Transport endpoint is not connected"; do
            sleep 0.1
        done
        fusermount3 -u "$mount"
        stat -c %F "$mount"
        "#,
    );
    assert_eq!(printed, "Transport endpoint is not connected\ndirectory\n");
}

#[test]
fn permissions_hold_for_an_ordinary_user_unless_switched_off() {
    let printed = as_user(
        r#"
        for options in rw noperm; do
            "$serve" "$mount" $options > "$fifo" & server=$!
            ready "$fifo"
            echo secret > "$mount/f"
            chmod 000 "$mount/f"
            cat "$mount/f" 2>&1 | grep -o "Permission denied\|secret"
            fusermount3 -u "$mount"
            wait $server
        done
        "#,
    );
    assert_eq!(printed, "Permission denied\nsecret\n");
}

#[test]
fn allow_other_is_refused_with_the_helpers_own_words() {
    let printed = as_user(
        r#"
        if "$serve" "$mount" allow_other 2>&1 | grep -o "only allowed if .user_allow_other. is set"
        then :; else grep -q "^user_allow_other" /etc/fuse.conf; fi
        "#,
    );
    assert!(
        printed.is_empty() || printed.contains("user_allow_other"),
        "{printed}"
    );
}

#[test]
fn a_mount_works_with_fewer_threads_than_it_asks_for() {
    // Below 6 of them, there is not even space for what a mount cannot do without.
    let rings = RingsOffered::new();
    let printed = as_user_of(
        LONE_USER,
        r#"
        for processes in 6 7 8 9 10 11 12 100; do
            prlimit --nproc=$processes "$serve" "$mount" > "$fifo" & server=$!
            ready "$fifo"
            echo contents > "$mount/f"
            cat "$mount/f"
            rm "$mount/f"
            fusermount3 -u "$mount"
            wait $server
        done
        "#,
    );
    drop(rings);
    assert_eq!(printed, "contents\n".repeat(8));
}
