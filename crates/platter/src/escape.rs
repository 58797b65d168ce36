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

/// The bytes that [`Escaped`] shows as `text`.
#[must_use]
pub fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let (byte, taken) = match after {
            [digit @ b'0'..=b'7', ..] if *first == b'\\' => octal(*digit, after),
            [letter, ..] if *first == b'\\' => (letter_value(*letter), 2),
            _ => (*first, 1),
        };
        bytes.push(byte);
        rest = rest.get(taken..).unwrap_or_default();
    }
    bytes
}

/// The value of three octal digits, and how long they are with the backslash.
fn octal(first: u8, digits: &[u8]) -> (u8, usize) {
    let number = digits
        .get(..3)
        .and_then(|digits| str::from_utf8(digits).ok());
    let value = number.and_then(|number| u8::from_str_radix(number, 8).ok());
    value.map_or((first, 2), |value| (value, 4))
}

fn letter_value(letter: u8) -> u8 {
    match letter {
        b'a' => 0x07,
        b'b' => 0x08,
        b't' => b'\t',
        b'n' => b'\n',
        b'v' => 0x0b,
        b'f' => 0x0c,
        b'r' => b'\r',
        other => other,
    }
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
            assert_eq!(unescape(shown), bytes);
        }
    }

    #[test]
    fn every_byte_survives_being_escaped() {
        let all: Vec<u8> = (0..=255).chain(*b"\\0123\\n").collect();
        assert_eq!(unescape(&Escaped(&all).to_string()), all);
        for text in ["\\", "\\9", "\\1", "\\777", ""] {
            // Not what the other makes: no panic, whatever it is.
            assert!(unescape(text).len() <= text.len());
        }
    }
}
