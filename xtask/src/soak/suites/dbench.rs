//! dbench: the load of a file server.

use anyhow::{Context, Result};

use super::super::stage::Stage;
use super::{Done, Load};
use crate::command::{self, command};

/// Seconds that `dbench` runs.
const DBENCH_SECONDS: &str = "10";
/// Where Debian keeps the load of `dbench`.
const DBENCH_LOAD: &str = "/usr/share/dbench/client.txt";

/// Runs dbench with three clients, and keeps what they leave.
pub(super) fn dbench(stage: &Stage, _: &Load) -> Result<Done> {
    stage.mount()?;
    let mut dbench = command("dbench");
    dbench
        .args([
            "--skip-cleanup",
            "-t",
            DBENCH_SECONDS,
            "-c",
            DBENCH_LOAD,
            "-D",
        ])
        .arg(stage.mounted())
        .arg("3");
    let report = command::output(&mut dbench)?;
    stage.unmount()?;
    let report = String::from_utf8_lossy(&report);
    let throughput = report.lines().find(|line| line.starts_with("Throughput"));
    let throughput = throughput.context("dbench gave no throughput")?;
    Ok(Done::new(throughput).count("runs", 1))
}
