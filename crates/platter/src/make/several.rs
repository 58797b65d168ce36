//! New filesystems on several images.

use std::fs::{self, File};
use std::path::PathBuf;

use platter_block::Access;
use rustix::io::Errno;

use super::{FormatOptions, Size};
use crate::driver::OnDevice;
use crate::host_file::explain_in_use;
use crate::populate::host_error;
use crate::{Error, Image, ImageSet, ImageSpec, Result};

/// Files that are removed again unless the filesystem on them is finished.
#[derive(Debug, Default)]
struct NewFiles(Vec<PathBuf>);

impl Drop for NewFiles {
    fn drop(&mut self) {
        for path in &self.0 {
            // An error is ignored: a file that is left is visible to the user.
            let _ = fs::remove_file(path);
        }
    }
}

/// Makes a filesystem on the image of `spec` and the further ones. Those that are there are written in place, once it is sure that their
/// sizes and the options go together.
pub(super) fn make_on_several(options: &FormatOptions, spec: &ImageSpec) -> Result<()> {
    let mut new_files = NewFiles::default();
    let mut images = ImageSet::new(open_target(options, spec, &mut new_files)?);
    for (role, spec) in &options.others {
        let image = open_target(options, spec, &mut new_files);
        let image =
            image.map_err(|error| explain_in_use(error, spec, &images.devices().host_files()))?;
        images = images.with(*role, image);
    }
    let targets = images.devices();
    let checked = options
        .new
        .driver()
        .check(&targets, &*options.fresh_clock());
    checked.map_err(|error| Error::new(images.first().name(), error))?;
    options.make_on(&images, OnDevice::Anything)?;
    if !new_files.0.is_empty() {
        options.refuse_cancelled(images.first().name())?;
    }
    new_files.0.clear();
    Ok(())
}

/// Opens one of several images, and makes it first where it is not there and has a size.
fn open_target(
    options: &FormatOptions,
    spec: &ImageSpec,
    new_files: &mut NewFiles,
) -> Result<Image> {
    let host = |error| host_error(&spec.image, error);
    let is_there = fs::exists(&spec.image).map_err(host)?;
    match options.size {
        Size::Bytes(size_bytes) if !is_there && spec.partition.is_none() => {
            let file = File::create_new(&spec.image).map_err(host)?;
            new_files.0.push(spec.image.clone());
            file.set_len(size_bytes).map_err(host)?;
        }
        Size::Minimal => {
            let text = "is one of several; only one file is made as short as its content allows";
            return Err(host(std::io::Error::other(text)));
        }
        _ if !is_there => return Err(host(Errno::NOENT.into())),
        Size::AsItIs | Size::OfContent | Size::Bytes(_) => {}
    }
    let image = Image::open_spec(spec, Access::Write)?;
    options.refuse_occupied(&image)?;
    options.part_to_use(image)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::path::Path;
    use std::sync::Arc;

    use platter_block::BlockDevice;
    use platter_memfs::{MemFs, MemFsLimits};
    use platter_ondisk::Uuid;
    use platter_vfs::{Clock, Filesystem};

    use super::*;
    use crate::Format;
    use crate::devices::{DeviceRole, Devices};
    use crate::driver::samples::NEWEST;
    use crate::driver::{FillRequest, Mkfs, MkfsOptions, MkfsRequest, NewFilesystem};
    use crate::options::OptionError;

    /// Marks each of its devices with its role.
    #[derive(Debug, Clone)]
    struct Marks;

    impl Mkfs for Marks {
        fn boxed(&self) -> Box<dyn Mkfs> {
            Box::new(self.clone())
        }

        fn format(&self) -> Format {
            Format::Ext
        }

        fn set_label(&mut self, _: Vec<u8>) -> Result<(), OptionError> {
            Ok(())
        }

        fn set_uuid(&mut self, _: Uuid) {}

        fn set_root_owner(&mut self, _: u32, _: u32) {}

        fn root_owner(&self) -> Option<(u32, u32)> {
            None
        }

        fn set_feature(&mut self, _: &str, _: bool) -> platter_vfs::Result<()> {
            Ok(())
        }

        fn set_number(&mut self, _: &str, _: u64) -> Result<(), OptionError> {
            Err(OptionError::Unknown)
        }

        fn require_inodes(&mut self, _: u32) {}

        fn choose_random(&mut self, _: &dyn Clock) {}

        fn check(&self, _: &Devices, _: &dyn Clock) -> platter_vfs::Result<()> {
            Ok(())
        }

        fn make(&self, request: MkfsRequest<'_>) -> platter_vfs::Result<()> {
            for target in request.targets.iter() {
                let mark = target.role.to_string();
                target.device.write_at(0, mark.as_bytes())?;
            }
            Ok(())
        }

        fn mount(&self, request: FillRequest<'_>) -> platter_vfs::Result<Arc<dyn Filesystem>> {
            Ok(Arc::new(MemFs::new(request.clock, MemFsLimits::default())))
        }

        fn free_bytes(&self, _: &Arc<dyn BlockDevice>) -> platter_vfs::Result<u64> {
            Ok(0)
        }

        fn length_classes(&self) -> Vec<Range<u64>> {
            Vec::new()
        }

        fn length_unit_bytes(&self) -> u64 {
            1
        }
    }

    fn on_two(new: impl Into<NewFilesystem>, dir: &Path, role: DeviceRole) -> FormatOptions {
        FormatOptions::new(new).target(role, ImageSpec::new(dir.join("second")))
    }

    fn make(maker: &FormatOptions, dir: &Path) -> Result<()> {
        maker.make(&ImageSpec::new(dir.join("first")))
    }

    fn entries(dir: &Path) -> usize {
        fs::read_dir(dir).unwrap().count()
    }

    #[test]
    fn images_of_a_size_are_made_and_marked_by_role() {
        let dir = tempfile::tempdir().unwrap();
        let maker = on_two(NewFilesystem::new(Marks), dir.path(), DeviceRole::Log);
        let missing = make(&maker, dir.path()).unwrap_err();
        assert_eq!(missing.errno(), Errno::NOENT);
        make(&maker.size_bytes(4096), dir.path()).unwrap();
        for (name, mark) in [("first", "data"), ("second", "log")] {
            let bytes = fs::read(dir.path().join(name)).unwrap();
            assert_eq!(bytes.len(), 4096);
            assert!(bytes.starts_with(mark.as_bytes()), "{name}");
        }
    }

    #[test]
    fn refused_images_stay_as_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let options = MkfsOptions::new(NEWEST);
        let maker = on_two(options, dir.path(), DeviceRole::Data);
        let refused = make(&maker.clone().size_bytes(8 << 20), dir.path()).unwrap_err();
        assert_eq!(refused.errno(), Errno::OPNOTSUPP);
        assert_eq!(entries(dir.path()), 0);
        for name in ["first", "second"] {
            fs::write(dir.path().join(name), [7; 4096]).unwrap();
        }
        make(&maker, dir.path()).unwrap_err();
        let second = fs::read(dir.path().join("second")).unwrap();
        assert!(second == [7; 4096]);
    }
}
