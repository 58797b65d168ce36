//! Streams into a mount: subvolumes are made by ioctls, and filled by system calls.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use platter::Error;
use platter::stream::{StreamCommand as Command, StreamReader, StreamSource};
use platter::vfs::Condition;
use platter::vfs::subvolumes::Received;
use platter_fuse::Control;
use rustix::io::Errno;

use super::apply::{Failure, apply, copy, copy_unaccessed};
use super::origins::Origins;
use super::tree::SubvolumeTree;
use crate::commands::mounted::{mount, named, shown};
use crate::console;

/// A subvolume that is being received.
struct Current {
    name: Vec<u8>,
    tree: SubvolumeTree,
    control: Control,
    /// What it is received from.
    source: StreamSource,
    commands: u64,
}

/// Applies the commands of streams.
struct Receiver<'d> {
    dir: &'d Path,
    /// The target directory, opened first: a sync by it returns the errors of writeback since then.
    control: Control,
    origins: Origins,
    /// The name of the one that is being made.
    making: Option<Vec<u8>>,
    current: Option<Current>,
    received: Vec<Received>,
}

/// Receives the subvolumes of streams into a directory of a mount. After an error, the one that was begun is deleted.
pub(super) fn receive(dir: &Path, input: &mut dyn Read) -> platter::Result<Vec<Received>> {
    let mut receiver = Receiver::new(dir).map_err(|error| named(dir, &error))?;
    match receiver.receive_all(input) {
        Ok(()) => Ok(receiver.received),
        Err(failure) => {
            let error = receiver.error(failure);
            receiver.discard();
            Err(error)
        }
    }
}

impl<'d> Receiver<'d> {
    fn new(dir: &'d Path) -> io::Result<Self> {
        let control = Control::open(dir)?;
        let mount = mount(dir).ok_or(Errno::NOENT)?;
        Ok(Self {
            dir,
            control,
            origins: Origins::of(mount.mountpoint),
            making: None,
            current: None,
            received: Vec::new(),
        })
    }

    fn receive_all(&mut self, input: &mut dyn Read) -> Result<(), Failure> {
        let mut stream = StreamReader::open(input)?;
        loop {
            while let Some(command) = stream.next_command()? {
                if let Command::End = command {
                    break;
                }
                self.receive(&command)?;
            }
            self.finish()?;
            if !stream.next_stream()? {
                return Ok(());
            }
        }
    }

    fn receive(&mut self, command: &Command<'_>) -> Result<(), Failure> {
        if let Command::Subvolume { path, source } = *command {
            self.finish()?;
            self.making = Some(path.to_vec());
            self.control.create_subvolume(path)?;
            return self.begin(path, source);
        }
        if let Command::Snapshot {
            path,
            source,
            parent,
        } = *command
        {
            self.finish()?;
            self.making = Some(path.to_vec());
            let found = self.origins.find(parent);
            let parent = found.map_err(|error| missing(parent, error))?.control()?;
            self.control.snapshot(&parent, path, false)?;
            return self.begin(path, source);
        }
        let current = self.current.as_mut().ok_or(Errno::NOENT)?;
        current.commands += 1;
        if let Command::Clone {
            path,
            offset,
            len_bytes,
            source,
            source_path,
            source_offset,
        } = *command
        {
            let range = (source_offset, source_offset.saturating_add(len_bytes));
            if source.uuid == current.source.uuid {
                let from = current.tree.reader(source_path)?;
                let to = current.tree.writer(path)?;
                copy_unaccessed(&from, range, &to, offset)?;
            } else {
                let found = self.origins.find(source);
                let found = found.map_err(|error| missing(source, error))?;
                let from = found.reader(source_path)?;
                let to = current.tree.writer(path)?;
                copy(&from, range, &to, offset)?;
            }
            return Ok(());
        }
        apply(&mut current.tree, command)
    }

    /// What follows is in a subvolume that was made.
    fn begin(&mut self, name: &[u8], source: StreamSource) -> Result<(), Failure> {
        let open = || {
            let tree = SubvolumeTree::open(&self.control, name)?;
            let control = tree.control()?;
            Ok::<_, io::Error>((tree, control))
        };
        match open() {
            Ok((tree, control)) => {
                self.making = None;
                self.current = Some(Current {
                    name: name.to_vec(),
                    tree,
                    control,
                    source,
                    commands: 0,
                });
                Ok(())
            }
            Err(error) => {
                self.delete(name);
                Err(error.into())
            }
        }
    }

    /// Makes the subvolume that is complete read-only, and durable.
    fn finish(&mut self) -> Result<(), Failure> {
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        // `close(2)` passes on what the kernel has cached; errors of that are returned by this sync, which makes the data
        // durable before the mark.
        current.tree.forget();
        self.control.sync()?;
        let source = current.source;
        let control = &current.control;
        control.set_received(source.uuid, source.generation.0)?;
        control.set_read_only(true)?;
        self.control.sync()?;
        self.origins.forget();
        if let Some(done) = self.current.take() {
            self.received.push(Received {
                id: done.tree.id(),
                name: done.name,
                commands: done.commands,
            });
        }
        Ok(())
    }

    /// Deletes what is not complete.
    fn discard(&mut self) {
        if let Some(Current { name, tree, .. }) = self.current.take() {
            drop(tree);
            self.delete(&name);
        }
    }

    /// Deletes a subvolume, or says that it is left.
    fn delete(&self, name: &[u8]) {
        if let Err(error) = self.control.delete_subvolume(name) {
            let error = named(&self.path(name), &error);
            console::complain(format_args!("{error}; the subvolume is left"));
        }
    }

    /// The path of a subvolume.
    fn path(&self, name: &[u8]) -> PathBuf {
        self.dir.join(OsStr::from_bytes(name))
    }

    /// An error with the path of the subvolume.
    fn error(&self, failure: Failure) -> Error {
        let current = self.current.as_ref().map(|current| &current.name);
        let path = match self.making.as_ref().or(current) {
            Some(name) => self.path(name),
            None => self.dir.to_owned(),
        };
        match failure {
            Failure::Call(error) => named(&path, &error),
            Failure::Stream(error) => Error::new(&shown(&path), error),
        }
    }
}

/// Why a subvolume was not found that a stream refers to.
fn missing(source: StreamSource, error: io::Error) -> Failure {
    if Errno::from_io_error(&error) != Some(Errno::NOENT) {
        return error.into();
    }
    let uuid = source.uuid;
    let text = format!("the subvolume {uuid} that it refers to is not here; receive that first");
    Failure::Stream(Condition::NotFound.because(text))
}
