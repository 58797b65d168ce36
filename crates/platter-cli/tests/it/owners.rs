//! Owners and devices of the host as fakeroot(1) and user namespaces show them: images filled with
//! them are what `mke2fs -d` makes, and what is copied out shows the same.

use std::collections::BTreeMap;
use std::io::BufRead;

use super::*;

/// An unprivileged user, which can neither make devices nor change the owner of files.
const USER: &str = "65534";

/// Files with owners and modes, and devices. Names are in order.
const FILES: [&str; 7] = ["block", "char", "dir", "dir/fifo", "file", "link", "set-id"];

const MAKE_TREE: &str = "set -eu\n\
    mkdir tree tree/dir\n\
    mknod tree/char c 1 3\n\
    mknod tree/block b 259 300\n\
    mkfifo tree/dir/fifo\n\
    echo contents > tree/file\n\
    echo program > tree/set-id\n\
    ln -s file tree/link\n\
    chown 12:34 tree/char tree/file\n\
    chown 5:6 tree/block tree/dir tree/set-id\n\
    chown 1000:1001 tree/dir/fifo\n\
    chown -h 7:8 tree/link\n\
    chmod 4751 tree/set-id\n\
    chmod 640 tree/block\n\
    chmod 1770 tree/dir\n";

const SHOW: &str = "show() { (cd \"$1\"; stat -c '%n %F %a %u %g %t:%T' \
    block char dir dir/fifo file link set-id); }\n";

/// A workshop in which an ordinary user may run the program as `./platter`.
fn open_workshop() -> Workshop {
    let workshop = Workshop(tempfile::tempdir().unwrap());
    fs::set_permissions(workshop.path(""), PermissionsExt::from_mode(0o777)).unwrap();
    // The build directory may be closed to others.
    copy_program(&workshop.path("platter"));
    workshop
}

/// Runs a script as the ordinary user under fakeroot, and returns what it prints.
fn under_fakeroot(workshop: &Workshop, script: &str) -> String {
    let mut command = Command::new("setpriv");
    command
        .args([&*format!("--reuid={USER}"), &format!("--regid={USER}")])
        .args(["--clear-groups", "fakeroot", "sh", "-c", script])
        .current_dir(workshop.path(""))
        .stdin(Stdio::null());
    let ran = Ran::of(&command.output().expect("setpriv is needed"));
    assert_eq!((ran.status, &*ran.err), (0, ""), "{}", ran.out);
    ran.out
}

/// What e2fsprogs says of the kind, the owner and the device of each file of an image.
fn described(workshop: &Workshop, image: &str) -> BTreeMap<&'static str, Vec<String>> {
    let describe = |file: &'static str| {
        let output = Command::new("debugfs")
            .args(["-R", &format!("stat /{file}")])
            .arg(workshop.path(image))
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let words = text.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
        let field = |name: &str, count: usize| {
            let rest = words.split_once(name).map(|(_, rest)| rest);
            let rest = rest.into_iter().flat_map(|rest| rest.split(' '));
            let rest = rest.filter(|word| !word.is_empty());
            rest.take(count).collect::<Vec<_>>().join(" ")
        };
        let facts = [
            field("Type:", 2),
            field("Mode:", 1),
            field("User:", 1),
            field("Group:", 1),
            field("Device major/minor number:", 1),
            field("Size:", 1),
        ];
        (file, facts.to_vec())
    };
    FILES.into_iter().map(describe).collect()
}

#[test]
fn mkfs_under_fakeroot_stores_owners_and_devices_like_mke2fs() {
    let workshop = open_workshop();
    let script = format!(
        "{MAKE_TREE}\
         mke2fs -q -t ext4 -d tree theirs.img 8M >/dev/null\n\
         ./platter mkfs ext4 ours.img --size 8M --from tree\n\
         ./platter mkfs ext4 copied.img --size 8M\n\
         ./platter cp -a tree/. copied.img:/\n"
    );
    under_fakeroot(&workshop, &script);
    let theirs = described(&workshop, "theirs.img");
    let of = |file: &str| theirs[file].iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(of("set-id"), ["regular Mode:", "04751", "5", "6", "", "8"]);
    assert_eq!(of("block")[..4], ["block special", "0640", "5", "6"]);
    assert_eq!(described(&workshop, "ours.img"), theirs);
    assert_eq!(described(&workshop, "copied.img"), theirs);
}

#[test]
fn what_is_copied_out_under_fakeroot_is_as_it_was() {
    let workshop = open_workshop();
    let script = format!(
        "{MAKE_TREE}{SHOW}\
         ./platter mkfs ext4 new.img --size 8M --from tree\n\
         ./platter cp -a new.img:/ out\n\
         show tree > before\n\
         show out > after\n\
         diff before after\n\
         cat after\n"
    );
    let shown = under_fakeroot(&workshop, &script);
    assert!(
        shown.contains("char character special file 644 12 34 1:3\n"),
        "{shown}"
    );
    assert!(
        shown.contains("set-id regular file 4751 5 6 0:0\n"),
        "{shown}"
    );
}

#[test]
fn owners_in_a_user_namespace_are_those_that_mke2fs_stores() {
    let workshop = open_workshop();
    let tree = workshop.path("tree");
    fs::create_dir(&tree).unwrap();
    for (name, id) in [("first", 100_000), ("later", 100_007), ("unmapped", 7)] {
        fs::write(tree.join(name), name).unwrap();
        std::os::unix::fs::chown(tree.join(name), Some(id), Some(id + 1)).unwrap();
    }
    let script = "echo ready && read -r go && set -e\n\
        mke2fs -q -t ext4 -d tree theirs.img 8M >/dev/null\n\
        ./platter mkfs ext4 ours.img --size 8M --from tree\n\
        ./platter cp -a ours.img:/ out\n\
        stat -c '%n %u %g' out/first out/later";
    let mut child = Command::new("unshare")
        .args(["--user", "sh", "-c", script])
        .current_dir(workshop.path(""))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare is needed");
    let mut printed = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    printed.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    for map in ["uid_map", "gid_map"] {
        let path = format!("/proc/{}/{map}", child.id());
        // The superuser of the namespace is that of the host, which may write where the test does.
        fs::write(path, "0 0 1\n1 100000 65536\n").unwrap();
    }
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let mut shown = String::new();
    std::io::Read::read_to_string(&mut printed, &mut shown).unwrap();
    assert!(child.wait().unwrap().success(), "{shown}");
    assert_eq!(shown, "out/first 1 2\nout/later 8 9\n");
    for file in ["first", "later", "unmapped"] {
        let owner = |image: &str| {
            let listed = workshop.read(&["stat", "--json", &format!("{image}:/{file}")]);
            let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
            (listed[0]["uid"].clone(), listed[0]["gid"].clone())
        };
        assert_eq!(owner("ours.img"), owner("theirs.img"), "{file}");
    }
}
