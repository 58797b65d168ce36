//! `FUSE_INIT`: negotiates protocol version and capabilities.

use std::io;

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::protocol::{InHeader, InitFlags, InitIn, InitOut, MAJOR, MINOR, MINOR_MIN, Opcode};
use crate::server::Server;

/// Limit of the kernel's background requests, such as readahead.
const BACKGROUND_MAX: u16 = 64;
const PAGE_BYTES: u32 = 4096;

/// The reply to `FUSE_INIT`.
pub(super) enum Greeting {
    /// The negotiated capabilities.
    Agreed(u64, InitOut, InitFlags),
    /// The kernel has a newer major version, and will send `FUSE_INIT` again with ours.
    Again(u64, InitOut),
}

/// Processes `FUSE_INIT` and returns the reply. `has_rings` says whether rings are available; it is
/// called only if the kernel supports them.
pub(super) fn greet(
    server: &Server,
    request: &[u8],
    has_rings: impl FnOnce() -> bool,
) -> io::Result<Greeting> {
    let broken = |text| io::Error::new(io::ErrorKind::InvalidData, text);
    let (header, body) = InHeader::read_from_prefix(request)
        .map_err(|_| broken("the kernel's first request is truncated"))?;
    if Opcode::decode(header.opcode) != Some(Opcode::Init) {
        return Err(broken("the kernel's first request is no greeting"));
    }
    let (kernel, rest) = InitIn::read_from_prefix(body)
        .map_err(|_| broken("the kernel's FUSE_INIT is truncated"))?;
    let mut out = InitOut::new_zeroed();
    (out.major, out.minor) = (MAJOR, MINOR.min(kernel.minor));
    if kernel.major > MAJOR {
        out.minor = MINOR;
        return Ok(Greeting::Again(header.unique, out));
    }
    if kernel.major < MAJOR || kernel.minor < MINOR_MIN {
        let text = format!(
            "the kernel speaks FUSE {}.{}; {MAJOR}.{MINOR_MIN} is needed",
            kernel.major, kernel.minor
        );
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    let upper = match u32::read_from_prefix(rest) {
        Ok((upper, _)) if kernel.flags & half(InitFlags::INIT_EXT, 0) != 0 => upper,
        _ => 0,
    };
    let offered = u64::from(kernel.flags) | u64::from(upper) << 32;
    let offered = InitFlags::from_bits_truncate(offered);
    let mut agreed = wanted(server) & offered;
    // From this reply on the kernel waits for all rings to be registered.
    if offered.contains(InitFlags::OVER_IO_URING) && has_rings() {
        agreed |= InitFlags::OVER_IO_URING;
        // Before the answer to such a write the kernel invalidates pages, for which it may need
        // answers of the same threads. Without the flag, it does so itself.
        agreed -= InitFlags::ASYNC_DIO;
    }
    let request_bytes = server.options().request_bytes_max;
    out.readahead_max = kernel.readahead_max;
    out.flags = half(agreed, 0);
    out.flags_hi = half(agreed, 32);
    out.background_max = BACKGROUND_MAX;
    out.congestion_threshold = BACKGROUND_MAX / 4 * 3;
    out.write_max = request_bytes;
    out.time_granularity = server.fs().time_granularity();
    out.pages_max = u16::try_from(request_bytes.div_ceil(PAGE_BYTES)).unwrap_or(u16::MAX);
    Ok(Greeting::Agreed(header.unique, out, agreed))
}

/// Returns the capabilities to request. All are optimizations, so those unknown to the kernel are
/// dropped.
fn wanted(server: &Server) -> InitFlags {
    let mut wanted = InitFlags::ASYNC_READ
        | InitFlags::EXPORT_SUPPORT
        | InitFlags::BIG_WRITES
        | InitFlags::MAX_PAGES
        | InitFlags::PARALLEL_DIROPS
        | InitFlags::DO_READDIRPLUS
        | InitFlags::ASYNC_DIO
        | InitFlags::NO_OPEN_SUPPORT
        | InitFlags::NO_OPENDIR_SUPPORT
        | InitFlags::EXPLICIT_INVAL_DATA
        | InitFlags::HAS_IOCTL_DIR
        | InitFlags::DONT_MASK
        | InitFlags::SETXATTR_EXT
        | InitFlags::INIT_EXT
        | InitFlags::HAS_EXPIRE_ONLY
        // Without it the kernel sends a GETXATTR for file capabilities before every write.
        | InitFlags::HANDLE_KILLPRIV_V2;
    let options = server.options();
    wanted.set(
        InitFlags::WRITEBACK_CACHE,
        options.writeback && !options.read_only,
    );
    wanted.set(InitFlags::CACHE_SYMLINKS, !server.sees_openings());
    wanted.set(InitFlags::POSIX_ACL, server.uses_acls());
    // Without permission checks in the kernel, it would reject the connection.
    wanted.set(InitFlags::ALLOW_IDMAP, !options.no_permission_checks);
    wanted
}

/// Returns 32 of the flag bits.
fn half(flags: InitFlags, shift: u32) -> u32 {
    u32::try_from(flags.bits() >> shift & u64::from(u32::MAX)).unwrap_or_default()
}

impl InitOut {
    /// Returns the bytes of the reply.
    pub(super) fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}
