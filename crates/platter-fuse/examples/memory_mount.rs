//! Serves an empty filesystem in memory: `memory_mount DIRECTORY [OPTIONS]`, with the options as for
//! `mount -o`. It says `ready` once it is mounted, and ends when it is unmounted or interrupted.

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use platter_fuse::{MountOptions, mount};
use platter_memfs::{MemFs, MemFsLimits};
use platter_vfs::{Context, Credentials, Filesystem, SetAttr, SystemClock};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let (directory, list) = match arguments.as_slice() {
        [directory] => (directory, ""),
        [directory, list] => (directory, list.as_str()),
        _ => return Err("usage: memory_mount DIRECTORY [OPTIONS]".into()),
    };
    let mut options = MountOptions {
        end_on_signals: true,
        ..MountOptions::default()
    };
    if let [unknown, ..] = options.parse(list)?.as_slice() {
        return Err(format!("unknown option {unknown}").into());
    }
    let fs = MemFs::new(Arc::new(SystemClock::new()), MemFsLimits::default());
    let context = Context {
        credentials: Credentials::root(),
        umask: 0,
    };
    // No particular user owns it, so all users that can reach it may use it.
    let open_to_all = SetAttr {
        permissions: Some(0o1777),
        ..SetAttr::default()
    };
    fs.root()?.set_attr(&context, &open_to_all)?;
    let session = mount(Arc::new(fs), Path::new(directory), options)?;
    let mut stdout = std::io::stdout();
    writeln!(stdout, "ready")?;
    stdout.flush()?;
    session.join()?;
    Ok(())
}
