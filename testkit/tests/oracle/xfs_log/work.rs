//! What the kernel does before it is stopped.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::Result;

/// Files, directories, links and attributes, made, moved and removed.
pub(crate) fn names(root: &Path) -> Result<()> {
    for folder in 0..8 {
        let folder = root.join(format!("folder{folder}"));
        fs::create_dir(&folder)?;
        for file in 0..60_usize {
            let path = folder.join(format!("file-{file:04}-{}", "n".repeat(file)));
            fs::write(&path, vec![7; file * 100])?;
            if file % 3 == 0 {
                fs::hard_link(&path, folder.join(format!("hard-{file}")))?;
            }
            if file % 4 == 0 {
                symlink(
                    "t".repeat(1 + file * 15),
                    folder.join(format!("soft-{file}")),
                )?;
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
    for folder in 0..8 {
        let path = root.join(format!("folder{folder}"));
        for file in (0..60_usize).step_by(7) {
            let name = format!("file-{file:04}-{}", "n".repeat(file));
            fs::rename(
                path.join(&name),
                root.join(format!("moved-{folder}-{file}")),
            )?;
        }
        if folder % 2 == 1 {
            fs::remove_dir_all(&path)?;
        }
    }
    Ok(())
}

/// Names and data with syncs in between, over and over, so that a small log wraps.
pub(crate) fn rounds(root: &Path) -> Result<()> {
    for round in 0..40 {
        let folder = root.join(format!("round{}", round % 5));
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir(&folder)?;
        for file in 0..120 {
            fs::write(folder.join(format!("f{file}")), format!("{round} {file}"))?;
        }
        let handle = fs::File::open(&folder)?;
        if round % 3 == 0 {
            rustix::fs::syncfs(&handle)?;
        } else {
            handle.sync_all()?;
        }
    }
    Ok(())
}
