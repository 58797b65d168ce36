//! Recovery of XFS logs compared with that of the kernel: images that the kernel shut down in the middle of its
//! work, over log shapes and features.

mod scene;
mod listing;
mod work;
mod chains;
mod shapes;
mod cut;
mod many;
mod recut;
mod ended;
mod written;

use anyhow::Result;
use platter_xfs::recovery::RecoveryReport;

use scene::{Scene, Shape, Shutdown, Work};

/// Recovers what the kernel left on one shape after one workload, and compares.
pub(crate) fn recover_and_compare(
    shape: &Shape,
    shutdown: Shutdown,
    work: Work,
) -> Result<RecoveryReport> {
    let scene = Scene::make(shape)?;
    scene.work(shutdown, work)?;
    let (ours, report) = scene.recovered()?;
    let theirs = scene.recovered_by_the_kernel()?;
    listing::compare(&ours, &theirs)?;
    assert!(!ours.is_empty(), "{}", shape.name);
    Ok(report)
}
