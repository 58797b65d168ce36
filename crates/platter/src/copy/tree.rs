//! Copying a file of any kind, and a directory with all that is in it.

use std::collections::HashSet;
use std::fs::{File as HostFile, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;

use platter_vfs::tree_walk::second_name;
use platter_vfs::{Attr, Condition, FileKind, InodeId, WalkOrder};
use rustix::fs::FileType;
use rustix::io::Errno;

use super::attributes::{Target, errno};
use super::place::Place;
use super::{Copier, CopyEvent, CopyObserver};
use crate::data_map::DataMap;
use crate::entries::{DirEntries, LoadedEntry, Shares};
use crate::problem::Effect;
use crate::{Cause, Error, File, Result};

/// A directory that is being filled.
struct Frame {
    source: File,
    attr: Attr,
    place: Place,
    dir: Arc<HostFile>,
    entries: DirEntries,
    is_new: bool,
}

/// What is to be copied: the file, its attributes, and where it has data, if that is known.
struct Source {
    file: File,
    attr: Attr,
    map: Option<DataMap>,
}

impl Copier {
    pub(super) fn copy_tree(
        &mut self,
        file: &File,
        place: Place,
        observer: &mut CopyObserver<'_>,
    ) -> Result<()> {
        let mut shares = Shares::default();
        let top = Source {
            file: file.clone(),
            attr: file.attr()?,
            map: None,
        };
        let mut entered = HashSet::from([file.inode().id()]);
        let mut frames = Vec::new();
        frames.extend(self.copy_one(top, place, &mut shares, observer)?);
        while let Some(frame) = frames.last_mut() {
            self.check_progress(&frame.source)?;
            let source = frame.source.volume().entry_source(true);
            let entry = match frame.entries.next(&source) {
                Some(Ok(entry)) => entry,
                Some(Err(error)) => {
                    let error = frame.source.error(error);
                    self.report_damage(observer, error, Effect::EntriesLost);
                    continue;
                }
                None => {
                    if let Some(frame) = frames.pop() {
                        shares.close(&frame.entries);
                        self.finish_dir(&frame, observer);
                    }
                    continue;
                }
            };
            let place = frame
                .place
                .below((&frame.dir, frame.is_new), &entry.entry.name);
            let copied = enter(&frame.source, entry, &mut entered)
                .and_then(|source| self.copy_one(source, place, &mut shares, observer));
            match copied {
                Ok(frame) => frames.extend(frame),
                Err(error) if matches!(error.cause, Cause::Cancelled) => return Err(error),
                Err(error) => self.report_damage(observer, error, Effect::Omitted),
            }
        }
        Ok(())
    }

    /// Copies one file; a directory without what is in it, which is to be copied next.
    fn copy_one(
        &mut self,
        source: Source,
        place: Place,
        shares: &mut Shares,
        observer: &mut CopyObserver<'_>,
    ) -> Result<Option<Frame>> {
        let Source { file, attr, map } = source;
        if attr.kind == FileKind::Directory {
            if !self.options.recursive {
                return Err(file.error(Condition::IsDirectory));
            }
            observer(CopyEvent::Copying(&file, &place.path()));
            let made = place.make_dir(attr.permissions);
            let (dir, is_new) = made.map_err(|error| place.error(error))?;
            self.count(observer);
            return Ok(Some(Frame {
                entries: shares.open(file.inode().clone(), WalkOrder::Name),
                source: file,
                attr,
                place,
                dir: Arc::new(dir),
                is_new,
            }));
        }
        match place.kind().map_err(|error| place.error(error))? {
            Some(_) if self.options.no_clobber => return Ok(None),
            Some(FileKind::Directory) => return Err(place.error(Errno::ISDIR)),
            None => {}
            Some(_) => place.clear().map_err(|error| place.error(error))?,
        }
        observer(CopyEvent::Copying(&file, &place.path()));
        self.make(&file, &attr, map, &place, observer)?;
        self.count(observer);
        Ok(None)
    }

    /// Makes what is no directory, where nothing is.
    fn make(
        &mut self,
        file: &File,
        attr: &Attr,
        map: Option<DataMap>,
        place: &Place,
        observer: &mut CopyObserver<'_>,
    ) -> Result<()> {
        let has_links = self.options.preserve.links && attr.links > 1;
        let key = (Arc::clone(file.volume().name()), file.inode().id());
        if has_links
            && let Some(first) = self.copied.get(&key)
            && place.make_link(first).is_ok()
        {
            return Ok(());
        }
        let host = |error| place.error(error);
        let kind = match attr.kind {
            FileKind::Regular => {
                let private = self.options.preserve.mode;
                let created = place.create(if private { 0o600 } else { attr.permissions });
                let created = created.map_err(host)?;
                let path = place.path();
                let filled = self.fill(file, attr, map, (&created, &path), observer);
                if matches!(&filled, Err(error) if matches!(error.cause, Cause::Cancelled)) {
                    place.clear().map_err(host)?;
                }
                filled?;
                let target = Target::Open(&created, &path);
                self.put_attributes(file, attr, &target, observer);
                None
            }
            FileKind::Symlink => {
                place.make_symlink(&file.read_link()?).map_err(host)?;
                None
            }
            FileKind::CharDevice => Some(FileType::CharacterDevice),
            FileKind::BlockDevice => Some(FileType::BlockDevice),
            FileKind::Fifo => Some(FileType::Fifo),
            FileKind::Socket => Some(FileType::Socket),
            FileKind::Directory => return Err(file.error(Condition::IsDirectory)),
        };
        if let Some(kind) = kind {
            if !self.options.recursive {
                return Err(file.error(Condition::NotSupported));
            }
            let device = (attr.device.major, attr.device.minor);
            place
                .make_special(kind, attr.permissions, device)
                .map_err(host)?;
        }
        if attr.kind != FileKind::Regular {
            let target = Target::Named(place, attr.kind);
            self.put_attributes(file, attr, &target, observer);
        }
        if has_links && let Some(remembered) = place.remembered() {
            self.copied.insert(key, remembered);
        }
        Ok(())
    }

    /// Sets the attributes of a directory once nothing more is made in it.
    fn finish_dir(&mut self, frame: &Frame, observer: &mut CopyObserver<'_>) {
        let path = frame.place.path();
        if frame.is_new && !self.options.preserve.mode {
            // What the umask left of the mode, without what was added to work in it.
            let limited = frame.dir.metadata().and_then(|found| {
                let mode = found.mode() & 0o777 & frame.attr.permissions;
                frame.dir.set_permissions(Permissions::from_mode(mode))
            });
            if let Err(error) = limited {
                let error = frame.place.error(errno(&error));
                self.report_damage(observer, error, Effect::AttributesLost);
            }
        }
        let target = Target::Open(&frame.dir, &path);
        self.put_attributes(&frame.source, &frame.attr, &target, observer);
    }

    /// Refuses to go on where the copy was cancelled.
    pub(super) fn check_progress(&self, file: &File) -> Result<()> {
        let cancelled = |cause| Error::at_path(file.volume().name(), file.path(), cause);
        self.progress.check().map_err(cancelled)
    }

    fn count(&mut self, observer: &mut CopyObserver<'_>) {
        self.progress.add_file();
        self.summary.files += 1;
        observer(CopyEvent::Progress(self.summary));
    }
}

/// The file that an entry names, unless it is a directory that was entered before.
fn enter(dir: &File, entry: LoadedEntry, entered: &mut HashSet<InodeId>) -> Result<Source> {
    let LoadedEntry { entry, file, map } = entry;
    let (inode, attr) = match file {
        Ok(found) => found,
        Err(error) => return Err(dir.entry_error(&entry.name, error)),
    };
    if attr.kind == FileKind::Directory && !entered.insert(entry.id) {
        return Err(dir.entry_error(&entry.name, second_name(entry.id).into()));
    }
    Ok(Source {
        file: dir.entry_file(&entry.name, inode),
        attr,
        map: map.and_then(platter_vfs::Result::ok),
    })
}
