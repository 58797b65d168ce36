//! Texts of findings compared with those of e2fsck for the same corruption: the first table of
//! `docs/design/checking.md`. `PLATTER_WRITE_TEXTS=1 cargo test -p testkit --test texts`
//! writes it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use platter::block::Access;
use platter::{Image, ImageSet, MountOptions};
use testkit::findings::Findings;
use testkit::oracle::e2fsck;
use testkit::tool;

/// The page of the table.
const PAGE: &str = "../docs/design/checking.md";
const TABLE_HEADER: &str = "| debugfs | finding | e2fsck |\n|---|---|---|\n";

/// Requests to `debugfs` that corrupt the image, a part of the finding, and a part of the line of e2fsck.
const CORRUPTIONS: &[(&str, &str, &str)] = &[
    (
        "freeb 533",
        "block in use but marked free",
        "bitmap differences",
    ),
    ("setb 4000", "not referenced", "bitmap differences"),
    (
        "freei file",
        "inode in use but marked free",
        "bitmap differences",
    ),
    (
        "seti <500>",
        "free inode marked in use",
        "bitmap differences",
    ),
    (
        "ssv free_blocks_count 1",
        "free blocks count",
        "blocks count",
    ),
    (
        "ssv free_inodes_count 1",
        "free inodes count",
        "inodes count",
    ),
    ("ssv rev_level 9", "revision", "revision"),
    ("ssv first_ino 5", "first ino", "first_ino"),
    (
        "ssv r_blocks_count 9000",
        "r_blocks_count",
        "r_blocks_count",
    ),
    ("ssv min_extra_isize 1", "extra isize", "extra isize"),
    ("ssv want_extra_isize 999", "extra isize", "extra isize"),
    (
        "set_bg 0 free_blocks_count 1",
        "wrong for group",
        "wrong for group",
    ),
    (
        "set_bg 0 free_inodes_count 1",
        "wrong for group",
        "wrong for group",
    ),
    (
        "set_bg 0 used_dirs_count 9",
        "wrong for group",
        "wrong for group",
    ),
    (
        "set_bg 0 block_bitmap 533",
        "multiply-claimed",
        "Multiply-claimed",
    ),
    ("sif file links_count 3", "ref count", "ref count"),
    ("sif file blocks 2", "i_blocks", "i_blocks"),
    ("sif file size 9", "i_size", "i_size"),
    ("sif sub size 4096", "i_size of directory", "i_size"),
    ("sif file block[0] 0", "extent", "extent header"),
    (
        "sif file flags 0",
        "illegal block number",
        "Illegal block #",
    ),
    ("sif file dtime 5", "dtime", "dtime set"),
    ("sif file extra_isize 7", "extra_isize", "extra size"),
    ("sif file mode 0", "i_mode", "invalid mode"),
    ("sif <500> mode 0100644", "dtime", "dtime"),
    (
        "sif <400> links_count 1",
        "unattached inode",
        "Unattached inode",
    ),
    ("sif link size 9", "symlink", "Symlink"),
    ("sif pipe size 9", "non-zero size", "non-zero size"),
    (
        "sif <2> mode 0",
        "root inode",
        "Root inode is not a directory.",
    ),
    (
        "sif sub mode 0100644",
        "incorrect filetype",
        "incorrect filetype",
    ),
    ("unlink sub/below", "unattached inode", "Unattached inode"),
    (
        "unlink sub",
        "unconnected directory",
        "Unconnected directory",
    ),
    (
        "clri sub/inner",
        "deleted/unused inode",
        "deleted/unused inode",
    ),
    (
        "link <500> ghost",
        "deleted/unused inode",
        "deleted/unused inode",
    ),
    (
        "link sub/inner again",
        "link to a directory",
        "is a link to directory",
    ),
    ("link sub/inner again", "'..' should be", "'..' in"),
];

/// An image with a file, a directory in a directory, a symbolic link, a pipe and an attribute block.
fn sound(dir: &Path) -> Result<PathBuf> {
    let (image, content, value) = (dir.join("sound"), dir.join("content"), dir.join("value"));
    fs::File::create(&image)?.set_len(8 << 20)?;
    fs::write(&content, "a".repeat(20_000))?;
    fs::write(&value, [b'v'; 700])?;
    let features = "^has_journal,^metadata_csum,^resize_inode,^uninit_bg,^64bit";
    let mut make = tool::command("mke2fs");
    make.args([
        "-q", "-F", "-t", "ext4", "-b", "1024", "-g", "4096", "-O", features,
    ]);
    tool::succeed(make.arg(&image))?;
    let (content, value) = (content.display(), value.display());
    let requests = format!(
        "mkdir sub\nwrite {content} file\nwrite {content} sub/below\nsymlink link target\n\
         mkdir sub/inner\nmknod pipe p\nea_set -f {value} file user.value\n"
    );
    debugfs(dir, &image, &requests)?;
    ensure!(e2fsck::check(&image)?.is_clean(), "the image is not sound");
    Ok(image)
}

fn debugfs(dir: &Path, image: &Path, requests: &str) -> Result<()> {
    let file = dir.join("requests");
    fs::write(&file, requests)?;
    tool::succeed(
        tool::command("debugfs")
            .arg("-w")
            .arg("-f")
            .arg(file)
            .arg(image),
    )?;
    Ok(())
}

/// A line of e2fsck without the question at its end.
fn statement(line: &str) -> &str {
    match line.rfind(". ") {
        Some(end) if line.ends_with("? no") => &line[..=end],
        _ => line,
    }
}

/// The row of the table for a corruption, as both report it.
fn row(dir: &Path, sound: &Path, (request, finding, line): (&str, &str, &str)) -> Result<String> {
    let image = dir.join("corrupt");
    fs::copy(sound, &image)?;
    debugfs(dir, &image, &format!("{request}\n"))?;
    let mut findings = Findings::default();
    let images = ImageSet::new(Image::open(&image, Access::Read)?);
    MountOptions::new().check(images, &mut findings)?;
    let errors = findings.errors();
    let error = errors.iter().find(|error| error.contains(finding));
    let error = error.with_context(|| format!("{request}: {finding}: {errors:#?}"))?;
    let (_, text) = e2fsck::report(&image)?;
    let printed = text.lines().find(|printed| printed.contains(line));
    let printed = printed.with_context(|| format!("{request}: {line}: {text}"))?;
    Ok(format!(
        "| `{request}` | {error} | {} |\n",
        statement(printed.trim())
    ))
}

#[test]
fn documented_texts_match_findings_and_e2fsck() {
    let dir = tempfile::tempdir().unwrap();
    let sound = sound(dir.path()).unwrap();
    let rows = CORRUPTIONS
        .iter()
        .map(|&corruption| row(dir.path(), &sound, corruption));
    let rows: String = rows.collect::<Result<_>>().unwrap();
    let page = fs::read_to_string(PAGE).unwrap();
    let (before, after) = page.split_once(TABLE_HEADER).unwrap();
    let documented = &after[..=after.find("\n\n").unwrap()];
    if std::env::var_os("PLATTER_WRITE_TEXTS").is_some() {
        let after = &after[documented.len()..];
        fs::write(PAGE, [before, TABLE_HEADER, &rows, after].concat()).unwrap();
    } else {
        assert_eq!(documented, rows);
    }
}
