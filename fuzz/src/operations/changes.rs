//! Edits and growing.

use std::os::unix::ffi::OsStringExt;

use platter::copy::CopyOptions;
use platter::edit::{
    CopyIn, CopySource, Creation, Existing, Missing, Owner, Removal, Scope, SizeChange, Symlinks,
    Target,
};
use platter::resize::{NewSize, grow};
use platter::vfs::{FileKind, TreeWalk, WalkEvent, WalkOrder};
use platter::{Edit, Progress, Result};

use super::{Desk, TOP_NAMES_MAX, clock};
use crate::exercise::Tally;

/// Files that each edit takes up.
const FILES_MAX: usize = 60;
/// How much larger an image becomes.
const GROWN: u64 = 4;

/// Edits the image. What goes wrong is counted, and the edit goes on with the next file: more of an
/// image is reached than by a command, which ends there.
fn edit(desk: &Desk, tally: &mut Tally, change: impl FnOnce(&Edit, &mut Tally)) {
    match desk.options().edit(&desk.spec()) {
        Ok(edit) => {
            change(&edit, tally);
            let committed = edit.commit();
            note(tally, committed);
        }
        Err(error) => tally.refusal(&error),
    }
}

fn note<T>(tally: &mut Tally, result: Result<T>) -> Option<T> {
    result.map_err(|error| tally.failure(&error)).ok()
}

/// The paths of what lies at the top.
fn tops(edit: &Edit, tally: &mut Tally) -> Vec<Vec<u8>> {
    let Some(entries) = note(tally, edit.volume().read_dir("/")) else {
        return Vec::new();
    };
    let path = |entry: platter::DirEntry| entry.path().into_os_string().into_vec();
    let entries = entries.map_while(|entry| note(tally, entry));
    entries.take(TOP_NAMES_MAX).map(path).collect()
}

/// The paths of files anywhere.
fn files(edit: &Edit) -> Vec<Vec<u8>> {
    let filesystem = edit.volume().filesystem();
    let Ok(root) = filesystem.root() else {
        return Vec::new();
    };
    TreeWalk::new(filesystem.clone(), root, WalkOrder::Name)
        .filter_map(|event| match event {
            WalkEvent::Visit(visited) if visited.attr.kind == FileKind::Regular => {
                Some([b"/", &*visited.path].concat())
            }
            WalkEvent::Visit(_) | WalkEvent::Leave(_) | WalkEvent::Failed { .. } => None,
        })
        .take(FILES_MAX)
        .collect()
}

pub(super) fn remove(desk: &Desk, tally: &mut Tally) {
    edit(desk, tally, |edit, tally| {
        for path in tops(edit, tally) {
            note(tally, edit.remove(&path, Removal::Tree, Missing::Refuse));
        }
    });
}

pub(super) fn copy_into(desk: &Desk, tally: &mut Tally) {
    edit(desk, tally, |edit, tally| {
        let options = CopyOptions {
            recursive: true,
            ..CopyOptions::default()
        };
        let owner = Owner {
            uid: None,
            gid: None,
        };
        let host = CopySource::Host(desk.source());
        let mut targets = vec![b"/".to_vec()];
        targets.extend(tops(edit, tally));
        let mut observer = |_: platter::edit::CopyInEvent<'_>| {};
        let mut copy = CopyIn::new(options, owner);
        for target in &targets {
            let target = (&target[..], Target::Into);
            let from = (&host, Symlinks::Follow);
            note(tally, copy.copy(edit, from, target, &mut observer));
        }
        for source in &targets[1..] {
            let Some(file) = note(tally, edit.volume().open_no_follow(source)) else {
                continue;
            };
            let source = CopySource::Image(file);
            let target = (&b"/source"[..], Target::Into);
            let from = (&source, Symlinks::NoFollow);
            note(tally, copy.copy(edit, from, target, &mut observer));
        }
    });
}

pub(super) fn move_names(desk: &Desk, tally: &mut Tally) {
    edit(desk, tally, |edit, tally| {
        let tops = tops(edit, tally);
        let made = edit.make_dirs(b"/moved/to", None);
        note(tally, made);
        for (index, path) in tops.iter().enumerate() {
            let next = &tops[(index + 1) % tops.len()];
            note(
                tally,
                edit.rename(path, next, Target::Into, Existing::Replace),
            );
            let moved = edit.rename(path, b"/moved/to", Target::Into, Existing::Replace);
            note(tally, moved);
        }
    });
}

pub(super) fn truncate(desk: &Desk, tally: &mut Tally) {
    edit(desk, tally, |edit, tally| {
        for path in files(edit) {
            for change in [
                SizeChange::Grow(100_000),
                SizeChange::Shrink(101_000),
                SizeChange::AtMost(70),
                SizeChange::Set(0),
            ] {
                note(tally, edit.truncate(&path, change, Creation::Never));
            }
        }
    });
}

pub(super) fn change_owners(desk: &Desk, tally: &mut Tally) {
    edit(desk, tally, |edit, tally| {
        let owner = Owner {
            uid: Some(7),
            gid: Some(8),
        };
        let changed = edit.change_owner(b"/", owner, Symlinks::NoFollow, Scope::Tree);
        note(tally, changed);
    });
}

pub(super) fn change_xattrs(desk: &Desk, tally: &mut Tally) {
    edit(desk, tally, |edit, tally| {
        let mut paths = files(edit);
        paths.extend(tops(edit, tally));
        for path in paths {
            let links = Symlinks::NoFollow;
            for value in [&[1; 20][..], &[2; 700]] {
                note(tally, edit.set_xattr(&path, b"user.large", value, links));
            }
            note(tally, edit.set_xattr(&path, b"user.other", b"value", links));
            note(tally, edit.remove_xattr(&path, b"user.large", links));
        }
    });
}

pub(super) fn resize(desk: &Desk, tally: &mut Tally) {
    let len_bytes = std::fs::metadata(desk.image()).map_or(0, |found| found.len());
    let grown = grow(
        &desk.spec(),
        NewSize::Bytes(len_bytes * GROWN),
        &desk.budget(),
        &clock(),
        &Progress::new(),
    );
    note(tally, grown);
}
