//! What programs do, in steps on one filesystem.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::mount::{MountFlags, UnmountFlags};
use testkit::tool;

use super::supplies::git;
use super::{Scene, State, Step};
use crate::archive::Tree;
use crate::programs::count_files;

/// Where an overlay is mounted, in the directory of the side.
pub(crate) const MERGED: &str = crate::side::MERGED;
/// Where the package puts its files.
pub(super) const OF_PACKAGE: &str = "opt/example";

/// Where dpkg has its log.
const DPKG_LOG: &str = "var/log/dpkg.log";

/// Steps that follow each other on one filesystem.
#[derive(Debug)]
pub(crate) struct Suite {
    /// A word for it on a command line.
    pub(crate) name: &'static str,
    pub(super) prepare: fn(&Scene<'_>) -> Result<()>,
    pub(crate) steps: &'static [Step],
    pub(super) finish: fn(&Scene<'_>) -> Result<()>,
}

const NOTHING: fn(&Scene<'_>) -> Result<()> = |_| Ok(());
const NOTHING_TO_COUNT: fn(&Scene<'_>) -> Result<u64> = |_| Ok(0);

pub(crate) const SUITES: &[Suite] = &[
    Suite {
        name: "source-tree",
        prepare: NOTHING,
        steps: &[
            Step {
                name: "unpack a tar",
                state: State::New,
                run: |scene| {
                    let mut tar = tool::command("tar");
                    tar.arg("--extract").arg("--file");
                    tar.arg(scene.supplies.archive());
                    printed(tar.arg("--directory").arg(&scene.root))
                },
                check: |scene| count_files(&scene.root.join(Tree::ROOT)),
            },
            Step {
                name: "ripgrep",
                state: State::Cold,
                run: ripgrep,
                check: NOTHING_TO_COUNT,
            },
            Step {
                name: "ripgrep again",
                state: State::Warm,
                run: ripgrep,
                check: NOTHING_TO_COUNT,
            },
            Step {
                name: "find -size",
                state: State::Cold,
                run: find,
                check: NOTHING_TO_COUNT,
            },
            Step {
                name: "find -size again",
                state: State::Warm,
                run: find,
                check: NOTHING_TO_COUNT,
            },
            Step {
                name: "rm -rf",
                state: State::Warm,
                run: |scene| {
                    let mut rm = tool::command("rm");
                    printed(rm.arg("-rf").arg(scene.root.join(Tree::ROOT)))
                },
                check: |scene| {
                    let is_left = scene.root.join(Tree::ROOT).exists();
                    ensure!(!is_left, "the tree is there");
                    Ok(0)
                },
            },
        ],
        finish: NOTHING,
    },
    Suite {
        name: "overlay",
        prepare: mount_overlay,
        steps: &[Step {
            name: "unpack on overlayfs",
            state: State::New,
            run: |scene| {
                let mut tar = tool::command("tar");
                tar.arg("--extract").arg("--file");
                tar.arg(scene.supplies.small_archive());
                printed(tar.arg("--directory").arg(&scene.merged))
            },
            check: |scene| count_files(&scene.root.join("upper")),
        }],
        finish: |scene| {
            let flags = UnmountFlags::empty();
            Ok(rustix::mount::unmount(&scene.merged, flags)?)
        },
    },
    Suite {
        name: "rsync",
        prepare: NOTHING,
        steps: &[Step {
            name: "rsync -a",
            state: State::New,
            run: |scene| {
                let mut rsync = tool::command("rsync");
                rsync.arg("-a").arg(scene.supplies.tree());
                printed(rsync.arg(&scene.root))
            },
            check: |scene| count_files(&scene.root.join(Tree::ROOT)),
        }],
        finish: NOTHING,
    },
    Suite {
        name: "sqlite-wal",
        prepare: NOTHING,
        steps: &[Step {
            name: "SQLite, WAL",
            state: State::New,
            run: |scene| sqlite(scene, "WAL"),
            check: NOTHING_TO_COUNT,
        }],
        finish: NOTHING,
    },
    Suite {
        name: "sqlite-delete",
        prepare: NOTHING,
        steps: &[Step {
            name: "SQLite, DELETE",
            state: State::New,
            run: |scene| sqlite(scene, "DELETE"),
            check: NOTHING_TO_COUNT,
        }],
        finish: NOTHING,
    },
    Suite {
        name: "dpkg",
        prepare: |scene| {
            let admin = scene.root.join("var/lib/dpkg");
            for name in ["info", "updates", "triggers"] {
                std::fs::create_dir_all(admin.join(name))?;
            }
            let log_dir = Path::new(DPKG_LOG).parent().context("a directory")?;
            std::fs::create_dir_all(scene.root.join(log_dir))?;
            File::create(admin.join("status"))?;
            File::create(admin.join("available"))?;
            Ok(())
        },
        steps: &[Step {
            name: "dpkg -i",
            state: State::New,
            run: |scene| {
                let mut root = OsString::from("--root=");
                root.push(&scene.root);
                // That of the configuration is the host's, whatever the root is.
                let mut log = OsString::from("--log=");
                log.push(scene.root.join(DPKG_LOG));
                let mut dpkg = tool::command("dpkg");
                // As by default, whatever the configuration of the host says.
                dpkg.args([root, log]).args(["--refuse-unsafe-io", "-i"]);
                printed(dpkg.arg(scene.supplies.package()))
            },
            check: |scene| {
                ensure!(scene.root.join(DPKG_LOG).exists(), "dpkg has no log here");
                count_files(&scene.root.join(OF_PACKAGE))
            },
        }],
        finish: NOTHING,
    },
    Suite {
        name: "git",
        prepare: NOTHING,
        steps: &[
            Step {
                name: "git clone",
                state: State::New,
                run: |scene| {
                    let mut url = OsString::from("file://");
                    url.push(scene.supplies.repository());
                    let mut clone = git(&scene.root);
                    printed(clone.args(["clone", "-q"]).arg(url).arg("clone"))
                },
                check: |scene| count_files(&scene.root.join("clone").join(Tree::ROOT)),
            },
            Step {
                name: "git checkout",
                state: State::Warm,
                run: |scene| {
                    let mut checkout = git(&scene.root.join("clone"));
                    printed(checkout.args(["checkout", "-q", "--detach", "origin/other"]))
                },
                check: |scene| {
                    let changed = scene.root.join("clone").join(Tree::FIRST);
                    Ok(std::fs::metadata(changed)?.len())
                },
            },
            Step {
                name: "git status",
                state: State::Warm,
                run: |scene| {
                    let mut status = git(&scene.root.join("clone"));
                    let changes = printed(status.args(["status", "--porcelain"]))?;
                    ensure!(changes == 0, "git finds changes");
                    Ok(changes)
                },
                check: NOTHING_TO_COUNT,
            },
        ],
        finish: NOTHING,
    },
    Suite {
        name: "compile",
        prepare: |scene| {
            let mut cp = tool::command("cp");
            cp.arg("-r").arg(scene.supplies.sources()).arg(&scene.root);
            printed(&mut cp).map(drop)
        },
        steps: &[Step {
            name: "make -j2",
            state: State::New,
            run: |scene| {
                let mut make = tool::command("make");
                let dir = scene.root.join("sources");
                printed(make.args(["--silent", "-j2", "-C"]).arg(dir))
            },
            check: |scene| printed(&mut tool::command(scene.root.join("sources/program"))),
        }],
        finish: NOTHING,
    },
];

fn ripgrep(scene: &Scene<'_>) -> Result<u64> {
    let mut rg = tool::command("rg");
    rg.args(["--no-config", "--line-number", scene.supplies.word()]);
    let bytes = printed(rg.arg(Tree::ROOT).current_dir(&scene.root))?;
    ensure!(bytes > 0, "ripgrep found nothing");
    Ok(bytes)
}

/// A size, so that it asks for attributes of every file.
fn find(scene: &Scene<'_>) -> Result<u64> {
    let mut find = tool::command("find");
    find.args([Tree::ROOT, "-type", "f", "-size", "+1"]);
    let bytes = printed(find.current_dir(&scene.root))?;
    ensure!(bytes > 0, "find found nothing");
    Ok(bytes)
}

fn sqlite(scene: &Scene<'_>, mode: &str) -> Result<u64> {
    let mut sqlite = tool::command("sqlite3");
    sqlite.args(["-batch", "-bail"]).arg(scene.root.join("db"));
    let script = File::open(scene.supplies.script(mode))?;
    printed(sqlite.stdin(script))
}

/// Lower is a tree on tmpfs, of which what is unpacked replaces a part.
fn mount_overlay(scene: &Scene<'_>) -> Result<()> {
    let [upper, work] = ["upper", "work"].map(|name| scene.root.join(name));
    for dir in [&upper, &work, &scene.merged] {
        std::fs::create_dir(dir)?;
    }
    let tree = scene.supplies.tree();
    let lower = tree.parent().context("the tree lies in a directory")?;
    let mut options = Vec::new();
    for (name, path) in [
        ("lowerdir=", lower),
        (",upperdir=", &*upper),
        (",workdir=", &*work),
    ] {
        options.extend_from_slice(name.as_bytes());
        options.extend_from_slice(path.as_os_str().as_bytes());
    }
    let options = CString::new(options)?;
    let flags = MountFlags::empty();
    rustix::mount::mount("overlay", &scene.merged, "overlay", flags, &*options)
        .context("an overlay with this filesystem as the upper one")
}

/// Runs a program to its end, and returns how many bytes it printed.
pub(super) fn printed(command: &mut Command) -> Result<u64> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut output = child.stdout.take().context("a pipe")?;
    let bytes = std::io::copy(&mut output, &mut std::io::sink())?;
    ensure!(child.wait()?.success(), "{command:?} failed");
    Ok(bytes)
}
