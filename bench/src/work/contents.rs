//! Contents of one large file: in order, and anywhere.

use anyhow::{Result, ensure};
use testkit::fs_type::FsType;
use testkit::prng::Prng;

use super::{Amount, Done, MAKE_DIRS, Site, USUAL, Unit, Workload, cold, phase, sync};
use crate::measure::now;
use crate::place::{Aligned, Document, Mode};
use crate::side::Side;

const NAME: &str = "contents";
/// One request of a program that reads or writes in order.
const PIECE_BYTES: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;
/// One of so many random accesses goes past the page cache of the host, which is slower.
const DIRECT_SHARE: u64 = 4;
/// Pieces of text, which take turns.
const TEXTS: [u64; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
/// Words that a text is made of.
const WORDS: u64 = 2000;
/// Pages written for each page the file has.
const WRITES_PER_PAGE: u64 = 1;

pub(crate) const SEQUENTIAL: Workload = Workload {
    name: "sequential",
    about: "one file written and read in order, 1 MiB at a time; the count is in MiB",
    count: Amount {
        quick: 16,
        full: 1024,
    },
    image_mib: |count| 256 + count + count / 4,
    particular: &[Side::BindfsLong],
    phases: &[
        MAKE_DIRS,
        phase("write", Unit::Bytes, write_in_order),
        phase("fsync", Unit::Once, sync_file),
        phase("read again", Unit::Bytes, read_in_order),
        cold("cold read", Unit::Bytes, read_in_order),
    ],
    ..USUAL
};

pub(crate) const COMPRESSED: Workload = Workload {
    name: "compressed",
    about: "one file of words at random, written in order and made durable, with zstd; the count is in MiB",
    count: Amount {
        quick: 8,
        full: 512,
    },
    mount: Some("compress=zstd"),
    formats: &[FsType::Btrfs],
    is_pinned: false,
    phases: &[
        MAKE_DIRS,
        phase("write, fsync", Unit::Bytes, write_text),
        cold("cold read", Unit::Bytes, read_text),
    ],
    ..SEQUENTIAL
};

pub(crate) const RANDOM: Workload = Workload {
    name: "random",
    about: "random accesses of 4 KiB in one file; the count is in pages of the file. The library has no \
            mmap: its mmap reads are ordinary ones. A direct write has reached the image when it returns; where a row \
            counts no write for each, it had stayed in a cache",
    count: Amount {
        quick: 1024,
        full: 1 << 16,
    },
    image_mib: |count| 256 + count / 128,
    particular: &[Side::Gathered],
    phases: &[
        MAKE_DIRS,
        phase("lay out", Unit::Preparation, lay_out),
        phase("write", Unit::Operations, write_anywhere),
        phase("fsync", Unit::Once, sync_file),
        phase("direct write", Unit::Operations, write_directly),
        phase("sync", Unit::Preparation, sync),
        cold("cold read", Unit::Operations, read_anywhere),
        phase("read again", Unit::Operations, read_anywhere),
        cold("cold mmap read", Unit::Operations, read_mapped),
    ],
    ..USUAL
};

pub(crate) const EXTENTS: Workload = Workload {
    name: "extents",
    about: "4 KiB written and 4 KiB left out in turns; the count is in extents",
    count: Amount {
        quick: 500,
        full: 100_000,
    },
    image_mib: |count| 256 + count / 200,
    phases: &[
        MAKE_DIRS,
        phase("write", Unit::Operations, write_every_other),
        phase("fsync", Unit::Operations, sync_extents),
        cold("cold read", Unit::Operations, read_every_other),
        phase("read again", Unit::Operations, read_every_other),
    ],
    ..USUAL
};

/// What byte every piece of 4 KiB holds at first.
fn fill(page: u64) -> u8 {
    u8::try_from(page % 251).unwrap_or(0)
}

fn write_pieces(
    file: &dyn Document,
    pieces: u64,
    mut each: impl FnMut(&mut dyn FnMut() -> Result<()>) -> Result<()>,
) -> Result<()> {
    let mut piece = Aligned::zeroed(PIECE_BYTES);
    let pages = (PIECE_BYTES / PAGE_BYTES) as u64;
    for number in 0..pieces {
        let chunks = piece.bytes_mut().chunks_exact_mut(PAGE_BYTES);
        for (page, chunk) in chunks.enumerate() {
            chunk[0] = fill(number * pages + page as u64);
        }
        each(&mut || file.write_at(number * PIECE_BYTES as u64, piece.bytes()))?;
    }
    Ok(())
}

fn write_in_order(site: &Site<'_>) -> Result<Done> {
    site.in_threads(|_, dir, latencies| {
        let file = dir.create(NAME)?;
        write_pieces(&*file, site.share(), |write| latencies.time(write))?;
        Ok(site.share() * PIECE_BYTES as u64)
    })
}

fn sync_file(site: &Site<'_>) -> Result<Done> {
    let mut done = site.in_threads(|_, dir, _| {
        dir.open(NAME, Mode::Write)?.sync()?;
        Ok(1)
    })?;
    done.amount = 1;
    Ok(done)
}

fn read_in_order(site: &Site<'_>) -> Result<Done> {
    site.in_threads(|_, dir, latencies| {
        let file = dir.open(NAME, Mode::Read)?;
        let mut piece = Aligned::zeroed(PIECE_BYTES);
        let pages = (PIECE_BYTES / PAGE_BYTES) as u64;
        for number in 0..site.share() {
            let offset = number * PIECE_BYTES as u64;
            let length = latencies.time(|| file.read_at(offset, piece.bytes_mut()))?;
            ensure!(
                length == PIECE_BYTES,
                "the file ends at {}",
                offset + length as u64
            );
            let first = piece.bytes()[0];
            ensure!(first == fill(number * pages), "other contents at {offset}");
        }
        Ok(site.share() * PIECE_BYTES as u64)
    })
}

fn lay_out(site: &Site<'_>) -> Result<Done> {
    site.in_threads(|_, dir, _| {
        let file = dir.create(NAME)?;
        let pieces = site.share().div_ceil((PIECE_BYTES / PAGE_BYTES) as u64);
        write_pieces(&*file, pieces, |write| write())?;
        file.sync()?;
        Ok(pieces)
    })
}

fn write_anywhere(site: &Site<'_>) -> Result<Done> {
    write_pages(site, Mode::Write, site.share() * WRITES_PER_PAGE)
}

fn write_directly(site: &Site<'_>) -> Result<Done> {
    write_pages(site, Mode::WriteDirect, site.share() / DIRECT_SHARE)
}

fn write_pages(site: &Site<'_>, mode: Mode, writes: u64) -> Result<Done> {
    site.in_threads(|thread, dir, latencies| {
        let file = dir.open(NAME, mode)?;
        let mut page = Aligned::zeroed(PAGE_BYTES);
        let mut prng = Prng::new(thread);
        for _ in 0..writes {
            let number = prng.below(site.share());
            page.bytes_mut()[0] = fill(number);
            latencies.time(|| file.write_at(number * PAGE_BYTES as u64, page.bytes()))?;
        }
        Ok(writes)
    })
}

fn read_anywhere(site: &Site<'_>) -> Result<Done> {
    let reads = site.share() * WRITES_PER_PAGE;
    site.in_threads(|thread, dir, latencies| {
        let file = dir.open(NAME, Mode::Read)?;
        let mut page = Aligned::zeroed(PAGE_BYTES);
        let mut prng = Prng::new(thread + 1000);
        for _ in 0..reads {
            let number = prng.below(site.share());
            let offset = number * PAGE_BYTES as u64;
            let length = latencies.time(|| file.read_at(offset, page.bytes_mut()))?;
            let first = page.bytes()[0];
            ensure!(
                length == PAGE_BYTES && first == fill(number),
                "other contents at {offset}"
            );
        }
        Ok(reads)
    })
}

/// Faults on a mapping of the file, by a program that maps files. The library has no mappings: there,
/// pages are read.
fn read_mapped(site: &Site<'_>) -> Result<Done> {
    let file = site.root.dir(&super::dir_name(0))?.open(NAME, Mode::Read)?;
    match file.read_mapped(site.count * PAGE_BYTES as u64)? {
        None => read_anywhere(site),
        Some(mapped) => Ok(Done {
            amount: mapped.reads,
            seconds: Some(mapped.seconds),
            ..Done::default()
        }),
    }
}

/// A piece of text, another one for each seed.
fn text(seed: u64) -> Aligned {
    let mut prng = Prng::new(seed);
    let mut piece = Aligned::zeroed(PIECE_BYTES);
    let bytes = piece.bytes_mut();
    let mut end = 0;
    while end < bytes.len() {
        // The word of a number is the same everywhere.
        let mut word = Prng::new(prng.below(WORDS)).bytes(10);
        let letters = 2 + usize::from(word[9] % 7);
        word.truncate(letters);
        for byte in &mut word {
            *byte = b'a' + *byte % 26;
        }
        word.push(b' ');
        let left = &mut bytes[end..];
        let len = word.len().min(left.len());
        left[..len].copy_from_slice(&word[..len]);
        end += len;
    }
    piece
}

fn write_text(site: &Site<'_>) -> Result<Done> {
    let pieces = TEXTS.map(text);
    let start = now();
    let mut done = site.in_threads(|_, dir, latencies| {
        let file = dir.create(NAME)?;
        for number in 0..site.share() {
            let piece = &pieces[usize::try_from(number)? % pieces.len()];
            latencies.time(|| file.write_at(number * PIECE_BYTES as u64, piece.bytes()))?;
        }
        file.sync()?;
        Ok(site.share() * PIECE_BYTES as u64)
    })?;
    // Without making the text.
    done.seconds = Some(start.elapsed().as_secs_f64());
    Ok(done)
}

fn read_text(site: &Site<'_>) -> Result<Done> {
    let pieces = TEXTS.map(text);
    let start = now();
    let mut done = site.in_threads(|_, dir, latencies| {
        let file = dir.open(NAME, Mode::Read)?;
        let mut piece = Aligned::zeroed(PIECE_BYTES);
        for number in 0..site.share() {
            let offset = number * PIECE_BYTES as u64;
            let length = latencies.time(|| file.read_at(offset, piece.bytes_mut()))?;
            let expected = &pieces[usize::try_from(number)? % pieces.len()];
            let is_same = length == PIECE_BYTES && piece.bytes() == expected.bytes();
            ensure!(is_same, "other contents at {offset}");
        }
        Ok(site.share() * PIECE_BYTES as u64)
    })?;
    done.seconds = Some(start.elapsed().as_secs_f64());
    Ok(done)
}

/// Where piece `number` of a file with holes lies.
fn every_other(number: u64) -> u64 {
    2 * number * PAGE_BYTES as u64
}

fn write_every_other(site: &Site<'_>) -> Result<Done> {
    site.in_threads(|_, dir, latencies| {
        let file = dir.create(NAME)?;
        let mut page = Aligned::zeroed(PAGE_BYTES);
        for number in 0..site.share() {
            page.bytes_mut()[0] = fill(number);
            latencies.time(|| file.write_at(every_other(number), page.bytes()))?;
        }
        Ok(site.share())
    })
}

fn sync_extents(site: &Site<'_>) -> Result<Done> {
    let mut done = sync_file(site)?;
    done.amount = site.count;
    Ok(done)
}

fn read_every_other(site: &Site<'_>) -> Result<Done> {
    site.in_threads(|thread, dir, latencies| {
        let file = dir.open(NAME, Mode::Read)?;
        let mut page = Aligned::zeroed(PAGE_BYTES);
        let mut prng = Prng::new(thread);
        for _ in 0..site.share() {
            let number = prng.below(site.share());
            let offset = every_other(number);
            let length = latencies.time(|| file.read_at(offset, page.bytes_mut()))?;
            let first = page.bytes()[0];
            ensure!(
                length == PAGE_BYTES && first == fill(number),
                "other contents at {offset}"
            );
        }
        Ok(site.share())
    })
}
