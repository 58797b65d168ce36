//! What a distribution installs: the program, its manual pages and completions, as a `.tar.gz` and,
//! where `dpkg-deb` is there, as a `.deb`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::command::{self, command};
use crate::workspace::Workspace;

/// Where each shell looks for completions, below the root.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "usr/share/bash-completion/completions/platter"),
    ("zsh", "usr/share/zsh/vendor-completions/_platter"),
    ("fish", "usr/share/fish/vendor_completions.d/platter.fish"),
];
const MAN: &str = "usr/share/man/man1";
const DOCS: &str = "usr/share/doc/platter";
/// Texts that go with the program.
const TEXTS: &[&str] = &["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// Builds the program and packs it.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let mut build = command::cargo(&workspace.root);
    command::run(build.args(["build", "--release", "--locked", "--package", "platter-cli"]))?;
    let members = workspace.members()?;
    let package = members
        .packages
        .iter()
        .find(|package| package.name == "platter-cli");
    let version = &package.context("no package platter-cli")?.version;
    let dir = workspace.target().join("package");
    let root = dir.join("root");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    let program = workspace.target().join("release/platter");
    stage(workspace, &program, &root)?;
    let archive = dir.join(format!(
        "platter-{version}-{}.tar.gz",
        std::env::consts::ARCH
    ));
    let mut tar = command("tar");
    tar.args(["--owner=0", "--group=0", "--sort=name", "-czf"]);
    command::run(tar.arg(&archive).arg("-C").arg(&root).arg("usr"))?;
    println!("{}", archive.display());
    if command::find("dpkg-deb").is_none() {
        println!("no .deb: dpkg-deb is not on this machine");
        return Ok(());
    }
    println!("{}", deb(&dir, &root, version)?.display());
    Ok(())
}

/// Puts all files where they are installed, below `root`.
fn stage(workspace: &Workspace, program: &Path, root: &Path) -> Result<()> {
    let place = |path: &str, mode: u32, bytes: &[u8]| -> Result<()> {
        let path = root.join(path);
        fs::create_dir_all(path.parent().context("no directory")?)?;
        fs::write(&path, bytes)?;
        Ok(fs::set_permissions(path, PermissionsExt::from_mode(mode))?)
    };
    place("usr/bin/platter", 0o755, &fs::read(program)?)?;
    for (shell, path) in COMPLETIONS {
        let text = command::output(command(program).args(["completions", shell]))?;
        place(path, 0o644, &text)?;
    }
    command::output(command(program).arg("man").arg(root.join(MAN)))?;
    for text in TEXTS {
        place(
            &format!("{DOCS}/{text}"),
            0o644,
            &fs::read(workspace.root.join(text))?,
        )?;
    }
    Ok(())
}

/// Makes a Debian package of what lies below `root`.
fn deb(dir: &Path, root: &Path, version: &str) -> Result<PathBuf> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => bail!("no name of Debian's for {other} is known"),
    };
    // The builder of the package is its maintainer, as with Debian's own tools.
    let maintainer = match (std::env::var("DEBFULLNAME"), std::env::var("DEBEMAIL")) {
        (Ok(name), Ok(address)) => format!("Maintainer: {name} <{address}>\n"),
        _ => String::new(),
    };
    let control = format!(
        "Package: platter\n\
         Version: {version}\n\
         Architecture: {architecture}\n\
         {maintainer}\
         Section: admin\n\
         Priority: optional\n\
         Depends: libc6\n\
         Recommends: fuse3\n\
         Description: Linux filesystems in user space\n \
         Reads, changes, makes, checks and mounts images and disks of ext2, ext3, ext4,\n \
         btrfs and XFS without root and without the kernel's own drivers.\n"
    );
    fs::create_dir_all(root.join("DEBIAN"))?;
    fs::write(root.join("DEBIAN/control"), control)?;
    let path = dir.join(format!("platter_{version}_{architecture}.deb"));
    let mut build = command("dpkg-deb");
    build
        .args(["--root-owner-group", "--build"])
        .arg(root)
        .arg(&path);
    command::run(&mut build)?;
    fs::remove_dir_all(root.join("DEBIAN"))?;
    Ok(path)
}
