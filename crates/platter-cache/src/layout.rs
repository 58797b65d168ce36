//! Where the fields of a shared structure lie, checked at compile time: what threads write all the
//! time shares no cache line, nor the pair of lines that a processor fetches at once, with what others
//! only read.

/// Bytes that processors pass between each other at once: two lines of 64.
pub const LINES_BYTES: usize = 128;

/// How often a field is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Never, once the structure is shared.
    ReadOnly,
    /// When a filesystem is mounted or unmounted, fails, or grows.
    Rare,
    /// In normal use. A lock is written by the thread that takes it.
    Hot,
    /// A structure with a layout of its own, which begins and ends at a pair of lines.
    Apart,
}

/// A field of a structure.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// How often it is written.
    pub class: Class,
    /// Where it begins in the structure.
    pub offset_bytes: usize,
    /// Its size.
    pub len_bytes: usize,
}

/// The fields of a structure.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// The name of the structure.
    pub name: &'static str,
    /// Its size and alignment.
    pub len_bytes: usize,
    /// What it is aligned to.
    pub align_bytes: usize,
    /// All of its fields.
    pub fields: &'static [Field],
}

impl Class {
    const fn may_share(self, other: Self) -> bool {
        match (self, other) {
            (Self::ReadOnly | Self::Rare, Self::ReadOnly | Self::Rare) | (Self::Hot, Self::Hot) => {
                true
            }
            (Self::Apart, _)
            | (_, Self::Apart)
            | (Self::Hot, Self::ReadOnly | Self::Rare)
            | (Self::ReadOnly | Self::Rare, Self::Hot) => false,
        }
    }

    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadOnly => "read-only",
            Self::Rare => "rare",
            Self::Hot => "hot",
            Self::Apart => "apart",
        }
    }
}

impl Field {
    /// The pairs of lines that it lies in, first and last.
    #[must_use]
    pub const fn pairs(&self) -> (usize, usize) {
        let last = match self.len_bytes {
            0 => self.offset_bytes,
            len => self.offset_bytes + len - 1,
        };
        (self.offset_bytes / LINES_BYTES, last / LINES_BYTES)
    }

    const fn overlaps(&self, other: &Self) -> bool {
        let ((first, last), (other_first, other_last)) = (self.pairs(), other.pairs());
        self.len_bytes > 0 && other.len_bytes > 0 && first <= other_last && other_first <= last
    }
}

impl Layout {
    /// Whether no pair of lines mixes what is written all the time with what is not.
    #[must_use]
    pub const fn is_parted(&self) -> bool {
        // An offset identifies a line only if the structure begins at one.
        if !self.align_bytes.is_multiple_of(LINES_BYTES) {
            return false;
        }
        let mut one = 0;
        while one < self.fields.len() {
            let mut other = one + 1;
            while other < self.fields.len() {
                let (left, right) = (&self.fields[one], &self.fields[other]);
                if left.overlaps(right) && !left.class.may_share(right.class) {
                    return false;
                }
                other += 1;
            }
            one += 1;
        }
        true
    }
}

/// The size of the field that `_field` gives.
#[must_use]
pub const fn len_of<T, F>(_field: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// Names the class of every field of a structure, and does not compile where a pair of lines mixes
/// them: `layout!(NAME: Structure { ReadOnly: a, b; Hot: c })`.
#[macro_export]
macro_rules! layout {
    ($(#[$about:meta])* $visible:vis $constant:ident: $name:ident {
        $($class:ident: $($(#[$only:meta])* $field:ident),+);+ $(;)?
    }) => {
        $(#[$about])*
        $visible const $constant: $crate::layout::Layout = $crate::layout::Layout {
            name: stringify!($name),
            len_bytes: size_of::<$name>(),
            align_bytes: align_of::<$name>(),
            fields: &[$($($(#[$only])* $crate::layout::Field {
                name: stringify!($field),
                class: $crate::layout::Class::$class,
                offset_bytes: ::core::mem::offset_of!($name, $field),
                len_bytes: $crate::layout::len_of(|whole: &$name| &whole.$field),
            }),+),+],
        };
        const _: () = assert!($constant.is_parted(), "a pair of cache lines mixes classes");
        const _: fn(&$name) = |whole| {
            // Every field has a class.
            let $name { $($($(#[$only])* $field: _),+),+ } = whole;
        };
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn field(class: Class, offset_bytes: usize, len_bytes: usize) -> Field {
        Field {
            name: "",
            class,
            offset_bytes,
            len_bytes,
        }
    }

    fn is_parted(align_bytes: usize, fields: &'static [Field]) -> bool {
        let layout = Layout {
            name: "",
            len_bytes: 512,
            align_bytes,
            fields,
        };
        layout.is_parted()
    }

    const READ: Field = field(Class::ReadOnly, 0, 120);
    const RARE: Field = field(Class::Rare, 120, 8);
    const HOT: Field = field(Class::Hot, 128, 8);

    #[test]
    fn what_is_written_shares_no_pair_of_lines_with_what_is_read() {
        assert!(is_parted(128, const { &[READ, RARE, HOT] }));
        assert!(
            !is_parted(64, const { &[READ, RARE, HOT] }),
            "it may begin anywhere"
        );
        assert!(!is_parted(
            128,
            const { &[READ, field(Class::Hot, 127, 1)] }
        ));
        assert!(!is_parted(
            128,
            const { &[field(Class::ReadOnly, 0, 129), HOT] }
        ));
        assert!(!is_parted(
            128,
            const { &[field(Class::Apart, 128, 128), HOT] }
        ));
        assert!(is_parted(128, const { &[HOT, field(Class::Hot, 136, 8)] }));
    }
}
