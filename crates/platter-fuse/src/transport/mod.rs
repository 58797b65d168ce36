//! The FUSE protocol, over its device or over `io_uring`.
//!
//! `protocol` has the structures, `request` and `reply` decode and encode them, `exchange` turns a
//! request into a call of the server and its result into an answer, `device` and `ring` transfer
//! both. `later` is for deferred answers, `notice` for notifications.

mod protocol;
mod request;
mod meaning;
mod reply;
mod later;
mod greeting;
mod clone;
mod notice;
mod exchange;
mod device;
mod ring;
mod connection;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::server::Server;

pub(crate) use connection::Connection;
pub(crate) use notice::{drop_child, drop_entry};

/// Performs `FUSE_INIT` over `device` for `server`.
pub(crate) fn connect(server: Arc<Server>, device: OwnedFd) -> io::Result<Connection> {
    Connection::greet(server, device)
}
