//! Filesystems that platter makes of directories, before `btrfs check` and a kernel mount.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use anyhow::Result;
use platter::make::NewFilesystem;
use platter::populate::Content;
use platter::{FormatOptions, ImageSpec};
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::{Verdict, btrfs};
use testkit::tool;

/// Files that go into items, that share a run of sectors, that are long, and that have holes.
fn make_tree(tree: &Path) -> Result<()> {
    for number in 0..700_usize {
        let directory = tree.join(format!("{}", number % 11));
        fs::create_dir_all(&directory)?;
        let pattern = |at: usize| u8::try_from((at * at + number) % 251).unwrap_or(0);
        let len = if number % 5 == 0 { number * 90 } else { number };
        let contents: Vec<_> = (0..len).map(pattern).collect();
        let path = directory.join(format!("{number}"));
        fs::write(&path, contents)?;
        fs::set_permissions(
            &path,
            fs::Permissions::from_mode(0o600 + u32::try_from(number % 64)?),
        )?;
    }
    fs::write(tree.join("empty"), b"")?;
    fs::write(tree.join("zeros"), vec![0; 300_000])?;
    fs::write(tree.join("long"), vec![0xa5; 5 << 20])?;
    let mut sparse = vec![0; 1 << 20];
    sparse.extend_from_slice(b"end");
    fs::write(tree.join("sparse"), sparse)?;
    symlink("0/11", tree.join("link"))?;
    fs::hard_link(tree.join("long"), tree.join("second name"))?;
    Ok(())
}

struct Case {
    features: &'static [(&'static str, bool)],
    words: &'static [(&'static str, &'static str)],
    node_bytes: u64,
}

const CASES: [Case; 5] = [
    Case {
        features: &[],
        words: &[],
        node_bytes: 0,
    },
    Case {
        features: &[("no-holes", false)],
        words: &[("compress", "zstd"), ("csum", "blake2")],
        node_bytes: 4096,
    },
    Case {
        features: &[("mixed-bg", true)],
        words: &[("compress", "lzo")],
        node_bytes: 0,
    },
    Case {
        features: &[("block-group-tree", true)],
        words: &[("compress", "zlib:9")],
        node_bytes: 65536,
    },
    Case {
        features: &[("skinny-metadata", false), ("free-space-tree", false)],
        words: &[("metadata", "single"), ("data", "dup")],
        node_bytes: 0,
    },
];

fn new(case: &Case) -> NewFilesystem {
    let mut new = NewFilesystem::of_type("btrfs").unwrap();
    for &(name, on) in case.features {
        new.set_feature(name, on).unwrap();
    }
    for &(name, value) in case.words {
        new.set_word(name, value).unwrap();
    }
    if case.node_bytes > 0 {
        new.set_number("node-size", case.node_bytes).unwrap();
    }
    new
}

/// Compares contents, modes, owners and times of modification.
fn assert_equal(tree: &Path, root: &Path) -> Result<()> {
    tool::succeed(tool::command("diff").arg("-r").arg(tree).arg(root))?;
    let listed = |at: &Path| -> Result<Vec<String>> {
        let mut find = tool::command("find");
        find.current_dir(at)
            .args([".", "-mindepth", "1", "-printf", "%P %y %m %U:%G %T@ %l\\n"]);
        let text = tool::succeed(&mut find)?.text();
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        Ok(lines)
    };
    let (expected, found) = (listed(tree)?, listed(root)?);
    assert!(found.len() > 700);
    assert_eq!(found, expected);
    Ok(())
}

#[test]
fn made_filesystem_holds_the_directory_it_was_made_of() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let tree = dir.path().join("tree");
    make_tree(&tree)?;
    for (index, case) in CASES.iter().enumerate() {
        let image = dir.path().join(format!("image{index}"));
        let spec = ImageSpec::new(&image);
        let options = FormatOptions::new(new(case)).content(Content::of_dir(&tree)?);
        options.size_of_content().make(&spec)?;
        let (verdict, report) = btrfs::report(&[&image])?;
        assert_eq!(verdict, Verdict::Clean, "{index}: {report}");
        let mount = Mount::images(FsType::Btrfs, &[&image], "", Access::ReadWrite)?;
        assert_equal(&tree, mount.root())?;
        fs::write(mount.root().join("by the kernel"), b"text")?;
        mount.unmount(&image)?;
        let (verdict, report) = btrfs::report(&[&image])?;
        assert_eq!(verdict, Verdict::Clean, "{index}: {report}");
    }
    Ok(())
}

#[test]
fn smallest_image_holds_its_content() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let tree = dir.path().join("tree");
    make_tree(&tree)?;
    let image = dir.path().join("image");
    let spec = ImageSpec::new(&image);
    let options = FormatOptions::new(new(&CASES[0])).content(Content::of_dir(&tree)?);
    options.minimal_size().make(&spec)?;
    let len = fs::metadata(&image)?.len();
    assert!(len < 64 << 20, "{len}");
    let (verdict, report) = btrfs::report(&[&image])?;
    assert_eq!(verdict, Verdict::Clean, "{report}");
    let mount = Mount::images(FsType::Btrfs, &[&image], "", Access::ReadOnly)?;
    assert_equal(&tree, mount.root())?;
    mount.unmount(&image)?;
    Ok(())
}
