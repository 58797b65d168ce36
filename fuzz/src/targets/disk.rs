//! Partition tables: the bytes are the disk.

use std::hint::black_box;
use std::sync::Arc;

use platter_block::MemoryDevice;
use platter_block::partition::{read_backup_table, read_table};

pub(super) fn partition_table(bytes: &[u8]) {
    let device = Arc::new(MemoryDevice::new("fuzz", bytes.to_vec()));
    if let Ok(Some(table)) = read_table(&*device) {
        for number in 0..5 {
            black_box(table.get(number));
        }
    }
    black_box(read_backup_table(&*device).is_ok());
}
