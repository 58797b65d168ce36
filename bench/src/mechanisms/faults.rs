//! Pages of a file twice as large as the cache, read by the library: what the way that pages are added to
//! the cache's index costs readers.

use std::sync::Arc;
use std::thread;

use anyhow::{Result, anyhow, ensure};
use platter::block::MemoryDevice;
use platter_cache::MemoryBudget;
use platter_cache::xarray::Counts;
use platter_ext4::{Ext4, MountOptions};
use platter_vfs::{Context, CreateKind, Filesystem, Inode, Name, SystemClock};
use serde::{Deserialize, Serialize};
use testkit::oracle::mke2fs;

use super::insertion::Way;
use crate::measure::{self, median, stay_on_processor};
use crate::record::Extent;

const PAGE_BYTES: u64 = 4096;
/// What a reader in order asks for at a time: longer reads go past the cache.
const PIECE_BYTES: usize = 64 << 10;
const ROUNDS: usize = 10;
const NAME: &[u8] = b"contents";

/// What is read, after what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Scene {
    /// Pages anywhere, each once, with space for all: there are no shadows.
    Fresh,
    /// Pages anywhere, each once, after all were read like that and half of them evicted.
    AfterPages,
    /// Pages anywhere, each once, after all were read in order, in large folios.
    AfterFolios,
    /// All in order, again and again.
    InOrder,
}

/// One run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) scene: Scene,
    pub(crate) way: Way,
    pub(crate) threads: u64,
    pub(crate) pages: u64,
    pub(crate) seconds: f64,
    /// Of all threads.
    pub(crate) walks: u64,
    pub(crate) nodes: u64,
}

/// A file on a device in memory.
struct Ground {
    device: Arc<MemoryDevice>,
    pages: u64,
}

impl Scene {
    pub(crate) const ALL: [Self; 4] = [
        Self::Fresh,
        Self::AfterPages,
        Self::AfterFolios,
        Self::InOrder,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Fresh => "random 4 KiB, nothing evicted",
            Self::AfterPages => "random 4 KiB, after pages",
            Self::AfterFolios => "random 4 KiB, after large folios",
            Self::InOrder => "in order",
        }
    }

    /// The ways that can differ; the first is the one before.
    pub(crate) const fn ways(self) -> &'static [Way] {
        match self {
            Self::Fresh | Self::AfterPages | Self::AfterFolios => {
                &[Way::ThreeWalks, Way::OneWalk, Way::MinimalSplit]
            }
            Self::InOrder => &[Way::ThreeWalks, Way::MinimalSplit, Way::Batched],
        }
    }
}

/// Measures all scenes.
pub(crate) fn measure(extent: Extent, rounds: Option<usize>) -> Result<Vec<Run>> {
    let (mib, usual) = match extent {
        Extent::Quick => (8, 1),
        Extent::Full => (128, ROUNDS),
    };
    let ground = Ground::new(mib)?;
    let mut runs = Vec::new();
    for scene in Scene::ALL {
        for threads in [1, 2] {
            let mut ways = scene.ways().to_vec();
            for _ in 0..rounds.unwrap_or(usual) {
                for &way in &ways {
                    runs.push(ground.run(scene, way, threads)?);
                }
                ways.reverse();
            }
            show(scene, threads, &runs);
        }
    }
    Ok(runs)
}

fn show(scene: Scene, threads: u64, runs: &[Run]) {
    print!("  {}, {threads} thread(s):", scene.name());
    for &way in scene.ways() {
        let of_way = runs.iter().filter(|run| run.is_of(scene, way, threads));
        let seconds: Vec<f64> = of_way.map(|run| run.seconds).collect();
        print!(" {} {:.4} s;", way.name(), median(&seconds).value);
    }
    println!();
}

impl Run {
    pub(crate) fn is_of(&self, scene: Scene, way: Way, threads: u64) -> bool {
        (self.scene, self.way, self.threads) == (scene, way, threads)
    }
}

impl Ground {
    /// A file of `mib` MiB.
    fn new(mib: u64) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("image");
        let options = ["-t", "ext4", "-b", "4096", "-O", "^has_journal"];
        mke2fs::make(&path, (mib + mib / 8 + 8) << 10, &options, None)?;
        let device = Arc::new(MemoryDevice::new("memory", std::fs::read(path)?));
        let options = MountOptions {
            read_only: false,
            ..MountOptions::default()
        };
        let fs = mount(&device, &options, 64 << 20, Way::Batched)?;
        let name = Name::new(NAME)?;
        let root = fs.root()?;
        let file = root.create(&Context::root(), name, CreateKind::Regular, 0o644)?;
        let piece = vec![7; 1 << 20];
        for number in 0..mib {
            file.write_at(number << 20, &piece)?;
        }
        drop((file, root));
        fs.unmount()?;
        Ok(Self {
            device,
            pages: (mib << 20) / PAGE_BYTES,
        })
    }

    fn run(&self, scene: Scene, way: Way, threads: u64) -> Result<Run> {
        let file_bytes = self.pages * PAGE_BYTES;
        let budget = match scene {
            Scene::Fresh => 2 * file_bytes,
            Scene::AfterPages | Scene::AfterFolios | Scene::InOrder => file_bytes / 2,
        };
        let fs = mount(&self.device, &MountOptions::default(), budget, way)?;
        let file = fs.root()?.lookup(Name::new(NAME)?)?;
        match scene {
            Scene::Fresh => {}
            Scene::AfterPages => self.read_anywhere(&*file, 0, 1)?,
            Scene::AfterFolios | Scene::InOrder => self.read_in_order(&*file, 0, 1)?,
        }
        let start = measure::now();
        let counts = thread::scope(|scope| {
            let file = &*file;
            let mut running = Vec::new();
            for number in 0..threads {
                let read = move || -> Result<Counts> {
                    stay_on_processor(usize::try_from(number)?)?;
                    let before = Counts::now();
                    if scene == Scene::InOrder {
                        self.read_in_order(file, number, threads)?;
                    } else {
                        self.read_anywhere(file, number, threads)?;
                    }
                    Ok(Counts::now().since(before))
                };
                running.push(thread::Builder::new().spawn_scoped(scope, read)?);
            }
            let mut all = Counts::default();
            for thread in running {
                let counts = thread.join().map_err(|_| anyhow!("a thread failed"))??;
                all.walks += counts.walks;
                all.nodes += counts.nodes;
            }
            Ok::<_, anyhow::Error>(all)
        })?;
        Ok(Run {
            scene,
            way,
            threads,
            pages: self.pages,
            seconds: start.elapsed().as_secs_f64(),
            walks: counts.walks,
            nodes: counts.nodes,
        })
    }

    /// Reads the pages that fall to one of several threads, each once, in no order.
    fn read_anywhere(&self, file: &dyn Inode, thread: u64, threads: u64) -> Result<()> {
        let mut page = [0; 4096];
        for number in (thread..self.pages).step_by(usize::try_from(threads)?) {
            // Multiplication by an odd number permutes the numbers below a power of two.
            let index = number.wrapping_mul(0x9e37_79b1) % self.pages;
            let length = file.read_at(index * PAGE_BYTES, &mut page)?;
            ensure!(length == page.len() && page[0] == 7, "page {index}");
        }
        Ok(())
    }

    /// Reads the stretch that falls to one of several threads.
    fn read_in_order(&self, file: &dyn Inode, thread: u64, threads: u64) -> Result<()> {
        let mut piece = vec![0; PIECE_BYTES];
        let stretch = self.pages * PAGE_BYTES / threads;
        let offsets = (thread * stretch..(thread + 1) * stretch).step_by(PIECE_BYTES);
        for offset in offsets {
            let length = file.read_at(offset, &mut piece)?;
            ensure!(length == PIECE_BYTES && piece[0] == 7, "byte {offset}");
        }
        Ok(())
    }
}

fn mount(
    device: &Arc<MemoryDevice>,
    options: &MountOptions,
    cache_bytes: u64,
    way: Way,
) -> Result<Ext4> {
    let budget = MemoryBudget::new(cache_bytes).with_insertion(way.insertion());
    let device = Arc::clone(device);
    let clock = Arc::new(SystemClock::new());
    Ok(Ext4::mount(device, options, Arc::new(budget), clock)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_walk_as_often_as_they_say() {
        let ground = Ground::new(4).unwrap();
        let walks = |scene, way| ground.run(scene, way, 1).unwrap().walks;
        for scene in [Scene::Fresh, Scene::AfterPages, Scene::AfterFolios] {
            let before = walks(scene, Way::ThreeWalks);
            assert!(walks(scene, Way::OneWalk) < before, "{scene:?}");
            assert!(walks(scene, Way::MinimalSplit) < before, "{scene:?}");
        }
        let one_by_one = walks(Scene::InOrder, Way::MinimalSplit);
        assert!(walks(Scene::InOrder, Way::Batched) < one_by_one);
    }
}
