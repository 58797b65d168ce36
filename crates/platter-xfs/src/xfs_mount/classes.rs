//! The class of every field of a shared structure, in a table that does not compile with a field missing.

use platter_cache::layout::Layout;

/// A structure with a table of its fields.
pub trait Classed: Sized {
    /// The table.
    const LAYOUT: Layout;
    /// Takes the structure apart, so that a field that is not in the table is an error.
    const COMPLETE: fn(&Self);
}

/// Writes the table of a structure: `classed!(Name { ReadOnly: a, b; Hot: c })`, or `Name<L>` for one
/// that is generic over a layout of the mount.
macro_rules! classed {
    ($name:ident $(<$layout:ident>)? { $($class:ident: $($field:ident),+);+ $(;)? }) => {
        impl$(<$layout: $crate::xfs_mount::MountLayout>)? $crate::xfs_mount::classes::Classed
            for $name$(<$layout>)?
        {
            const LAYOUT: platter_cache::layout::Layout = platter_cache::layout::Layout {
                name: stringify!($name),
                len_bytes: size_of::<Self>(),
                align_bytes: align_of::<Self>(),
                fields: &[$($(platter_cache::layout::Field {
                    name: stringify!($field),
                    class: platter_cache::layout::Class::$class,
                    offset_bytes: ::core::mem::offset_of!(Self, $field),
                    len_bytes: platter_cache::layout::len_of(|whole: &Self| &whole.$field),
                }),+),+],
            };
            const COMPLETE: fn(&Self) = |whole| {
                let Self { $($($field: _),+),+ } = whole;
            };
        }
    };
}
pub(crate) use classed;
