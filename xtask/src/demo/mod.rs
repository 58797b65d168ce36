//! What platter does, shown on a real image: it is made from a directory, listed, copied out of,
//! streamed, mounted and changed, and everything that comes out is compared with what went in.

mod stage;
mod source;
mod mounted;
mod edited;

use anyhow::{Result, ensure};

use crate::packages;
use crate::workspace::Workspace;
use stage::Stage;

/// Runs every scene; the first difference ends the demonstration.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    packages::require_for_demo()?;
    println!(
        "building the program `platter` for the demonstration, which takes minutes the first time"
    );
    let stage = Stage::set(workspace)?;
    title("A disk image is made from a directory");
    source::fill(workspace, &stage.source())?;
    stage.make_image()?;
    title("What is in it");
    stage.platter(&["info", "disk.img"])?;
    stage.platter(&["ls", "-l", "disk.img:/"])?;
    stage.platter(&["tree", "-L", "2", "disk.img:/project"])?;
    stage.platter(&["stat", "disk.img:/project/README.md"])?;
    title("Files come out as they went in");
    let cat = stage.output(&["cat", "disk.img:/project/README.md"])?;
    let readme = std::fs::read(stage.source().join("project/README.md"))?;
    ensure!(cat == readme, "cat gives other bytes than went in");
    println!("cat: {} bytes, the same as in the directory", cat.len());
    stage.platter(&["cp", "-a", "disk.img:/", "copied"])?;
    stage.compare("copied")?;
    stage.verify_hole("copied/odd/sparse")?;
    title("The whole image as a tar archive");
    stage.platter(&["tar", "-o", "out/disk.tar", "disk.img"])?;
    stage.unpack()?;
    stage.compare("unpacked")?;
    stage.verify_hole("unpacked/odd/sparse")?;
    title("A check, as fsck would do it");
    stage.platter(&["check", "disk.img"])?;
    let obstacle = mounted::obstacle()?;
    if obstacle.is_none() {
        title("A read-only mount through FUSE");
        mounted::show(&stage)?;
    }
    title("The image is as it was");
    stage.verify_untouched()?;
    title("A copy of it, changed without a mount");
    edited::change(&stage)?;
    if obstacle.is_none() {
        title("A copy of it, mounted for writing by an ordinary user");
        mounted::change(&stage)?;
    }
    println!("\neverything that came out is what went in");
    if let Some(reason) = obstacle {
        println!("nothing was mounted: {reason}");
    }
    let program = workspace.target().join("debug/platter");
    println!(
        "\nThe program that was shown is {}; to install it:\n\n    \
         cargo install --locked --path crates/platter-cli\n\nThen, in an empty directory (more in \
         README.md, and in platter COMMAND --help):\n\n    \
         platter mkfs ext4 disk.img --size 64M\n    \
         echo hello > hello.txt\n    \
         platter cp hello.txt disk.img:/\n    \
         platter ls -l disk.img:/",
        program.display()
    );
    Ok(())
}

fn title(text: &str) {
    println!("\n== {text}");
}
