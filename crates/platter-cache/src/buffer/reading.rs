//! The duty to read one block, which other threads wait for.

use std::io::IoSliceMut;
use std::sync::Arc;

use platter_ondisk::VerifierKey;

use super::flight::{Flight, Landing};
use super::key::Key;
use super::version::Version;
use super::{BufferError, Core};

/// The duty to read one block. Dropped without an end, as by a panic of the device, it wakes
/// the waiting threads and they read themselves.
pub(super) struct Reading<'a> {
    core: &'a Core,
    pub(super) key: Key,
    pub(super) flight: Arc<Flight>,
    landed: bool,
}

impl<'a> Reading<'a> {
    pub(super) fn new(core: &'a Core, key: Key, flight: Arc<Flight>) -> Self {
        Self {
            core,
            key,
            flight,
            landed: false,
        }
    }

    /// The block's version, of its first copy; `None` if it is being changed.
    pub(super) fn read(self) -> Result<Option<Arc<Version>>, BufferError> {
        let mut bytes = self.core.memory(self.key);
        let bufs = &mut [IoSliceMut::new(&mut bytes)];
        match self.core.store.read(self.key.at(), 0, bufs) {
            Ok(()) => Ok(self.complete(bytes)),
            Err(error) => {
                self.end(Landing::Failed(error.clone()));
                Err(error)
            }
        }
    }

    pub(super) fn complete(self, bytes: Box<[u8]>) -> Option<Arc<Version>> {
        let read = self.core.charged(bytes);
        self.land(Arc::new(read))
    }

    /// Ends the read with bytes of some copy that are validated under `proof`.
    pub(super) fn complete_as(
        self,
        bytes: Box<[u8]>,
        copy: u16,
        proof: VerifierKey,
    ) -> Option<Arc<Version>> {
        let read = self.core.charged(bytes).of_copy(copy);
        read.add_proof(proof);
        self.land(Arc::new(read))
    }

    /// Ends the read with the previous version. Waiting threads look again.
    pub(super) fn put_back(mut self, version: Arc<Version>) {
        let core = self.core;
        core.table
            .complete(core.owner(), self.key, &self.flight, version);
        self.landed = true;
        self.flight.land(Landing::Abandoned);
    }

    fn land(mut self, read: Arc<Version>) -> Option<Arc<Version>> {
        let core = self.core;
        let version = core
            .table
            .complete(core.owner(), self.key, &self.flight, read);
        self.landed = true;
        let landing = version.as_ref().map(Arc::clone);
        self.flight
            .land(landing.map_or(Landing::Abandoned, Landing::Read));
        version
    }

    fn end(mut self, landing: Landing) {
        self.give_up(landing);
    }

    fn give_up(&mut self, landing: Landing) {
        self.core.table.give_up(self.key, &self.flight);
        self.landed = true;
        self.flight.land(landing);
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        if !self.landed {
            self.give_up(Landing::Abandoned);
        }
    }
}
