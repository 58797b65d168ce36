//! What is found after a power cut, when some transactions are durable and what is dirty is lost.

use super::*;
use crate::ops;

impl File {
    /// The file as a mount after a power cut at this moment finds it.
    fn after_cut(&self) -> Vec<u8> {
        let device = Arc::new(MemoryDevice::new("after", self.device.snapshot()));
        let sb = mount(&device);
        let node = sb.find(self.node.number).unwrap().unwrap();
        let size = usize::try_from(node.size_bytes()).unwrap();
        let mut bytes = vec![0; size];
        assert_eq!(node.read_at(0, &mut bytes).unwrap(), size);
        bytes
    }

    fn commit(&self) {
        self.sb.fs.log().unwrap().commit_all().unwrap();
    }
}

#[test]
fn truncated_bytes_do_not_come_back_after_a_power_cut() {
    for shape in [EXTENTS, CLUSTERS, INDIRECT] {
        let mut file = File::new(1, shape);
        file.write(0, 1000);
        file.remount();
        file.resize(100);
        file.resize(900);
        file.commit();
        let found = file.after_cut();
        assert_eq!(found, file.model[..found.len()]);
    }
}

#[test]
fn partial_writeback_does_not_restore_truncated_data() {
    for shape in [EXTENTS, CLUSTERS, INDIRECT] {
        let mut file = File::new(1, shape);
        file.write(0, 1000);
        file.remount();
        file.resize(100);
        file.write(20_000, 100);
        file.node
            .pages
            .write_back(&*file.node, 16384..32768)
            .unwrap();
        file.commit();
        assert_eq!(file.after_cut(), file.model);
    }
}

#[test]
fn blocks_that_moved_are_not_overwritten_where_they_were() {
    for mode in [FallocateMode::InsertRange, FallocateMode::CollapseRange] {
        let mut file = File::new(1, EXTENTS);
        file.write(0, 8000);
        file.remount();
        file.fallocate(1024, 2048, mode);
        let size = file.model.len() as u64;
        file.write(0, size);
        file.node.pages.write_back(&*file.node, 0..size).unwrap();
        let found = file.after_cut();
        assert_eq!(found.len(), file.model.len(), "{mode:?}");
        let holes = if mode == FallocateMode::InsertRange {
            1024..3072
        } else {
            0..0
        };
        for (at, (found, written)) in found.iter().zip(&file.model).enumerate() {
            assert!(
                found == written || holes.contains(&at),
                "{mode:?}: byte {at}"
            );
        }
    }
}

#[test]
fn a_long_write_is_not_there_without_what_was_written_before_it() {
    for shape in [EXTENTS, CLUSTERS, INDIRECT] {
        let mut file = File::new(1, shape);
        file.write(0, 5000);
        file.write(8192, LONG_BYTES);
        file.commit();
        assert_eq!(file.after_cut(), file.model);
    }
}

#[test]
fn sync_of_a_reloaded_inode_flushes_earlier_writes() {
    let mut file = File::new(1, EXTENTS);
    file.write(0, 1000);
    file.remount();
    let device = file.through(CountingDevice::new);
    file.write(200, 500);
    file.commit();
    ops::sync::write_dirty(&file.sb).unwrap();
    let writes = device.counts().writes;
    let number = file.node.number;
    file.sb.nodes.release_all();
    let former = Arc::into_inner(file.node);
    drop(former.expect("it has no other users"));
    file.node = file.sb.find(number).unwrap().unwrap();
    for flushes in [1, 0] {
        let before = device.counts();
        file.node.sync(false).unwrap();
        let counts = device.counts() - before;
        assert_eq!((counts.flushes, counts.writes), (flushes, 0));
    }
    assert_eq!(device.counts().writes, writes);
    file.check_bytes();
}

#[test]
fn nothing_is_written_over_a_file_after_writing_has_ended() {
    let mut file = File::new(1, EXTENTS);
    file.write(0, 1000);
    file.remount();
    file.node.write_at(200, &[7; 500]).unwrap();
    file.commit();
    let why: Error = Condition::Busy.into();
    let before = file.device.snapshot();
    ops::end_writing(&file.sb, &why);
    let refused = Some(why.errno());
    assert_eq!(
        ops::sync::write_dirty(&file.sb).err().map(|e| e.errno()),
        refused
    );
    assert_eq!(file.node.sync(true).err().map(|e| e.errno()), refused);
    assert!(file.device.snapshot() == before);
    assert_eq!(file.after_cut(), file.model);
}
