//! A copy of the image that is changed without a mount.

use anyhow::{Result, ensure};

use super::stage::{Stage, verify_with_e2fsck};
use crate::command::{self, command};

/// The copy, whose directory belongs to the ordinary user.
const IMAGE: &str = "changed/edited.img";

/// Edits it, and demands that it is sound, and holds what it should.
pub(super) fn change(stage: &Stage) -> Result<()> {
    let image = stage.path(IMAGE);
    let mut copy = stage.as_user("cp".as_ref());
    command::output(copy.args(["--sparse=always", "disk.img", IMAGE]))?;
    command::output(stage.as_user("chmod".as_ref()).args(["u+w", IMAGE]))?;
    let at = |path: &str| format!("{IMAGE}:{path}");
    stage.platter(&["mkdir", "-p", &at("/site/old")])?;
    stage.platter(&["cp", "-a", "source/project/docs", &at("/site")])?;
    stage.platter(&["mv", &at("/site/docs"), &at("/site/pages")])?;
    stage.platter(&["ln", "-s", "pages/design", &at("/site/design")])?;
    stage.platter(&["chmod", "-R", "go-w", &at("/site")])?;
    stage.platter(&["rm", "-r", &at("/odd/many"), &at("/site/old")])?;
    stage.platter(&["tree", "-L", "1", &at("/site")])?;
    stage.platter(&["cp", "-a", &at("/site/pages"), "changed/pages"])?;
    let mut diff = command("diff");
    diff.arg("--recursive")
        .arg(stage.source().join("project/docs"))
        .arg(stage.path("changed/pages"));
    command::output(&mut diff)?;
    println!("diff: what was copied in is what comes out");
    let before = command::output(command("sha256sum").arg(&image))?;
    let refused = stage.output(&["rm", &at("/site/pages/design"), &at("/nothing")]);
    ensure!(refused.is_err(), "a file that is not there was removed");
    let after = command::output(command("sha256sum").arg(&image))?;
    ensure!(before == after, "a command that failed changed the image");
    println!("sha256sum: a command that fails changes nothing");
    stage.platter(&["check", IMAGE])?;
    verify_with_e2fsck(&image)
}
