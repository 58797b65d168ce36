//! An image that is copied at once when its mount is taken off: nothing is missing in the copy.

use std::fs::File;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::super::stage::Stage;
use super::{Done, Load};
use crate::command::{self, command};

/// Written to the mount before each unmount.
const BYTES: &str = "60000000";

/// Unmounts as often as there are seeds, in each of three ways in turn.
pub(super) fn unmount(stage: &Stage, load: &Load) -> Result<Done> {
    let mut head = command("head");
    head.args(["-c", BYTES, "/dev/urandom"])
        .stdout(File::create(stage.path("big"))?);
    ensure!(head.status()?.success(), "head failed");
    for round in load.seeds.clone() {
        let unmounts = [
            command("umount"),
            with(command("fusermount3"), "-u"),
            with(stage.program(), "umount"),
        ];
        let way = usize::try_from(round)? % unmounts.len();
        let unmount = unmounts.into_iter().nth(way).context("a way to unmount")?;
        try_once(stage, unmount, round).with_context(|| format!("round {round}"))?;
    }
    let unmounts = load.seeds.end - load.seeds.start;
    Ok(Done::new(format!(
        "{unmounts} copies right after unmounting, all complete"
    ))
    .count("unmounts", unmounts))
}

fn with(mut command: Command, word: &str) -> Command {
    command.arg(word);
    command
}

fn try_once(stage: &Stage, mut unmount: Command, round: u64) -> Result<()> {
    let (image, copy, big) = (
        stage.path("disk.img"),
        stage.path("copy.img"),
        stage.path("big"),
    );
    let name = format!("big{round}");
    stage.mount()?;
    command::output(command("cp").arg(&big).arg(stage.mounted().join(&name)))?;
    command::output(unmount.arg(stage.mounted()))?;
    let mut cp = command("cp");
    command::output(cp.arg("--sparse=always").arg(&image).arg(&copy))?;
    let inside = |image: &std::path::Path| {
        let mut path = image.to_owned().into_os_string();
        path.push(format!(":/{name}"));
        path
    };
    let mut cat = stage.program();
    let mut cat = cat
        .arg("cat")
        .arg(inside(&copy))
        .stdout(Stdio::piped())
        .spawn()?;
    let contents = cat.stdout.take().context("a pipe")?;
    let mut cmp = command("cmp");
    let is_same = cmp.arg(&big).arg("-").stdin(contents).status()?.success();
    ensure!(cat.wait()?.success() && is_same, "the copy is not complete");
    command::run(stage.program().arg("rm").arg(inside(&image)))
}
