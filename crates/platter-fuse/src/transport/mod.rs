//! The way requests come in and answers go out: the FUSE protocol over its device or over rings.
//!
//! `protocol` has the bytes, `request` and `reply` take them apart and put them together, `exchange`
//! turns one request into a call of the server and what that returns into an answer, `device` and
//! `ring` carry both. `later` is for answers that have to wait, `notice` for what the kernel is told
//! unasked.

mod protocol;
mod request;
mod meaning;
mod reply;
mod later;
mod exchange;
mod greeting;
mod clone;
mod notice;
mod device;
mod ring;
mod connection;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::server::Server;

pub(crate) use connection::Connection;
pub(crate) use notice::{drop_child, drop_entry};

/// Greets the kernel over `device` on behalf of `server`.
pub(crate) fn connect(server: Arc<Server>, device: OwnedFd) -> io::Result<Connection> {
    Connection::greet(server, device)
}
