//! Points at which the power fails while the kernel works.

use anyhow::{Result, bail, ensure};
use platter_block::sim::{CrashOptions, CrashState, Loss, Recording};
use platter_xfs::txn::LogState;
use testkit::prng::Prng;

use super::scene::{Scene, Shape, Work};

/// A point of what the kernel wrote.
pub(super) struct Cut<'r> {
    pub(super) name: String,
    shape: Shape,
    recording: &'r Recording,
    at: At<'r>,
}

enum At<'r> {
    /// After a write to the log, with all before it on the disk.
    LogWrite(usize),
    /// With some of the writes that no flush followed.
    State(Box<CrashState<'r>>),
}

impl Cut<'_> {
    pub(super) fn scene(&self) -> Result<Scene> {
        match &self.at {
            At::LogWrite(at) => Scene::of_position(&self.shape, self.recording, *at),
            At::State(state) => Scene::of_state(&self.shape, state),
        }
    }

    /// The same with all of each write of which a part is there; `None` if there is none.
    pub(super) fn without_torn_writes(&self) -> Option<Self> {
        let At::State(state) = &self.at else {
            return None;
        };
        let mut state = state.clone();
        let mut is_torn = false;
        for (_, loss) in &mut state.losses {
            if matches!(loss, Loss::Torn(_) | Loss::Before(_) | Loss::After(_)) {
                *loss = Loss::Kept;
                is_torn = true;
            }
        }
        is_torn.then(|| Self {
            name: format!("{} without torn writes", self.name),
            at: At::State(state),
            ..*self
        })
    }
}

/// Lets the kernel work, and visits points of what it wrote whose log is dirty: half of them after a write to the
/// log, and half with some of the writes that no flush followed.
pub(super) fn cuts(
    shape: &Shape,
    work: Work,
    seed: u64,
    most: usize,
    visit: &mut dyn FnMut(&Cut<'_>, Scene),
) -> Result<()> {
    let made = Scene::make(shape)?;
    let recording = made.recorded(work)?;
    let positions = made.log_writes(&recording)?;
    let options = CrashOptions {
        seed,
        mixes_per_position: 1,
        subset_writes_max: 2,
        ..CrashOptions::default()
    };
    let states: Vec<_> = recording.crash_states(options).collect::<Result<_, _>>()?;
    ensure!(
        !states.is_empty() && !positions.is_empty(),
        "nothing was recorded"
    );
    let mut numbers = Prng::new(seed);
    let mut visited = 0;
    for round in 0..most * 4 {
        let (at, name) = if round % 2 == 0 {
            // The first writes are those of a filesystem that is filled.
            let first = positions.len() / 3;
            let index = first + usize::try_from(numbers.below((positions.len() - first) as u64))?;
            let name = format!("after write {index} of the log");
            (At::LogWrite(positions[index]), name)
        } else {
            let index = usize::try_from(numbers.below(states.len() as u64))?;
            let state = Box::new(states[index].clone());
            (At::State(state), format!("state {index}"))
        };
        let cut = Cut {
            name,
            shape: *shape,
            recording: &recording,
            at,
        };
        let scene = cut.scene()?;
        if scene.is_dirty()? {
            visit(&cut, scene);
            visited += 1;
        }
        if visited == most {
            return Ok(());
        }
    }
    Ok(())
}

/// The last point of what the kernel wrote at which the live part of the log begins before the end of the log, and ends
/// after its start.
pub(super) fn crossing_the_end(made: &Scene, recording: &Recording) -> Result<Scene> {
    for at in made.log_writes(recording)?.into_iter().rev() {
        let scene = Scene::of_position(&made.shape(), recording, at)?;
        let position = scene.log_position()?;
        if position.state == LogState::Dirty && position.tail > position.head {
            return Ok(scene);
        }
    }
    bail!("the live part of the log never crosses its end")
}
