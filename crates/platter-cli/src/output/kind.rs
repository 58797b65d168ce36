//! File types and permissions in letters and words.

use platter::vfs::{Attr, FileKind};

/// The type and permission bits as `ls -l` shows them.
pub(crate) fn mode_text(attr: &Attr) -> String {
    let mut text = String::with_capacity(10);
    text.push(match attr.kind {
        FileKind::Regular => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
    });
    let special = [(0o4000, 's'), (0o2000, 's'), (0o1000, 't')];
    for (index, (bit, letter)) in special.into_iter().enumerate() {
        let bits = attr.permissions >> (6 - 3 * index);
        text.push(if bits & 4 == 0 { '-' } else { 'r' });
        text.push(if bits & 2 == 0 { '-' } else { 'w' });
        text.push(match (attr.permissions & bit != 0, bits & 1 != 0) {
            (false, false) => '-',
            (false, true) => 'x',
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
        });
    }
    text
}

/// The type as `stat` names it.
pub(crate) fn kind_text(attr: &Attr) -> &'static str {
    match attr.kind {
        FileKind::Regular if attr.size_bytes == 0 => "regular empty file",
        FileKind::Regular => "regular file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::CharDevice => "character special file",
        FileKind::BlockDevice => "block special file",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}

/// The type in one word, for programs.
pub(crate) fn kind_word(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::CharDevice => "char_device",
        FileKind::BlockDevice => "block_device",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}
