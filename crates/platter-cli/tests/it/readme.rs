//! The command lines of README, run word by word by an ordinary user.
//!
//! The FUSE device may be for the superuser only, so the lines run in a mount namespace where a
//! device that all users may open is mounted over it.

use std::fmt::Write as _;

use super::*;

/// The overflow uid, which is an unprivileged user on every distribution.
const USER: &str = "65534";

/// A command line of README, and what it says is printed.
struct Line {
    command: String,
    expected: String,
}

/// The lines alone.
fn commands(lines: &[Line]) -> Vec<&str> {
    lines.iter().map(|line| &*line.command).collect()
}

/// The console lines below a heading of README.
fn lines_below(heading: &str) -> Vec<Line> {
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md"));
    let readme = readme.unwrap();
    let (_, section) = readme.split_once(&format!("\n## {heading}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap_or(section);
    let mut lines: Vec<Line> = Vec::new();
    let mut is_console = false;
    for line in section.lines() {
        if line.starts_with("```") {
            is_console = line == "```console";
        } else if let Some(command) = line.strip_prefix("$ ").filter(|_| is_console) {
            lines.push(Line {
                command: command.to_owned(),
                expected: String::new(),
            });
        } else if let Some(last) = lines.last_mut().filter(|_| is_console) {
            let _ = writeln!(last.expected, "{line}");
        }
    }
    lines
}

/// Runs lines one after the other in `directory`, and returns what each printed.
pub(super) fn run_as_user(workshop: &Workshop, directory: &str, lines: &[&str]) -> Vec<String> {
    let bin = workshop.path("bin");
    fs::create_dir(&bin).unwrap();
    // The build directory may be closed to others.
    copy_program(&bin.join("platter"));
    fs::set_permissions(workshop.path(""), PermissionsExt::from_mode(0o755)).unwrap();
    let printed = workshop.path("printed");
    fs::create_dir(&printed).unwrap();
    let mut script =
        String::from("set -eu\ntrap 'platter umount -l disk mnt 2>/dev/null || :' EXIT\n");
    for (number, line) in lines.iter().enumerate() {
        let out = printed.join(number.to_string());
        let _ = writeln!(script, "{{ {line}\n}} > {}", out.display());
    }
    fs::write(workshop.path("script"), script).unwrap();
    let owned = [workshop.path(directory), printed.clone()];
    let owner = format!("{USER}:{USER}");
    run_tool(Command::new("chown").arg("-R").arg(owner).args(owned), "");
    let namespace = "set -eu\n\
        mknod -m 666 fuse c 10 229\n\
        mount --bind fuse /dev/fuse\n\
        cd \"$1\"\n\
        PATH=\"$2/bin:$PATH\" exec setpriv --reuid=\"$3\" --regid=\"$3\" --clear-groups \
            timeout 120 sh \"$2/script\"";
    let output = Command::new("unshare")
        .args(["--mount", "--propagation=private", "sh", "-c", namespace])
        .args(["sh", directory])
        .arg(workshop.path(""))
        .arg(USER)
        .current_dir(workshop.path(""))
        .stdin(Stdio::null())
        .output()
        .expect("unshare (package util-linux) is needed");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{stderr}", output.status);
    let read = |number: usize| fs::read_to_string(printed.join(number.to_string())).unwrap();
    (0..lines.len()).map(read).collect()
}

#[test]
fn the_first_steps_lead_from_nothing_to_a_written_file() {
    let workshop = Workshop(tempfile::tempdir().unwrap());
    fs::create_dir(workshop.path("empty")).unwrap();
    let lines = lines_below("First steps");
    let count = |word: &str| {
        lines
            .iter()
            .filter(|line| line.command.contains(word))
            .count()
    };
    assert!(count("platter mount") > 0 && count("> disk/") > 0);
    let printed = run_as_user(&workshop, "empty", &commands(&lines));
    for (line, printed) in lines.iter().zip(&printed) {
        assert_eq!(&line.expected, printed, "{}", line.command);
    }
}

#[test]
fn the_other_lines_work_on_a_disk_with_a_system() {
    let workshop = Workshop(tempfile::tempdir().unwrap());
    let system = workshop.path("system");
    for dir in ["etc", "home/user", "srv"] {
        fs::create_dir_all(system.join(dir)).unwrap();
    }
    fs::write(system.join("etc/passwd"), "www-data:x:33:33:::\n").unwrap();
    fs::write(system.join("home/user/file"), "contents\n").unwrap();
    workshop.mke2fs("disk.img", &system, "8M");
    workshop.partition();
    for dir in ["work/site", "work/root", "work/mnt"] {
        fs::create_dir_all(workshop.path(dir)).unwrap();
    }
    fs::write(workshop.path("work/site/index.html"), "<p>\n").unwrap();
    fs::rename(workshop.path("gpt.img"), workshop.path("work/disk.img")).unwrap();
    let lines = lines_below("What works today");
    assert!(lines.len() > 5);
    run_as_user(&workshop, "work", &commands(&lines));
    let copied = fs::read_to_string(workshop.path("work").join("home/user/file"));
    assert_eq!(copied.unwrap(), "contents\n");
}
