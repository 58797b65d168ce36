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
    users: Names,
    groups: Names,
}

/// Names and ids; in each direction the first line with the key counts.
#[derive(Debug, Clone, Default)]
struct Names {
    by_id: HashMap<u32, String>,
    /// The id, and the group's if the line has one.
    by_name: HashMap<String, (u32, Option<u32>)>,
}

impl Accounts {
    /// Reads the names, as far as there are any. Corruption only costs names.
    #[must_use]
    pub fn read(volume: &Volume) -> Self {
        let names = |path| {
            let read = volume
                .open(path)
                .and_then(|file| file.read_all(FILE_BYTES_MAX));
            let text = read.unwrap_or_default();
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
        self.users.by_id.get(&uid).map(String::as_str)
    }

    /// The name of a group.
    #[must_use]
    pub fn group(&self, gid: u32) -> Option<&str> {
        self.groups.by_id.get(&gid).map(String::as_str)
    }

    /// The id of a user, and that of its own group.
    #[must_use]
    pub fn account(&self, name: &str) -> Option<(u32, Option<u32>)> {
        self.users.by_name.get(name).copied()
    }

    /// The id of a group.
    #[must_use]
    pub fn group_id(&self, name: &str) -> Option<u32> {
        self.groups.by_name.get(name).map(|&(gid, _)| gid)
    }
}

/// The third field of each line, with the first as its name, and the fourth where it is a number.
fn decode(text: &[u8]) -> Names {
    let mut names = Names::default();
    for line in text.split(|&byte| byte == b'\n') {
        let mut fields = line.split(|&byte| byte == b':');
        let (Some(name), Some(id)) = (fields.next(), fields.nth(1)) else {
            continue;
        };
        let is_plain = |name: &&str| {
            let graphic = name.chars().all(|character| character.is_ascii_graphic());
            graphic && !name.is_empty() && name.len() <= NAME_BYTES_MAX
        };
        let number = |id| str::from_utf8(id).ok().and_then(|id| id.parse().ok());
        let name = str::from_utf8(name).ok().filter(is_plain);
        if let (Some(name), Some(id)) = (name, number(id)) {
            let group = fields.next().and_then(number);
            let by_name = names.by_name.entry(name.to_owned());
            by_name.or_insert((id, group));
            names.by_id.entry(id).or_insert_with(|| name.to_owned());
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
        assert_eq!(names.by_id.get(&0).map(String::as_str), Some("root"));
        assert_eq!(names.by_id.get(&7).map(String::as_str), Some("last"));
        assert_eq!(names.by_id.len(), 2);
        assert_eq!(names.by_name.get("toor"), Some(&(0, Some(0))));
        assert_eq!(names.by_name.get("last"), Some(&(7, None)));
    }
}
