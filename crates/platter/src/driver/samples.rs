//! What tests of the facade make their images with, whatever they show.

pub(crate) use platter_ext4::mkfs::mkfs;

use super::Generation;

/// Types of one driver: without a journal, with one, and with everything that is usual today.
pub(crate) const GENERATIONS: [Generation; 3] =
    [Generation::Ext2, Generation::Ext3, Generation::Ext4];
/// The last of them.
pub(crate) const NEWEST: Generation = Generation::Ext4;
