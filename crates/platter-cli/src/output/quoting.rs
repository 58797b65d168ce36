//! Names on a terminal are escaped; names for programs are not.

use std::io::{self, Write};

use platter::Escaped;

/// How names are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quoting {
    /// As they are.
    Literal,
    /// With C escapes for all that is not printable.
    Escape,
}

impl Quoting {
    /// What suits the reader.
    pub(crate) fn for_reader(is_terminal: bool) -> Self {
        if is_terminal {
            Self::Escape
        } else {
            Self::Literal
        }
    }

    pub(crate) fn write(self, out: &mut dyn Write, name: &[u8]) -> io::Result<()> {
        match self {
            Self::Literal => out.write_all(name),
            Self::Escape => write!(out, "{}", Escaped(name)),
        }
    }

    /// How many columns the name takes, as far as characters can be counted.
    pub(crate) fn width(self, name: &[u8]) -> usize {
        match self {
            Self::Literal => String::from_utf8_lossy(name).chars().count(),
            Self::Escape => Escaped(name).to_string().chars().count(),
        }
    }
}
