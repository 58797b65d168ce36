//! The names that an image itself gives to user and group ids.

use std::collections::HashMap;

use crate::Volume;

/// Larger account files than this are not read.
const FILE_BYTES_MAX: usize = 1 << 20;

/// Longer names than this are not taken.
const NAME_BYTES_MAX: usize = 64;

/// The names in `/etc/passwd` and `/etc/group` of a volume; those of this machine say nothing about
/// a foreign image.
#[derive(Debug, Clone, Default)]
pub struct Accounts {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl Accounts {
    /// Reads the names, as far as there are any. Damage only costs names.
    #[must_use]
    pub fn read(volume: &Volume) -> Self {
        let names = |path| {
            let text = volume.read(path, FILE_BYTES_MAX).unwrap_or_default();
            decode(&text)
        };
        Self {
            users: names("/etc/passwd"),
            groups: names("/etc/group"),
        }
    }

    /// The name of a user.
    #[must_use]
    pub fn user(&self, uid: u32) -> Option<&str> {
        self.users.get(&uid).map(String::as_str)
    }

    /// The name of a group.
    #[must_use]
    pub fn group(&self, gid: u32) -> Option<&str> {
        self.groups.get(&gid).map(String::as_str)
    }
}

/// The third field of each line, with the first as its name. The first line of an id counts.
fn decode(text: &[u8]) -> HashMap<u32, String> {
    let mut names = HashMap::new();
    for line in text.split(|&byte| byte == b'\n') {
        let mut fields = line.split(|&byte| byte == b':');
        let (Some(name), Some(id)) = (fields.next(), fields.nth(1)) else {
            continue;
        };
        let is_plain = |name: &&str| {
            let graphic = name.chars().all(|character| character.is_ascii_graphic());
            graphic && !name.is_empty() && name.len() <= NAME_BYTES_MAX
        };
        let name = str::from_utf8(name).ok().filter(is_plain);
        let id = str::from_utf8(id).ok().and_then(|id| id.parse().ok());
        if let (Some(name), Some(id)) = (name, id) {
            names.entry(id).or_insert_with(|| name.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_plain_lines_give_names() {
        let names = decode(
            b"root:x:0:0::/root:/bin/sh\ntoor:x:0:0\nbad name:x:1\n\x1b:x:2\nx:x:many\n\nlast:x:7",
        );
        assert_eq!(names.get(&0).map(String::as_str), Some("root"));
        assert_eq!(names.get(&7).map(String::as_str), Some("last"));
        assert_eq!(names.len(), 2);
    }
}
