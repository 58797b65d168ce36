//! A device without a kernel: callers queue requests, readers answer them.

use std::collections::{BTreeSet, VecDeque};

use shuttle::thread;

use crate::readers::{Alarm, InVain, Looks, Reader, Readers, Rest, Taken};
use crate::sync::{Condvar, Mutex};

/// Looks in vain before a thread blocks.
const LOOKS: u32 = 2;

/// A request, known by its number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) number: u32,
    pub(crate) caller: u32,
    /// The request whose answer this one waits for while it is served.
    pub(crate) waits_for: Option<u32>,
}

/// What the kernel has.
#[derive(Debug, Default)]
pub(crate) struct Device {
    state: Mutex<DeviceState>,
    /// Wakes one of the threads that block in a read, for each request.
    queued: Condvar,
    answered: Condvar,
}

#[derive(Debug, Default)]
struct DeviceState {
    queue: VecDeque<Request>,
    answers: BTreeSet<u32>,
    is_gone: bool,
}

enum Read {
    Request(Request),
    Nothing,
    Gone,
}

impl Device {
    /// Sends a request, and waits for its answer.
    pub(crate) fn call(&self, request: Request) {
        self.state.lock().queue.push_back(request);
        self.queued.notify_one();
        self.wait_for(request.number);
    }

    /// Ends the mount.
    pub(crate) fn unmount(&self) {
        self.state.lock().is_gone = true;
        self.queued.notify_all();
    }

    fn wait_for(&self, number: u32) {
        let mut state = self.state.lock();
        while !state.answers.contains(&number) {
            state = self.answered.wait(state);
        }
    }

    fn answer(&self, request: Request) {
        self.state.lock().answers.insert(request.number);
        self.answered.notify_all();
    }

    fn read(&self, blocks: bool) -> Read {
        let mut state = self.state.lock();
        loop {
            if let Some(request) = state.queue.pop_front() {
                return Read::Request(request);
            }
            if state.is_gone {
                return Read::Gone;
            }
            if !blocks {
                return Read::Nothing;
            }
            state = self.queued.wait(state);
        }
    }
}

/// An alarm without a time: it may ring at any moment while it is set.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    /// Whether it is set, and whether it is to ring for the last time.
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Alarm for Bell {
    fn set(&self) {
        self.state.lock().0 = true;
        self.changed.notify_all();
    }

    fn clear(&self) {
        self.state.lock().0 = false;
    }

    fn end(&self) {
        self.state.lock().1 = true;
        self.changed.notify_all();
    }
}

/// The thread that watches the readers.
pub(crate) fn watch(readers: &Readers<Bell>) {
    loop {
        let bell = readers.alarm();
        let mut state = bell.state.lock();
        while !state.0 && !state.1 {
            state = bell.changed.wait(state);
        }
        drop(state);
        thread::yield_now();
        if !readers.watch() {
            return;
        }
    }
}

/// A serving thread, as `transport/device/turns.rs` has it. `looks_out` is whether it has the patience.
pub(crate) fn serve(device: &Device, readers: &Readers<Bell>, looks_out: bool) {
    let mut reader = readers.join();
    let mut looks = reader.begin();
    while let Some(request) = next(device, &mut reader, looks, looks_out) {
        if let Some(other) = request.waits_for {
            device.wait_for(other);
        }
        device.answer(request);
        looks = reader.come(request.waits_for.is_some());
    }
    readers.end();
}

fn next(
    device: &Device,
    reader: &mut Reader<'_, Bell>,
    mut looks: Looks,
    looks_out: bool,
) -> Option<Request> {
    loop {
        let (in_vain, most) = match looks {
            _ if !looks_out => (InVain::Impatient, 0),
            Looks::None => (InVain::Impatient, 0),
            Looks::One => (InVain::LookedOnce, 1),
            Looks::Many => (InVain::LookedOut, LOOKS),
        };
        for look in 0..most {
            match device.read(false) {
                Read::Request(request) => return Some(taken(reader, request, look == 0)),
                Read::Nothing => thread::yield_now(),
                Read::Gone => return None,
            }
        }
        match reader.rest(in_vain) {
            Rest::Block => {
                return match device.read(true) {
                    Read::Request(request) => Some(taken(reader, request, false)),
                    Read::Nothing | Read::Gone => None,
                };
            }
            Rest::Called(next) => looks = next,
            Rest::End => return None,
        }
    }
}

fn taken(reader: &mut Reader<'_, Bell>, request: Request, was_there: bool) -> Request {
    reader.take(Taken {
        caller: request.caller,
        was_there,
        is_bulk: false,
    });
    request
}
