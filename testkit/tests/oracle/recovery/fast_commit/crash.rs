//! Crashes during a replay: what they leave is recovered to the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Result, ensure};
use platter_block::sim::{CrashOptions, CrashState, Event, RecordingDevice, Request};
use platter_block::{BlockDevice, MemoryDevice};
use platter_ext4::ondisk::jbd2::LogBlock;
use platter_ext4::recovery::{Onto, open_journal};
use testkit::oracle::{Verdict, e2fsck};

use super::{Shown, assert_same, files, shown_of};
use crate::recovery::{Cut, Recovered, Scene};

/// Crash states of one recovery that the kernel and `e2fsck` judge.
const JUDGED_MAX: usize = 2;

/// Recovers a cut, and what each crash during that leaves. Where that is a transaction in the log in place
/// of the fast commits, the kernel has to agree with us in some states, and `e2fsck` where these are
/// erased. Returns how many crashes there were, and how many of those.
pub(super) fn crash_recovery(cut: &Cut, seed: u64, judged_max: usize) -> Result<(usize, usize)> {
    let image: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new("image", cut.image.clone()));
    let device = Arc::new(RecordingDevice::new(image));
    let recorded: Arc<dyn BlockDevice> = Arc::<RecordingDevice>::clone(&device);
    let whole = Recovered::of(&recorded, None, Onto::Device)?;
    let places = cut.fast_commit_blocks()?;
    let head = *places.first().expect("a fast commit block");
    let options = CrashOptions {
        seed,
        ..CrashOptions::default()
    };
    let (mut states, mut in_log, mut erased) = (0, 0, 0);
    for state in device.recording().crash_states(options) {
        let Some(left) = left_by(&state?, cut)? else {
            continue;
        };
        let again = left.recover()?;
        whole.assert_same_blocks(&again.image, "recovery after a crash");
        states += 1;
        if again.report.log.transactions == 0 || again.report.fast_commits.records > 0 {
            continue;
        }
        in_log += 1;
        if in_log <= judged_max {
            let kernel = left.recovered_by_kernel()?;
            let ours = shown_of(&whole.save()?.image())?;
            assert_same(&ours, &shown_of(&kernel.image())?, "the kernel");
        }
        erased += usize::from(left.image[head] == 0);
        if left.image[head] == 0 && erased <= judged_max {
            let saved = left.save()?;
            let repairs = e2fsck::recover(&saved.image())?;
            ensure!(repairs.is_empty(), "{repairs:?}");
            let ours = shown_of(&whole.save()?.image())?;
            assert_same(&ours, &shown_of(&saved.image())?, "e2fsck");
        }
    }
    Ok((states, in_log))
}

/// What a crash during the recovery of `cut` left; `None` where it tore the superblock.
fn left_by(state: &CrashState<'_>, cut: &Cut) -> Result<Option<Cut>> {
    let mut image = vec![0; cut.image.len()];
    state.device()?.read_at(0, &mut image)?;
    let left = Cut {
        image,
        journal: None,
    };
    Ok(left.volume().is_ok().then_some(left))
}

/// Recovers a cut whose fast commits exceed a transaction, and what crashes leave once they are
/// applied in place: no transaction may be replayed over them. Returns what the recovery shows.
pub(super) fn crash_in_place(cut: &Cut) -> Result<BTreeMap<Vec<u8>, Shown>> {
    let image: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new("image", cut.image.clone()));
    let device = Arc::new(RecordingDevice::new(image));
    let recorded: Arc<dyn BlockDevice> = Arc::<RecordingDevice>::clone(&device);
    let whole = Recovered::of(&recorded, None, Onto::Device)?;
    ensure!(whole.report.log.transactions > 0, "an empty log");
    let saved = whole.save()?;
    ensure!(e2fsck::check(&saved.image())? == Verdict::Clean);
    let expected = shown_of(&saved.image())?;
    let volume = cut.volume()?;
    let place = open_journal(&volume, None)?.map().locate(LogBlock(0));
    let place = place.map(|(place, _)| volume.geometry.offset_bytes(place));
    let recording = device.recording();
    let events = recording.events();
    let tail = events.iter().position(|event| match &event.request {
        Request::Write { offset, .. } => Some(*offset) == place,
        Request::Flush | Request::Discard(_) => false,
    });
    let tail = tail.expect("a write of the journal's superblock");
    let is_flush = |event: &&Event| event.request == Request::Flush;
    let flushes = events[..tail].iter().filter(is_flush).count();
    let options = CrashOptions {
        first_position: tail,
        mixes_per_position: 1,
        subset_writes_max: 2,
        // A block that is torn in its place has no copy in the log, as in the kernel's replay.
        tears_writes: false,
        ..CrashOptions::default()
    };
    let mut states = 0;
    for state in recording.crash_states(options) {
        let state = state?;
        let Some(left) = left_by(&state, cut)?.filter(|_| state.flushes > flushes) else {
            continue;
        };
        let again = left.recover()?;
        assert_eq!(again.report.log.transactions, 0);
        let saved = again.save()?;
        let verdict = e2fsck::check(&saved.image())?;
        ensure!(verdict == Verdict::Clean, "{verdict:?}");
        assert_same(&shown_of(&saved.image())?, &expected, "the first recovery");
        states += 1;
    }
    ensure!(states > 20, "only {states} crash states");
    Ok(expected)
}

/// All of the fast commits are applied, or none, so that the second recovery has what the first one had.
#[test]
fn crash_during_replay_of_fast_commits_loses_nothing() -> Result<()> {
    let layouts: [&[&str]; 3] = [
        &["-b", "1024"],
        &["-b", "1024", "-O", "^metadata_csum,^64bit"],
        &["-b", "1024", "-O", "inline_data", "-I", "256"],
    ];
    let (mut states, mut in_log) = (0, 0);
    for (seed, layout) in (1..).zip(layouts) {
        let mut options = vec!["-t", "ext4", "-O", "fast_commit", "-J", "size=2"];
        options.extend(layout);
        let scene = Scene::make(12 << 10, &options)?;
        let cuts = scene.cuts("", files)?;
        for cut in &cuts {
            let counts = crash_recovery(cut, seed, JUDGED_MAX)?;
            (states, in_log) = (states + counts.0, in_log + counts.1);
        }
    }
    println!("{states} crash states, {in_log} with a transaction in place of the fast commits");
    ensure!(states > 300 && in_log > 20);
    Ok(())
}
