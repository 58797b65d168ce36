//! Starts the workers, adds up what they count, and names the image that killed one.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::worker::{HANG, Progress};
use super::{Failure, Job, Tallies};
use crate::operations::Desk;

/// A worker that has been started again so often is given up.
const RESTARTS_MAX: u32 = 10;

/// Runs `job` in as many processes, each this program with `worker` as its first argument.
pub fn run(job: Job, processes: u64) -> Result<Tallies> {
    ensure!(processes > 0, "no processes");
    // What a killed worker leaves goes with the run.
    let dir = tempfile::tempdir_in(Desk::temporary_dir())?;
    let mut workers = Vec::new();
    for index in 0..processes.min(job.count.max(1)) {
        let share = Job {
            first: job.first.wrapping_add(index.wrapping_mul(job.step)),
            count: (job.count - index).div_ceil(processes),
            step: job.step.wrapping_mul(processes),
            ..job
        };
        workers.push(Worker::start(share, dir.path().join(index.to_string()))?);
    }
    let mut tallies = Tallies::default();
    for worker in workers {
        tallies.add(worker.finish()?);
    }
    Ok(tallies)
}

struct Worker {
    job: Job,
    progress: PathBuf,
    process: Child,
}

impl Worker {
    fn start(job: Job, progress: PathBuf) -> Result<Self> {
        let process = spawn(job, &progress)?;
        Ok(Self {
            job,
            progress,
            process,
        })
    }

    /// Waits for the worker. When it dies, its image is a failure, and a new one goes on after it.
    fn finish(mut self) -> Result<Tallies> {
        let mut tallies = Tallies::default();
        for _ in 0..=RESTARTS_MAX {
            let mut output = String::new();
            let mut stdout = self.process.stdout.take().context("a worker's output")?;
            stdout.read_to_string(&mut output)?;
            let status = self.process.wait()?;
            if status.success() {
                tallies.add(serde_json::from_str(&output).context("a worker's tallies")?);
                return Ok(tallies);
            }
            let Progress { number, step } = Progress::read(&self.progress)?;
            let what = match status.code() {
                Some(HANG) => format!("{step}: took too long"),
                _ => format!("{step}: killed the process: {status}"),
            };
            tallies.failures.push(Failure { number, what });
            let done = number.wrapping_sub(self.job.first) / self.job.step + 1;
            tallies.images += done;
            self.job.first = self
                .job
                .first
                .wrapping_add(done.wrapping_mul(self.job.step));
            self.job.count = self.job.count.saturating_sub(done);
            self.process = spawn(self.job, &self.progress)?;
        }
        self.process.kill()?;
        self.process.wait()?;
        Ok(tallies)
    }
}

fn spawn(job: Job, progress: &Path) -> Result<Child> {
    let numbers = [job.first, job.count, job.step].map(|number| number.to_string());
    let dir = progress.parent().context("a directory")?;
    Command::new(std::env::current_exe()?)
        .arg("worker")
        .arg(job.format.kernel_name())
        .arg(job.part.name())
        .args(numbers)
        .arg(progress)
        .env("TMPDIR", dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("a worker cannot be started")
}
