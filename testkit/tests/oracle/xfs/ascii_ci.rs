//! Names that ignore the case of ASCII letters, which the kernel here does not know: made by `mkfs.xfs -p`, listed by
//! `xfs_db`, and judged by `xfs_repair`, which computes their hashes.

use std::fmt::Write;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use platter::vfs::{Inode, Name};
use testkit::oracle::xfs;
use testkit::tool;

use super::printed::{Printed, ask, find};
use super::{check, open};

/// Directories of all forms, and how many names they have.
const DIRECTORIES: [(&str, usize); 4] = [("Few", 3), ("sOME", 40), ("MoRe", 300), ("MANY", 1500)];

/// A name of small and capital letters, and others.
fn name(number: usize) -> String {
    format!("Name.{number}-of_[aFile]-WITH-Letters{}", number % 7)
}

fn make(options: &[&str]) -> Result<(tempfile::TempDir, PathBuf)> {
    let dir = tempfile::tempdir()?;
    let mut text = String::from("/stub\n0 0\nd--755 0 0\n");
    for (directory, count) in DIRECTORIES {
        writeln!(text, "{directory} d--755 0 0")?;
        for number in 0..count {
            writeln!(text, "{} p--644 0 0", name(number))?;
        }
        text.push_str("$\n");
    }
    text.push_str("$\n");
    let protofile = dir.path().join("protofile");
    fs::write(&protofile, text)?;
    let protofile = protofile.display().to_string();
    let image = dir.path().join("image");
    let options = [&["-p", &protofile], options].concat();
    xfs::make(&image, 96 << 10, &options)?;
    Ok((dir, image))
}

fn number(directory: &dyn Inode, name: &str) -> Result<u64> {
    Ok(directory.lookup(Name::new(name.as_bytes())?)?.id().number)
}

#[test]
fn xfs_names_that_ignore_case_are_found_in_any() -> Result<()> {
    for options in [
        &["-n", "version=ci"][..],
        &["-n", "version=ci,size=8192", "-b", "size=1024"],
        &["-m", "crc=0", "-n", "version=ci,ftype=0"],
    ] {
        let (_dir, image) = make(options)?;
        check::assert_clean(&image, None)?;
        let volume = open(&image, None)?;
        let filesystem = &**volume.filesystem();
        let compared = Printed::of(&image, None)?.compare(filesystem)?;
        for form in ["local", "block", "leaf", "node"] {
            let form = format!("directory, {form}");
            ensure!(compared.forms.contains(&form), "{options:?}: {compared:?}");
        }
        for (path, count) in DIRECTORIES {
            let directory = find(filesystem, &[path])?;
            for other in [path.to_lowercase(), path.to_uppercase()] {
                ensure!(
                    find(filesystem, &[&other])?.id() == directory.id(),
                    "{other}"
                );
            }
            for name in (0..count).map(name) {
                let expected = number(&*directory, &name)?;
                for other in [name.to_lowercase(), name.to_uppercase()] {
                    ensure!(number(&*directory, &other)? == expected, "{other}");
                }
            }
            // No letters: brackets and braces differ by the bit that the cases of a letter do.
            let braces = name(0).replace('[', "{").replace(']', "}");
            for missing in [braces, name(count)] {
                ensure!(number(&*directory, &missing).is_err(), "{missing}");
            }
        }
    }
    Ok(())
}

/// A name that differs from that of the hash in case alone is sound; another hash is not. `xfs_repair` 6.1 says so, and
/// dies when it makes the directory anew.
#[test]
fn xfs_check_of_names_that_ignore_case_agrees() -> Result<()> {
    // Version 4, whose blocks have no checksums.
    let (_dir, image) = make(&["-m", "crc=0", "-n", "version=ci"])?;
    let printed = Printed::of(&image, None)?;
    let directory = printed.list(printed.root)?["sOME"];
    let inode = printed.inodes(&[directory])?.remove(0);
    let at = printed.byte_of(inode.extents.first().context("a block")?);
    let file = File::options().read(true).write(true).open(&image)?;
    let mut block = vec![0; usize::try_from(printed.block_bytes)?];
    file.read_exact_at(&mut block, at)?;
    let old = name(0);
    let place = block
        .windows(old.len())
        .position(|bytes| bytes == old.as_bytes());
    let place = at + u64::try_from(place.context("the name")?)?;
    file.write_all_at(old.to_uppercase().as_bytes(), place)?;
    check::assert_clean(&image, None)?;
    let commands = [
        format!("inode {directory}"),
        "dblock 0".to_owned(),
        "write -d bleaf[5].hashval 0x12345678".to_owned(),
    ];
    ask(&image, &commands)?;
    let mut repair = tool::command("xfs_repair");
    let theirs = tool::finish(repair.args(["-n", "-f"]).arg(&image))?;
    let line = format!("would have cleared inode {directory}");
    let said = String::from_utf8_lossy(&theirs.stdout).into_owned()
        + &String::from_utf8_lossy(&theirs.stderr);
    ensure!(said.contains(&line), "{said}");
    let ours = check::errors_in(&image)?;
    let found = format!("directory at inode {directory}: bad hash table");
    ensure!(ours.contains(&found), "{ours:?}");
    Ok(())
}
