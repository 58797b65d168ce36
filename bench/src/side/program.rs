//! FUSE servers of others, as programs of their own.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use anyhow::{Result, ensure};
use testkit::tool;

use super::{Asked, Ground, Live, mountpoint};
use crate::place::{Folder, HostFolder};

pub(super) struct Program {
    server: Child,
    mountpoint: PathBuf,
}

impl Program {
    pub(super) fn fuse2fs(ground: &Ground) -> Result<Self> {
        Self::start("fuse2fs", ground.image.as_os_str(), ground)
    }

    pub(super) fn bindfs(ground: &Ground) -> Result<Self> {
        Self::start("bindfs", ground.backing()?.as_os_str(), ground)
    }

    /// Starts a program that takes what it serves and where, and stays in the foreground. It goes
    /// with this process, however that ends.
    fn start(name: &str, served: &OsStr, ground: &Ground) -> Result<Self> {
        let mountpoint = ground.mountpoint()?;
        let mut command = tool::command("setpriv");
        command.args(["--pdeathsig", "KILL", "--", name, "-f"]);
        command.env_remove("E2FSPROGS_FAKE_TIME");
        command.arg(served).arg(&mountpoint);
        let mut server = command.stdout(Stdio::null()).spawn()?;
        mountpoint::wait_for(&mountpoint, &mut server)?;
        Ok(Self { server, mountpoint })
    }
}

impl Live for Program {
    fn root(&self) -> Result<Box<dyn Folder>> {
        Ok(Box::new(HostFolder::open(&self.mountpoint)?))
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
