//! Names in JSON: text where they are UTF-8, and the bytes besides where they are not.

use std::io::{self, Write};

use serde::Serialize;
use serde::ser::SerializeMap;
use serde_json::{Map, Value, json};

use super::base64;

/// A name, path or link target. Flattened into an object as `KEY`, a string in which bytes that
/// are not UTF-8 are replaced, and only then as `KEY_base64` with the exact bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NameField<'a> {
    pub(crate) key: &'static str,
    pub(crate) bytes: &'a [u8],
}

impl Serialize for NameField<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(self.key, &String::from_utf8_lossy(self.bytes))?;
        if str::from_utf8(self.bytes).is_err() {
            let key = format!("{}_base64", self.key);
            map.serialize_entry(&key, &base64::encode(self.bytes))?;
        }
        map.end()
    }
}

/// An extended attribute.
#[derive(Debug, Serialize)]
pub(crate) struct XattrObject<'a> {
    #[serde(flatten)]
    name: NameField<'a>,
    value_base64: String,
}

impl<'a> XattrObject<'a> {
    pub(crate) fn new((name, value): &'a (Vec<u8>, Vec<u8>)) -> Self {
        Self {
            name: NameField {
                key: "name",
                bytes: name,
            },
            value_base64: base64::encode(value),
        }
    }
}

/// Puts a name into an object, as [`NameField`] does.
pub(crate) fn put_name(object: &mut Map<String, Value>, key: &str, bytes: &[u8]) {
    object.insert(key.into(), json!(String::from_utf8_lossy(bytes)));
    if str::from_utf8(bytes).is_err() {
        object.insert(format!("{key}_base64"), json!(base64::encode(bytes)));
    }
}

/// A term of a format as one word: `extent node` becomes `extent_node`.
pub(crate) fn word(term: &str) -> String {
    let letter = |letter: char| match letter {
        ' ' | '-' | '/' => '_',
        letter => letter.to_ascii_lowercase(),
    };
    term.chars().map(letter).collect()
}

/// Writes a document that is one object.
pub(crate) fn write_object(out: &mut dyn Write, object: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, object)?;
    out.write_all(b"\n")
}

/// An array that is written element by element.
#[derive(Debug, Default)]
pub(crate) struct JsonArray {
    has_elements: bool,
}

impl JsonArray {
    pub(crate) fn push(&mut self, out: &mut dyn Write, element: &impl Serialize) -> io::Result<()> {
        out.write_all(if self.has_elements { b",\n" } else { b"[\n" })?;
        self.has_elements = true;
        serde_json::to_writer(out, element)?;
        Ok(())
    }

    pub(crate) fn end(self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(if self.has_elements { b"\n]\n" } else { b"[]\n" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Entry<'a> {
        #[serde(flatten)]
        name: NameField<'a>,
        size: u64,
    }

    #[test]
    fn bytes_are_given_exactly_where_text_cannot() {
        let entry = |bytes| Entry {
            name: NameField { key: "name", bytes },
            size: 1,
        };
        let shown = |bytes| serde_json::to_string(&entry(bytes)).unwrap();
        assert_eq!(shown(b"a\n"), r#"{"name":"a\n","size":1}"#);
        let lossy = "{\"name\":\"a\u{fffd}\",\"name_base64\":\"Yf8=\",\"size\":1}";
        assert_eq!(shown(b"a\xff"), lossy);
    }

    #[test]
    fn arrays_are_valid_at_any_length() {
        for length in 0..3 {
            let mut out = Vec::new();
            let mut array = JsonArray::default();
            for number in 0..length {
                array.push(&mut out, &number).unwrap();
            }
            array.end(&mut out).unwrap();
            let numbers: Vec<u32> = serde_json::from_slice(&out).unwrap();
            assert!(numbers.into_iter().eq(0..length));
        }
    }
}
