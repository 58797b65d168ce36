//! A frozen filesystem: what reads goes on, what changes waits, and its devices can be copied.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use platter_vfs::{
    AccessTimes, Context, CreateKind, Error, Inode, InodeId, Name, RenameMode, SetAttr, XattrMode,
};
use rustix::io::Errno;

use super::Candidate;
use super::candidate::Mounted;

const LEN_BYTES: usize = 300_000;
static CONTENTS: [u8; LEN_BYTES] = [1; LEN_BYTES];
/// How long changes are watched that must wait.
const WATCH: Duration = Duration::from_millis(50);

/// A change of a file called `file` in a directory.
type Change = fn(&dyn Inode, &dyn Inode) -> platter_vfs::Result<()>;

/// Changes that wait for the thaw; each can be made whatever the others did.
const CHANGES: [Change; 9] = [
    |_, file| file.write_at(0, b"after"),
    |_, file| file.append(b"after").map(drop),
    |_, file| set(file, Some(2000), None),
    |_, file| set(file, None, Some(0o600)),
    |_, file| file.set_xattr(&Context::root(), b"user.after", b"1", XattrMode::Set),
    |dir, _| {
        let kind = CreateKind::Directory;
        dir.create(&Context::root(), name("made"), kind, 0o755)
            .map(drop)
    },
    |dir, _| {
        dir.rename(
            &Context::root(),
            name("old"),
            dir.id(),
            name("new"),
            RenameMode::Replace,
        )
    },
    |dir, file| dir.link(&Context::root(), name("link"), file.id()),
    |dir, _| dir.unlink(&Context::root(), name("removed")),
];

fn name(name: &'static str) -> Name<'static> {
    Name::new(name.as_bytes()).expect("a name")
}

fn set(
    file: &dyn Inode,
    size_bytes: Option<u64>,
    permissions: Option<u32>,
) -> platter_vfs::Result<()> {
    let changes = SetAttr {
        size_bytes,
        permissions,
        ..SetAttr::default()
    };
    file.set_attr(&Context::root(), &changes).map(drop)
}

fn ensure_errno<T>(result: platter_vfs::Result<T>, expected: Errno) -> Result<()> {
    let found = result.err().map(|error: Error| error.errno());
    ensure!(found == Some(expected), "{found:?} instead of {expected}");
    Ok(())
}

/// Freezes a filesystem with dirty files, and demands that its devices hold a clean filesystem with all of it, which
/// stays as it is while reads and syncs go on and changes wait; that those are made once it is thawed, and survive a
/// crash; and that an unmount thaws it.
pub fn frozen_filesystem_is_clean_and_stays(candidate: Candidate) -> Result<()> {
    changes_wait(candidate).with_context(|| candidate.name())?;
    deleted_file_is_freed_after_the_thaw(candidate).with_context(|| candidate.name())?;
    unmount_lets_changes_end(candidate).with_context(|| candidate.name())
}

fn changes_wait(candidate: Candidate) -> Result<()> {
    let mounted = candidate.mount(9)?;
    let fs = mounted.fs();
    ensure_errno(fs.thaw(), Errno::INVAL)?;
    let (dir, file) = (mounted.root()?, mounted.file("file")?);
    for name in ["old", "removed"] {
        mounted.file(name)?.write_at(0, name.as_bytes())?;
    }
    file.write_at(0, &CONTENTS)?;
    fs.freeze()?;
    ensure_errno(fs.freeze(), Errno::BUSY)?;
    let frozen = mounted.copy_offline()?;
    if let Some(frozen) = &frozen {
        ensure!(frozen.contents("file")? == CONTENTS);
    }
    let (begun, made) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let changing = CHANGES.map(|change| {
            let (dir, file, begun, made) = (&dir, &file, &begun, &made);
            scope.spawn(move || {
                begun.fetch_add(1, Ordering::SeqCst);
                let changed = change(&**dir, &**file);
                made.fetch_add(1, Ordering::SeqCst);
                changed
            })
        });
        let watched = watch(&mounted, &file, &begun).and_then(|()| {
            ensure!(made.load(Ordering::SeqCst) == 0, "a change did not wait");
            if let Some(frozen) = &frozen {
                ensure!(frozen.is_equal(&mounted)?, "the devices changed");
            }
            Ok(())
        });
        // Also after a failure, or the threads would never end.
        fs.thaw()?;
        for (index, changing) in changing.into_iter().enumerate() {
            let changed = changing.join().expect("a change ends");
            changed.with_context(|| format!("change {index}"))?;
        }
        watched
    })?;
    fs.sync()?;
    mounted.lookup("made")?;
    mounted.ensure_recovered_with("new")?;
    // Frozen again, as the thaw left it.
    fs.freeze()?;
    mounted.copy_offline()?;
    drop((dir, file));
    mounted.finish()
}

/// Reads, syncs and looks names up while changes wait.
fn watch(mounted: &Mounted, file: &Arc<dyn Inode>, begun: &AtomicUsize) -> Result<()> {
    while begun.load(Ordering::SeqCst) < CHANGES.len() {
        std::thread::yield_now();
    }
    std::thread::sleep(WATCH);
    let mut buf = vec![0; LEN_BYTES];
    ensure!(file.read_at(0, &mut buf)? == LEN_BYTES && buf == CONTENTS);
    file.note_access(AccessTimes::Strict)?;
    let found: InodeId = mounted.lookup("file")?.id();
    ensure!(found == file.id(), "another file");
    file.sync(false)?;
    mounted.fs().sync()?;
    Ok(())
}

fn deleted_file_is_freed_after_the_thaw(candidate: Candidate) -> Result<()> {
    let mounted = candidate.mount(10)?;
    let fs = mounted.fs();
    let file = mounted.file("removed")?;
    file.write_at(0, &CONTENTS)?;
    mounted.root()?.unlink(&Context::root(), name("removed"))?;
    // Of what no name leads to, syncs write nothing.
    file.write_at(LEN_BYTES as u64, &vec![3; LEN_BYTES])?;
    fs.freeze()?;
    let frozen = mounted.copy()?;
    file.sync(false)?;
    std::thread::scope(|scope| {
        let freeing = scope.spawn(|| drop(file));
        std::thread::sleep(WATCH);
        let stayed = match &frozen {
            Some(frozen) => frozen.is_equal(&mounted),
            None => Ok(true),
        };
        fs.thaw()?;
        freeing.join().expect("it is freed");
        ensure!(stayed?, "the devices changed");
        Ok(())
    })?;
    mounted.finish()
}

fn unmount_lets_changes_end(candidate: Candidate) -> Result<()> {
    let mounted = candidate.mount(11)?;
    let file = mounted.file("file")?;
    mounted.fs().freeze()?;
    let changed = std::thread::scope(|scope| {
        let changing = scope.spawn(|| file.write_at(0, b"late"));
        std::thread::sleep(WATCH);
        mounted.fs().unmount()?;
        anyhow::Ok(changing.join().expect("a change ends"))
    })?;
    if let Err(error) = changed {
        ensure!(error.errno() == Errno::ROFS, "{error}");
    }
    drop(file);
    mounted.finish()
}
