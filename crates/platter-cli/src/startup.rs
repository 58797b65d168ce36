//! What can be seen only before the standard library starts: it opens `/dev/null` in the place of
//! standard descriptors that are closed, and what is printed is lost without a word then.

use std::sync::atomic::{AtomicBool, Ordering};

static STDOUT_WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// The C library calls this before `main`.
#[used]
#[expect(
    unsafe_code,
    reason = "a section of the linker's is the only way in before the standard library"
)]
// SAFETY: the section holds pointers to functions, and this one needs nothing that is not there yet.
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    let flags = rustix::io::fcntl_getfd(rustix::stdio::stdout());
    let is_closed = flags == Err(rustix::io::Errno::BADF);
    STDOUT_WAS_CLOSED.store(is_closed, Ordering::Relaxed);
}

/// Whether standard output was closed when the program was started.
pub(crate) fn stdout_was_closed() -> bool {
    STDOUT_WAS_CLOSED.load(Ordering::Relaxed)
}
