//! Resizing a filesystem, in an image, a partition, or a file that grows with it.

use std::fs::{self, File};
use std::os::unix::fs::FileTypeExt;
use std::sync::Arc;

use platter_block::{Access, BlockDevice};
use platter_cache::MemoryBudget;
use platter_vfs::{Clock, Condition};

use crate::driver::{self, Resize, ResizeRequest, unsupported};
use crate::make::Draft;
use crate::populate::host_error;
use crate::{Cause, Error, Image, ImageSpec, Progress, Result};

pub use crate::driver::Resized;

/// Bytes copied at once.
const CHUNK_BYTES: usize = 1 << 20;

/// How long a filesystem is to become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewSize {
    /// As long as what it is on.
    Whole,
    /// So many bytes.
    Bytes(u64),
    /// So many bytes longer than it is.
    Larger(u64),
}

/// Resizes the filesystem that `spec` names, and returns its length before and after in bytes. A file becomes as long as
/// its filesystem. XFS becomes shorter as far as nothing lies at its end, btrfs down to 256 MiB, others do not.
///
/// With a journal, the filesystem has its old or its new size whatever happens meanwhile. Without one,
/// that holds for a file: a copy is made larger, and takes its place. On a device, a filesystem without
/// a journal needs a check if the power fails. `progress` counts what is copied, and can cancel before the first change
/// that is seen; what is resized in place is resized to the end, but a btrfs that is to become shorter keeps its size if
/// it is cancelled while chunks are moved.
///
/// # Errors
/// `NoSpace` where the device or partition is shorter; `Unsupported` for a length that the filesystem cannot be made
/// shorter to, and for filesystems that cannot be made longer.
pub fn grow(
    spec: &ImageSpec,
    size: NewSize,
    budget: &Arc<MemoryBudget>,
    clock: &Arc<dyn Clock>,
    progress: &Progress,
) -> Result<Resized> {
    let image = Image::open_spec(spec, Access::Write)?;
    let format = image.format()?;
    let driver = format.and_then(driver::serving);
    let driver = driver.ok_or_else(|| image.not_a_filesystem(format))?;
    let resize = driver.resize().ok_or_else(|| {
        let error = unsupported(driver.format(), "changing the size");
        Error::new(image.name(), error)
    })?;
    let len_bytes = image.device().geometry().len_bytes;
    let named = |error| Error::new(image.name(), error);
    let size_bytes = match size {
        NewSize::Whole => len_bytes,
        NewSize::Bytes(size_bytes) => size_bytes,
        NewSize::Larger(bytes) => {
            let now = resize.len_bytes(&**image.device()).map_err(named)?;
            now.saturating_add(bytes)
        }
    };
    let metadata = fs::metadata(&spec.image).map_err(|error| host_error(&spec.image, error))?;
    let is_whole_file = spec.partition.is_none() && !metadata.file_type().is_block_device();
    let name = Arc::clone(image.name());
    let cancelled = |cause| Error::new(&name, cause);
    progress.check().map_err(cancelled)?;
    if !is_whole_file {
        return grow_on(resize, &image, size_bytes, budget, clock, progress);
    }
    let device = &**image.device();
    let has_length = resize.len_bytes(device).map_err(named)? >= size_bytes;
    if has_length || resize.is_atomic(device).map_err(named)? {
        return grow_file(resize, spec, image, size_bytes, budget, clock, progress);
    }
    let draft = Draft::begin(&spec.image, None)?;
    let copy = draft.clear(size_bytes.max(len_bytes))?;
    copy_data(&**image.device(), &**copy.device(), progress).map_err(cancelled)?;
    let grown = grow_on(resize, &copy, size_bytes, budget, clock, progress)?;
    drop(copy);
    progress.check().map_err(cancelled)?;
    draft.finish_over(image)?;
    Ok(grown)
}

fn grow_on(
    resize: &dyn Resize,
    image: &Image,
    size_bytes: u64,
    budget: &Arc<MemoryBudget>,
    clock: &Arc<dyn Clock>,
    progress: &Progress,
) -> Result<Resized> {
    let len_bytes = image.device().geometry().len_bytes;
    if size_bytes > len_bytes {
        let text =
            format!("is {len_bytes} bytes long, and is to have a filesystem of {size_bytes} bytes");
        return Err(Error::new(image.name(), Condition::NoSpace.because(text)));
    }
    let request = ResizeRequest {
        device: image.device(),
        len_bytes: size_bytes,
        budget,
        clock,
        progress,
    };
    let resized = resize.resize(request);
    let resized = resized.map_err(|error| Error::new(image.name(), error))?;
    if resized.after_bytes == resized.before_bytes {
        let checked = progress.check();
        checked.map_err(|cause| Error::new(image.name(), cause))?;
    }
    Ok(resized)
}

/// The file is made longer first, which changes nothing of the filesystem.
fn grow_file(
    resize: &dyn Resize,
    spec: &ImageSpec,
    image: Image,
    size_bytes: u64,
    budget: &Arc<MemoryBudget>,
    clock: &Arc<dyn Clock>,
    progress: &Progress,
) -> Result<Resized> {
    let before_bytes = image.device().geometry().len_bytes;
    let host = |error| host_error(&spec.image, error);
    let file = File::options()
        .write(true)
        .open(&spec.image)
        .map_err(host)?;
    if size_bytes <= before_bytes {
        let resized = grow_on(resize, &image, size_bytes, budget, clock, progress)?;
        if resized.after_bytes < resized.before_bytes {
            file.set_len(resized.after_bytes).map_err(host)?;
        }
        return Ok(resized);
    }
    file.set_len(size_bytes).map_err(host)?;
    // Its length is looked at once.
    drop(image);
    let grown = Image::open(&spec.image, Access::Write).and_then(|image| {
        let grown = grow_on(resize, &image, size_bytes, budget, clock, progress);
        // Where nothing became of it, the file is as it was.
        let is_longer = resize.len_bytes(&**image.device());
        if grown.is_err() && is_longer.is_ok_and(|len| len <= before_bytes) {
            file.set_len(before_bytes).map_err(host)?;
        }
        grown
    })?;
    Ok(grown)
}

/// Copies all that is not zeros onto a device that holds zeros.
fn copy_data(
    from: &dyn BlockDevice,
    to: &dyn BlockDevice,
    progress: &Progress,
) -> Result<(), Cause> {
    let end = from.geometry().len_bytes;
    if to.geometry().len_bytes < end {
        return Err(platter_vfs::Error::from(Condition::NoSpace).into());
    }
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut at = 0;
    while let Some(data) = from.next_data(at)? {
        at = data.start;
        while at < data.end {
            let len = usize::try_from(data.end - at).unwrap_or(CHUNK_BYTES);
            let bytes = &mut buffer[..len.min(CHUNK_BYTES)];
            progress.check()?;
            from.read_at(at, bytes)?;
            if bytes.iter().any(|&byte| byte != 0) {
                to.write_at(at, bytes)?;
            }
            at += bytes.len() as u64;
            progress.add_bytes(bytes.len() as u64);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::sync::atomic::{AtomicBool, Ordering};

    use platter_vfs::{CheckSink, Finding, FixedClock, Timestamp};

    use super::*;
    use crate::driver::samples::GENERATIONS;
    use crate::driver::{Generation, MkfsOptions};
    use crate::populate::Content;
    use crate::{FilesystemType, Format, FormatOptions};

    struct Findings(Vec<Finding>);

    impl CheckSink for Findings {
        fn finding(&mut self, finding: Finding) -> ControlFlow<()> {
            self.0.push(finding);
            ControlFlow::Continue(())
        }
    }

    fn grown(path: &std::path::Path, size_bytes: u64) -> Result<Resized> {
        let spec = ImageSpec::parse(path).unwrap();
        let budget = Arc::new(MemoryBudget::new(8 << 20));
        let clock: Arc<dyn Clock> = Arc::new(FixedClock::new(Timestamp::default(), 1));
        let size = NewSize::Bytes(size_bytes);
        grow(&spec, size, &budget, &clock, &Progress::default())
    }

    #[test]
    fn cancelled_growth_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let spec = ImageSpec::parse(&path).unwrap();
        for generation in GENERATIONS {
            let maker = FormatOptions::new(MkfsOptions::new(generation)).size_bytes(9 << 20);
            maker.overwrite(true).make(&spec).unwrap();
            let before = fs::read(&path).unwrap();
            let budget = Arc::new(MemoryBudget::new(8 << 20));
            let clock: Arc<dyn Clock> = Arc::new(FixedClock::new(Timestamp::default(), 1));
            let size = NewSize::Bytes(40 << 20);
            let cancelled = Progress::default();
            cancelled.cancel();
            // One that is cancelled while it copies, too.
            let flag = Arc::new(AtomicBool::new(false));
            let set = Arc::clone(&flag);
            let later = Progress::listening(move |_| set.store(true, Ordering::Relaxed));
            for progress in [cancelled, later.cancelled_by(flag)] {
                let copies = progress.is_cancelled() || generation == Generation::Ext2;
                if !copies {
                    continue;
                }
                let error = grow(&spec, size, &budget, &clock, &progress).unwrap_err();
                assert_eq!(error.code(), "cancelled");
                assert!(fs::read(&path).unwrap() == before);
                assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
            }
        }
    }

    #[test]
    fn cancelled_shrinking_keeps_the_size() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let spec = ImageSpec::parse(&path).unwrap();
        let (before, wanted) = (4 << 30, 400 << 20);
        // The second copy of its metadata lies beyond what is wanted.
        let maker = FormatOptions::new(FilesystemType::Btrfs).size_bytes(before);
        maker.make(&spec).unwrap();
        let image = Image::open(&path, Access::Write).unwrap();
        let driver = driver::serving(Format::Btrfs).unwrap();
        let resize = driver.resize().unwrap();
        let budget = Arc::new(MemoryBudget::new(8 << 20));
        let clock: Arc<dyn Clock> = Arc::new(FixedClock::new(Timestamp::default(), 1));
        let progress = Progress::default();
        progress.cancel();
        let shrunk = grow_file(resize, &spec, image, wanted, &budget, &clock, &progress);
        assert_eq!(shrunk.unwrap_err().code(), "cancelled");
        assert_eq!(fs::metadata(&path).unwrap().len(), before);
        let image = Image::open(&path, Access::Read).unwrap();
        assert_eq!(resize.len_bytes(&**image.device()).unwrap(), before);
    }

    #[test]
    fn a_file_grows_with_its_filesystem_and_keeps_its_contents() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("file"), vec![7; 100_000]).unwrap();
        for generation in GENERATIONS {
            let path = dir.path().join(format!("{generation:?}"));
            let spec = ImageSpec::parse(&path).unwrap();
            let maker = FormatOptions::new(MkfsOptions::new(generation)).size_bytes(9 << 20);
            let maker = maker.content(Content::of_dir(&tree).unwrap());
            maker.make(&spec).unwrap();
            let before = fs::read(&path).unwrap();
            let shrunk = grown(&path, 8 << 20).unwrap_err().to_string();
            assert!(shrunk.contains("smaller"), "{shrunk}");
            assert!(fs::read(&path).unwrap() == before);
            let found = grown(&path, 40 << 20).unwrap();
            assert_eq!(found.before_bytes, 9 << 20);
            assert_eq!(found.after_bytes, 40 << 20);
            assert_eq!(fs::metadata(&path).unwrap().len(), 40 << 20);
            let volume = crate::MountOptions::new().open(&spec).unwrap();
            assert!(volume.read("/file").unwrap() == vec![7; 100_000]);
            let image = Image::open(&path, Access::Read).unwrap();
            let mut findings = Findings(Vec::new());
            let checked = crate::MountOptions::new().check(&image, &mut findings);
            checked.unwrap();
            assert!(findings.0.is_empty(), "{generation:?}: {:?}", findings.0);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 4);
    }

    #[test]
    fn what_is_no_filesystem_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("letter");
        fs::write(&path, b"a letter").unwrap();
        assert!(grown(&path, 1 << 20).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"a letter");
    }
}
