//! Writes that fail after the program went on.

use anyhow::{Context, Result, ensure};
use platter_vfs::Error;

use super::Candidate;

const LEN_BYTES: usize = 40_000;

/// Fails the writes of a device, and demands that the next sync of a file reports it, that no later one
/// reports it again without a further failure, and that data that was synced before is as it was.
pub fn failed_writes_are_reported(candidate: Candidate) -> Result<()> {
    run(candidate).with_context(|| candidate.name())
}

fn run(candidate: Candidate) -> Result<()> {
    let mut mounted = candidate.mount(5)?;
    let (kept, lost) = (mounted.file("kept")?, mounted.file("lost")?);
    kept.write_at(0, &vec![1; LEN_BYTES])?;
    kept.sync(false)?;
    mounted.fs().sync()?;
    mounted.fail_writes(true);
    lost.write_at(0, &vec![2; LEN_BYTES])?;
    let reported = lost.sync(false);
    ensure!(
        matches!(reported, Err(Error::Io(_))),
        "the sync of what could not be written: {reported:?}"
    );
    mounted.fail_writes(false);
    let mut buf = vec![0; LEN_BYTES];
    ensure!(kept.read_at(0, &mut buf)? == LEN_BYTES && buf == vec![1; LEN_BYTES]);
    if mounted.fs().is_read_only() {
        // A change of metadata failed: there is no more to write.
        ensure!(
            lost.write_at(0, &vec![3; LEN_BYTES]).is_err(),
            "written after a failure"
        );
        drop((kept, lost));
        mounted.mount_after_failure()?;
        let kept = mounted.lookup("kept").context("mounted after a failure")?;
        ensure!(kept.read_at(0, &mut buf)? == LEN_BYTES && buf == vec![1; LEN_BYTES]);
        drop(kept);
        return mounted.finish();
    }
    // What was not written stays dirty, and is written now; the error was reported.
    lost.sync(false).context("the sync after the failure")?;
    kept.sync(false).context("the sync of another file")?;
    lost.write_at(0, &vec![3; LEN_BYTES])?;
    lost.sync(false)?;
    ensure!(lost.read_at(0, &mut buf)? == LEN_BYTES && buf == vec![3; LEN_BYTES]);
    // The whole filesystem may report it once more, where all of it is synced.
    let _ = mounted.fs().sync();
    mounted.fs().sync().context("the second sync of all")?;
    drop((kept, lost));
    mounted.finish()
}
