//! Names are bytes; this makes them safe to show: no control character reaches a terminal or a log.

use std::fmt::{self, Write};

/// Shows bytes as text, escaping what is not printable the way C and `ls -b` do: `\n`, `\t`,
/// `\\`, and three octal digits for control characters and bytes that are not UTF-8. Characters
/// that reorder text on screen are escaped too, so that a name cannot disguise itself.
#[derive(Debug, Clone, Copy)]
pub struct Escaped<'a>(pub &'a [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for character in chunk.valid().chars() {
                write_character(out, character)?;
            }
            write_octal(out, chunk.invalid())?;
        }
        Ok(())
    }
}

fn write_character(out: &mut fmt::Formatter<'_>, character: char) -> fmt::Result {
    match character {
        '\\' => out.write_str("\\\\"),
        '\x07' => out.write_str("\\a"),
        '\x08' => out.write_str("\\b"),
        '\t' => out.write_str("\\t"),
        '\n' => out.write_str("\\n"),
        '\x0b' => out.write_str("\\v"),
        '\x0c' => out.write_str("\\f"),
        '\r' => out.write_str("\\r"),
        plain if is_harmless(plain) => out.write_char(plain),
        other => write_octal(out, other.encode_utf8(&mut [0; 4]).as_bytes()),
    }
}

fn write_octal(out: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes
        .iter()
        .try_for_each(|byte| write!(out, "\\{byte:03o}"))
}

/// Neither a control character nor one that changes how its neighbours are shown.
fn is_harmless(character: char) -> bool {
    !character.is_control()
        && !matches!(character,
            '\u{061c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_printable_text_comes_out() {
        for (bytes, shown) in [
            (&b"plain name"[..], "plain name"),
            ("grün".as_bytes(), "grün"),
            (b"a\nb\\c\x1b[31m", "a\\nb\\\\c\\033[31m"),
            (b"\xff\xfe.txt", "\\377\\376.txt"),
            ("a\u{202e}b\u{85}".as_bytes(), "a\\342\\200\\256b\\302\\205"),
            (b"\x7f\0", "\\177\\000"),
        ] {
            assert_eq!(Escaped(bytes).to_string(), shown);
        }
    }
}
