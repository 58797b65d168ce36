//! What a mounted filesystem reports of itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use platter_fuse::{Control, MountOptions};
use platter_memfs::{MemFs, MemFsLimits};
use platter_vfs::{
    Counters, Description, Detail, DetailValue, Filesystem, SystemClock, Timestamp, Uuid,
};
use rustix::io::Errno;

use crate::mounted::{Mounted, refused, stands_on};

/// A filesystem that has much to say.
#[derive(Debug)]
struct Talkative {
    fs: Arc<MemFs>,
    items: u64,
}

impl Filesystem for Talkative {
    fn describe(&self) -> Description {
        let item = |number: u64| {
            let value = DetailValue::Item {
                text: format!("item {number}"),
                fields: vec![Detail::new("number", "number", number.into())],
            };
            Detail::new("item", "an item", value)
        };
        let mut description = self.fs.describe();
        description.label = b"\xffbytes".to_vec();
        description.uuid = Uuid::from_u128(7);
        description.details = (0..self.items).map(item).collect();
        description.details.push(Detail::new(
            "made",
            "made",
            DetailValue::Time(Timestamp {
                seconds: -5,
                nanoseconds: 6,
            }),
        ));
        description
    }

    fn counters(&self) -> Counters {
        vec![("commits".into(), self.items), ("most".into(), u64::MAX)]
    }

    stands_on!(fs);
}

fn talkative(items: u64) -> (Arc<Talkative>, Mounted) {
    let clock = Arc::new(SystemClock::new());
    let fs = Arc::new(MemFs::new(clock, MemFsLimits::default()));
    let served = Arc::new(Talkative {
        fs: Arc::clone(&fs),
        items,
    });
    let mounted = Mounted::serving(Arc::clone(&served) as _, fs, MountOptions::default());
    (served, mounted)
}

#[test]
fn report_is_what_the_filesystem_says() {
    for items in [0, 1, 5000] {
        let (served, mounted) = talkative(items);
        std::fs::create_dir(mounted.path("dir")).unwrap();
        for dir in [mounted.root(), mounted.path("dir")] {
            let control = Control::open(&dir).unwrap();
            let report = control.report().unwrap();
            assert_eq!(report.description, served.describe());
            assert_eq!(report.counters, served.counters());
        }
        mounted.unmount();
    }
}

#[test]
fn reports_of_several_callers_are_not_mixed() {
    let (served, mounted) = talkative(1000);
    let expected = served.describe();
    let complete = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let control = Control::open(&mounted.root()).unwrap();
                for _ in 0..30 {
                    match control.report() {
                        Ok(report) => {
                            assert_eq!(report.description, expected);
                            complete.fetch_add(1, Ordering::Relaxed);
                        }
                        // The others were faster each time.
                        Err(error) => refused::<()>(Err(error), Errno::STALE),
                    }
                }
            });
        }
    });
    assert!(complete.into_inner() > 0);
    mounted.unmount();
}

#[test]
fn directory_of_another_filesystem_has_no_report() {
    let elsewhere = tempfile::tempdir().unwrap();
    let control = Control::open(elsewhere.path()).unwrap();
    refused(control.report(), Errno::NOTTY);
}
