//! What the kernel does before it is stopped.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use anyhow::Result;
use testkit::tool;

/// Files, directories, links and attributes, made, moved and removed.
pub(crate) fn names(root: &Path) -> Result<Vec<File>> {
    for dir in 0..8 {
        let dir = root.join(format!("subdir{dir}"));
        fs::create_dir(&dir)?;
        for file in 0..60_usize {
            let path = dir.join(format!("file-{file:04}-{}", "n".repeat(file)));
            fs::write(&path, vec![7; file * 100])?;
            if file % 3 == 0 {
                fs::hard_link(&path, dir.join(format!("hard-{file}")))?;
            }
            if file % 4 == 0 {
                symlink("t".repeat(1 + file * 15), dir.join(format!("soft-{file}")))?;
            }
            if file % 5 == 0 {
                let value = vec![b'v'; 1 + file * 60];
                rustix::fs::setxattr(
                    &path,
                    "user.attribute",
                    &value,
                    rustix::fs::XattrFlags::empty(),
                )?;
            }
        }
    }
    for dir in 0..8 {
        let path = root.join(format!("subdir{dir}"));
        for file in (0..60_usize).step_by(7) {
            let name = format!("file-{file:04}-{}", "n".repeat(file));
            fs::rename(path.join(&name), root.join(format!("moved-{dir}-{file}")))?;
        }
        if dir % 2 == 1 {
            fs::remove_dir_all(&path)?;
        }
    }
    Ok(Vec::new())
}

/// Names and data with syncs in between, over and over, so that a small log wraps.
pub(crate) fn rounds(root: &Path) -> Result<Vec<File>> {
    for round in 0..40 {
        let dir = root.join(format!("round{}", round % 5));
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        fs::create_dir(&dir)?;
        for file in 0..120 {
            fs::write(dir.join(format!("f{file}")), format!("{round} {file}"))?;
        }
        let handle = File::open(&dir)?;
        if round % 3 == 0 {
            rustix::fs::syncfs(&handle)?;
        } else {
            handle.sync_all()?;
        }
    }
    Ok(Vec::new())
}

/// Files and directories that are open and have no name: small and long, of many extents, with attributes
/// of all sizes.
pub(crate) fn unlinked(root: &Path) -> Result<Vec<File>> {
    let mut open = Vec::new();
    for number in 0..150_usize {
        let path = root.join(format!("gone{number}"));
        let file = File::create(&path)?;
        if number % 10 == 3 {
            for block in 0..250 {
                file.write_all_at(&[1; 4096], block * 8192)?;
            }
            file.sync_all()?;
        } else {
            file.write_all_at(&vec![2; number * 700], 0)?;
        }
        for attribute in 0..number % 7 {
            let name = format!("user.attribute{attribute}");
            let value = vec![b'v'; 1 + attribute * 9000];
            rustix::fs::setxattr(&path, &name, &value, rustix::fs::XattrFlags::empty())?;
        }
        open.push(file);
    }
    for number in 0..10 {
        let path = root.join(format!("subdir{number}"));
        fs::create_dir(&path)?;
        for file in 0..number * 40 {
            fs::write(path.join(format!("a name that takes space {file}")), b"")?;
        }
        open.push(File::open(&path)?);
    }
    fs::write(root.join("kept"), vec![3; 100_000])?;
    rustix::fs::syncfs(File::open(root)?)?;
    for number in 0..150 {
        fs::remove_file(root.join(format!("gone{number}")))?;
    }
    for number in 0..10 {
        fs::remove_dir_all(root.join(format!("subdir{number}")))?;
    }
    fs::write(root.join("last"), b"last")?;
    Ok(open)
}

/// Clones of files, some of which are open and have no name, changed in parts.
pub(crate) fn clones(root: &Path) -> Result<Vec<File>> {
    let source = root.join("source");
    fs::write(&source, vec![4; 800 << 10])?;
    let mut open = Vec::new();
    for number in 0..30_u64 {
        let path = root.join(format!("clone{number}"));
        let mut copy = tool::command("cp");
        copy.arg("--reflink=always").arg(&source).arg(&path);
        tool::succeed(&mut copy)?;
        let file = File::options().write(true).open(&path)?;
        for part in 0..number % 12 {
            file.write_all_at(&[5; 4096], (part * 7 + number) * 4096)?;
        }
        file.sync_all()?;
        open.push(file);
    }
    rustix::fs::syncfs(File::open(root)?)?;
    for number in (0..30).filter(|number| number % 3 > 0) {
        fs::remove_file(root.join(format!("clone{number}")))?;
    }
    fs::write(root.join("last"), b"last")?;
    Ok(open)
}
