//! A mount that writes, as the library and the kernel's requests have it: every kind of change, in
//! every directory and to every file, and its end.

use std::path::PathBuf;
use std::sync::Arc;

use platter::block::{Access, OverlayDevice, OverlayOptions};
use platter::vfs::inode::{FallocateMode, RenameMode, XattrMode, read_dir_all};
use platter::vfs::{
    Context, FileKind, Filesystem, Inode, Name, NameBuf, Result, SetAttr, TreeWalk, WalkEvent,
    WalkOrder,
};
use platter::{DeviceRole, Image, ImageSet, WriteOptions};

use platter::vfs::CreateKind;

use super::Desk;
use crate::exercise::Tally;

/// Directories and files that are changed.
const DIRECTORIES_MAX: usize = 12;
const FILES_MAX: usize = 40;
/// Names that are removed.
const NAMES_MAX: usize = 100;
/// Files are written here, too.
const FAR: u64 = 300_000;

pub(super) fn run(desk: &Desk, tally: &mut Tally) {
    let options = crate::open::options(desk.cache_bytes).writing(WriteOptions {
        commit_interval: None,
        ..WriteOptions::default()
    });
    let images = match images(desk) {
        Ok(images) => images,
        Err(error) => return tally.refusal(&error),
    };
    let volume = match options.mount(images) {
        Ok(volume) => volume,
        Err(error) => return tally.refusal(&error),
    };
    let filesystem = volume.filesystem();
    let Found { directories, files } = find(filesystem);
    for (index, directory) in directories.iter().enumerate() {
        let next = &directories[(index + 1) % directories.len()];
        change_names(directory, next, tally);
    }
    for file in &files {
        change_contents(&**file, tally);
    }
    tally.note(filesystem.sync());
    for file in &files {
        let empty = SetAttr {
            size_bytes: Some(0),
            ..SetAttr::default()
        };
        tally.note(file.set_attr(&Context::root(), &empty));
    }
    for directory in directories.iter().rev() {
        remove_names(&**directory, tally);
    }
    drop((directories, files));
    tally.note(filesystem.unmount());
}

/// The images, with what is written to them in memory.
fn images(desk: &Desk) -> platter::Result<ImageSet> {
    let image = |path: PathBuf| {
        let image = Image::open(&path, Access::Read)?;
        let device = Arc::clone(image.device());
        let overlay = OverlayDevice::new(device, OverlayOptions::default());
        Ok(Image::new("mutant", Arc::new(overlay)))
    };
    let first = ImageSet::new(image(desk.image())?);
    let mut others = desk.images().skip(1);
    others.try_fold(first, |set, path| {
        Ok(set.with(DeviceRole::Data, image(path)?))
    })
}

/// Some directories and files.
#[derive(Default)]
struct Found {
    directories: Vec<Arc<dyn Inode>>,
    files: Vec<Arc<dyn Inode>>,
}

fn find(filesystem: &Arc<dyn Filesystem>) -> Found {
    let mut found = Found::default();
    let (directories, files) = (&mut found.directories, &mut found.files);
    let Ok(root) = filesystem.root() else {
        return found;
    };
    for event in TreeWalk::new(Arc::clone(filesystem), root, WalkOrder::Driver) {
        let WalkEvent::Visit(visited) = event else {
            continue;
        };
        let kind = visited.attr.kind;
        if kind == FileKind::Directory && directories.len() < DIRECTORIES_MAX {
            directories.push(visited.inode);
        } else if kind == FileKind::Regular && files.len() < FILES_MAX {
            files.push(visited.inode);
        }
    }
    found
}

fn name(text: &str) -> Result<NameBuf> {
    Ok(Name::new(text.as_bytes())?.to_owned())
}

fn change_names(directory: &Arc<dyn Inode>, next: &Arc<dyn Inode>, tally: &mut Tally) {
    let context = Context::root();
    let changed = (|| {
        let file = name("made file")?;
        let made = directory.create(&context, file.as_name(), CreateKind::Regular, 0o644)?;
        made.write_at(0, &[1; 5000])?;
        made.write_at(FAR, &[2; 5000])?;
        made.sync(false)?;
        made.read_at(0, &mut [0; 4096])?;
        let linked = name("linked")?;
        directory.link(&context, linked.as_name(), made.id())?;
        let moved = name("moved")?;
        let replace = RenameMode::Replace;
        directory.rename(
            &context,
            linked.as_name(),
            next.id(),
            moved.as_name(),
            replace,
        )
    })();
    tally.note(changed);
    let nested = (|| {
        let inner = name("made directory")?;
        let made = directory.create(&context, inner.as_name(), CreateKind::Directory, 0o755)?;
        for number in 0..40 {
            let text = name(&format!("a link in a directory that grows {number}"))?;
            let kind = CreateKind::Symlink(b"target/".repeat(if number % 8 == 0 { 20 } else { 1 }));
            made.create(&context, text.as_name(), kind, 0o777)?;
        }
        let unnamed = made.create_unnamed(&context, 0o600)?;
        unnamed.write_at(0, &[3; 3000])
    })();
    tally.note(nested);
}

fn change_contents(file: &dyn Inode, tally: &mut Tally) {
    let context = Context::root();
    let size = file.attr().map_or(0, |attr| attr.size_bytes);
    let resized = |size_bytes: u64| {
        let changes = SetAttr {
            size_bytes: Some(size_bytes),
            ..SetAttr::default()
        };
        file.set_attr(&context, &changes).map(drop)
    };
    tally.note(file.write_at(10, &[4; 3000]));
    tally.note(file.write_at(size, &[5; 3000]));
    tally.note(file.sync(false));
    tally.note(resized(size / 2));
    tally.note(resized(size.saturating_add(100_000)));
    for (range, mode) in [
        (0..65_536, FallocateMode::Allocate { keep_size: false }),
        (FAR..FAR + 9000, FallocateMode::Allocate { keep_size: true }),
        (1000..30_000, FallocateMode::PunchHole),
        (0..u64::MAX >> 1, FallocateMode::PunchHole),
        (500..9000, FallocateMode::ZeroRange { keep_size: true }),
        (0..16_384, FallocateMode::CollapseRange),
        (0..16_384, FallocateMode::InsertRange),
    ] {
        tally.note(file.fallocate(range, mode));
    }
    let set = XattrMode::Set;
    for value in [&[6; 30][..], &[7; 700], &[8; 3000]] {
        tally.note(file.set_xattr(&context, b"user.changed", value, set));
    }
    tally.note(file.remove_xattr(&context, b"user.changed"));
    tally.note(file.write_at(FAR, &vec![9; 20_000]));
    let changes = SetAttr {
        uid: Some(70_000),
        permissions: Some(0o640),
        ..SetAttr::default()
    };
    tally.note(file.set_attr(&context, &changes));
    tally.note(file.read_at(0, &mut vec![0; 65_536]));
}

fn remove_names(directory: &dyn Inode, tally: &mut Tally) {
    let context = Context::root();
    let entries = tally.note(read_dir_all(directory)).unwrap_or_default();
    for entry in entries.iter().take(NAMES_MAX) {
        let name = entry.name.as_name();
        if directory.unlink(&context, name).is_err() {
            tally.note(directory.remove_dir(&context, name));
        }
    }
}
