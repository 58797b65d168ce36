//! Base64 as RFC 4648 has it, for what is not UTF-8.

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes with padding.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut group = 0_u32;
        for at in 0..3 {
            group = group << 8 | u32::from(chunk.get(at).copied().unwrap_or(0));
        }
        for digit in 0..4 {
            let index = (group >> (18 - 6 * digit)) & 63;
            let is_padding = digit > chunk.len();
            text.push(if is_padding {
                '='
            } else {
                char::from(DIGITS[index as usize])
            });
        }
    }
    text
}

/// Decodes what [`encode`] makes; `None` for anything else.
pub(crate) fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for quad in text.chunks(4) {
        let digits = quad.iter().rposition(|&digit| digit != b'=')? + 1;
        if quad.len() != 4 || digits < 2 {
            return None;
        }
        let mut group = 0_u32;
        for &digit in &quad[..digits] {
            let value = DIGITS.iter().position(|&known| known == digit)?;
            group = group << 6 | u32::try_from(value).ok()?;
        }
        group <<= 6 * (4 - digits);
        let [_, decoded @ ..] = group.to_be_bytes();
        bytes.extend_from_slice(&decoded[..digits - 1]);
    }
    // Padding ends the text, and leaves no bits over.
    (encode(&bytes).as_bytes() == text).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::{decode, encode};

    #[test]
    fn the_vectors_of_the_standard_hold() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text.as_bytes()).as_deref(), Some(bytes.as_bytes()));
        }
        for text in [
            "Z", "Zg=", "Zg", "=", "====", "Z===", "Zh==", "Zg==Zg==", "Zm9 ",
        ] {
            assert_eq!(decode(text.as_bytes()), None, "{text}");
        }
        assert_eq!(encode(&[0xff, 0xfe, 0xfd]), "//79");
    }
}
