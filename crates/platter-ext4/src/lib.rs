//! ext2, ext3 and ext4 in one driver.
#![forbid(unsafe_code)]
