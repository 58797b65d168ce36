//! Every kind of rename: what is moved, what is there, how, and whether the directory changes.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use platter_vfs::attr::DeviceNumber;
use platter_vfs::{
    Condition, Context, CreateKind, Error, FileKind, Inode, InodeId, Name, RenameMode,
};

use super::Candidate;

/// What is moved, or lies where it is moved to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Thing {
    Nothing,
    File,
    Symlink,
    EmptyDirectory,
    FullDirectory,
    /// Another name of what is moved.
    Same,
}

use Thing::{EmptyDirectory, File, FullDirectory, Nothing, Same, Symlink};

impl Thing {
    fn is_directory(self) -> bool {
        matches!(self, EmptyDirectory | FullDirectory)
    }
}

/// What a rename does.
#[derive(Debug, PartialEq, Eq)]
enum Expected {
    Moved,
    Swapped,
    Unchanged,
    Refused(Condition),
}

const MODES: [RenameMode; 4] = [
    RenameMode::Replace,
    RenameMode::NoReplace,
    RenameMode::Exchange,
    RenameMode::Whiteout,
];

/// The rules of rename(2).
fn expected(moved: Thing, there: Thing, mode: RenameMode) -> Expected {
    match (mode, there) {
        (RenameMode::NoReplace | RenameMode::Replace | RenameMode::Whiteout, Nothing) => {
            Expected::Moved
        }
        (RenameMode::NoReplace, _) => Expected::Refused(Condition::Exists),
        (RenameMode::Exchange, Nothing) => Expected::Refused(Condition::NotFound),
        (_, Same) => Expected::Unchanged,
        (RenameMode::Exchange, _) => Expected::Swapped,
        _ if moved.is_directory() && !there.is_directory() => {
            Expected::Refused(Condition::NotDirectory)
        }
        _ if !moved.is_directory() && there.is_directory() => {
            Expected::Refused(Condition::IsDirectory)
        }
        (_, FullDirectory) => Expected::Refused(Condition::NotEmpty),
        _ => Expected::Moved,
    }
}

/// Renames everything over everything, in every mode, within a directory and between two; and into what
/// is moved itself.
pub fn renames_follow_the_rules(candidate: Candidate) -> Result<()> {
    run(candidate).with_context(|| candidate.name())
}

fn run(candidate: Candidate) -> Result<()> {
    let mut mounted = candidate.mount(1)?;
    let mut number = 0;
    for moved in [File, Symlink, EmptyDirectory, FullDirectory] {
        for there in [Nothing, File, Symlink, EmptyDirectory, FullDirectory, Same] {
            if there == Same && moved != File {
                continue;
            }
            for mode in MODES {
                for other in [false, true] {
                    number += 1;
                    let case = Case {
                        moved,
                        there,
                        mode,
                        is_between: other,
                    };
                    let base = make_directory(&*mounted.root()?, &format!("base{number}"))?;
                    case.run(&base).with_context(|| format!("{case:?}"))?;
                    clear(&base)?;
                    drop(base);
                    let called = format!("base{number}");
                    mounted
                        .root()?
                        .remove_dir(&Context::root(), name(&called))?;
                }
            }
        }
    }
    let root = mounted.root()?;
    into_itself(&root)?;
    drop(root);
    mounted.remount()?;
    mounted.finish()
}

#[derive(Debug)]
struct Case {
    moved: Thing,
    there: Thing,
    mode: RenameMode,
    is_between: bool,
}

impl Case {
    fn run(&self, base: &Arc<dyn Inode>) -> Result<()> {
        let context = Context::root();
        let from = Arc::clone(base);
        let to = if self.is_between {
            make_directory(&**base, "other")?
        } else {
            Arc::clone(base)
        };
        let (old, new) = (name("old"), name("new"));
        make(&from, "old", self.moved)?;
        match self.there {
            Same => to.link(&context, new, from.lookup(old)?.id())?,
            Nothing | File | Symlink | EmptyDirectory | FullDirectory => {
                make(&to, "new", self.there)?;
            }
        }
        let (moved, there) = (from.lookup(old)?.id(), id_of(&to, "new")?);
        let links = |dir: &Arc<dyn Inode>| -> Result<u32> { Ok(dir.attr()?.links) };
        let before = (links(&from)?, links(&to)?);
        let done = from.rename(&context, old, to.id(), new, self.mode);
        let expected = expected(self.moved, self.there, self.mode);
        match (&expected, done) {
            (Expected::Refused(condition), Err(Error::Condition(found))) if *condition == found => {
            }
            (Expected::Refused(_), done) => {
                anyhow::bail!("{done:?} instead of {expected:?}")
            }
            (_, done) => done?,
        }
        let (at_old, at_new) = (id_of(&from, "old")?, id_of(&to, "new")?);
        let (left, placed) = match expected {
            Expected::Moved => (None, Some(moved)),
            Expected::Swapped => (there, Some(moved)),
            Expected::Unchanged | Expected::Refused(_) => (Some(moved), there),
        };
        ensure!(at_new == placed, "the new name is of {at_new:?}");
        if self.mode == RenameMode::Whiteout && expected == Expected::Moved {
            let attr = from.lookup(old)?.attr()?;
            let nothing = DeviceNumber { major: 0, minor: 0 };
            ensure!(attr.kind == FileKind::CharDevice, "no whiteout is left");
            ensure!(attr.device == nothing, "the whiteout is a device");
        } else {
            ensure!(at_old == left, "the old name is of {at_old:?}");
        }
        if matches!(expected, Expected::Unchanged | Expected::Refused(_)) {
            ensure!((links(&from)?, links(&to)?) == before, "links changed");
        }
        if self.moved == FullDirectory && placed == Some(moved) {
            let dir = to.lookup(new)?;
            ensure!(dir.lookup(name("inner")).is_ok(), "what was in it is gone");
            ensure!(dir.lookup(name(".."))?.id() == to.id(), "`..` is another");
        }
        Ok(())
    }
}

/// A directory cannot become a part of itself, nor replace one that it is in.
fn into_itself(root: &Arc<dyn Inode>) -> Result<()> {
    let context = Context::root();
    let outer = make_directory(&**root, "outer")?;
    let inner = make_directory(&*outer, "inner")?;
    for mode in MODES {
        let moved = root.rename(&context, name("outer"), inner.id(), name("new"), mode);
        let refused = match mode {
            // What is missing is found first.
            RenameMode::Exchange => Condition::NotFound,
            RenameMode::Replace | RenameMode::NoReplace | RenameMode::Whiteout => {
                Condition::InvalidArgument
            }
        };
        let is_refused =
            |condition| matches!(&moved, Err(Error::Condition(found)) if *found == condition);
        ensure!(
            is_refused(refused) || is_refused(Condition::InvalidArgument),
            "{mode:?} into itself: {moved:?}"
        );
    }
    let over = outer.rename(
        &context,
        name("inner"),
        root.id(),
        name("outer"),
        RenameMode::Replace,
    );
    let is_full = matches!(over, Err(Error::Condition(Condition::NotEmpty)));
    ensure!(is_full, "over its parent: {over:?}");
    Ok(())
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("it is a name")
}

fn id_of(dir: &Arc<dyn Inode>, called: &str) -> Result<Option<InodeId>> {
    match dir.lookup(name(called)) {
        Ok(inode) => Ok(Some(inode.id())),
        Err(Error::Condition(Condition::NotFound)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn make_directory(dir: &dyn Inode, called: &str) -> Result<Arc<dyn Inode>> {
    let context = Context::root();
    Ok(dir.create(&context, name(called), CreateKind::Directory, 0o755)?)
}

/// Removes everything in a directory.
fn clear(dir: &Arc<dyn Inode>) -> Result<()> {
    let context = Context::root();
    for called in ["old", "new", "inner", "other"].map(name) {
        let Ok(inode) = dir.lookup(called) else {
            continue;
        };
        if inode.attr()?.kind == FileKind::Directory {
            clear(&inode)?;
            dir.remove_dir(&context, called)?;
        } else {
            dir.unlink(&context, called)?;
        }
    }
    Ok(())
}

fn make(dir: &Arc<dyn Inode>, called: &str, thing: Thing) -> Result<()> {
    let context = Context::root();
    let kind = match thing {
        Nothing | Same => return Ok(()),
        File => CreateKind::Regular,
        Symlink => CreateKind::Symlink(b"target".to_vec()),
        EmptyDirectory | FullDirectory => CreateKind::Directory,
    };
    let made = dir.create(&context, name(called), kind, 0o755)?;
    if thing == FullDirectory {
        made.create(&context, name("inner"), CreateKind::Regular, 0o644)?;
    }
    Ok(())
}
