//! Fuzz targets by name. Each takes any bytes and returns; that it does is all that is asked.

mod metadata;
mod journal;
mod disk;
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
