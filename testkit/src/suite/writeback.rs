//! Data on its way from the page cache.

use std::ops::ControlFlow;

use anyhow::{Context, Result, ensure};
use platter_vfs::Inode;

use super::Candidate;
use crate::prng::Prng;

/// Files, which together are larger than the caches of a scene.
const FILES: usize = 3;
const PAGES: u64 = 1000;
const PAGE_BYTES: usize = 4096;

/// Writes the pages of several files in random order, more than the page cache has, and demands that they
/// are read before and after they are written back, and that nothing is delayed after a sync.
pub fn written_data_survives_writeback(candidate: Candidate) -> Result<()> {
    run(candidate).with_context(|| candidate.name())
}

fn run(candidate: Candidate) -> Result<()> {
    let mut mounted = candidate.mount(3)?;
    let mut random = Prng::new(3);
    let names: Vec<String> = (0..FILES).map(|number| format!("file{number}")).collect();
    let mut versions = vec![vec![0u64; usize::try_from(PAGES)?]; FILES];
    {
        let files: Result<Vec<_>> = names.iter().map(|name| mounted.file(name)).collect();
        let files = files?;
        for version in 1..2 * FILES as u64 * PAGES {
            let index = usize::try_from(random.below(FILES as u64))?;
            let page = random.below(PAGES);
            files[index].write_at(page * PAGE_BYTES as u64, &contents(version))?;
            versions[index][usize::try_from(page)?] = version;
            if version % 500 == 0 {
                compare(&*files[index], &versions[index]).context("while it is written")?;
            }
        }
        for (file, versions) in files.iter().zip(&versions) {
            compare(&**file, versions).context("before the sync")?;
        }
        mounted.fs().sync()?;
        for (file, versions) in files.iter().zip(&versions) {
            let mut delayed = 0;
            file.extents(0..u64::MAX, &mut |extent| {
                delayed += u64::from(extent.delayed);
                ControlFlow::Continue(())
            })?;
            ensure!(delayed == 0, "{delayed} extents are delayed after a sync");
            compare(&**file, versions).context("after the sync")?;
        }
    }
    mounted.remount()?;
    for (name, versions) in names.iter().zip(&versions) {
        compare(&*mounted.lookup(name)?, versions).context("mounted anew")?;
    }
    mounted.finish()
}

fn contents(version: u64) -> Vec<u8> {
    if version == 0 {
        return vec![0; PAGE_BYTES];
    }
    Prng::new(version).bytes(PAGE_BYTES)
}

fn compare(file: &dyn Inode, versions: &[u64]) -> Result<()> {
    let mut page = vec![0; PAGE_BYTES];
    let end = versions.iter().rposition(|&version| version != 0);
    for (number, &version) in (0u64..).zip(versions).take(end.map_or(0, |end| end + 1)) {
        let count = file.read_at(number * PAGE_BYTES as u64, &mut page)?;
        ensure!(count == PAGE_BYTES, "{count} bytes of page {number}");
        ensure!(
            page == contents(version),
            "page {number} is not version {version}"
        );
    }
    Ok(())
}
