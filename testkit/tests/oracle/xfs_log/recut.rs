//! Exchanges of contents that recovery finishes on the device: wherever it is cut, and the one after it as well, the
//! next recovery comes to the same. `PLATTER_XFS_EXCHANGES` says how many logs: 40 in
//! `cargo xtask soak xfs --only xfs-exchanges`.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use platter_block::sim::{CrashOptions, Recorder, Recording};
use platter_block::{BlockDevice, OverlayDevice};
use platter_cache::MemoryBudget;
use platter_vfs::{Filesystem, FixedClock, Timestamp};
use platter_xfs::ondisk::log::ItemKind;
use platter_xfs::{MountOptions, Xfs, check};
use testkit::findings::Findings;
use testkit::prng::Prng;
use testkit::workload::Tree;

use super::chains;
use super::scene::{self, Scene};
use super::shapes::EXCHANGE;

/// Logs in the normal tests.
const LOGS: usize = 1;
/// Logs of one recorded workload.
const LOGS_OF_RECORDING: usize = 6;
/// Cuts of the recovery of one log: after all writes up to a point, and with some of those that no flush followed.
const CUTS: usize = 12;
/// Recordings in which a log with an open exchange is looked for, for each log.
const RECORDINGS_MAX: usize = 4;

type Devices = Vec<Arc<dyn BlockDevice>>;

/// What was compared.
#[derive(Debug, Default)]
struct Tally {
    logs: usize,
    cuts: usize,
    cuts_of_cuts: usize,
    differences: Vec<String>,
}

fn budget() -> Arc<MemoryBudget> {
    Arc::new(MemoryBudget::new(32 << 20))
}

fn shared(devices: Vec<OverlayDevice>) -> Devices {
    let device = |device: OverlayDevice| -> Arc<dyn BlockDevice> { Arc::new(device) };
    devices.into_iter().map(device).collect()
}

/// What a recovery in memory shows.
fn read(devices: &[Arc<dyn BlockDevice>]) -> Result<Tree> {
    let data = Arc::clone(&devices[0]);
    let mounted = Xfs::mount(data, &MountOptions::default(), budget())?;
    Tree::read(&mounted, None)
}

/// What a mount for writing shows, and all that it wrote until it was unmounted. What it leaves is sound.
fn recover(devices: Devices) -> Result<(Tree, Recording)> {
    let recorder = Recorder::new(devices);
    let data: Arc<dyn BlockDevice> = Arc::clone(&recorder.devices()[0]) as _;
    let clock = Arc::new(FixedClock::new(Timestamp::default(), 1));
    let mounted =
        Xfs::mount_writable(Arc::clone(&data), &MountOptions::default(), budget(), clock)?;
    let tree = Tree::read(&mounted, None)?;
    mounted.unmount()?;
    let mut findings = Findings::default();
    check::check(&data, &MountOptions::default(), &budget(), &mut findings)?;
    let errors = findings.errors();
    ensure!(errors.is_empty(), "{}", errors.join(", "));
    Ok((tree, recorder.recording()))
}

/// States that a cut of a recovery leaves.
fn cut(recording: &Recording, numbers: &mut Prng, count: usize) -> Result<Vec<(String, Devices)>> {
    let end = recording.events().len() as u64;
    let mut states = Vec::new();
    for _ in 0..count.div_ceil(2) {
        let at = usize::try_from(numbers.below(end))?;
        states.push((format!("at {at} of {end}"), shared(recording.replay(at)?)));
    }
    // XFS knows no remedy for a block of metadata that was torn while it was written to its place.
    let options = CrashOptions {
        seed: numbers.below(u64::MAX),
        mixes_per_position: 1,
        subset_writes_max: 2,
        tears_writes: false,
        ..CrashOptions::default()
    };
    let total = recording.crash_states(options).count();
    let step = (total / (count / 2).max(1)).max(1);
    for (index, state) in recording.crash_states(options).enumerate().step_by(step) {
        let state = state?;
        let name = format!("state {index} of {total}");
        states.push((name, shared(state.devices()?)));
    }
    Ok(states)
}

fn demand_same(found: &Tree, expected: &Tree) -> Result<()> {
    let differences = found.differences(expected);
    ensure!(differences.is_empty(), "{}", differences.join(", "));
    Ok(())
}

/// Recovers one log, cuts of that, and cuts of the recovery after each of these.
fn recover_and_cut(log: Devices, numbers: &mut Prng, tally: &mut Tally) -> Result<()> {
    let expected = read(&log)?;
    let (found, recording) = recover(log)?;
    demand_same(&found, &expected).context("on the device")?;
    for (name, devices) in cut(&recording, numbers, CUTS)? {
        recover_cut(devices, &expected, numbers, tally).with_context(|| format!("cut {name}"))?;
    }
    Ok(())
}

fn recover_cut(
    devices: Devices,
    expected: &Tree,
    numbers: &mut Prng,
    tally: &mut Tally,
) -> Result<()> {
    demand_same(&read(&devices)?, expected).context("in memory")?;
    let (found, recording) = recover(devices)?;
    demand_same(&found, expected)?;
    tally.cuts += 1;
    for (name, devices) in cut(&recording, numbers, 1)? {
        let what = || format!("and {name}");
        let (found, _) = recover(devices).with_context(what)?;
        demand_same(&found, expected).with_context(what)?;
        tally.cuts_of_cuts += 1;
    }
    Ok(())
}

fn recover_logs(count: usize) -> Result<Tally> {
    let mut tally = Tally::default();
    for round in 0..(count * RECORDINGS_MAX) as u64 {
        let made = Scene::make(&EXCHANGE)?;
        let recording = made.recorded(chains::exchanges)?;
        let positions = made.log_writes(&recording)?;
        let mut numbers = Prng::new(round);
        let most = tally.logs + LOGS_OF_RECORDING;
        for _ in 0..positions.len() {
            let index = usize::try_from(numbers.below(positions.len() as u64))?;
            let at = positions[index];
            let intents = scene::open_intents(&recording, at)?;
            if !intents.iter().any(|it| it.kind() == ItemKind::Exchange) {
                continue;
            }
            let log = shared(recording.replay(at)?);
            if let Err(error) = recover_and_cut(log, &mut numbers, &mut tally) {
                let scene = Scene::of_position(&EXCHANGE, &recording, at)?;
                let kept = scene.keep();
                let kept = kept.display();
                let line = format!("round {round}, log cut at {at}: {error:#}; kept in {kept}");
                tally.differences.push(line);
            }
            tally.logs += 1;
            if tally.logs >= count {
                return Ok(tally);
            }
            if tally.logs == most {
                break;
            }
        }
    }
    Ok(tally)
}

#[test]
fn recovery_of_an_exchange_may_be_cut_and_cut_again() {
    let count = std::env::var("PLATTER_XFS_EXCHANGES").ok();
    let count = count.map_or(LOGS, |count| count.parse().unwrap());
    let tally = recover_logs(count).unwrap_or_else(|error| panic!("{error:#}"));
    println!("{tally:?}");
    assert!(
        tally.differences.is_empty(),
        "{}",
        tally.differences.join("\n")
    );
    assert_eq!(tally.logs, count);
    assert!(
        tally.cuts >= count * CUTS / 2 && tally.cuts_of_cuts >= tally.cuts,
        "{tally:?}"
    );
}
