//! A single pass over the entries of a block or region that looks up a name and space for it.

use super::edit::{Gap, stored_len};
use super::{DirEntryRule, Entry, EntryFormat};

/// Result of looking up a name.
#[derive(Debug, Clone, Copy)]
pub enum Surveyed<'b> {
    /// The name exists.
    There {
        /// Its entry.
        entry: Entry<'b>,
        /// Offset of the preceding entry.
        before: Option<usize>,
    },
    /// The name does not exist.
    Missing {
        /// The first gap that fits the name.
        gap: Option<Gap>,
    },
}

/// Looks up an entry in use whose name satisfies `is_wanted`, and a gap for a name of
/// `name_len` bytes that ends by `gaps_end`.
///
/// # Errors
/// The rule that the entry at an offset breaks.
pub fn survey(
    format: EntryFormat,
    bytes: &[u8],
    (name_len, gaps_end): (usize, usize),
    is_wanted: impl Fn(&[u8]) -> bool,
) -> Result<Surveyed<'_>, (usize, DirEntryRule)> {
    // Most of the time of a lookup is spent here: compiled without what is rare, too.
    if format.is_plain() {
        pass::<true>(format, bytes, (name_len, gaps_end), is_wanted)
    } else {
        pass::<false>(format, bytes, (name_len, gaps_end), is_wanted)
    }
}

fn pass<const IS_PLAIN: bool>(
    format: EntryFormat,
    bytes: &[u8],
    (name_len, gaps_end): (usize, usize),
    is_wanted: impl Fn(&[u8]) -> bool,
) -> Result<Surveyed<'_>, (usize, DirEntryRule)> {
    let format = if IS_PLAIN { format.as_plain() } else { format };
    let needed = stored_len(name_len);
    let (mut at, mut before, mut gap) = (0usize, None, None);
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let Some(head) = format.head(rest) else {
            return Err((at, format.broken_rule(rest)));
        };
        let end = at.wrapping_add(head.length);
        if head.inode != 0 && is_wanted(head.name(rest)) {
            let entry = format.decode(bytes, at).map_err(|rule| (at, rule))?;
            return Ok(Surveyed::There { entry, before });
        }
        if gap.is_none() && head.capacity() >= needed && end <= gaps_end {
            gap = Some(Gap::after(at, head, end));
        }
        before = Some(at);
        at = end;
    }
    Ok(Surveyed::Missing { gap })
}
