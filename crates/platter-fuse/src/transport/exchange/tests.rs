//! Answers to single requests, without a kernel.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use platter_memfs::{HookedRoot, Hooks, MemFs, MemFsLimits};
use platter_vfs::lock::Mutex;
use platter_vfs::{Attr, Context, FixedClock, Inode, Result, SetAttr, Timestamp};
use zerocopy::{FromBytes, Immutable};

use super::*;
use crate::MountOptions;
use crate::attr_versions::AttrVersion;
use crate::transport::protocol::{SetAttrFlags, SetAttrIn};

const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const SETATTR: u32 = 4;
const COPY_FILE_RANGE: u32 = 47;
const STATX: u32 = 52;
const COPY_FILE_RANGE_64: u32 = 53;

/// A root directory of which requests come while it is in use.
#[derive(Debug, Default)]
struct Root {
    server: OnceLock<Weak<Server>>,
    /// It is changed as soon as its attributes are read.
    is_overtaken: AtomicBool,
    space_is_estimated: AtomicBool,
    /// The version of the attributes that were read during its last change.
    read_meanwhile: Mutex<Option<AttrVersion>>,
    /// The range that was copied last.
    copied: Mutex<Range<u64>>,
}

impl Root {
    fn server(&self) -> Arc<Server> {
        self.server.get().and_then(Weak::upgrade).unwrap()
    }
}

impl Hooks for Root {
    fn attr(&self, inode: &dyn Inode) -> Result<Attr> {
        let mut attr = inode.attr()?;
        attr.space_is_estimated = self.space_is_estimated.load(Ordering::Relaxed);
        if self.is_overtaken.swap(false, Ordering::Relaxed) {
            let changes = SetAttr {
                permissions: Some(0o700),
                ..SetAttr::default()
            };
            let server = self.server();
            let change = Change::new(&server, Caller::of(&InHeader::new_zeroed()));
            change.set_attributes(NodeId::ROOT, &changes).unwrap();
        }
        Ok(attr)
    }

    fn set_attr(&self, inode: &dyn Inode, context: &Context, changes: &SetAttr) -> Result<Attr> {
        let read = self.server().attributes(NodeId::ROOT).unwrap();
        *self.read_meanwhile.lock() = Some(read.version);
        inode.set_attr(context, changes)
    }

    fn copy_range(&self, _: &dyn Inode, _: &dyn Inode, range: Range<u64>, _: u64) -> Result<u64> {
        *self.copied.lock() = range.clone();
        Ok(range.end - range.start)
    }
}

struct Harness {
    server: Arc<Server>,
    root: Arc<Root>,
    null: File,
}

impl Harness {
    fn new() -> Self {
        let clock = FixedClock::new(Timestamp::default(), 0);
        let fs = MemFs::new(Arc::new(clock), MemFsLimits::default());
        let root = Arc::new(Root::default());
        let rooted = HookedRoot {
            fs: Arc::new(fs),
            hooks: Arc::clone(&root),
        };
        let server = Server::new(Arc::new(rooted), MountOptions::default());
        let server = Arc::new(server.unwrap());
        root.server.set(Arc::downgrade(&server)).unwrap();
        let null = File::options().write(true).open("/dev/null").unwrap();
        Self { server, root, null }
    }

    /// Returns the body of the answer to a request about the root.
    fn ask(&self, opcode: u32, structure: &(impl IntoBytes + Immutable)) -> Vec<u8> {
        let mut exchange = Exchange {
            server: &self.server,
            device: self.null.as_fd(),
            agreed: InitFlags::empty(),
            inodes: ReplyInodes::default(),
            notice: None,
        };
        let mut header = InHeader::new_zeroed();
        (header.opcode, header.node) = (opcode, NodeId::ROOT.0);
        let request = Request::parts(header, structure.as_bytes(), &[]);
        let mut space = vec![0; 4096];
        let Outcome::Answer(answered) = exchange.answer(request, &mut space) else {
            panic!("it is answered at once");
        };
        assert_eq!(answered.header().error, 0);
        space.truncate(answered.body_bytes());
        space
    }

    /// Returns how long attributes are valid that are asked for.
    fn attr_valid(&self) -> u64 {
        let body = self.ask(GETATTR, &[0_u8; 16]);
        let (out, _) = AttrOut::read_from_prefix(&body).unwrap();
        out.attr_valid
    }
}

#[test]
fn attributes_that_a_change_overtook_are_not_valid() {
    let harness = Harness::new();
    assert_eq!(harness.attr_valid(), ALWAYS);
    harness.root.is_overtaken.store(true, Ordering::Relaxed);
    assert_eq!(harness.attr_valid(), 0);
    assert_eq!(harness.attr_valid(), ALWAYS);
}

#[test]
fn attributes_are_valid_for_the_change_that_made_them() {
    let harness = Harness::new();
    let mut asked = SetAttrIn::new_zeroed();
    (asked.valid, asked.mode) = (SetAttrFlags::MODE.bits(), 0o700);
    let body = harness.ask(SETATTR, &asked);
    let (out, _) = AttrOut::read_from_prefix(&body).unwrap();
    assert_eq!(out.attr_valid, ALWAYS);
    let read = harness.root.read_meanwhile.lock().take().unwrap();
    assert!(!harness.server.is_current(read), "it was under way");
}

#[test]
fn attributes_with_estimated_space_are_not_valid() {
    let harness = Harness::new();
    for (is_estimated, valid) in [(false, ALWAYS), (true, 0)] {
        let of_root = &harness.root.space_is_estimated;
        of_root.store(is_estimated, Ordering::Relaxed);
        assert_eq!(harness.attr_valid(), valid);
        let body = harness.ask(LOOKUP, b".\0");
        let (out, _) = EntryOut::read_from_prefix(&body).unwrap();
        assert_eq!(out.attr_valid, valid);
        let body = harness.ask(STATX, &[0_u8; 24]);
        let (out, _) = StatxOut::read_from_prefix(&body).unwrap();
        assert_eq!(out.attr_valid, valid);
    }
}

#[test]
fn copy_is_no_longer_than_its_reply_can_count() {
    let harness = Harness::new();
    let mut asked = CopyFileRangeIn::new_zeroed();
    (asked.offset_in, asked.length) = (1 << 20, 5 << 30);
    (asked.node_out, asked.offset_out) = (NodeId::ROOT.0, 1 << 40);
    let copied = || {
        let copied = harness.root.copied.lock().clone();
        assert_eq!(copied.start, 1 << 20);
        copied.end - copied.start
    };
    let body = harness.ask(COPY_FILE_RANGE, &asked);
    let (out, _) = WriteOut::read_from_prefix(&body).unwrap();
    assert_eq!(u64::from(out.size), copied());
    assert!(copied() > 3 << 30 && copied().is_multiple_of(64 << 10));
    let body = harness.ask(COPY_FILE_RANGE_64, &asked);
    let (out, _) = CopyFileRangeOut::read_from_prefix(&body).unwrap();
    assert_eq!((out.bytes, copied()), (asked.length, asked.length));
    asked.length = 4096;
    let body = harness.ask(COPY_FILE_RANGE, &asked);
    let (out, _) = WriteOut::read_from_prefix(&body).unwrap();
    assert_eq!((out.size, copied()), (4096, 4096));
}
