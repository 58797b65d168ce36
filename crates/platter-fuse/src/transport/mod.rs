//! The way requests come in and answers go out. Nothing outside this folder knows which it is.

mod fuser;

use std::fmt::Debug;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::server::Server;

/// A connection to the kernel that was greeted and can serve.
pub(crate) trait Connection: Send + Debug {
    /// Serves until the mount is gone.
    fn serve(self: Box<Self>) -> io::Result<()>;
}

/// Greets the kernel over `device` on behalf of `server`.
pub(crate) fn connect(server: Arc<Server>, device: OwnedFd) -> io::Result<Box<dyn Connection>> {
    fuser::connect(server, device)
}
