//! This machine's own `/usr`, or as much of it as is read in reasonable time, as an image: read
//! back byte for byte, as root by the library and as an ordinary user by the program.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use platter::block::Access;
use platter::{Image, MountOptions};
use testkit::compare::{Outcome, Rules, compare_below};
use testkit::oracle::e2fsck;
use testkit::{program, tool};

/// As much of `/usr` goes into the image, unless `PLATTER_TEST_WHOLE_USR` is set.
const BYTES_MAX: u64 = 512 << 20;

/// Links and times of directories differ where only a part of the tree is copied.
const RULES: Rules = Rules {
    links: false,
    ..Rules::SOURCE_DIR
};

#[test]
fn usr_is_read_back_byte_for_byte() -> Result<()> {
    let dir = tempfile::tempdir()?;
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755))?;
    let parts = parts(Path::new("/usr"))?;
    let image = make_image(dir.path(), &parts)?;
    as_root(&image, &parts)?;
    as_ordinary_user(dir.path(), &image)
}

#[test]
fn archive_of_usr_round_trips_through_an_image() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let all = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(dir.path(), all)?;
    let parts = parts(Path::new("/usr"))?;
    let (archive, image) = (dir.path().join("usr.tar"), dir.path().join("usr.img"));
    let mut tar = tool::command("tar");
    tar.args([
        "--format=posix",
        "--sparse",
        "--xattrs",
        "--acls",
        "--directory",
        "/usr",
    ]);
    tar.arg("--file").arg(&archive).arg("--create");
    for part in &parts {
        tar.arg(part.path.strip_prefix("/usr")?);
    }
    tool::succeed(&mut tar)?;
    let before = listing(tool::command("cat").arg(&archive))?;
    let mut platter = program::platter_as_user(dir.path())?;
    platter
        .args(["mkfs", "ext4", "-m", "0", "--from"])
        .arg(&archive);
    if !is_whole() {
        // That would take the space three times.
        platter.arg("--minimize");
    }
    tool::succeed(platter.arg(&image))?;
    std::fs::remove_file(&archive)?;
    let (verdict, said) = e2fsck::report(&image)?;
    ensure!(verdict.is_clean(), "{said}");
    let mut platter = program::platter_as_user(dir.path())?;
    let after = listing(platter.arg("tar").arg(&image))?;
    let missing = before.difference(&after).take(20);
    let missing: Vec<_> = missing.collect();
    ensure!(missing.is_empty(), "missing: {missing:#?}");
    // Directories above the parts were not in the archive.
    let more = after
        .difference(&before)
        .filter(|line| !line.starts_with('d'));
    let more: Vec<_> = more.take(20).collect();
    ensure!(more.is_empty(), "more: {more:#?}");
    as_ordinary_user(dir.path(), &image)
}

/// The listing of `tar`, a line for each member except `lost+found`. Of the names of a file, the
/// first stands for it, whichever of them is the file in the archive.
fn listing(archiver: &mut Command) -> Result<BTreeSet<String>> {
    let mut archiver = archiver.stdout(Stdio::piped()).spawn()?;
    let archive = archiver.stdout.take().context("an archive")?;
    let mut tar = tool::command("tar");
    tar.args([
        "--list",
        "--verbose",
        "--full-time",
        "--numeric-owner",
        "--file",
        "-",
    ]);
    let finished = tool::succeed(tar.stdin(archive))?;
    ensure!(archiver.wait()?.success(), "the archive is truncated");
    let text = String::from_utf8_lossy(&finished.stdout).into_owned();
    let mut files = BTreeMap::new();
    let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in text.lines() {
        // Permissions, owner, size, date and time come before the name.
        let mut rest = line;
        for _ in 0..5 {
            let (_, after) = rest.split_once(' ').context("a line of tar")?;
            rest = after.trim_start();
        }
        let is_link = line.starts_with('h');
        let parts = rest.split_once(" link to ").filter(|_| is_link);
        let (name, file) = parts.unwrap_or((rest, rest));
        let tidy = |name: &str| {
            name.trim_start_matches("./")
                .trim_end_matches('/')
                .to_owned()
        };
        names.entry(tidy(file)).or_default().insert(tidy(name));
        if !is_link {
            let facts = line.strip_suffix(rest).unwrap_or(line);
            files.insert(
                tidy(file),
                facts.split_whitespace().collect::<Vec<_>>().join(" "),
            );
        }
    }
    let lines = names.into_iter().map(|(file, names)| {
        let facts = files.get(&file).map_or("", |facts| &**facts);
        format!("{facts} {names:?}")
    });
    Ok(lines.filter(|line| !line.contains("lost+found")).collect())
}

/// A directory below `/usr`, and what it takes.
struct Part {
    path: PathBuf,
    bytes: u64,
    files: u64,
}

fn is_whole() -> bool {
    std::env::var_os("PLATTER_TEST_WHOLE_USR").is_some()
}

/// The directories of `root` that fit together; of one that does not fit, its own directories.
fn parts(root: &Path) -> Result<Vec<Part>> {
    let mut left = if is_whole() { u64::MAX } else { BYTES_MAX };
    let mut parts = Vec::new();
    let mut take = |part: Part| {
        let fits = part.bytes <= left;
        if fits {
            left -= part.bytes;
            parts.push(part);
        }
        fits
    };
    for dir in dirs(root)? {
        if !take(Part::measure(&dir)?) {
            for dir in dirs(&dir)? {
                take(Part::measure(&dir)?);
            }
        }
    }
    Ok(parts)
}

fn dirs(root: &Path) -> Result<Vec<PathBuf>> {
    let mut dirs = Vec::new();
    for entry in std::fs::read_dir(root)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            dirs.push(entry.path());
        }
    }
    dirs.sort();
    Ok(dirs)
}

impl Part {
    fn measure(path: &Path) -> Result<Self> {
        let (mut bytes, mut files) = (0, 0);
        let mut pending = vec![path.to_owned()];
        while let Some(dir) = pending.pop() {
            for entry in std::fs::read_dir(dir)? {
                let entry = entry?;
                files += 1;
                if entry.file_type()?.is_dir() {
                    pending.push(entry.path());
                }
                bytes += entry.metadata()?.blocks() * 512;
            }
        }
        let path = path.to_owned();
        Ok(Self { path, bytes, files })
    }
}

/// Has `mke2fs` copy the parts, brought together by bind mounts that go with its namespace.
fn make_image(dir: &Path, parts: &[Part]) -> Result<PathBuf> {
    const SCRIPT: &str = r#"
set -e
root=$1; image=$2; size=$3; inodes=$4; shift 4
for part; do
    mkdir -p "$root$part"
    mount --bind "$part" "$root$part"
done
mke2fs -q -F -t ext4 -b 4096 -m 0 -N "$inodes" -d "$root/usr" "$image" "$size"
"#;
    let image = dir.join("usr.img");
    let bytes: u64 = parts.iter().map(|part| part.bytes).sum();
    let files: u64 = parts.iter().map(|part| part.files).sum();
    let size = format!("{}k", (bytes + bytes / 8 + files * 512) / 1024 + 65_536);
    let mut make = tool::command("unshare");
    make.args([
        "--mount",
        "--propagation",
        "private",
        "--",
        "sh",
        "-c",
        SCRIPT,
        "sh",
    ])
    .arg(dir.join("root"))
    .arg(&image)
    .args([size, (files + files / 10 + 1000).to_string()])
    .args(parts.iter().map(|part| &part.path));
    tool::succeed(&mut make)?;
    Ok(image)
}

fn as_root(image: &Path, parts: &[Part]) -> Result<()> {
    let image = Image::open(image, Access::Read)?;
    let volume = MountOptions::new().mount(&image)?;
    let mut outcome = Outcome::default();
    for part in parts {
        let inside = part.path.strip_prefix("/usr")?;
        let file = volume.open(inside.as_os_str().as_encoded_bytes())?;
        outcome.add(compare_below(
            &**volume.filesystem(),
            file.inode(),
            &part.path,
            RULES,
        )?);
    }
    outcome.assert_equal();
    Ok(())
}

/// `tar --compare` reads what the program, run by an ordinary user, makes of the image.
fn as_ordinary_user(dir: &Path, image: &Path) -> Result<()> {
    let mut platter = program::platter_as_user(dir)?;
    let mut platter = platter
        .arg("tar")
        .arg(image)
        .stdout(Stdio::piped())
        .spawn()
        .context("platter cannot be run")?;
    let archive = platter.stdout.take().context("platter's output")?;
    let mut tar = tool::command("tar");
    tar.args([
        "--compare",
        "--directory",
        "/usr",
        "--exclude",
        "./lost+found",
    ]);
    tar.args(["--exclude", "lost+found", "--file", "-"]);
    let compared = compare_archive(tar.stdin(archive))?;
    ensure!(platter.wait()?.success(), "platter tar failed");
    ensure!(compared.is_empty(), "tar --compare: {compared:#?}");
    Ok(())
}

/// The differences that `tar` names, but for directories that only a part of was copied.
fn compare_archive(tar: &mut Command) -> Result<Vec<String>> {
    let compared = tool::finish(tar)?;
    let is_counted = |line: &&str| !line.ends_with(": Mod time differs");
    Ok(compared
        .text()
        .lines()
        .filter(is_counted)
        .take(20)
        .map(str::to_owned)
        .collect())
}
