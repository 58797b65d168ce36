//! The suites, each on a newly made filesystem through the mount.

use anyhow::{Context, Result, ensure};

use super::cells::Cell;
use super::stage::Stage;
use crate::command::{self, command};

/// One suite.
pub(super) struct Suite {
    pub(super) name: &'static str,
    /// Words that the names of its cells contain; empty for all cells.
    cells: &'static [&'static str],
    /// Runs it; leaves nothing mounted. The number is that of seeds. Gives what was done.
    pub(super) run: fn(&Stage, u64) -> Result<String>,
}

impl Suite {
    /// Whether the suite is run on a cell.
    pub(super) fn fits(&self, cell: &Cell) -> bool {
        self.cells.is_empty() || self.cells.contains(&cell.name)
    }
}

/// All of them.
pub(super) const SUITES: &[Suite] = &[
    Suite {
        name: "pjdfstest",
        cells: &[],
        run: pjdfstest,
    },
    Suite {
        name: "fsx",
        cells: &[],
        run: fsx,
    },
    Suite {
        name: "dbench",
        cells: &[],
        run: dbench,
    },
    Suite {
        name: "fio",
        cells: &[],
        run: fio,
    },
    Suite {
        name: "build",
        cells: &["ext4", "ext4-1k", "ext4-inline", "ext3", "ext2"],
        run: build,
    },
    Suite {
        name: "kill",
        cells: &["ext4", "ext4-1k", "ext3"],
        run: kill,
    },
];

/// What the filesystem offers, and two users to act as.
const PJDFSTEST_TOML: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.01
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;
/// Of the tests for Linux, so many pass on ext4 with these settings: one less than on the kernel's own,
/// since the C library knows no limit of links for FUSE, and that test is left out.
const PJDFSTEST_PASSES: u64 = 382;

/// What a file goes through in `fsx`.
const FSX_TOML: &str = r"
flen = 262144
[weights]
close_open = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 1
truncate = 3
fsync = 1
fdatasync = 1
posix_fallocate = FALLOCATE
punch_hole = FALLOCATE
sendfile = 1
posix_fadvise = 1
copy_file_range = 1
";
/// Operations of one run of `fsx`.
const FSX_OPERATIONS: u32 = 3000;
/// Seconds that `dbench` runs.
const DBENCH_SECONDS: &str = "10";
/// Where Debian keeps the load of `dbench`.
const DBENCH_LOAD: &str = "/usr/share/dbench/client.txt";

/// Runs pjdfstest as root, since most of it is about who may do what.
fn pjdfstest(stage: &Stage, _: u64) -> Result<String> {
    let settings = stage.path("pjdfstest.toml");
    std::fs::write(&settings, PJDFSTEST_TOML)?;
    stage.mount()?;
    let mut suite = command("sh");
    suite
        .args([
            "-c",
            r#"chmod 777 "$1" && cd "$1" && umask 0 && "$2" -c "$3" -p "$1"; true"#,
            "sh",
        ])
        .arg(stage.mounted())
        .arg(stage.pjdfstest().get_program())
        .arg(settings);
    let report = command::output(&mut suite)?;
    stage.unmount()?;
    let report = String::from_utf8_lossy(&report);
    let failed: Vec<&str> = report
        .lines()
        .filter(|line| line.contains("FAILED"))
        .collect();
    let summary = report.lines().find(|line| line.starts_with("Summary:"));
    let summary = summary.context("pjdfstest gave no summary")?;
    ensure!(failed.is_empty(), "{}\n{summary}", failed.join("\n"));
    let passed = summary
        .split(", ")
        .find_map(|part| part.strip_suffix(" passed"));
    let passed: u64 = passed.context("a number of tests")?.parse()?;
    ensure!(
        passed >= PJDFSTEST_PASSES,
        "{summary}; {PJDFSTEST_PASSES} are known to pass"
    );
    Ok(format!("{passed} tests passed"))
}

/// Runs fsx as an ordinary user, one file for each seed, with a mount anew now and then.
fn fsx(stage: &Stage, seeds: u64) -> Result<String> {
    let settings = stage.path("fsx.toml");
    let weight = if stage.has_extents() { "3" } else { "0" };
    std::fs::write(&settings, FSX_TOML.replace("FALLOCATE", weight))?;
    for seed in 1..=seeds {
        if seed % 5 == 1 {
            if seed > 1 {
                stage.unmount()?;
            }
            stage.mount()?;
            command::run(command("chmod").arg("777").arg(stage.mounted()))?;
        }
        let file = stage.mounted().join(format!("fsx{seed}"));
        let mut fsx = Stage::as_user(stage.fsx());
        fsx.current_dir("/tmp")
            .arg("-f")
            .arg(&settings)
            .args(["-N", &FSX_OPERATIONS.to_string(), "-S", &seed.to_string()])
            .args(["-P", "/tmp"])
            .arg(file);
        command::output(&mut fsx).with_context(|| format!("fsx with seed {seed}"))?;
    }
    stage.unmount()?;
    Ok(format!("{seeds} seeds of {FSX_OPERATIONS} operations"))
}

/// Runs dbench with three clients, which leave nothing behind.
fn dbench(stage: &Stage, _: u64) -> Result<String> {
    stage.mount()?;
    let mut dbench = command("dbench");
    dbench
        .args(["-t", DBENCH_SECONDS, "-c", DBENCH_LOAD, "-D"])
        .arg(stage.mounted())
        .arg("3");
    let report = command::output(&mut dbench)?;
    stage.unmount()?;
    let report = String::from_utf8_lossy(&report);
    let throughput = report.lines().find(|line| line.starts_with("Throughput"));
    Ok(throughput.context("dbench gave no throughput")?.to_owned())
}

/// Has fio write and verify: at random places, mixed with reads, mapped, and past the cache.
fn fio(stage: &Stage, _: u64) -> Result<String> {
    const JOBS: &[(&str, &[&str])] = &[
        (
            "random",
            &[
                "--rw=randwrite",
                "--bs=4k",
                "--ioengine=psync",
                "--fsync=64",
            ],
        ),
        (
            "mixed",
            &[
                "--rw=randrw",
                "--bs=512-32k",
                "--ioengine=psync",
                "--numjobs=2",
            ],
        ),
        ("mapped", &["--rw=randwrite", "--bs=3k", "--ioengine=mmap"]),
        (
            "direct",
            &["--rw=randrw", "--bs=4k", "--ioengine=psync", "--direct=1"],
        ),
        (
            "sequential",
            &[
                "--rw=write",
                "--bs=128k",
                "--ioengine=psync",
                "--end_fsync=1",
            ],
        ),
    ];
    stage.mount()?;
    for (name, options) in JOBS {
        let mut fio = command("fio");
        fio.arg(format!("--name={name}"))
            .arg(format!("--directory={}", stage.mounted().display()))
            .args([
                "--size=16m",
                "--verify=crc32c",
                "--verify_fatal=1",
                "--do_verify=1",
            ])
            .args(["--output-format=terse"])
            .args(*options);
        command::output(&mut fio).with_context(|| format!("fio, {name}"))?;
    }
    // What was verified through the cache is verified from the image.
    stage.unmount()?;
    stage.mount()?;
    for (name, options) in JOBS.iter().filter(|(name, _)| *name != "mixed") {
        let mut fio = command("fio");
        fio.arg(format!("--name={name}"))
            .arg(format!("--directory={}", stage.mounted().display()))
            .args([
                "--size=16m",
                "--verify=crc32c",
                "--verify_fatal=1",
                "--verify_only",
            ])
            .args(["--output-format=terse"])
            .args(*options);
        command::output(&mut fio).with_context(|| format!("fio, {name}, after a remount"))?;
    }
    stage.unmount()?;
    Ok(format!("{} jobs verified, and after a remount", JOBS.len()))
}

/// Unpacks a source tree from an archive, compiles it there, and removes half of it.
fn build(stage: &Stage, _: u64) -> Result<String> {
    const SCRIPT: &str = r#"
set -e
cd "$1"
tar -C "$2" -cf - --exclude ./target --exclude ./.git . | (mkdir source && cd source && tar -xf -)
diff -r --no-dereference -x target -x .git "$2" source
cd source
CARGO_TARGET_DIR="$1/target" "${CARGO:-cargo}" build --offline --quiet --package platter-block
find . -type f | wc -l
rm -rf "$1/target/debug/deps" source/docs
sync "$1"
"#;
    stage.mount()?;
    let mut sh = command("sh");
    sh.args(["-c", SCRIPT, "sh"])
        .arg(stage.mounted())
        .arg(&stage.root);
    let report = command::output(&mut sh)?;
    stage.unmount()?;
    let files = String::from_utf8_lossy(&report);
    Ok(format!(
        "{} source files unpacked and compiled",
        files.trim()
    ))
}

/// Kills the server at random moments: nothing that was synced is lost.
fn kill(stage: &Stage, seeds: u64) -> Result<String> {
    const SCRIPT: &str = r#"
cd "$1" || exit 1
number=0
while echo "$2 $number" > "$2-$number" 2>/dev/null; do
    head -c $((number * 997 % 70000)) /dev/urandom >> "$2-$number" || break
    sync "$2-$number" 2>/dev/null && sha256sum "$2-$number" >> "$3" || break
    [ $((number % 3)) -eq 2 ] && rm -f "$2-$((number - 1))" && sync . &&
        echo "gone $2-$((number - 1))" >> "$3"
    number=$((number + 1))
done
true
"#;
    let log = stage.path("synced");
    for round in 0..seeds {
        std::fs::write(&log, "")?;
        let mut server = stage.serve()?;
        let mut writer = command("sh");
        writer
            .args(["-c", SCRIPT, "sh"])
            .arg(stage.mounted())
            .arg(format!("round{round}"))
            .arg(&log);
        let mut writer = writer.spawn()?;
        std::thread::sleep(std::time::Duration::from_millis(100 + round * 137 % 900));
        server.kill()?;
        server.wait()?;
        writer.wait()?;
        stage.abandon()?;
        stage.mount()?;
        let lost = lost(stage, &log)?;
        stage.unmount()?;
        ensure!(lost.is_empty(), "round {round}: {}", lost.join(", "));
        let verdict = command::output(command("e2fsck").args(["-fn"]).arg(stage.path("disk.img")));
        verdict.with_context(|| format!("round {round}"))?;
    }
    Ok(format!("{seeds} kills"))
}

/// What the log says was synced, and is not so.
fn lost(stage: &Stage, log: &std::path::Path) -> Result<Vec<String>> {
    let log = std::fs::read_to_string(log)?;
    let mut lost = Vec::new();
    let is_removed = |name: &str| log.lines().any(|line| line == format!("gone {name}"));
    for line in log.lines() {
        let Some((word, name)) = line.split_once(' ') else {
            continue;
        };
        let name = name.trim();
        let path = stage.mounted().join(name);
        if word == "gone" {
            if path.exists() {
                lost.push(format!("{name} is there again"));
            }
        } else if !is_removed(name) {
            let found = command::output(command("sha256sum").arg(&path));
            // Its removal may have been under way.
            let is_last = log.lines().rev().take(3).any(|last| last.ends_with(name));
            match found {
                Ok(sum) if sum.starts_with(word.as_bytes()) => {}
                Ok(_) => lost.push(format!("{name} has other contents")),
                Err(_) if is_last => {}
                Err(_) => lost.push(format!("{name} is gone")),
            }
        }
    }
    Ok(lost)
}
