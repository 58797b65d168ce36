//! `O_DIRECT`: contents that pass by the kernel's page cache, next to those that do not.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::fs::OFlags;

use crate::async_writer::write_all_at_once;
use crate::mounted::{Mounted, plant};

const PAGE: usize = 4096;

fn open_direct(mounted: &Mounted, name: &str) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let flags = OFlags::DIRECT.bits().cast_signed();
    let options = options.custom_flags(flags);
    options.open(mounted.path(name)).unwrap()
}

#[test]
fn buffered_readers_see_asynchronous_direct_writes() {
    const PAGES: usize = 32;
    const ROUNDS: u8 = 200;
    let mounted = Mounted::with("", |fs| drop(plant(fs, "f", &vec![0; PAGES * PAGE])));
    let direct = open_direct(&mounted, "f");
    let buffered = File::open(mounted.path("f")).unwrap();
    let offsets: Vec<u64> = (0..PAGES as u64).map(|page| page * PAGE as u64).collect();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for reader in 0..2 {
            let (buffered, offsets, is_over) = (&buffered, &offsets, &is_over);
            scope.spawn(move || {
                let mut page = [0; PAGE];
                while !is_over.load(Ordering::Relaxed) {
                    for offset in offsets.iter().skip(reader).step_by(2) {
                        buffered.read_exact_at(&mut page, *offset).unwrap();
                    }
                }
            });
        }
        let mut stale = Vec::new();
        for round in 1..=ROUNDS {
            write_all_at_once(&direct, &[round; PAGE], &offsets).unwrap();
            let mut contents = vec![0; PAGES * PAGE];
            buffered.read_exact_at(&mut contents, 0).unwrap();
            let is_stale = contents.iter().any(|&byte| byte != round);
            stale.extend(is_stale.then_some(round));
        }
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(stale, [], "rounds after which old contents were read");
    });
    drop((direct, buffered));
    mounted.unmount();
}
