//! The lease of the image: a process that opens it right after the mount is gone waits until all is
//! written, whichever program unmounted.

use std::sync::Arc;
use std::thread::{self, sleep};
use std::time::Duration;

use platter::block::FileDevice;
use platter::vfs::Filesystem;
use platter_fuse::{Unmounter, Watch};
use rustix::io::Errno;
use signal_hook::consts::signal::SIGIO;
use signal_hook::iterator::Signals;

/// How long a lease that was given up is left alone.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Holds the lease of `file` on a thread of its own, until the process ends. While the image is
/// mounted, a process that opens it waits only for this thread.
///
/// Where there is no lease to be had, nothing happens.
pub(super) fn hold(
    file: Arc<FileDevice>,
    fs: Arc<dyn Filesystem>,
    mount: Watch,
    mountpoint: Unmounter,
) {
    // Before there is a lease, since no other thread handles its signal.
    let Ok(mut signals) = Signals::new([SIGIO]) else {
        return;
    };
    let Some(mut is_held) = take(&file) else {
        return;
    };
    let hold = move || {
        loop {
            if is_held {
                if signals.wait().next().is_none() {
                    continue;
                }
                if !mount.is_connected() {
                    // The end of the process gives it up.
                    return;
                }
                if !mountpoint.is_attached() {
                    // What looks unmounted is so elsewhere: a namespace that was made meanwhile has
                    // a copy of the mount. Unmounting reports an error.
                    let _ = fs.sync();
                }
                let _ = file.release_lease();
            }
            sleep(RETRY_PAUSE);
            match take(&file) {
                Some(taken) => is_held = taken,
                None => return,
            }
        }
    };
    // Without it, the image may be seen before it is complete; nothing else depends on it.
    let _ = thread::Builder::new()
        .name("platter-lease".to_owned())
        .spawn(hold);
}

/// Whether the lease is had now; `None` where it never is.
fn take(file: &FileDevice) -> Option<bool> {
    match file.take_lease() {
        Ok(()) => Some(true),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::WOULDBLOCK) => Some(false),
        Err(_) => None,
    }
}
