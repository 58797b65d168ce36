//! What a process took of the processors and of memory, from proc(5).

use anyhow::{Context, Result};

/// Linux uses ticks of a hundredth of a second for every program.
const TICKS_PER_SECOND: f64 = 100.0;
/// Fields of `/proc/PID/stat` after the name: times in user and kernel mode, its own and those of
/// its children that have ended.
const TIMES: [usize; 2] = [11, 12];
const TIMES_OF_CHILDREN: [usize; 2] = [13, 14];

/// Seconds of processor time that a process has used, to a hundredth, without its children.
pub(crate) fn cpu_seconds(process: u32) -> Result<f64> {
    seconds_of(process, TIMES)
}

/// Seconds of processor time that programs took which this process has started and seen end.
pub(crate) fn children_cpu_seconds() -> Result<f64> {
    seconds_of(std::process::id(), TIMES_OF_CHILDREN)
}

fn seconds_of(process: u32, times: [usize; 2]) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    let (_, fields) = text.rsplit_once(") ").context("a process' name")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    let mut ticks = 0.0;
    for time in times {
        let field = fields.get(time).context("times of a process")?;
        ticks += field.parse::<f64>()?;
    }
    Ok(ticks / TICKS_PER_SECOND)
}

/// The most memory a process had at any time, in bytes.
pub(crate) fn peak_bytes(process: u32) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let peak = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|peak| peak.trim().strip_suffix(" kB"));
    Ok(kib.context("peak memory")?.parse::<u64>()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_used_time_and_memory() {
        let process = std::process::id();
        let mut sum = 0_u64;
        // Other tests may have used some before.
        let end = cpu_seconds(process).unwrap() + 0.03;
        while cpu_seconds(process).unwrap() < end {
            sum = sum.wrapping_mul(31).wrapping_add(1);
        }
        assert!(sum > 0);
        assert!(peak_bytes(process).unwrap() > 1 << 20);
    }
}
