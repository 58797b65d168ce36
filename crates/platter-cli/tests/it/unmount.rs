//! The end of a mount: what is in the image then, and what is reported.
//!
//! Needs the FUSE device and the superuser.

use super::*;

/// A program of the system, run in the workshop in a mount namespace of its own, so that no test
/// run concurrently has a copy of its mounts.
fn alone(workshop: &Workshop, script: &str) -> Ran {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation=private", "sh", "-euc", script])
        .current_dir(workshop.0.path())
        .env("platter", env!("CARGO_BIN_EXE_platter"));
    Ran::of(&command.output().unwrap())
}

#[test]
fn an_image_that_is_copied_right_after_unmounting_is_complete() {
    let workshop = Workshop::new();
    workshop.read(&["mkfs", "ext4", "large.img", "--size", "96M"]);
    let bytes: Vec<u8> = (0..10_000_000).flat_map(u32::to_le_bytes).collect();
    fs::write(workshop.path("big"), bytes).unwrap();
    fs::create_dir(workshop.path("mnt")).unwrap();
    for unmount in ["umount", "fusermount3 -u"] {
        let ran = alone(
            &workshop,
            &format!(
                r#"
                for round in 1 2 3 4 5; do
                    "$platter" mount large.img mnt
                    mkdir mnt/$round
                    cp big mnt/$round/big
                    {unmount} mnt
                    cp --sparse=always large.img copy.img
                    "$platter" cat copy.img:/$round/big | cmp - big
                    "$platter" rm -r large.img:/$round
                done
                "#
            ),
        );
        assert_eq!((ran.status, &*ran.err), (0, ""), "{unmount}: {}", ran.out);
    }
}

#[test]
fn opening_a_mounted_image_does_not_wait() {
    let workshop = Workshop::new();
    let ran = alone(
        &workshop,
        r#"
        mkdir mnt
        "$platter" mount disk.img mnt
        for round in 1 2 3; do timeout 2 dd if=disk.img of=/dev/null count=1 status=none; done
        "$platter" umount mnt
        "#,
    );
    assert_eq!((ran.status, &*ran.err), (0, ""));
}

#[test]
fn umount_of_the_system_waits_where_platter_is_its_helper() {
    let workshop = Workshop::new();
    let ran = alone(
        &workshop,
        r#"
        mkdir mnt sbin
        cp -a /sbin/. sbin
        ln -sf "$platter" sbin/umount.fuse.platter
        mount --bind sbin /sbin
        "$platter" mount disk.img mnt
        echo new > mnt/new
        umount mnt
        # A command that does not wait gets an error while the image is leased.
        "$platter" ls disk.img:/new
        echo again > again
        test ! -e mnt/new
        "#,
    );
    assert_eq!(
        (ran.status, &*ran.err, &*ran.out),
        (0, "", "disk.img:/new\n")
    );
}

#[test]
fn umount_reports_what_could_not_be_written() {
    let workshop = Workshop::new();
    for (pause, helper) in [
        (0, ""),
        (6, ""),
        (0, "-f & while ! mountpoint -q mnt; do sleep 0.05; done"),
    ] {
        let ran = alone(
            &workshop,
            &format!(
                r#"
                mkdir -p mnt full
                mount -t tmpfs -o size=6m none full
                truncate -s 64M full/disk.img
                mke2fs -qF -t ext4 full/disk.img
                "$platter" mount --log log full/disk.img mnt {helper}
                head -c 12M /dev/urandom > mnt/file
                sleep {pause}
                "$platter" umount mnt
                "#
            ),
        );
        assert_eq!(ran.status, 32, "{}", ran.err);
        let full = workshop.path("full/disk.img");
        let message = ran
            .err
            .lines()
            .find(|line| line.starts_with("platter: mnt: "));
        let is_reported = message.is_some_and(|line| line.ends_with("No space left on device"));
        assert!(is_reported, "{}", ran.err);
        let log = fs::read_to_string(workshop.path("log")).unwrap();
        let names_cause = |line: &&str| line.contains("No space left on device");
        assert_eq!(log.lines().filter(names_cause).count(), 1, "{log}");
        assert!(!log.contains(&format!("{0}: {0}", full.display())), "{log}");
        fs::remove_file(workshop.path("log")).unwrap();
    }
}

#[test]
fn a_mount_without_a_server_is_named_and_taken_off() {
    let workshop = Workshop::new();
    let ran = alone(
        &workshop,
        r#"
        mkdir mnt
        "$platter" mount -f disk.img mnt & server=$!
        while ! test -d mnt/dir; do sleep 0.05; done
        kill -9 $server
        wait $server || true
        ! "$platter" mount disk.img mnt
        ! "$platter" ls mnt/x.img
        "$platter" umount mnt/
        "$platter" mount disk.img mnt
        "$platter" umount mnt
        "#,
    );
    let dead = "Transport endpoint is not connected: the server of what is mounted there was killed; \
                unmount it";
    // A request that waited while the connection was torn down is aborted.
    let err = ran.err.replace(
        "Software caused connection abort",
        "Transport endpoint is not connected",
    );
    let lines: Vec<&str> = err
        .lines()
        .filter(|line| line.starts_with("platter"))
        .collect();
    assert_eq!(
        lines,
        [
            &*format!("platter: mnt: {dead}"),
            &*format!("platter: mnt/x.img: {dead}"),
            "platter: mnt/: its server had been killed: what was not synced before is missing",
        ],
        "{}",
        ran.err
    );
    assert_eq!(ran.status, 0);
}
