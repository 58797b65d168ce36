//! Trees are removed whole, in bounded memory, and in bounded time.

use std::sync::mpsc;
use std::time::Duration;

use platter_block::MemoryDevice;

use super::tests::{begin, sample, write};
use super::{Existing, Missing, Removal, Target};
use crate::Error;
use crate::driver::Generation;
use crate::driver::samples::NEWEST;
use crate::volume::removal::LISTED_BYTES_MIN;
use platter_vfs::NameBuf;
use std::sync::Arc;

/// Removes a tree, in time.
fn remove(memory: &Arc<MemoryDevice>, path: &'static [u8]) -> Option<String> {
    let edit = begin(memory);
    let (sender, receiver) = mpsc::channel();
    let removing = std::thread::Builder::new().spawn(move || {
        let removed = edit.remove(path, Removal::Tree, Missing::Refuse);
        let removed = removed.and_then(|()| edit.commit());
        sender.send(removed.map_err(|error: Error| error.to_string()).err())
    });
    let message = receiver.recv_timeout(Duration::from_mins(1)).unwrap();
    removing.unwrap().join().unwrap().unwrap();
    message
}

/// Makes the entry `name` one of the inode that the entry `other` is of.
fn redirect(memory: &Arc<MemoryDevice>, name: &[u8], other: &[u8]) -> Arc<MemoryDevice> {
    let mut bytes = memory.snapshot();
    let entry = |name: &[u8]| {
        let tail = [&[u8::try_from(name.len()).unwrap(), 2], name].concat();
        let found = bytes.windows(tail.len()).position(|bytes| bytes == tail);
        found.unwrap() - 6
    };
    let (from, to) = (entry(other), entry(name));
    bytes.copy_within(from..from + 4, to);
    Arc::new(MemoryDevice::new("disk", bytes).with_blocks(1024))
}

#[test]
fn loops_and_shared_directories_end_a_removal() {
    let memory = sample(Generation::Ext2);
    let edit = begin(&memory);
    edit.make_dirs(b"/a/b/c/inner", None).unwrap();
    edit.make_dirs(b"/outside/deep", None).unwrap();
    edit.make_dirs(b"/outside/shared", None).unwrap();
    edit.commit().unwrap();
    let twice = "more than one entry names it";
    // Where the other name is gone already, so is the directory.
    let deleted = "is of a deleted inode";
    for (name, other, top, path, rule) in [
        (&b"inner"[..], &b"b"[..], &b"/a/"[..], "/a/b/c/inner", twice),
        (b"inner", b"a", b"/a", "/a/b/c/inner", twice),
        (b"deep", b"shared", b"/outside//", "/outside/deep", deleted),
    ] {
        let redirected = redirect(&memory, name, other);
        let before = redirected.snapshot();
        let message = remove(&redirected, top);
        let message = message.unwrap_or_default();
        let is_path = message.starts_with(&format!("disk:{path}: "));
        let is_rule = message.ends_with(&format!(": {rule}"));
        assert!(is_path && is_rule, "{message}");
        assert!(redirected.snapshot() == before);
    }
}

#[test]
fn more_names_than_are_held_at_once_are_removed() {
    let memory = sample(NEWEST);
    let edit = begin(&memory);
    let deep = "/deep".repeat(20);
    edit.make_dirs(deep.as_bytes(), None).unwrap();
    // Below the first levels, a directory lists so much at once and no more.
    let count = 3 * LISTED_BYTES_MIN / (size_of::<NameBuf>() + 200);
    for number in 0..count {
        write(&edit, &format!("{deep}/{number:0200}"), b"");
    }
    edit.symlink(b"deep", b"/link", Target::Name, Existing::Refuse)
        .unwrap();
    edit.commit().unwrap();
    assert_eq!(remove(&memory, b"/deep/"), None);
    let edit = begin(&memory);
    assert!(edit.volume().open("/deep").is_err());
    assert!(edit.volume().open_no_follow("/link").is_ok());
}
