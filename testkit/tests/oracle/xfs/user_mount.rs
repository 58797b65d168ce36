//! What an ordinary user reads of an XFS that the user mounted: unmounted before, or with a log to replay.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use platter_vfs::Filesystem;
use tempfile::TempDir;
use testkit::compare::Rules;
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::{Verdict, xfs};
use testkit::tool;
use testkit::workload::Tree;

use super::{open, population};
use crate::user_mount::{self, TO_USER};

/// Removes attributes that only the superuser sees, names that are no text, and most of two long files.
const SHORTEN: &str = r#"
setfattr -x trusted.two "$1/attributes/inode"
truncate -s 1100000 "$1/contents/sparse" "$1/contents/pieces"
rm -r "$1/directories/bytes" "$1/directories/same"
"#;

fn run(mount: &Mount, script: &str) -> Result<()> {
    let mut shell = tool::command("sh");
    shell.args(["-e", "-c", script, "sh"]).arg(mount.root());
    tool::succeed(&mut shell)?;
    Ok(())
}

/// A filesystem whose files belong to the user, mounted.
fn filled() -> Result<(TempDir, PathBuf, Mount)> {
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("image");
    xfs::make(&image, 96 << 10, &["-m", "rmapbt=1,reflink=1"])?;
    let mount = Mount::images(FsType::Xfs, &[&image], "", Access::ReadWrite)?;
    population::fill(mount.root(), false).context("filling")?;
    run(&mount, SHORTEN)?;
    run(&mount, TO_USER)?;
    Ok((dir, image, mount))
}

/// Compares what a user reads with the tree that the kernel shows of a copy, after its recovery.
fn read_as_user(image: &Path) -> Result<()> {
    let copy = image.with_extension("kernel");
    std::fs::copy(image, &copy)?;
    let mount = Mount::images(FsType::Xfs, &[&copy], "nouuid", Access::Replay)?;
    let mut expected = Tree::read_host(mount.root())?;
    // An ACL is stored in one of them.
    for entry in expected.entries.values_mut() {
        entry
            .xattrs
            .retain(|name, _| !name.starts_with(b"trusted."));
    }
    mount.release(&[&copy])?;
    let before = std::fs::read(image)?;
    let images = [image.to_owned()];
    let rules = Rules {
        statfs: false,
        // The trees have those that a user sees.
        xattrs: false,
        ..Rules::KERNEL_MOUNT
    };
    let open = || -> Result<Arc<dyn Filesystem>> { Ok(open(image, None)?.into_filesystem()) };
    user_mount::read_as_user(&images, &[image.as_os_str()], rules, open, &expected)?;
    ensure!(before == std::fs::read(image)?, "the image has changed");
    Ok(())
}

#[test]
fn user_reads_a_clean_xfs() -> Result<()> {
    let (_dir, image, mount) = filled()?;
    mount.unmount_all(&[&image])?;
    read_as_user(&image)
}

#[test]
fn user_reads_an_xfs_with_a_dirty_log() -> Result<()> {
    let (_dir, image, mount) = filled()?;
    mount.sync()?;
    let root = mount.root();
    let names = root.join("directories/leaf");
    for (number, entry) in std::fs::read_dir(&names)?.enumerate() {
        let path = entry?.path();
        match number % 3 {
            0 => std::fs::remove_file(path)?,
            1 => std::fs::rename(path, root.join(format!("moved-{number}")))?,
            _ => std::fs::write(path, vec![7; number * 100])?,
        }
    }
    let unlinked = File::open(root.join("contents/plain-65537"))?;
    std::fs::remove_file(root.join("contents/plain-65537"))?;
    File::options()
        .write(true)
        .open(root.join("contents/pieces"))?
        .set_len(500_000)?;
    run(&mount, TO_USER)?;
    let mut io = tool::command("xfs_io");
    io.args(["-x", "-c", "shutdown -f"]).arg(root);
    tool::succeed(&mut io)?;
    drop(unlinked);
    mount.release(&[&image])?;
    assert!(matches!(xfs::check(&[&image])?, Verdict::Refused(_)));
    read_as_user(&image)
}
