//! Receiving send streams: each makes a subvolume, which is read-only when it is complete.

mod paths;
mod sources;
mod contents;
mod apply;

use std::io::Read;
use std::sync::Arc;

use platter_vfs::subvolumes::{Received, Transfer};
use platter_vfs::{
    Condition, Context, Error, Inode, InodeId, Name, Result, Subvolumes, Timestamp, Unsupported,
};

use super::{MountedSubvolumes, create, flags};
use crate::ondisk::TreeId;
use crate::ondisk::send_stream::{Command, Source, StreamReader};
use crate::ops::{SuperBlock, sync};
use crate::tree::Tree;
use paths::Recent;
use sources::Sources;

/// The error of a stream that this driver does not receive.
fn unsupported(feature: impl Into<String>) -> platter_vfs::Error {
    Unsupported {
        filesystem: "btrfs",
        feature: feature.into(),
        reason: None,
    }
    .into()
}

/// An error of making the subvolume with this name.
fn of_new(name: &[u8], error: Error) -> Error {
    let name = name.escape_ascii();
    match error {
        Error::Condition(condition) => condition.because(format!("{name}: {condition}")),
        Error::Refused(refused) => {
            let text = format!("{name}: {}", refused.text);
            refused.condition.because(text)
        }
        error @ (Error::Unsupported(_) | Error::Corrupt(_) | Error::Io(_)) => error,
    }
}

/// A subvolume that is being received.
struct Current {
    name: Vec<u8>,
    id: TreeId,
    root: Arc<dyn Inode>,
    /// What it is received from.
    source: Source,
    commands: u64,
    recent: Recent,
}

/// Applies the commands of streams.
struct Receiver<'f> {
    fs: &'f Arc<SuperBlock>,
    /// All files are made as by the superuser, whose their owners are set by.
    context: Context,
    /// Where subvolumes are received.
    parent: InodeId,
    current: Option<Current>,
    sources: Sources,
}

/// See [`platter_vfs::Subvolumes::receive`].
pub(super) fn receive(
    superblock: &Arc<SuperBlock>,
    parent: InodeId,
    input: &mut dyn Read,
    sink: &mut dyn FnMut(Received),
) -> Result<()> {
    superblock.transactions()?;
    let mut receiver = Receiver {
        fs: superblock,
        context: Context::root(),
        parent,
        current: None,
        sources: Sources::default(),
    };
    let received = receiver.receive_all(input, sink);
    if received.is_err() {
        receiver.discard();
    }
    received
}

impl Receiver<'_> {
    fn receive_all(&mut self, input: &mut dyn Read, sink: &mut dyn FnMut(Received)) -> Result<()> {
        let mut stream = StreamReader::open(input)?;
        loop {
            while let Some(command) = stream.next_command()? {
                if let Command::End = command {
                    break;
                }
                self.receive(&command, sink)?;
            }
            self.finish(sink)?;
            if !stream.next_stream()? {
                return Ok(());
            }
        }
    }

    fn receive(&mut self, command: &Command<'_>, sink: &mut dyn FnMut(Received)) -> Result<()> {
        if let Command::Subvolume { path, source } = *command {
            self.finish(sink)?;
            let subvolumes = MountedSubvolumes(Arc::clone(self.fs));
            let made = Name::new(path)
                .and_then(|name| subvolumes.create(&self.context, self.parent, name));
            self.begin(path, source, made.map_err(|error| of_new(path, error))?);
            return Ok(());
        }
        if let Command::Snapshot {
            path,
            source,
            parent,
        } = *command
        {
            self.finish(sink)?;
            let made = self.make_snapshot(path, parent);
            self.begin(path, source, made.map_err(|error| of_new(path, error))?);
            return Ok(());
        }
        apply::apply(self, command)
    }

    fn make_snapshot(&mut self, name: &[u8], parent: Source) -> Result<Arc<dyn Inode>> {
        let found = self.sources.find(self.fs.context(), parent)?;
        let name = Name::new(name)?;
        let _writer = self.fs.writers.enter();
        create::create_snapshot(self.fs, found, self.parent, name, false)
    }

    fn begin(&mut self, name: &[u8], source: Source, root: Arc<dyn Inode>) {
        self.current = Some(Current {
            name: name.to_vec(),
            id: TreeId(root.id().tree),
            root,
            source,
            commands: 0,
            recent: Recent::default(),
        });
    }

    /// Makes the subvolume that is complete read-only, and durable.
    fn finish(&mut self, sink: &mut dyn FnMut(Received)) -> Result<()> {
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        current.recent.forget();
        let sent = Transfer {
            generation: current.source.generation.0,
            time: Timestamp::default(),
        };
        let (id, uuid) = (current.id, current.source.uuid);
        // No crash leaves the mark without the data.
        sync::sync_fs(self.fs)?;
        {
            let _writer = self.fs.writers.enter();
            flags::set_received(self.fs, id, uuid, sent)?;
            flags::set_read_only(self.fs, id, true)?;
        }
        sync::sync_fs(self.fs)?;
        self.sources.forget();
        if let Some(done) = self.current.take() {
            sink(Received {
                id: done.id.0,
                name: done.name,
                commands: done.commands,
            });
        }
        Ok(())
    }

    /// Deletes what is not complete.
    fn discard(&mut self) {
        let Some(current) = self.current.take() else {
            return;
        };
        let Current { name, root, .. } = current;
        let id = root.id();
        drop(root);
        let subvolumes = MountedSubvolumes(Arc::clone(self.fs));
        // What cannot be deleted stays, and is not marked as received.
        if let Ok(name) = Name::new(&name) {
            let _ = subvolumes.delete(&self.context, self.parent, name, Some(id));
        }
    }

    fn file(&mut self, path: &[u8]) -> Result<Arc<dyn Inode>> {
        let current = self.current.as_mut().ok_or(Condition::NotFound)?;
        current.recent.file(&current.root, path)
    }

    fn parent<'p>(&mut self, path: &'p [u8]) -> Result<(Arc<dyn Inode>, Name<'p>)> {
        let current = self.current.as_mut().ok_or(Condition::NotFound)?;
        current.recent.parent(&current.root, path)
    }

    fn forget(&mut self) {
        if let Some(current) = &mut self.current {
            current.recent.forget();
        }
    }

    fn forget_file(&mut self) {
        if let Some(current) = &mut self.current {
            current.recent.forget_file();
        }
    }

    fn tree(&self) -> Result<Tree> {
        let current = self.current.as_ref().ok_or(Condition::NotFound)?;
        Ok(self
            .fs
            .context()
            .tree(current.id)?
            .ok_or(Condition::Stale)?)
    }
}
