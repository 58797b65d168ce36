//! How much to read when a page is missing: recognises sequential readers, several per file.

use std::ops::Range;

use crate::xarray::Order;

/// Sequential readers that are followed at once.
const STREAMS: usize = 8;
/// The first window of a sequential reader, in pages: 64 KiB.
const FIRST_PAGES: u64 = 16;
/// The largest window, in pages: 2 MiB.
pub(super) const WINDOW_PAGES_MAX: u64 = 512;

/// One reader: where it is expected next, and how much was read for it last.
#[derive(Debug, Clone, Copy, Default)]
struct Stream {
    next: u64,
    window: u64,
    /// Misses that came where they were expected: a stream that never had one gives way first.
    hits: u64,
    last_used: u64,
}

/// The readers of one file.
#[derive(Debug, Default)]
pub(super) struct Streams {
    streams: [Stream; STREAMS],
    clock: u64,
}

impl Streams {
    /// How many pages to read for a reader that needs `needed` pages from `index` on, a multiple of `span`.
    ///
    /// A reader that is where one was expected gets twice the last window. One at the beginning
    /// of the file gets the first window. Any other gets what it needs.
    pub(super) fn window(&mut self, index: u64, needed: u64, span: u64) -> u64 {
        self.clock += 1;
        let known = self
            .streams
            .iter_mut()
            .find(|stream| stream.last_used > 0 && stream.next == index);
        let hits = match &known {
            Some(stream) => stream.hits + 1,
            // A reader that begins at the start of the file is expected to go on.
            None => u64::from(index == 0),
        };
        let window = match &known {
            Some(stream) => (2 * stream.window).max(FIRST_PAGES),
            None if index == 0 => FIRST_PAGES,
            None => 0,
        };
        let window = window.max(needed).clamp(1, WINDOW_PAGES_MAX);
        let window = window.next_multiple_of(span);
        let stream = Stream {
            next: index.saturating_add(window),
            window,
            hits,
            last_used: self.clock,
        };
        if let Some(slot) = known {
            *slot = stream;
        } else if let Some(slot) = self
            .streams
            .iter_mut()
            .min_by_key(|s| (s.hits > 0, s.last_used))
        {
            *slot = stream;
        }
        window
    }

    /// The reader that is expected at `index` got more, and is expected at `end`.
    pub(super) fn extend(&mut self, index: u64, end: u64) {
        for stream in &mut self.streams {
            if stream.last_used > 0 && stream.next == index {
                stream.window += end.saturating_sub(index);
                stream.next = end;
            }
        }
    }

    /// Forgets the reader whose window began at `index`: reading ahead did it no good.
    pub(super) fn forget(&mut self, index: u64) {
        for stream in &mut self.streams {
            if stream.next.checked_sub(stream.window) == Some(index) {
                *stream = Stream::default();
            }
        }
    }
}

/// The orders for the pages of a window, one folio after the other: each as large as its place
/// in the file and the end of the window allow, and no more than a quarter of the window, but of the
/// order `min` at least. The window has whole folios of that order.
pub(super) fn folio_orders(window: Range<u64>, min: Order) -> impl Iterator<Item = Order> {
    let pages = window.end.saturating_sub(window.start);
    let cap = pages.checked_ilog2().unwrap_or_default().saturating_sub(2);
    let mut index = window.start;
    std::iter::from_fn(move || {
        let left = window.end.checked_sub(index).filter(|&left| left > 0)?;
        let order = index.trailing_zeros().min(left.ilog2()).min(cap);
        let order = order.max(u32::from(min.get()));
        index += 1 << order;
        Order::new(u8::try_from(order).ok()?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequential_reader_gets_doubling_windows() {
        let mut streams = Streams::default();
        let mut index = 0;
        let mut windows = Vec::new();
        for _ in 0..8 {
            let window = streams.window(index, 1, 1);
            windows.push(window);
            index += window;
        }
        assert_eq!(windows, [16, 32, 64, 128, 256, 512, 512, 512]);
    }

    #[test]
    fn a_random_reader_gets_what_it_needs() {
        let mut streams = Streams::default();
        for index in [77, 3000, 12, 500] {
            assert_eq!(streams.window(index, 2, 1), 2);
        }
        assert_eq!(streams.window(90_000, 5000, 1), WINDOW_PAGES_MAX);
    }

    #[test]
    fn a_sequence_may_begin_anywhere() {
        let mut streams = Streams::default();
        assert_eq!(streams.window(1000, 1, 1), 1);
        assert_eq!(streams.window(1001, 1, 1), 16);
        assert_eq!(streams.window(1017, 1, 1), 32);
    }

    #[test]
    fn interleaved_sequences_do_not_disturb_each_other() {
        let mut streams = Streams::default();
        let mut indexes = [0, 10_000, 20_000, 30_000].map(|index| (index, 0));
        for _ in 0..7 {
            for (index, window) in &mut indexes {
                *window = streams.window(*index, 1, 1);
                *index += *window;
            }
        }
        assert!(indexes.iter().all(|&(_, window)| window >= 256));
    }

    #[test]
    fn random_misses_do_not_drive_a_sequence_out() {
        let mut streams = Streams::default();
        let mut index = 0;
        for round in 0..6 {
            index += streams.window(index, 1, 1);
            for miss in 0..20 {
                streams.window(1_000_000 + round * 1000 + miss * 7, 1, 1);
            }
        }
        assert_eq!(streams.window(index, 1, 1), 512);
    }

    #[test]
    fn windows_are_multiples_of_the_smallest_folio() {
        let mut streams = Streams::default();
        assert_eq!(streams.window(160, 3, 16), 16);
        assert_eq!(streams.window(176, 17, 16), 32);
        assert_eq!(streams.window(208, 1, 16), 64);
        let min = Order::new(4).unwrap();
        let orders: Vec<_> = folio_orders(16..64, min).map(Order::get).collect();
        assert_eq!(orders, [4, 4, 4]);
        assert!(folio_orders(512..1024, min).all(|order| order.span() == 128));
    }

    #[test]
    fn reader_of_a_widened_window_is_expected_after_it() {
        let mut streams = Streams::default();
        streams.window(1000, 1, 1);
        streams.extend(1001, 1024);
        assert_eq!(streams.window(1024, 1, 1), 48);
    }

    #[test]
    fn a_forgotten_reader_begins_anew() {
        let mut streams = Streams::default();
        streams.window(1000, 1, 1);
        let window = streams.window(1001, 1, 1);
        streams.forget(1001);
        assert_eq!(streams.window(1001 + window, 1, 1), 1);
    }

    #[test]
    fn folios_fill_the_window_and_grow_with_it() {
        for window in [0..16, 16..48, 48..112, 240..496, 5..6, 3..515, 7..7] {
            let mut at = window.start;
            let mut largest = 0;
            for order in folio_orders(window.clone(), Order::ZERO) {
                assert_eq!(at % order.span(), 0);
                at += order.span();
                largest = largest.max(order.span());
            }
            assert_eq!(at, window.end);
            assert!(4 * largest <= (window.end - window.start).max(4));
        }
        assert_eq!(
            folio_orders(512..1024, Order::ZERO).next().unwrap().span(),
            128
        );
    }
}
