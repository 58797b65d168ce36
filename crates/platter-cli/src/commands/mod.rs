//! The commands: one module for each, with its arguments.

pub(crate) mod balance;
pub(crate) mod cat;
pub(crate) mod check;
pub(crate) mod chmod;
pub(crate) mod chown;
pub(crate) mod completions;
pub(crate) mod cp;
pub(crate) mod defrag;
pub(crate) mod dedupe;
pub(crate) mod device;
pub(crate) mod du;
pub(crate) mod info;
pub(crate) mod ln;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod mkdir;
pub(crate) mod mkfs;
pub(crate) mod mount;
pub(crate) mod mv;
pub(crate) mod receive;
pub(crate) mod resize;
pub(crate) mod rm;
pub(crate) mod scrub;
pub(crate) mod send;
pub(crate) mod stat;
pub(crate) mod subvolume;
pub(crate) mod sync;
pub(crate) mod tar;
pub(crate) mod touch;
pub(crate) mod tree;
pub(crate) mod trim;
pub(crate) mod truncate;
pub(crate) mod tune;
pub(crate) mod umount;
pub(crate) mod write_batch;
pub(crate) mod xattr;
mod editing;
mod mounted;
mod mount_walk;
mod operands;
mod outcome;

use crate::args::{Cli, Command};
use write_batch::WriteBatch;

/// Runs the command and returns its exit status.
pub(crate) fn run(cli: &Cli) -> anyhow::Result<u8> {
    let options = &cli.image;
    match &cli.command {
        Command::Info(info) => info.run(options),
        Command::Ls(ls) => ls.run(options),
        Command::Tree(tree) => tree.run(options),
        Command::Stat(stat) => stat.run(options),
        Command::Du(du) => du.run(options),
        Command::Cat(cat) => cat.run(options),
        Command::Cp(cp) => cp.run(options),
        Command::Mv(mv) => mv.run(options),
        Command::Rm(rm) => rm.run(options),
        Command::Mkdir(mkdir) => mkdir.run(options),
        Command::Ln(ln) => ln.run(options),
        Command::Chmod(chmod) => chmod.run(options),
        Command::Chown(chown) => chown.run(options),
        Command::Xattr(xattr) => xattr.run(options),
        Command::Subvolume(subvolume) => subvolume.run(options),
        Command::Send(send) => send.run(options),
        Command::Receive(receive) => receive.run(options),
        Command::Truncate(truncate) => truncate.run(options),
        Command::Tune(tune) => tune.run(options),
        Command::Trim(trim) => trim.run(options),
        Command::Sync(sync) => {
            options.refuse_others(&[], "sync")?;
            sync.run()
        }
        Command::Touch(touch) => touch.run(options),
        Command::Tar(tar) => tar.run(options),
        Command::Mount(mount) => mount.run(options),
        Command::Umount(umount) => {
            options.refuse_others(&[], "umount")?;
            Ok(umount.run())
        }
        Command::Check(check) => check.run(options),
        Command::Mkfs(mkfs) => mkfs.run(options),
        Command::Balance(balance) => balance.run(options),
        Command::Defrag(defrag) => defrag.run(options),
        Command::Dedupe(dedupe) => dedupe.run(options),
        Command::Device(device) => device.run(options),
        Command::Scrub(scrub) => scrub.run(options),
        Command::Resize(resize) => resize.run(options),
        Command::Completions(completions) => {
            options.refuse_others(&[], "completions")?;
            completions.run()
        }
        Command::Man(man) => {
            options.refuse_others(&[], "man")?;
            man.run()
        }
        Command::WriteBatch(_) => WriteBatch::run(),
    }
}
