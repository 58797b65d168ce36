//! Files that leave the image, as an archive and as files of the host.

use std::ffi::OsStr;
use std::io::{Result as IoResult, Write};
use std::num::NonZeroUsize;

use platter::archive::{TarOptions, write_tar};
use platter::copy::{Copier, CopyEvent, CopyOptions, Preserve};

use super::{Desk, OUTPUT_BYTES_MAX};
use crate::exercise::Tally;

/// What takes an archive, and wonders at one that has no end.
struct Sink(u64);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> IoResult<usize> {
        self.0 += bytes.len() as u64;
        assert!(self.0 <= OUTPUT_BYTES_MAX, "the archive is too long");
        Ok(bytes.len())
    }

    fn flush(&mut self) -> IoResult<()> {
        Ok(())
    }
}

pub(super) fn archive(desk: &Desk, tally: &mut Tally) {
    let volume = match desk.options().open(&desk.spec()) {
        Ok(volume) => volume,
        Err(error) => return tally.refusal(&error),
    };
    let options = TarOptions {
        threads: NonZeroUsize::MIN,
        ..TarOptions::default()
    };
    let mut sink = Sink(0);
    let written = write_tar(&volume, b"/", &[b"."], &mut sink, &options, &mut |_| {});
    match written {
        Ok(summary) => tally.bytes += summary.bytes,
        Err(error) => tally.failure(&error),
    }
}

pub(super) fn copy_out(desk: &Desk, tally: &mut Tally) {
    let volume = match desk.options().open(&desk.spec()) {
        Ok(volume) => volume,
        Err(error) => return tally.refusal(&error),
    };
    let options = CopyOptions {
        recursive: true,
        preserve: Preserve {
            mode: false,
            ..Preserve::ALL
        },
        no_clobber: false,
    };
    let made = std::fs::create_dir(desk.target());
    assert!(made.is_ok(), "{made:?}");
    let copied = volume.open("/").and_then(|root| {
        let mut copier = Copier::new(options);
        copier.copy_into(&root, &desk.target(), OsStr::new("copy"), &mut |event| {
            if let CopyEvent::Progress(summary) = event {
                assert!(summary.bytes <= OUTPUT_BYTES_MAX, "the copy is too long");
            }
        })?;
        Ok(copier.summary())
    });
    match copied {
        Ok(summary) => tally.bytes += summary.bytes,
        Err(error) => tally.failure(&error),
    }
}
