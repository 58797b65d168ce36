//! A ring with the single entry of its thread, and the memory of that entry, which the kernel reads
//! and writes. See `linux/fuse.h` and `io_uring_enter(2)`.
#![expect(
    unsafe_code,
    reason = "commands of a ring name memory, and one field has no other setter"
)]

use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use rustix::io::Errno;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::super::device::POLLS_MAX;
use super::super::protocol::{
    InHeader, Opcode, RING_COMMIT_AND_FETCH, RING_REGISTER, ReadIn, RingCommand, RingHeader,
};

/// Length of a read from which it is likely readahead.
const MUCH_BYTES: u32 = 128 << 10;

/// The buffers of one request and its answer.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) fixed: Box<RingHeader>,
    /// Names and data of the request, then the body of the answer.
    pub(super) payload: Box<[u8]>,
}

/// A command to the kernel.
#[derive(Debug, Clone, Copy)]
pub(super) enum Command {
    /// Registers the entry.
    Register,
    /// Commits the answer to the request of this number.
    Commit(u64),
}

/// A buffer, passed with the command that registers an entry (`struct iovec`).
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Place {
    start: *mut u8,
    bytes: usize,
}

/// A ring with its entry.
///
/// # Invariants
/// - It is set up so that the kernel accesses the entry only while its thread is in `fetch`
///   (`IORING_SETUP_DEFER_TASKRUN`), and never after the ring is closed.
/// - The buffers of the entry do not move, and are freed after the ring.
pub(super) struct Ring {
    ring: IoUring<Entry128, cqueue::Entry>,
    entry: Entry,
}

impl fmt::Debug for Ring {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Ring")
    }
}

impl Ring {
    /// Creates a ring that has to be [enabled](Self::enable) by the thread that will use it.
    pub(super) fn new(payload_bytes: usize) -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_r_disabled()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .build(1)?;
        Ok(Self {
            ring,
            entry: Entry {
                fixed: Box::new(RingHeader::new_zeroed()),
                payload: vec![0; payload_bytes].into_boxed_slice(),
            },
        })
    }

    /// Binds the ring to the current thread.
    pub(super) fn enable(&self) -> io::Result<()> {
        self.ring.submitter().register_enable_rings()
    }

    /// Submits a command for the entry, and waits until it holds a request of that queue. Ends when
    /// the mount is gone.
    pub(super) fn fetch(
        &mut self,
        device: BorrowedFd<'_>,
        queue: u16,
        command: Command,
    ) -> io::Result<ControlFlow<(), &mut Entry>> {
        // Read by the kernel when it takes the command, in the system call below.
        let places = self.entry.places();
        let request = request(device, queue, command, &places);
        // SAFETY: `places` outlives the call that submits the command. The memory it refers to
        // belongs to the entry, which does not move and outlives the ring, and which is borrowed
        // exclusively during this call; the kernel does not access it outside of this call.
        let pushed = unsafe { self.ring.submission().push(&request) };
        pushed.map_err(|_| io::Error::other("a ring for one command has no space for one"))?;
        if matches!(command, Command::Commit(_)) {
            self.look_out()?;
        }
        let outcome = loop {
            if let Some(done) = self.ring.completion().next() {
                break done.result();
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        };
        if outcome >= 0 {
            return Ok(ControlFlow::Continue(&mut self.entry));
        }
        match Errno::from_raw_os_error(-outcome) {
            Errno::NOTCONN | Errno::CONNABORTED => Ok(ControlFlow::Break(())),
            error => Err(error.into()),
        }
    }

    /// Submits the command, and yields the processor for a while until there is a request.
    ///
    /// A thread that sleeps at once would be woken on another, idle processor, which takes longer
    /// than the request. A runnable thread on the caller's processor keeps the caller there.
    fn look_out(&mut self) -> io::Result<()> {
        match self.ring.submit() {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        for _ in 0..POLLS_MAX {
            if self.ring.submission().taskrun() || !self.ring.completion().is_empty() {
                break;
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}

impl Entry {
    /// Whether the request is a long read whose caller does not wait: readahead.
    pub(super) fn asks_for_much(&self) -> bool {
        let header = InHeader::read_from_prefix(&self.fixed.header);
        let opcode = header
            .ok()
            .and_then(|(header, _)| Opcode::decode(header.opcode));
        let asked = ReadIn::read_from_prefix(&self.fixed.structure);
        opcode == Some(Opcode::Read) && asked.is_ok_and(|(asked, _)| asked.size >= MUCH_BYTES)
    }

    fn places(&mut self) -> [Place; 2] {
        let fixed = self.fixed.as_mut_bytes();
        let place = |buffer: &mut [u8]| Place {
            start: buffer.as_mut_ptr(),
            bytes: buffer.len(),
        };
        [place(fixed), place(&mut self.payload)]
    }
}

/// Builds a command.
fn request(device: BorrowedFd<'_>, queue: u16, command: Command, places: &[Place; 2]) -> Entry128 {
    let (number, commit) = match command {
        Command::Register => (RING_REGISTER, 0),
        Command::Commit(commit) => (RING_COMMIT_AND_FETCH, commit),
    };
    let mut details = RingCommand::new_zeroed();
    (details.queue, details.commit) = (queue, commit);
    let mut bytes = [0; size_of::<RingCommand>()];
    bytes.copy_from_slice(details.as_bytes());
    let built = opcode::UringCmd80::new(types::Fd(device.as_raw_fd()), number)
        .cmd(bytes)
        .addr(Some(places.as_ptr() as u64))
        .build();
    with_length(built, 2)
}

/// Sets the field `len` of a command, for which there is no setter.
fn with_length(command: Entry128, len: u32) -> Entry128 {
    const WORD: usize = 6;
    // SAFETY: both are 128 bytes without padding, and any bits are valid for either.
    let mut words: [u32; 32] = unsafe { std::mem::transmute(command) };
    words[WORD] = len;
    // SAFETY: as above.
    unsafe { std::mem::transmute(words) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn command_has_the_kernels_layout() {
        let mut ring = Entry {
            fixed: Box::new(RingHeader::new_zeroed()),
            payload: vec![0; 8192].into_boxed_slice(),
        };
        let places = ring.places();
        assert_eq!((places[0].bytes, places[1].bytes), (288, 8192));
        let input = std::io::stdin();
        let command = Command::Commit(0x0102_0304_0506_0708);
        let built = request(input.as_fd(), 3, command, &places);
        // SAFETY: as in `with_length`.
        let words: [u32; 32] = unsafe { std::mem::transmute(built) };
        let of = |word: usize| u64::from(words[word]) | u64::from(words[word + 1]) << 32;
        // opcode IORING_OP_URING_CMD, fd 0
        assert_eq!((words[0] & 0xff, words[1]), (46, 0));
        assert_eq!(words[2], RING_COMMIT_AND_FETCH, "cmd_op");
        assert_eq!(of(4), places.as_ptr() as u64, "addr");
        assert_eq!(words[6], 2, "len");
        assert_eq!(of(12), 0, "flags of the command");
        assert_eq!(of(14), 0x0102_0304_0506_0708, "commit");
        assert_eq!(words[16], 3, "queue");
        assert!(words[17..].iter().all(|&word| word == 0));
    }
}
