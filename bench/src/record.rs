//! Keeps what a benchmark measured, with the machine it ran on.

use std::path::Path;

use anyhow::Result;
use serde::Serialize;

#[derive(Serialize)]
struct Record<'a, T> {
    machine: Machine,
    command: String,
    result: &'a T,
}

#[derive(Serialize)]
struct Machine {
    processors: usize,
    model: String,
    kernel: String,
}

/// Whether a result is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// In `bench/results/NAME.json`.
    Yes,
    /// It is only shown.
    No,
}

/// Keeps `result` if it is to be kept.
pub(crate) fn keep<T: Serialize>(keep: Keep, name: &str, result: &T) -> Result<()> {
    if keep == Keep::No {
        return Ok(());
    }
    let record = Record {
        machine: Machine::this()?,
        command: format!("cargo xtask bench {name} --keep"),
        result,
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
    std::fs::create_dir_all(&folder)?;
    let mut text = serde_json::to_string_pretty(&record)?;
    text.push('\n');
    Ok(std::fs::write(folder.join(format!("{name}.json")), text)?)
}

impl Machine {
    fn this() -> Result<Self> {
        let processors = std::fs::read_to_string("/proc/cpuinfo")?;
        let model = processors
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
            .map_or("unknown", |(_, model)| model);
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
        Ok(Self {
            processors: std::thread::available_parallelism()?.get(),
            model: model.to_owned(),
            kernel: kernel.trim_end().to_owned(),
        })
    }
}
