//! The flags of an inode as chattr(1) knows them.

/// Each flag with its letter in lsattr(1) and its name for programs, lowest bit first.
const FLAGS: &[(u32, char, &str)] = &[
    (0x1, 's', "secure_deletion"),
    (0x2, 'u', "undelete"),
    (0x4, 'c', "compressed"),
    (0x8, 'S', "synchronous"),
    (0x10, 'i', "immutable"),
    (0x20, 'a', "append_only"),
    (0x40, 'd', "no_dump"),
    (0x80, 'A', "no_atime"),
    (0x800, 'E', "encrypted"),
    (0x1000, 'I', "indexed"),
    (0x4000, 'j', "journal_data"),
    (0x8000, 't', "no_tail_merging"),
    (0x1_0000, 'D', "directory_synchronous"),
    (0x2_0000, 'T', "top_directory"),
    (0x8_0000, 'e', "extents"),
    (0x10_0000, 'V', "verity"),
    (0x80_0000, 'C', "no_copy_on_write"),
    (0x200_0000, 'x', "direct_access"),
    (0x1000_0000, 'N', "inline_data"),
    (0x2000_0000, 'P', "project_inherit"),
    (0x4000_0000, 'F', "casefold"),
];

/// The flags as `lsattr` shows them.
pub(crate) fn letters(flags: u32) -> String {
    let set = FLAGS.iter().filter(|(bit, ..)| flags & bit != 0);
    set.map(|(_, letter, _)| letter).collect()
}

/// The names of the flags.
pub(crate) fn names(flags: u32) -> Vec<&'static str> {
    let set = FLAGS.iter().filter(|(bit, ..)| flags & bit != 0);
    set.map(|(_, _, name)| *name).collect()
}
