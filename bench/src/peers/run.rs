//! One side doing one workload, in a process of its own, so that what it takes is its own.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use testkit::fs_type::FsType;
use testkit::oracle::{self, Verdict, btrfs, mke2fs, xfs};

use crate::measure::{self, Latencies};
use crate::side::{Asked, CountedStore, Ground, Live, Side};
use crate::work::{Phase, Site, Unit, Workload};

/// The workload whose count is no number of files.
const MOUNTED: &str = "mount";
/// How e2fsck ends a suggestion with `-n`.
const ADVICE: &str = "Optimize? no";
/// More inodes than that are never needed, even where each file has a block.
const INODES_SPARE: u64 = 2000;

/// Input of the process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Orders {
    pub(crate) side: Side,
    pub(crate) format: FsType,
    pub(crate) workload: String,
    pub(crate) count: u64,
    pub(crate) threads: usize,
    pub(crate) cache_bytes: u64,
    /// An empty directory, on a device of the caller's choice.
    pub(crate) dir: PathBuf,
    /// Whether the image lies where what is asked of it is counted. Times then mean nothing.
    pub(crate) is_counted: bool,
}

/// What it measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) side: Side,
    /// What the image held.
    #[serde(default)]
    pub(crate) format: FsType,
    pub(crate) workload: String,
    pub(crate) count: u64,
    pub(crate) threads: usize,
    pub(crate) cache_bytes: u64,
    /// What it took to mount the first time.
    pub(crate) mount_seconds: f64,
    pub(crate) phases: Vec<Part>,
    /// The most memory that the process of the work and, where it is another, of the server had.
    pub(crate) client_peak_bytes: u64,
    pub(crate) server_peak_bytes: Option<u64>,
}

/// What a phase took.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) unit: String,
    pub(crate) amount: u64,
    pub(crate) seconds: f64,
    /// What the longest operation took, where each is timed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) longest_seconds: Option<f64>,
    pub(crate) client_cpu_seconds: f64,
    pub(crate) server_cpu_seconds: Option<f64>,
    pub(crate) asked: Asked,
    /// Of single operations, where the phase has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) latencies: Option<Latencies>,
}

impl Sample {
    /// Memory that platter took beyond what its caches may, or 0; nothing of other sides.
    pub(crate) fn above_budget_bytes(&self) -> Option<u64> {
        Some(self.platter_peak_bytes()?.saturating_sub(self.cache_bytes))
    }

    /// Whether a side that wants rings was served over the device: the kernel did not offer them.
    pub(crate) fn is_without_rings(&self) -> bool {
        let mut parts = self.phases.iter();
        self.side.wants_rings() && parts.any(|part| part.asked.by_rings == Some(false))
    }

    /// The most memory that the process with platter in it had; nothing of other sides.
    pub(crate) fn platter_peak_bytes(&self) -> Option<u64> {
        if self.side == Side::Library {
            return Some(self.client_peak_bytes);
        }
        self.server_peak_bytes
            .filter(|_| self.side.is_platter_mounted())
    }
}

/// The process' part.
pub(crate) fn run(orders: &str) -> Result<()> {
    let orders: Orders = serde_json::from_str(orders)?;
    println!("{}", serde_json::to_string(&measure(&orders)?)?);
    Ok(())
}

/// Does the workload and measures each phase.
pub(crate) fn measure(orders: &Orders) -> Result<Sample> {
    let workload = Workload::named(&orders.workload)?;
    let store = orders.is_counted.then(|| CountedStore::start(&orders.dir));
    let mut store = store.transpose()?;
    let in_dir = || orders.dir.join("image");
    let ground = Ground {
        dir: orders.dir.clone(),
        image: store.as_ref().map_or_else(in_dir, CountedStore::image),
        format: orders.format,
        mount: workload.mount.map(str::to_owned),
        cache_bytes: orders.cache_bytes,
    };
    if orders.side.uses_image() {
        make_image(&ground, workload, orders.count)?;
    }
    let start = measure::now();
    let mut live = orders.side.start(&ground)?;
    let mount_seconds = start.elapsed().as_secs_f64();
    let mut phases = Vec::new();
    let mut server_peak = None;
    for phase in workload.phases {
        if phase.cold {
            if orders.side.keeps_files() {
                note_peak(&*live, &mut server_peak)?;
                live.end()?;
                live = orders.side.start(&ground)?;
            } else {
                drop_caches()?;
            }
        }
        let part = measure_phase((workload, phase), &mut *live, &mut store, orders)
            .with_context(|| format!("{}: {}", orders.side.name(orders.format), phase.name))?;
        if phase.unit != Unit::Preparation {
            phases.push(part);
        }
    }
    note_peak(&*live, &mut server_peak)?;
    live.end()?;
    // To look through terabytes takes longer than all the rest, and nothing was changed there.
    if orders.side.uses_image() && workload.name != MOUNTED {
        judge(&ground)?;
    }
    store.map_or(Ok(()), CountedStore::end)?;
    Ok(Sample {
        side: orders.side,
        format: orders.format,
        workload: orders.workload.clone(),
        count: orders.count,
        threads: orders.threads,
        cache_bytes: orders.cache_bytes,
        mount_seconds,
        phases,
        client_peak_bytes: measure::peak_bytes(std::process::id())?,
        server_peak_bytes: server_peak,
    })
}

/// Runs the checker of the format. That an extent tree could take fewer blocks is none:
/// e2fsck says so of what the kernel writes, too.
pub(crate) fn judge(ground: &Ground) -> Result<()> {
    let verdict = oracle::fsck(ground.format, &[&ground.image])?;
    let is_advice = match &verdict {
        Verdict::Clean => true,
        Verdict::NotClean(lines) => lines.iter().all(|line| line.ends_with(ADVICE)),
        Verdict::Refused(_) => false,
    };
    ensure!(is_advice, "the checker says {verdict:?}");
    Ok(())
}

fn make_image(ground: &Ground, workload: &Workload, count: u64) -> Result<()> {
    let size_kib = (workload.image_mib)(count) << 10;
    match ground.format {
        FsType::Ext4 => {}
        // Metadata twice, and chunks that hold nothing else.
        FsType::Btrfs => return btrfs::make(&[&ground.image], 2 * size_kib, &[]),
        FsType::Xfs => return xfs::make(&ground.image, size_kib, &[]),
    }
    let inodes = if workload.name == MOUNTED { 0 } else { count };
    let inodes = (inodes + inodes / 10 + INODES_SPARE).to_string();
    let inode_bytes = workload.inode_bytes.to_string();
    let options = [
        "-t",
        "ext4",
        "-b",
        "4096",
        "-N",
        &inodes,
        "-I",
        &inode_bytes,
    ];
    mke2fs::make(&ground.image, size_kib, &options, None)
}

fn measure_phase(
    (workload, phase): (&Workload, &Phase),
    live: &mut dyn Live,
    store: &mut Option<CountedStore>,
    orders: &Orders,
) -> Result<Part> {
    let root = live.root()?;
    let site = Site {
        root: &*root,
        count: orders.count,
        threads: orders.threads,
        is_pinned: workload.is_pinned,
    };
    let server_cpu = |live: &dyn Live| live.server().map(measure::cpu_seconds).transpose();
    let mut all_asked = |live: &mut dyn Live| {
        let mut asked = live.asked()?;
        if let Some(store) = store {
            asked.device = Some(store.asked()?);
        }
        Ok::<_, anyhow::Error>(asked)
    };
    let asked = all_asked(live)?;
    // A program that does a part of the work is one's child, and so is a server until it ends.
    let client_cpu = || {
        let this = measure::cpu_seconds(std::process::id())?;
        Ok::<_, anyhow::Error>(this + measure::children_cpu_seconds()?)
    };
    let (server_before, client_before) = (server_cpu(live)?, client_cpu()?);
    let start = measure::now();
    let done = (phase.run)(&site)?;
    let seconds = start.elapsed().as_secs_f64();
    let seconds = done.seconds.unwrap_or(seconds);
    let client_cpu_seconds = client_cpu()? - client_before;
    let server_cpu_seconds = server_cpu(live)?.zip(server_before);
    Ok(Part {
        name: phase.name.to_owned(),
        unit: phase.unit.name().to_owned(),
        amount: done.amount,
        seconds,
        longest_seconds: done.longest_seconds,
        client_cpu_seconds,
        server_cpu_seconds: server_cpu_seconds.map(|(after, before)| after - before),
        asked: all_asked(live)?.since(&asked),
        latencies: Some(done.latencies).filter(|latencies| latencies.samples() > 0),
    })
}

fn note_peak(live: &dyn Live, peak: &mut Option<u64>) -> Result<()> {
    if let Some(server) = live.server() {
        *peak = (*peak).max(Some(measure::peak_bytes(server)?));
    }
    Ok(())
}

/// Empties the host's caches, where to mount anew would lose the files.
fn drop_caches() -> Result<()> {
    std::fs::write("/proc/sys/vm/drop_caches", "3").context("cold caches take root")
}
