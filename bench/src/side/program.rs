//! FUSE servers of others, as programs of their own.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use anyhow::{Result, ensure};
use testkit::tool;

use super::{Asked, Ground, Live, mountpoint};
use crate::place::{Directory, HostDir};

pub(super) struct Program {
    server: Child,
    mountpoint: PathBuf,
}

/// What is asked of the kernel about writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writes {
    AsUsual,
    /// In pieces as long as the server takes them.
    Long,
}

impl Program {
    pub(super) fn fuse2fs(ground: &Ground) -> Result<Self> {
        Self::start("fuse2fs", &[], ground.image.as_os_str(), ground)
    }

    /// Version 2 of the FUSE library takes writes in pieces of 4 KiB unless an option says otherwise, which
    /// fuse2fs does by itself, and bindfs does not. Version 3 has no need of it, and no such option.
    pub(super) fn bindfs(ground: &Ground, writes: Writes) -> Result<Self> {
        let served = ground.backing()?;
        let start = |options: &[&str]| Self::start("bindfs", options, served.as_os_str(), ground);
        match writes {
            Writes::AsUsual => start(&[]),
            Writes::Long => start(&["-o", "big_writes"]).or_else(|_| start(&[])),
        }
    }

    /// Starts a program that takes what it serves and where, and stays in the foreground. It goes
    /// with this process, however that ends.
    fn start(name: &str, options: &[&str], served: &OsStr, ground: &Ground) -> Result<Self> {
        let mountpoint = ground.mountpoint()?;
        let mut command = tool::command("setpriv");
        command.args(["--pdeathsig", "KILL", "--", name, "-f"]);
        command.env_remove("E2FSPROGS_FAKE_TIME");
        command.args(options).arg(served).arg(&mountpoint);
        let mut server = command.stdout(Stdio::null()).spawn()?;
        mountpoint::wait_for(&mountpoint, &mut server)?;
        Ok(Self { server, mountpoint })
    }
}

impl Live for Program {
    fn root(&self) -> Result<Box<dyn Directory>> {
        Ok(Box::new(HostDir::open(&self.mountpoint)?))
    }

    fn path(&self) -> Option<PathBuf> {
        Some(self.mountpoint.clone())
    }

    fn server(&self) -> Option<u32> {
        Some(self.server.id())
    }

    fn asked(&mut self) -> Result<Asked> {
        Ok(Asked::default())
    }

    fn end(mut self: Box<Self>) -> Result<()> {
        mountpoint::take_off(&self.mountpoint)?;
        let status = self.server.wait()?;
        ensure!(status.success(), "the server ended: {status}");
        Ok(())
    }
}
