//! Blocks of attributes that files share, at the moments at which sharing went wrong in Linux.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use platter_block::Access;
use platter_cache::mbcache::{EntryRef, Fingerprint, MbCache, Removal};
use platter_ext4::fs_context::Sharing;
use platter_ext4::ondisk::xattr::{
    XattrBlockVerifier, references, set_references, shared_hash, value_hash,
};
use platter_ext4::ondisk::{BlockNr, Inode as StoredInode, InodeNr};
use platter_ext4::xattr::EaInodeRule;
use platter_ext4::{Ext4, MountOptions};
use platter_ondisk::Rule;
use platter_ondisk::verify::Unverified;
use platter_vfs::{
    Context, CreateKind, Error, Filesystem, Inode, Name, Result, SetAttr, Timestamp, XattrMode,
};

use crate::image::{Image, mount, walk};

/// Small inodes: attributes lie in blocks.
const EXT2: &[&str] = &["-t", "ext2", "-b", "1024", "-I", "128"];
const EXT4: &[&str] = &[
    "-b",
    "1024",
    "-I",
    "128",
    "-O",
    "has_journal,extent,metadata_csum",
];
const LARGE: &[&str] = &[
    "-b",
    "1024",
    "-I",
    "128",
    "-O",
    "has_journal,extent,ea_inode",
];
/// Long enough for a thread to come to where it waits.
const PAUSE: Duration = Duration::from_millis(100);

fn begin(image: &Image) -> Ext4 {
    let options = MountOptions {
        read_only: false,
        ..MountOptions::default()
    };
    mount(image.device(Access::Write), &options).unwrap()
}

fn create(fs: &Ext4, name: &str) -> Arc<dyn Inode> {
    let name = Name::new(name.as_bytes()).unwrap();
    let root = fs.root().unwrap();
    root.create(&Context::root(), name, CreateKind::Regular, 0o644)
        .unwrap()
}

fn set(file: &dyn Inode, value: &[u8]) -> Result<()> {
    file.set_xattr(&Context::root(), b"user.a", value, XattrMode::Set)
}

fn get(file: &dyn Inode) -> Vec<u8> {
    file.get_xattr(b"user.a").unwrap()
}

fn remove(file: &dyn Inode) {
    file.remove_xattr(&Context::root(), b"user.a").unwrap();
}

fn stored(fs: &Ext4, file: &dyn Inode) -> StoredInode {
    let number = InodeNr::new(u32::try_from(file.id().number).unwrap()).unwrap();
    platter_ext4::inode::read(fs.fs(), number).unwrap()
}

/// The block of a file's attributes.
fn block_of(fs: &Ext4, file: &dyn Inode) -> BlockNr {
    stored(fs, file).xattr_block.unwrap()
}

fn sharing(fs: &Ext4) -> &Sharing {
    fs.fs().sharing().unwrap()
}

fn users(fs: &Ext4, block: BlockNr) -> u32 {
    references(&fs.fs().read_block(block, &Unverified).unwrap()).unwrap()
}

/// Takes the entry of a block, as a thread does that is about to share the block.
fn take(fs: &Ext4, block: BlockNr) -> EntryRef<'_> {
    let bytes = fs.fs().read_block(block, &Unverified).unwrap();
    let key = shared_hash(&bytes).unwrap();
    sharing(fs).blocks.get(key, block.0).unwrap()
}

/// Runs `release` in a thread, which must wait until the entry `hand` is released. Runs `meanwhile`
/// before that.
fn hold_up(hand: EntryRef<'_>, release: impl FnOnce() + Send, meanwhile: impl FnOnce()) {
    thread::scope(|scope| {
        let releasing = thread::Builder::new().spawn_scoped(scope, release).unwrap();
        thread::sleep(PAUSE);
        assert!(
            !releasing.is_finished(),
            "it waits for the entry to be released"
        );
        meanwhile();
        drop(hand);
        releasing.join().unwrap();
    });
}

fn finish(image: &Image, fs: Ext4) {
    fs.unmount().unwrap();
    drop(fs);
    assert_eq!(image.faults(), "");
}

/// Linux 65f8b80053a1: a thread about to share a block cancelled its revoke, found the block freed, and
/// left a journal whose replay overwrote the block's new contents.
#[test]
fn a_block_about_to_be_shared_is_neither_freed_nor_revoked() {
    for options in [EXT2, EXT4] {
        let image = Image::format(options, "16M");
        let fs = begin(&image);
        let (one, two) = (create(&fs, "one"), create(&fs, "two"));
        set(&*one, b"value").unwrap();
        let block = block_of(&fs, &*one);
        hold_up(
            take(&fs, block),
            || remove(&*one),
            || {
                assert_eq!(users(&fs, block), 1);
                set(&*two, b"value").unwrap();
                assert_eq!(users(&fs, block), 2);
            },
        );
        assert_eq!((block_of(&fs, &*two), users(&fs, block)), (block, 1));
        fs.sync().unwrap();
        if options == EXT4 {
            // After a power cut the journal brings it back.
            drop((one, two, fs));
            let fs = begin(&image);
            assert_eq!(get(&*walk(&fs, "two").unwrap()), b"value");
            finish(&image, fs);
        } else {
            drop((one, two));
            finish(&image, fs);
        }
    }
}

#[test]
fn unshared_block_is_freed_once_its_entry_is_released() {
    let image = Image::format(EXT4, "16M");
    let fs = begin(&image);
    let one = create(&fs, "one");
    let free = fs.stat_fs().unwrap().blocks_free;
    set(&*one, b"value").unwrap();
    hold_up(take(&fs, block_of(&fs, &*one)), || remove(&*one), || ());
    fs.sync().unwrap();
    assert_eq!(fs.stat_fs().unwrap().blocks_free, free);
    assert!(sharing(&fs).blocks.is_empty());
    drop(one);
    finish(&image, fs);
}

#[test]
fn a_block_about_to_be_shared_is_copied_instead_of_rewritten() {
    let image = Image::format(EXT4, "16M");
    let fs = begin(&image);
    let (one, two) = (create(&fs, "one"), create(&fs, "two"));
    set(&*one, b"value").unwrap();
    let block = block_of(&fs, &*one);
    hold_up(
        take(&fs, block),
        || set(&*one, b"other").unwrap(),
        || set(&*two, b"value").unwrap(),
    );
    assert_eq!(block_of(&fs, &*two), block);
    assert_ne!(block_of(&fs, &*one), block);
    assert_eq!((get(&*one), get(&*two)), (b"other".into(), b"value".into()));
    // With no thread about to share it, it is rewritten in place.
    set(&*two, b"third").unwrap();
    assert_eq!(block_of(&fs, &*two), block);
    drop((one, two));
    finish(&image, fs);
}

/// Linux a44e84a9b776 and 54b6bd40898d: a full block that was marked as one with space, by a lost
/// update or by a corrupted count, was tried for ever.
#[test]
fn a_full_block_that_is_said_to_have_space_is_tried_once() {
    let image = Image::format(EXT4, "16M");
    let fs = begin(&image);
    let (one, two) = (create(&fs, "one"), create(&fs, "two"));
    set(&*one, b"value").unwrap();
    let block = block_of(&fs, &*one);
    let geometry = &fs.fs().geometry;
    let verifier = XattrBlockVerifier {
        checksum_seed: Some(geometry.checksum_seed),
        has_ea_inode: false,
    };
    let count = |users| {
        let mut handle = fs.fs().begin(1).unwrap();
        let counted = handle.edit(block, &verifier, |bytes| {
            set_references(bytes, users);
            Ok(())
        });
        counted.unwrap();
    };
    count(1024);
    assert!(take(&fs, block).is_reusable());
    set(&*two, b"value").unwrap();
    assert_ne!(block_of(&fs, &*two), block);
    assert!(!take(&fs, block).is_reusable());
    // The first to leave it says that there is space again.
    remove(&*one);
    assert!(take(&fs, block).is_reusable());
    set(&*one, b"value").unwrap();
    assert_eq!(
        block_of(&fs, &*one),
        block_of(&fs, &*two),
        "the last one first"
    );
    drop((one, two));
}

/// Linux CVE-2024-39276: when the block to share could not be read, its entry stayed in use for ever.
#[test]
fn a_block_that_cannot_be_read_is_not_left_in_hand() {
    let image = Image::format(EXT4, "16M");
    let fs = begin(&image);
    let (one, two) = (create(&fs, "one"), create(&fs, "two"));
    set(&*one, b"value").unwrap();
    let block = block_of(&fs, &*one);
    fs.sync().unwrap();
    fs.fs().log().unwrap().checkpoint_all().unwrap();
    let key = take(&fs, block).fingerprint().key;
    let device = fs.fs().device();
    let mut sound = vec![0; 1024];
    device.read_at(block.0 * 1024, &mut sound).unwrap();
    device.write_at(block.0 * 1024, &[7; 1024]).unwrap();
    fs.fs().buffers().invalidate(block.0..block.0 + 1);
    assert!(matches!(set(&*two, b"value"), Err(Error::Corrupt(_))));
    // It is not suggested again, and no thread waits for it.
    set(&*two, b"value").unwrap();
    device.write_at(block.0 * 1024, &sound).unwrap();
    let removed = sharing(&fs).blocks.delete_or_get(key, block.0);
    assert!(matches!(removed, Removal::Deleted));
}

#[test]
fn a_block_with_an_entry_of_no_hash_is_not_shared() {
    let image = Image::format(EXT2, "16M");
    let fs = begin(&image);
    let (one, two) = (create(&fs, "one"), create(&fs, "two"));
    // The hash of the name `a`, turned by half a word.
    let value = u32::from(b'a').rotate_left(16).to_le_bytes();
    set(&*one, &value).unwrap();
    set(&*two, &value).unwrap();
    assert_ne!(block_of(&fs, &*one), block_of(&fs, &*two));
    assert!(sharing(&fs).blocks.is_empty());
    drop((one, two));
    finish(&image, fs);
}

/// Makes the cache suggest what lies at `place` for what has the fingerprint `collision`, whose key is
/// that of `place`, too: as if the two hashes of their contents were the same.
fn collide(cache: &MbCache, collision: Fingerprint, place: u64) {
    let removed = cache.delete_or_get(collision.key, place);
    assert!(matches!(removed, Removal::Deleted));
    cache.create(collision, place, true).unwrap();
    let suggested = cache.find_first(collision).unwrap();
    assert_eq!(suggested.value(), place);
}

#[test]
fn a_block_with_an_equal_hash_and_other_contents_is_not_shared() {
    // The hash of an entry is the same whichever of two words comes first that have one between them.
    let (value, other) = (b"AAAABBBBCCCC", b"CCCCBBBBAAAA");
    for options in [EXT2, EXT4] {
        let image = Image::format(options, "16M");
        let fs = begin(&image);
        let [one, wanted, two] = ["one", "wanted", "two"].map(|name| create(&fs, name));
        set(&*one, value).unwrap();
        set(&*wanted, other).unwrap();
        let (first, second) = (block_of(&fs, &*one), block_of(&fs, &*wanted));
        assert_ne!(first, second);
        let collision = take(&fs, second).fingerprint();
        assert_eq!(take(&fs, first).fingerprint().key, collision.key);
        remove(&*wanted);
        collide(&sharing(&fs).blocks, collision, first.0);
        set(&*two, other).unwrap();
        assert_ne!(block_of(&fs, &*two), first);
        assert_eq!((get(&*one), get(&*two)), (value.to_vec(), other.to_vec()));
        assert_eq!(users(&fs, first), 1);
        finish(&image, fs);
    }
}

#[test]
fn a_value_with_an_equal_hash_and_other_contents_is_not_shared() {
    let value = vec![b'o'; 3000];
    let mut other = value.clone();
    // A checksum does not see its own polynomial.
    let polynomial = 1 | 0x82f6_3b78_u64 << 1;
    let unseen = other[1000..].iter_mut().zip(polynomial.to_le_bytes());
    unseen.for_each(|(byte, bits)| *byte ^= bits);
    let image = Image::format(LARGE, "16M");
    let fs = begin(&image);
    let [one, wanted, two] = ["one", "wanted", "two"].map(|name| create(&fs, name));
    set(&*one, &value).unwrap();
    set(&*wanted, &other).unwrap();
    let (first, second) = (ea_inode_of(&fs, &*one), ea_inode_of(&fs, &*wanted));
    assert_ne!(first, second);
    let key = value_hash(fs.fs().geometry.checksum_seed, &other);
    assert_eq!(key, value_hash(fs.fs().geometry.checksum_seed, &value));
    let values = &sharing(&fs).values;
    let collision = values.get(key, second.into()).unwrap().fingerprint();
    remove(&*wanted);
    collide(values, collision, first.into());
    set(&*two, &other).unwrap();
    assert_ne!(ea_inode_of(&fs, &*two), first);
    assert_eq!((get(&*one), get(&*two)), (value, other));
    finish(&image, fs);
}

#[test]
fn setting_the_value_that_is_there_changes_nothing() {
    let image = Image::format(EXT2, "16M");
    let fs = begin(&image);
    let file = create(&fs, "file");
    set(&*file, b"value").unwrap();
    let past = Timestamp {
        seconds: 1_600_000_000,
        nanoseconds: 0,
    };
    let changes = SetAttr {
        changed: Some(past),
        ..SetAttr::default()
    };
    file.set_attr(&Context::root(), &changes).unwrap();
    set(&*file, b"value").unwrap();
    assert_eq!(file.attr().unwrap().changed, past);
    set(&*file, b"other").unwrap();
    assert_ne!(file.attr().unwrap().changed, past);
    drop(file);
    finish(&image, fs);
}

/// The inode that holds the value of a file's only attribute.
fn ea_inode_of(fs: &Ext4, file: &dyn Inode) -> u32 {
    let block = block_of(fs, file);
    let bytes = fs.fs().read_block(block, &Unverified).unwrap();
    u32::from_le_bytes(bytes[36..40].try_into().unwrap())
}

/// Linux 6bc0d63dad7f: the entry of an EA inode was dropped with its last user, and a thread about to
/// share it then took an inode that was being freed.
#[test]
fn a_value_about_to_be_shared_is_not_freed() {
    let image = Image::format(LARGE, "16M");
    let fs = begin(&image);
    let (one, two) = (create(&fs, "one"), create(&fs, "two"));
    let value = [b'v'; 5000];
    set(&*one, &value).unwrap();
    let ea_inode = ea_inode_of(&fs, &*one);
    let number = InodeNr::new(ea_inode).unwrap();
    let stored = platter_ext4::inode::read(fs.fs(), number).unwrap();
    let hash = u32::try_from(stored.accessed.seconds & 0xffff_ffff).unwrap();
    let take = |ea_inode: u32| sharing(&fs).values.get(hash, ea_inode.into()).unwrap();
    hold_up(take(ea_inode), || remove(&*one), || ());
    assert!(sharing(&fs).values.is_empty());
    set(&*one, &value).unwrap();
    let ea_inode = ea_inode_of(&fs, &*one);
    let context = Context::root();
    let share = || two.set_xattr(&context, b"user.b", &value, XattrMode::Set);
    // Its block has other attributes, so that only the value is shared.
    hold_up(take(ea_inode), || remove(&*one), || share().unwrap());
    assert_eq!(ea_inode_of(&fs, &*two), ea_inode);
    assert_eq!(two.get_xattr(b"user.b").unwrap(), value);
    assert_eq!(fs.sharing().unwrap().shared_values, 1);
    drop((one, two));
    finish(&image, fs);
}

#[test]
fn ea_inode_with_a_reference_count_of_zero_is_corrupt() {
    let image = Image::format(LARGE, "16M");
    let fs = begin(&image);
    let (one, two) = (create(&fs, "one"), create(&fs, "two"));
    let value = [b'v'; 5000];
    set(&*one, &value).unwrap();
    let ea_inode = ea_inode_of(&fs, &*one);
    drop((one, two));
    fs.unmount().unwrap();
    drop(fs);
    image.debugfs(&format!("set_inode_field <{ea_inode}> version 0\n"));
    let fs = begin(&image);
    let (one, two) = (walk(&fs, "one").unwrap(), walk(&fs, "two").unwrap());
    assert_eq!(get(&*one), value);
    let Err(Error::Corrupt(found)) = set(&*two, &value) else {
        panic!("its count is wrong");
    };
    assert_eq!(found.rule, EaInodeRule::References.text());
}
