//! Serves any [`Filesystem`](platter_vfs::Filesystem) to the kernel through FUSE.
//!
//! [`mount`] attaches it to a directory, as the superuser or, with the help of `fusermount3`, as
//! any user. The filesystem changes only through us, so the kernel may keep names, attributes
//! and pages for as long as it likes, and most system calls never reach us.
//!
//! [`Control`] asks a mounted filesystem for what only ioctls do: subvolumes, trimming, the label.
#![deny(unsafe_code)]

mod node;
mod attr_versions;
mod statistics;
mod options;
mod ioctl;
mod server;
mod transport;
mod attach;
mod session;
mod pause;
mod refusal;
mod control;
mod send_stream;

pub use attach::AttachError;
pub use control::{Control, DevicesCommand, DevicesOutcome, DevicesRefusal, DevicesReport};
pub use ioctl::MountReport;
pub use options::{DeviceOpener, ErrorSink, MountOptions, OptionError};
pub use refusal::Refusal;
pub use send_stream::{SendFailure, SendStream};
pub use session::{Ended, MountError, Notifier, Session, Unmounter, Watch, mount};
pub use statistics::{Operation, Statistics};
