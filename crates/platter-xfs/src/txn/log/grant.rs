//! Space in the log: what it holds, what the checkpoints that are not written will take at most, and what
//! transactions have reserved.
//!
//! There are two grant heads. A transaction that begins waits at the *reserve* head, which counts all that
//! transactions have reserved. One that rolls, and holds locks, waits at the *write* head, which counts only
//! what they may write now: it never waits for those that wait to begin.

use crate::ondisk::Lsn;

/// Bytes of the log: those in use, those that checkpoints will take, and those that are reserved.
///
/// # Invariants
/// - Live and pending bytes, and those of either head, are at most the capacity when a waiter passes that head.
/// - What a transaction adds to the running checkpoint moves from both heads to the pending bytes.
#[derive(Debug)]
pub(super) struct Grants {
    capacity: u64,
    /// Sectors of the log, which positions count in.
    sectors: u32,
    head: Lsn,
    tail: Lsn,
    /// Of the running checkpoint and of the one that is being written.
    pending: u64,
    reserve: u64,
    write: u64,
    /// The tail does not move, whatever is written back.
    keeps_tail: bool,
}

/// What a transaction has reserved.
#[derive(Debug)]
pub(in crate::txn) struct Ticket {
    /// One unit: what a transaction may take until it commits or rolls.
    unit: u64,
    /// What is left of the unit.
    left: u64,
    /// Units reserved for the times it rolls.
    units: u32,
}

/// Which head to wait at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Head {
    Reserve,
    Write,
}

impl Ticket {
    /// A ticket of `count` units, one of which is in use.
    pub(super) fn new(unit: u64, count: u32) -> Self {
        Self {
            unit,
            left: unit,
            units: count.max(1) - 1,
        }
    }

    /// What it reserves.
    pub(super) fn total(&self) -> u64 {
        self.left + self.unit * u64::from(self.units)
    }

    pub(super) fn unit(&self) -> u64 {
        self.unit
    }

    pub(super) fn left(&self) -> u64 {
        self.left
    }
}

impl Grants {
    /// An empty log of so many sectors of 512 bytes, of which `capacity` bytes may be in use.
    pub(super) fn new(sectors: u32, capacity: u64, head: Lsn) -> Self {
        Self {
            capacity,
            sectors,
            head,
            tail: head,
            pending: 0,
            reserve: 0,
            write: 0,
            keeps_tail: false,
        }
    }

    /// The end of the log: no record to come begins before it.
    pub(super) fn head(&self) -> Lsn {
        self.head
    }

    /// Bytes from the tail to the head.
    fn live(&self) -> u64 {
        let sector =
            |lsn: Lsn| u64::from(lsn.cycle()) * u64::from(self.sectors) + u64::from(lsn.block());
        sector(self.head).saturating_sub(sector(self.tail)) * 512
    }

    /// Reserves what a ticket asks for; false if there is no space.
    pub(super) fn reserve(&mut self, ticket: &Ticket) -> bool {
        let need = ticket.total();
        let fits = self.live() + self.pending + self.reserve + need <= self.capacity;
        if fits {
            self.reserve += need;
            self.write += need;
        }
        fits
    }

    /// Has a ticket have `need` bytes left; false if there is no space.
    pub(super) fn extend(&mut self, ticket: &mut Ticket, need: u64) -> bool {
        let more = need.saturating_sub(ticket.left);
        let fits = self.live() + self.pending + self.reserve + more <= self.capacity;
        if fits {
            ticket.left += more;
            self.reserve += more;
            self.write += more;
        }
        fits
    }

    /// Whether nothing is reserved by others: what does not fit then never will.
    pub(super) fn is_alone(&self, head: Head) -> bool {
        match head {
            Head::Reserve => self.reserve == 0,
            Head::Write => self.write == 0,
        }
    }

    /// Whether the log holds nothing that could leave it, and no checkpoint is to be written.
    pub(super) fn is_empty(&self) -> bool {
        self.pending == 0 && (self.live() == 0 || self.keeps_tail)
    }

    /// The log holds what is needed from this record on.
    pub(super) fn keep_tail(&mut self, tail: Lsn) {
        self.tail = tail;
        self.keeps_tail = true;
    }

    /// A transaction added so much to the running checkpoint; false if it has not reserved as much.
    pub(super) fn spend(&mut self, ticket: &mut Ticket, bytes: u64) -> bool {
        let Some(left) = ticket.left.checked_sub(bytes) else {
            return false;
        };
        ticket.left = left;
        self.reserve -= bytes;
        self.write -= bytes;
        self.pending += bytes;
        true
    }

    /// A ticket begins its next unit, if it has reserved one. What is left of this one is given back.
    pub(super) fn next_unit(&mut self, ticket: &mut Ticket) -> bool {
        self.reserve -= ticket.left;
        self.write -= ticket.left;
        ticket.left = 0;
        let Some(units) = ticket.units.checked_sub(1) else {
            return false;
        };
        (ticket.units, ticket.left) = (units, ticket.unit);
        true
    }

    /// Reserves another unit of a ticket that has none; false if there is no space.
    pub(super) fn regrant(&mut self, ticket: &mut Ticket) -> bool {
        let need = ticket.unit;
        let fits = self.live() + self.pending + self.write + need <= self.capacity;
        if fits {
            self.reserve += need;
            self.write += need;
            ticket.left = need;
        }
        fits
    }

    /// A ticket ends.
    pub(super) fn release(&mut self, ticket: &Ticket) {
        self.reserve -= ticket.total();
        self.write -= ticket.total();
    }

    /// A checkpoint that was to take at most `pending` is in the log, which ends at `head` now.
    pub(super) fn written(&mut self, pending: u64, head: Lsn, tail: Option<Lsn>) {
        self.pending -= pending;
        self.head = head;
        self.set_tail(tail);
    }

    /// The oldest item that is not in its place.
    pub(super) fn set_tail(&mut self, tail: Option<Lsn>) {
        self.tail = tail.unwrap_or(self.head);
    }

    /// What was [kept](Self::keep_tail) may leave the log.
    pub(super) fn release_tail(&mut self, tail: Option<Lsn>) {
        self.keeps_tail = false;
        self.set_tail(tail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants() -> Grants {
        Grants::new(200, 199 * 512, Lsn::new(1, 190))
    }

    #[test]
    fn units_of_a_ticket_are_used_one_by_one() {
        let mut grants = grants();
        let mut ticket = Ticket::new(10_000, 3);
        assert!(grants.reserve(&ticket) && !grants.is_alone(Head::Reserve));
        assert!(grants.spend(&mut ticket, 4_000) && !grants.spend(&mut ticket, 6_001));
        assert_eq!((grants.reserve, grants.pending), (26_000, 4_000));
        assert!(grants.next_unit(&mut ticket) && grants.next_unit(&mut ticket));
        assert_eq!((grants.reserve, ticket.left()), (10_000, 10_000));
        assert!(!grants.next_unit(&mut ticket));
        assert_eq!((grants.reserve, grants.write), (0, 0));
        assert!(grants.regrant(&mut ticket));
        grants.release(&ticket);
        assert_eq!(
            (grants.reserve, grants.write, grants.pending),
            (0, 0, 4_000)
        );
    }

    #[test]
    fn log_that_wrapped_has_what_lies_between_head_and_tail() {
        let mut grants = grants();
        let mut ticket = Ticket::new(90_000, 1);
        assert!(grants.reserve(&ticket) && grants.spend(&mut ticket, 80_000));
        grants.release(&ticket);
        let tail = Some(Lsn::new(1, 190));
        grants.written(80_000, Lsn::new(2, 140), tail);
        assert_eq!(grants.live(), 150 * 512);
        assert!(!grants.reserve(&Ticket::new(30_000, 1)));
        assert!(grants.reserve(&Ticket::new(25_000, 1)));
        grants.set_tail(None);
        assert_eq!(grants.live(), 0);
        assert!(grants.reserve(&Ticket::new(70_000, 1)));
    }

    #[test]
    fn rolling_transaction_passes_those_that_wait_to_begin() {
        let mut grants = grants();
        let mut rolling = Ticket::new(10_000, 1);
        let (long, late) = (Ticket::new(40_000, 2), Ticket::new(15_000, 1));
        assert!(grants.reserve(&rolling) && grants.reserve(&long));
        assert!(!grants.next_unit(&mut rolling));
        // The second unit of another transaction is not to be written now; one that begins waits for it.
        grants.write -= 40_000;
        assert!(!grants.reserve(&Ticket::new(30_000, 1)) && grants.regrant(&mut rolling));
        assert!(!grants.reserve(&late));
    }
}
