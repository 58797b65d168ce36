//! Fuzz targets by name. Each takes any bytes and returns; that it does is all that is asked.

mod metadata;
mod journal;
mod disk;
mod btrfs;
mod xfs;
mod xfs_log;
mod image;
#[cfg(test)]
mod tests;

/// A function of bytes that must return.
pub type Target = fn(&[u8]);

/// Every target.
pub const TARGETS: &[(&str, Target)] = &[
    ("superblock", metadata::superblock),
    ("group_descriptor", metadata::group_descriptor),
    ("inode", metadata::inode),
    ("extent_node", metadata::extent_node),
    ("directory_block", metadata::directory_block),
    ("directory_index", metadata::directory_index),
    ("attribute_block", metadata::attribute_block),
    ("attributes_in_inode", metadata::attributes_in_inode),
    ("acl", metadata::acl),
    ("orphan_block", metadata::orphan_block),
    ("journal_superblock", journal::superblock),
    ("journal_descriptor", journal::descriptor),
    ("journal_revoke", journal::revoke),
    ("journal_commit", journal::commit),
    ("fast_commit", journal::fast_commit),
    ("partition_table", disk::partition_table),
    ("btrfs_superblock", btrfs::superblock),
    ("btrfs_tree_block", btrfs::tree_block),
    ("btrfs_item", btrfs::item),
    ("btrfs_chunk", btrfs::chunk),
    ("btrfs_compressed", btrfs::compressed),
    ("btrfs_send_stream", btrfs::send_stream),
    ("xfs_superblock", xfs::superblock),
    ("xfs_group_headers", xfs::group_headers),
    ("xfs_inode", xfs::inode),
    ("xfs_short_forms", xfs::short_forms),
    ("xfs_btree_block", xfs::btree_block),
    ("xfs_directory_block", xfs::directory_block),
    ("xfs_hash_tree_block", xfs::hash_tree_block),
    ("xfs_remote_block", xfs::remote_block),
    ("xfs_quota_record", xfs::quota_record),
    ("xfs_realtime_superblock", xfs::realtime_superblock),
    ("xfs_realtime_block", xfs::realtime_block),
    ("xfs_log_record", xfs_log::record),
    ("xfs_log_operation", xfs_log::operation),
    ("xfs_log_item", xfs_log::item),
    ("xfs_stamped_block", xfs_log::stamped_block),
    ("image", image::image),
];

/// The target of that name.
#[must_use]
pub fn named(name: &str) -> Option<Target> {
    TARGETS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|&(_, target)| target)
}
