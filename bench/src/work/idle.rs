//! Nothing: what a mount takes of the processors that no process uses.

use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;

use super::{Amount, Done, MAKE_DIRS, Site, USUAL, Unit, Workload, phase, sync};
use crate::side::Side;

pub(crate) const IDLE: Workload = Workload {
    name: "idle",
    about: "a mount that no process uses, once what was changed is written; the count is in seconds",
    count: Amount { quick: 1, full: 10 },
    only: &[Side::Device],
    phases: &[
        MAKE_DIRS,
        phase("sync", Unit::Preparation, sync),
        phase("idle", Unit::Operations, idle),
    ],
    ..USUAL
};

#[expect(clippy::unnecessary_wraps, reason = "other phases may fail")]
fn idle(site: &Site<'_>) -> Result<Done> {
    sleep(Duration::from_secs(site.count));
    Ok(Done {
        amount: site.count,
        ..Done::default()
    })
}
