//! Directories: names to inode numbers, linear, hashed or inline. Spec: `ext4/directory`.

pub mod hash;
pub mod casefold;
