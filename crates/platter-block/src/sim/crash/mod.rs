//! The states that power failures can leave on the devices of a filesystem.
//!
//! The model is the ordering rule of [`BlockDevice`](crate::BlockDevice): a write is durable once a
//! flush of its device that began after it had returned has itself returned. Each logical block of any
//! other write may have reached the disk or not, independently of the other blocks and devices.

mod state;
mod pending;

use std::collections::HashSet;
use std::sync::Arc;
use std::vec;

use super::dice::Dice;
use super::{Event, Recording, Request};
use crate::{BlockDevice, IoError, OverlayDevice};
use pending::PendingWrites;

pub use state::{CrashState, Loss};

/// The extent of the search for crash states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrashOptions {
    /// Seed of all random choices.
    pub seed: u64,
    /// First log position at which a power failure is simulated.
    pub first_position: usize,
    /// Number of random combinations of dropped, torn and complete writes at each position.
    pub mixes_per_position: u32,
    /// Up to this number of writes between two flushes, every subset of them is enumerated; at most
    /// 16. With more, each one is dropped alone and kept alone.
    pub subset_writes_max: u32,
    /// Whether a write of several blocks may leave some of them.
    pub tears_writes: bool,
}

impl Default for CrashOptions {
    fn default() -> Self {
        Self {
            seed: 0,
            first_position: 0,
            mixes_per_position: 2,
            subset_writes_max: 5,
            tears_writes: true,
        }
    }
}

/// Enumerates the distinct crash states of a recording, in the order of their positions.
///
/// At every position: all requests that had begun are complete, and random combinations. Before
/// every flush, at every mark and at the end of the log, also: no write since the last flush is
/// kept; every subset of few writes, or each write of many kept alone or dropped alone; each write of
/// several blocks torn in two; and of several devices, each kept alone or dropped alone, as when one of
/// them was flushed and the others were not. Two states with equal contents are returned once, unless a
/// flush returned or a mark was set between them.
///
/// A newer write that is kept while an older one is dropped is a reordering. Contents are assembled
/// only when the device of a state is requested, so that skipping states is cheap.
#[derive(Debug)]
pub struct CrashStates<'a> {
    recording: &'a Recording,
    options: CrashOptions,
    position: usize,
    /// Number of flushes that have returned at this position, and those in flight.
    flushes: usize,
    open_flushes: Vec<usize>,
    /// The devices with all durable writes and no others, and the fingerprint of their contents.
    durable: Vec<Arc<OverlayDevice>>,
    durable_contents: u128,
    pending: PendingWrites,
    plans: vec::IntoIter<Plan>,
    /// Fingerprints of the states returned since the last flush and the last mark.
    seen: HashSet<u128>,
    done: bool,
}

/// How the losses of a state are chosen; numbers are indexes into the list of pending writes.
#[derive(Debug, Clone, Copy)]
enum Plan {
    Everything,
    Nothing,
    /// The writes whose bits are set.
    Subset(u32),
    Without(usize),
    Only(usize),
    Split(usize, Loss),
    /// The writes of one device are dropped, and all others kept.
    WithoutMember(usize),
    /// The writes of one device are kept, and all others dropped.
    OnlyMember(usize),
    Mix(u64),
}

impl<'a> CrashStates<'a> {
    pub(super) fn new(recording: &'a Recording, options: CrashOptions) -> Self {
        let durable = recording.initial();
        let block_bytes = |device: &OverlayDevice| device.geometry().logical_block_bytes.into();
        let block_bytes = durable.iter().map(block_bytes).collect();
        let mut states = Self {
            recording,
            options,
            position: 0,
            flushes: 0,
            open_flushes: Vec::new(),
            durable: durable.into_iter().map(Arc::new).collect(),
            durable_contents: 0,
            pending: PendingWrites::new(block_bytes),
            plans: Vec::new().into_iter(),
            seen: HashSet::new(),
            done: false,
        };
        states.plan();
        states
    }

    fn event(&self, index: usize) -> Option<&'a Event> {
        self.recording.events().get(index)
    }

    /// Processes one more entry of the log, and makes the writes durable that are covered by the
    /// flushes that have returned by then.
    fn advance(&mut self) -> Result<(), IoError> {
        let Some(event) = self.event(self.position) else {
            self.done = true;
            return Ok(());
        };
        match (&event.request, event.returned) {
            (Request::Write { .. } | Request::Discard(_), _) => {
                self.pending.add(self.position, event);
            }
            (Request::Flush, Some(_)) => self.open_flushes.push(self.position),
            (Request::Flush, None) => self.pending.leave_undefined(event.member),
        }
        self.position += 1;
        let events = self.recording.events();
        let (returning, open) = self
            .open_flushes
            .iter()
            .partition(|&&flush| events[flush].returned == Some(self.position));
        self.open_flushes = open;
        let returning: Vec<usize> = returning;
        for flush in returning {
            self.make_durable(flush)?;
        }
        if self.recording.marks().contains(&self.position) {
            self.seen.clear();
        }
        self.plan();
        Ok(())
    }

    fn make_durable(&mut self, flush: usize) -> Result<(), IoError> {
        let events = self.recording.events();
        let losses = self.pending.covered(events, flush);
        let added = self.pending.fingerprint(events, &self.durable, &losses)?;
        self.durable_contents = self.durable_contents.wrapping_add(added);
        let member = events[flush].member;
        let durable = self.durable[member].fork();
        for write in self.pending.take_kept(events, &losses) {
            state::apply(&durable, &events[write.event], &write.range)?;
        }
        self.durable[member] = Arc::new(durable);
        self.flushes += 1;
        self.seen.clear();
        Ok(())
    }

    /// Lists the states of this position.
    fn plan(&mut self) {
        let mut plans = Vec::new();
        if self.position >= self.options.first_position {
            plans.push(Plan::Everything);
            let next = self.event(self.position).map(|event| &event.request);
            let marked = self.recording.marks().contains(&self.position);
            if marked || matches!(next, None | Some(Request::Flush)) {
                plans.push(Plan::Nothing);
                self.plan_whole_writes(&mut plans);
                let members = self.durable.len();
                if members > 1 {
                    plans.extend((0..members).map(Plan::WithoutMember));
                    plans.extend((0..members).map(Plan::OnlyMember));
                }
                if self.options.tears_writes {
                    let splits = self.pending.splits();
                    plans.extend(splits.map(|(which, loss)| Plan::Split(which, loss)));
                }
            }
            let mut dice = Dice::new(self.options.seed ^ self.position as u64);
            let mixes = (0..self.options.mixes_per_position).map(|_| Plan::Mix(dice.next()));
            plans.extend(mixes);
        }
        self.plans = plans.into_iter();
    }

    fn plan_whole_writes(&self, plans: &mut Vec<Plan>) {
        let count = self.pending.len();
        if count <= self.options.subset_writes_max.min(16) as usize {
            plans.extend((0..1 << count).map(Plan::Subset));
        } else {
            plans.extend((0..count).rev().map(Plan::Without));
            plans.extend((0..count).rev().map(Plan::Only));
        }
    }

    /// Returns the outcome of each pending write under a plan.
    fn losses(&self, plan: Plan) -> Vec<Loss> {
        let keep_if = |kept| if kept { Loss::Kept } else { Loss::Dropped };
        let count = self.pending.len();
        match plan {
            Plan::Everything => vec![Loss::Kept; count],
            Plan::Nothing => vec![Loss::Dropped; count],
            Plan::Subset(kept) => (0..count).map(|i| keep_if(kept >> i & 1 == 1)).collect(),
            Plan::Without(lost) => (0..count).map(|i| keep_if(i != lost)).collect(),
            Plan::Only(kept) => (0..count).map(|i| keep_if(i == kept)).collect(),
            Plan::Split(torn, loss) => {
                let mut losses = vec![Loss::Kept; count];
                losses[torn] = loss;
                losses
            }
            Plan::WithoutMember(lost) => self
                .pending
                .members()
                .map(|member| keep_if(member != lost))
                .collect(),
            Plan::OnlyMember(kept) => self
                .pending
                .members()
                .map(|member| keep_if(member == kept))
                .collect(),
            Plan::Mix(seed) => {
                let tears_writes = self.options.tears_writes;
                let mut dice = Dice::new(seed);
                // From almost all dropped to almost all kept, on each device.
                let kept_of_16: Vec<u64> = self.durable.iter().map(|_| 1 + dice.roll(15)).collect();
                let mut loss = |member: usize| match dice.roll(16) {
                    roll if tears_writes && roll % 4 == 3 => Loss::Torn(dice.next()),
                    roll => keep_if(roll < kept_of_16[member]),
                };
                self.pending.members().map(&mut loss).collect()
            }
        }
    }

    /// Returns the state that a plan makes; `None` if one with equal contents was returned before.
    fn state(&mut self, plan: Plan) -> Result<Option<CrashState<'a>>, IoError> {
        let losses = self.losses(plan);
        let events = self.recording.events();
        let added = self.pending.fingerprint(events, &self.durable, &losses)?;
        let contents = self.durable_contents.wrapping_add(added);
        if !self.seen.insert(contents) {
            return Ok(None);
        }
        Ok(Some(CrashState {
            position: self.position,
            flushes: self.flushes,
            losses: self.pending.events().zip(losses).collect(),
            contents,
            recording: self.recording,
            durable: self.durable.clone(),
        }))
    }
}

impl<'a> Iterator for CrashStates<'a> {
    type Item = Result<CrashState<'a>, IoError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.done {
            let state = match self.plans.next() {
                Some(plan) => self.state(plan),
                None => self.advance().map(|()| None),
            };
            self.done |= state.is_err();
            if let Some(state) = state.transpose() {
                return Some(state);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
