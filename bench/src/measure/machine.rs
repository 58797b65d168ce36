//! The machine that measured, and whether it had anything else to do.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::record::Extent;

/// How long a machine is looked at.
const LOOK: Duration = Duration::from_secs(4);
/// The same where times mean nothing.
const GLANCE: Duration = Duration::from_millis(200);
/// More than this of its time taken, and it is not quiet.
const BUSY_SHARE_MAX: f64 = 0.05;
/// More than this for the last minute, and something ran that may go on.
const LOAD_MAX: f64 = 0.3;
/// How long, in looks, one waits for it. That a build ran is forgotten after two minutes.
const LOOKS_MAX: u32 = 45;

/// What a machine is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) processors: usize,
    pub(crate) model: String,
    pub(crate) memory_mib: u64,
    pub(crate) kernel: String,
}

/// What else ran, before or after measuring.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Quiet {
    /// Of the last minute, in which this program may have run itself.
    pub(crate) load: f64,
    /// Of all processors, while nothing was measured.
    pub(crate) busy_share: f64,
    /// Of all processors, taken by the host of this virtual machine.
    pub(crate) stolen_share: f64,
}

impl Machine {
    pub(crate) fn this() -> Result<Self> {
        let processors = std::fs::read_to_string("/proc/cpuinfo")?;
        let memory = std::fs::read_to_string("/proc/meminfo")?;
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
        let memory_kib = field(&memory, "MemTotal").context("memory")?;
        let memory_kib = memory_kib.trim_end_matches(" kB").parse::<u64>()?;
        Ok(Self {
            processors: std::thread::available_parallelism()?.get(),
            model: field(&processors, "model name").unwrap_or_else(|| "unknown".to_owned()),
            memory_mib: memory_kib >> 10,
            kernel: kernel.trim_end().to_owned(),
        })
    }
}

/// The value after `name` and a colon.
fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let (_, value) = line.split_once(':')?;
    Some(value.trim().to_owned())
}

impl Quiet {
    /// Looks at the machine for a while, during which nothing of ours may run.
    pub(crate) fn look(extent: Extent) -> Result<Self> {
        let before = Times::now()?;
        std::thread::sleep(match extent {
            Extent::Quick => GLANCE,
            Extent::Full => LOOK,
        });
        let after = Times::now()?;
        let load = std::fs::read_to_string("/proc/loadavg")?;
        let load = load.split(' ').next().context("the load")?;
        let all = (after.all - before.all).max(1.0);
        Ok(Self {
            load: load.parse()?,
            busy_share: 1.0 - (after.idle - before.idle) / all,
            stolen_share: (after.stolen - before.stolen) / all,
        })
    }

    /// The look that found more.
    pub(crate) fn busier(self, other: Self) -> Self {
        if other.busy_share > self.busy_share {
            other
        } else {
            self
        }
    }

    /// Waits for the load of what ran before to be gone, though not for ever.
    pub(crate) fn wait() -> Result<()> {
        for look in 0..LOOKS_MAX {
            let load = Self::look(Extent::Full)?.load;
            if load <= LOAD_MAX {
                break;
            }
            if look == 0 {
                println!("waiting for the machine to become quiet (load {load:.2})");
            }
        }
        Ok(())
    }

    /// Whether times measured now mean anything. The load says nothing of that: what was measured
    /// just before is part of it.
    pub(crate) fn is_quiet(self) -> bool {
        self.busy_share <= BUSY_SHARE_MAX
    }
}

/// Ticks of all processors since the start.
struct Times {
    all: f64,
    idle: f64,
    stolen: f64,
}

impl Times {
    fn now() -> Result<Self> {
        let text = std::fs::read_to_string("/proc/stat")?;
        let line = text.lines().next().context("times")?;
        let numbers: Result<Vec<f64>, _> =
            line.split_whitespace().skip(1).map(str::parse).collect();
        let numbers = numbers?;
        let number = |index: usize| numbers.get(index).copied().unwrap_or(0.0);
        Ok(Self {
            // Those of guests are counted among the users' already.
            all: numbers.iter().take(8).sum(),
            idle: number(3) + number(4),
            stolen: number(7),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_something() {
        let machine = Machine::this().unwrap();
        assert!(machine.processors > 0 && machine.memory_mib > 64);
        assert!(!machine.kernel.is_empty());
    }

    #[test]
    fn a_machine_with_work_to_do_is_not_quiet() {
        let quiet = Quiet {
            load: 1.9,
            busy_share: 0.01,
            stolen_share: 0.0,
        };
        assert!(quiet.is_quiet(), "it has measured, and rests now");
        let busy_share = 0.5;
        assert!(
            !Quiet {
                busy_share,
                ..quiet
            }
            .is_quiet()
        );
    }
}
