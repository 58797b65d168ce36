//! Corruptions that `xfs_db` makes: `blocktrash` flips bits of blocks of a type, `fuzz -d` changes a field and puts
//! the checksum right.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use testkit::prng::Prng;
use testkit::tool;

use super::check::Change;

/// Types of blocks, as `blocktrash` names them. The log has a check of its own.
const TYPES: &[&str] = &[
    "agf", "agfl", "agi", "attr", "btbmapa", "btbmapd", "btbno", "btcnt", "btfino", "btino",
    "btrefcnt", "btrmap", "dir", "inode", "sb", "symlink",
];
/// What happens to a field.
const VERBS: &[&str] = &[
    "zeroes",
    "ones",
    "firstbit",
    "middlebit",
    "lastbit",
    "add",
    "sub",
    "random",
];
/// Tries until an image has changed.
const TRIES: usize = 60;
/// Inodes among which those are found that are fuzzed.
const INODES: u64 = 512;
/// How images are compared.
const BLOCK: usize = 512;

/// An image that `xfs_db` corrupts.
pub(super) struct Trash {
    image: PathBuf,
    pristine: Vec<u8>,
}

impl Trash {
    pub(super) fn of(image: &Path) -> Result<Self> {
        Ok(Self {
            image: image.to_owned(),
            pristine: std::fs::read(image)?,
        })
    }

    /// A change of one structure, by one of the commands.
    pub(super) fn corrupt(&self, prng: &mut Prng) -> Result<Change> {
        for _ in 0..TRIES {
            let commands = if prng.below(2) == 0 {
                let bits = 1 << prng.below(6);
                let mode = prng.below(4);
                let seed = prng.below(1 << 30);
                let kind = pick(TYPES, prng);
                let trash = format!("blocktrash -n 1 -x 1 -y {bits} -{mode} -s {seed} -t {kind}");
                vec!["blockget -n".to_owned(), trash]
            } else {
                let mut commands = Self::position(prng);
                let fields = fields(&self.ask(&commands, "print")?);
                if fields.is_empty() {
                    continue;
                }
                let field = pick(&fields, prng);
                commands.push(format!("fuzz -d {field} {}", pick(VERBS, prng)));
                commands
            };
            let (last, before) = commands.split_last().expect("a command");
            self.ask(before, last)?;
            let before = self.changes()?;
            if !before.is_empty() {
                let what = commands.join("; ");
                return Ok(Change { what, before });
            }
        }
        bail!("nothing changes")
    }

    /// Commands that go to a structure.
    fn position(prng: &mut Prng) -> Vec<String> {
        let group = prng.below(4);
        let header = match prng.below(12) {
            0 => format!("sb {group}"),
            1 => format!("agf {group}"),
            2 => format!("agi {group}"),
            3 => format!("agfl {group}"),
            4..8 => {
                let (header, roots) = match prng.below(2) {
                    0 => ("agf", &["bnoroot", "cntroot", "rmaproot", "refcntroot"][..]),
                    _ => ("agi", &["root", "free_root"][..]),
                };
                let root = pick(roots, prng);
                return vec![format!("{header} {group}"), format!("addr {root}")];
            }
            _ => format!("inode {}", 128 + prng.below(INODES)),
        };
        let fork = match prng.below(6) {
            0 | 1 => Some("dblock 0"),
            2 => Some("ablock 0"),
            _ => None,
        };
        let fork = fork.filter(|_| header.starts_with("inode"));
        std::iter::once(header)
            .chain(fork.map(str::to_owned))
            .collect()
    }

    /// What `xfs_db` prints. It complains of what it corrupts.
    fn ask(&self, commands: &[String], last: &str) -> Result<String> {
        let mut xfs_db = tool::command("xfs_db");
        xfs_db.arg("-x");
        for command in commands {
            xfs_db.args(["-c", command]);
        }
        xfs_db.args(["-c", last]);
        let finished = tool::finish(xfs_db.arg(&self.image))?;
        Ok(String::from_utf8_lossy(&finished.stdout).into_owned())
    }

    /// Where the image differs, and what was there.
    fn changes(&self) -> Result<Vec<(u64, Vec<u8>)>> {
        let now = std::fs::read(&self.image)?;
        let blocks = self.pristine.chunks(BLOCK).zip(now.chunks(BLOCK));
        let changed = blocks.enumerate().filter(|(_, (old, new))| old != new);
        Ok(changed
            .map(|(nth, (old, _))| ((nth * BLOCK) as u64, old.to_vec()))
            .collect())
    }
}

fn pick<'a, T: AsRef<str>>(of: &'a [T], prng: &mut Prng) -> &'a str {
    let nth = usize::try_from(prng.below(of.len() as u64)).unwrap_or(0);
    of[nth].as_ref()
}

/// Names of fields in what `print` prints: `name = value`, and `records[1-2] = [start,count] 1:[5,6] ...`.
fn fields(printed: &str) -> Vec<String> {
    let mut fields = Vec::new();
    for line in printed.lines() {
        let Some((name, value)) = line.split_once(" = ") else {
            continue;
        };
        let array = name
            .strip_suffix(']')
            .and_then(|name| name.rsplit_once('['));
        match array {
            Some((array, range)) if range.contains('-') => {
                let first = range.split('-').next().unwrap_or_default();
                let members = value
                    .strip_prefix('[')
                    .and_then(|list| list.split_once(']'));
                match members {
                    Some((members, _)) => fields.extend(
                        members
                            .split(',')
                            .map(|member| format!("{array}[{first}].{member}")),
                    ),
                    None => fields.push(format!("{array}[{first}]")),
                }
            }
            _ => fields.push(name.to_owned()),
        }
    }
    fields
}
