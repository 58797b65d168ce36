//! Commands on the devices of a mount, one at a time, while files are used.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use platter_block::BlockDevice;
use platter_block::lock::{Mutex, rank};
use platter_vfs::devices::{Balance, Moved, Moving, NewLength, Resized, Scrubbed};
use platter_vfs::{CheckProgress, CheckSink, Condition, Devices, Finding, Result};

use crate::chunk::Member;
use crate::ondisk::DeviceId;
use crate::ops::{SuperBlock, sync};
use crate::pool::{self, BalanceArgs};
use crate::scrub::{Distrusted, scrub_mounted, scrub_opened};
use crate::txn::WriteContext;

/// The devices of a mount.
#[derive(Debug)]
pub(super) struct DevicesInUse {
    fs: Arc<SuperBlock>,
    /// Held by the command that runs.
    turn: Mutex<(), { rank(0, 2) }>,
    /// The mount ends: no command begins, and the one that runs is to end.
    is_ending: AtomicBool,
}

impl DevicesInUse {
    pub(super) fn new(fs: Arc<SuperBlock>) -> Self {
        Self {
            fs,
            turn: Mutex::default(),
            is_ending: AtomicBool::new(false),
        }
    }

    /// Makes the command that runs end, and lets none begin.
    pub(super) fn stop(&self) {
        self.is_ending.store(true, Ordering::Release);
        if let Some(writing) = self.fs.writing() {
            writing.stop_moving();
        }
    }

    /// Waits for the command that runs.
    pub(super) fn wait(&self) {
        drop(self.turn.lock());
    }

    fn alone<R>(&self, command: impl FnOnce() -> Result<R>) -> Result<R> {
        let _turn = self.turn.try_lock().ok_or(Condition::Busy)?;
        if self.is_ending.load(Ordering::Acquire) {
            return Err(Condition::ReadOnly.into());
        }
        command()
    }

    fn writing(&self) -> Result<&WriteContext> {
        Ok(self.fs.writing().ok_or(Condition::ReadOnly)?)
    }

    /// Has a command end when the mount does.
    fn until_end<'m>(&'m self, moving: Moving<'m>) -> impl FnMut(u64, u64) -> ControlFlow<()> + 'm {
        move |moved, total| {
            if self.is_ending.load(Ordering::Acquire) {
                return ControlFlow::Break(());
            }
            moving(moved, total)
        }
    }
}

impl Devices for DevicesInUse {
    fn scrub(&self, repairs: bool, sink: &mut dyn CheckSink) -> Result<Scrubbed> {
        self.alone(|| {
            let mut sink = UntilEnd {
                sink,
                is_ending: &self.is_ending,
            };
            let scrubbed = match self.fs.writing() {
                Some(writing) => {
                    // What was written so far is looked at as well.
                    sync::sync_fs(&self.fs)?;
                    scrub_mounted(writing, repairs, &mut sink)?
                }
                None if repairs => return Err(Condition::ReadOnly.into()),
                None => {
                    let trusted = Distrusted::default();
                    scrub_opened(self.fs.context(), trusted, vec![], false, &mut sink)?
                }
            };
            Ok(scrubbed.named(repairs))
        })
    }

    fn balance(&self, balance: &Balance, moving: Moving<'_>) -> Result<Moved> {
        let args = BalanceArgs::parse(balance)?;
        self.alone(|| pool::balance(self.writing()?, &args, &mut self.until_end(moving)))
    }

    fn add_device(&self, device: &Arc<dyn BlockDevice>) -> Result<u64> {
        let uuid = self.fs.clock().random_uuid();
        self.alone(|| pool::add_device(self.writing()?, device, uuid))
    }

    fn remove_device(&self, device: u64, moving: Moving<'_>) -> Result<Moved> {
        let device = DeviceId(device);
        self.alone(|| pool::remove_device(self.writing()?, device, &mut self.until_end(moving)))
    }

    fn replace_device(
        &self,
        device: u64,
        target: &Arc<dyn BlockDevice>,
        sink: &mut dyn CheckSink,
    ) -> Result<Scrubbed> {
        self.alone(|| {
            let mut sink = UntilEnd {
                sink,
                is_ending: &self.is_ending,
            };
            pool::replace_device(self.writing()?, DeviceId(device), target, &mut sink)
        })
    }

    fn resize_device(
        &self,
        device: Option<u64>,
        length: NewLength,
        moving: Moving<'_>,
    ) -> Result<Resized> {
        self.alone(|| {
            let fs = self.writing()?;
            let member = find_member(fs, device)?;
            let device = member.id;
            let missing = || Condition::NotFound.because(format!("device {device} is missing"));
            let present = member.device.ok_or_else(missing)?;
            let before_bytes = member.total_bytes.unwrap_or_default();
            let wanted = match length {
                NewLength::Whole => {
                    // So that the size counts that a block device has by now.
                    present.grow(before_bytes)?;
                    present.geometry().len_bytes
                }
                NewLength::Bytes(bytes) => bytes,
                NewLength::Larger(bytes) => before_bytes.saturating_add(bytes),
            };
            let moving = &mut self.until_end(moving);
            let moved = pool::resize_device(fs, device, wanted, moving)?;
            let after = find_member(fs, Some(device.0))?;
            Ok(Resized {
                before_bytes,
                after_bytes: after.total_bytes.unwrap_or_default(),
                moved,
            })
        })
    }
}

/// What is known of a device: of the only one, if none is named.
fn find_member(fs: &WriteContext, device: Option<u64>) -> Result<Member> {
    let id = match device {
        Some(device) => DeviceId(device),
        None => pool::only_device(&fs.blocks().store().members())?,
    };
    pool::check_device(fs, id)?;
    let members = fs.blocks().store().members();
    let found = members.iter().find(|member| member.id == id);
    Ok(found.ok_or(Condition::NotFound)?.clone())
}

/// Has a scrub end when the mount does.
struct UntilEnd<'s> {
    sink: &'s mut dyn CheckSink,
    is_ending: &'s AtomicBool,
}

impl CheckSink for UntilEnd<'_> {
    fn finding(&mut self, finding: Finding) -> ControlFlow<()> {
        self.sink.finding(finding)
    }

    fn progress(&mut self, progress: CheckProgress) -> ControlFlow<()> {
        if self.is_ending.load(Ordering::Acquire) {
            return ControlFlow::Break(());
        }
        self.sink.progress(progress)
    }
}
