//! One edit: the words for platter, and the words of the host's command that does the same.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::Result;
use rustix::fs::XattrFlags;

use crate::prng::Prng;
use crate::tool;

/// Files and directories of the host that are copied in.
const SOURCES: &[&str] = &["empty", "small", "blocks", "sparse", "tree"];
const NAMES: &[&str] = &["a", "b", "c", "d", "e", "long-name-of-a-file", "x y"];
/// Deeper paths are not made up.
const DEPTH_MAX: u64 = 3;
const IMAGE: &str = "disk.img";

/// An argument of an edit.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Word {
    /// The same for both.
    Plain(String),
    /// A path in the image, and below the directory.
    Inside(String),
    /// A file of the host that is copied.
    Source(&'static str),
}

/// An edit.
#[derive(Debug, Clone)]
pub(super) struct Edit {
    command: &'static str,
    words: Vec<Word>,
}

impl fmt::Display for Edit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for word in self.for_platter() {
            write!(out, "{} ", word.to_string_lossy())?;
        }
        Ok(())
    }
}

/// Makes what is copied in.
pub(super) fn make_sources(dir: &Path, dice: &mut Prng) -> Result<()> {
    fs::write(dir.join("empty"), "")?;
    fs::write(dir.join("small"), dice.bytes(700))?;
    fs::write(dir.join("blocks"), dice.bytes(150_000))?;
    let sparse = fs::File::create(dir.join("sparse"))?;
    sparse.set_len(300_000)?;
    sparse.write_all_at(&dice.bytes(5000), 100_000)?;
    let tree = dir.join("tree");
    fs::create_dir_all(tree.join("below/more"))?;
    for number in 0..12 {
        let len = usize::try_from(dice.below(9000))?;
        fs::write(tree.join(format!("below/{number}")), dice.bytes(len))?;
    }
    fs::hard_link(tree.join("below/1"), tree.join("other"))?;
    std::os::unix::fs::symlink("below/2", tree.join("link"))?;
    Ok(())
}

impl Edit {
    /// Chooses an edit of what is below `mirror`; now and then one that cannot be done.
    pub(super) fn choose(mirror: &Path, dice: &mut Prng) -> Result<Self> {
        let mut known = Vec::new();
        collect(mirror, "", &mut known)?;
        let mut choice = Choice { known, dice };
        Ok(choice.edit())
    }

    pub(super) fn for_platter(&self) -> Vec<OsString> {
        let mut words = vec![self.command.into()];
        for word in &self.words {
            words.push(match word {
                Word::Plain(text) => text.into(),
                Word::Inside(path) => format!("{IMAGE}:{path}").into(),
                Word::Source(name) => (*name).into(),
            });
        }
        words
    }

    /// Runs the same command below `mirror`, with the sources in `dir`. Returns its error output
    /// if it failed.
    pub(super) fn make_on_host(&self, mirror: &Path, dir: &Path) -> Result<Result<(), String>> {
        if self.command == "xattr" {
            return Ok(self.set_xattr(mirror));
        }
        let mut command = tool::command(self.command);
        for word in &self.words {
            match word {
                Word::Plain(text) => command.arg(text),
                Word::Inside(path) => command.arg(format!(".{path}")),
                Word::Source(name) => command.arg(dir.join(name)),
            };
        }
        let finished = tool::finish(command.current_dir(mirror))?;
        if finished.status.success() {
            return Ok(Ok(()));
        }
        Ok(Err(finished.text()))
    }

    fn set_xattr(&self, mirror: &Path) -> Result<(), String> {
        let [_, Word::Plain(name), Word::Plain(value), Word::Inside(path)] = &self.words[..] else {
            return Err("not the words of xattr set".into());
        };
        let path = mirror.join(path.trim_start_matches('/'));
        rustix::fs::setxattr(path, name, value.as_bytes(), XattrFlags::empty())
            .map_err(|error| error.to_string())
    }
}

/// A file that is there.
struct Known {
    path: String,
    is_directory: bool,
    is_symlink: bool,
}

fn collect(dir: &Path, below: &str, known: &mut Vec<Known>) -> Result<()> {
    let mut entries = fs::read_dir(dir)?.collect::<std::io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = format!("{below}/{}", entry.file_name().to_string_lossy());
        let kind = entry.file_type()?;
        known.push(Known {
            path: path.clone(),
            is_directory: kind.is_dir(),
            is_symlink: kind.is_symlink(),
        });
        if kind.is_dir() {
            collect(&entry.path(), &path, known)?;
        }
    }
    Ok(())
}

struct Choice<'d> {
    known: Vec<Known>,
    dice: &'d mut Prng,
}

impl Choice<'_> {
    fn edit(&mut self) -> Edit {
        let plain = |text: &str| Word::Plain(text.to_owned());
        // Trees do not grow for ever.
        let kind = if self.known.len() > 150 {
            4
        } else {
            self.dice.below(20)
        };
        let (command, words) = match kind {
            0 | 1 => ("mkdir", vec![self.new_path()]),
            2 => ("mkdir", vec![plain("-p"), self.new_path()]),
            3 => ("rm", vec![self.any()]),
            4 => ("rm", vec![plain("-r"), self.any()]),
            5 | 6 => ("mv", vec![plain("-T"), self.any(), self.new_path()]),
            7 => ("mv", vec![self.any(), self.directory()]),
            8 => ("ln", vec![plain("-T"), self.file(), self.new_path()]),
            9 => ("ln", vec![plain("-sfT"), plain("a/b"), self.new_path()]),
            10 => {
                let modes = ["755", "600", "u+x,g-w", "go=u", "a+t", "2775", "u+rwX"];
                ("chmod", vec![plain(self.of(&modes)), self.file()])
            }
            11 => (
                "chmod",
                vec![plain("-R"), plain("u+rwX,o-w"), self.directory()],
            ),
            12 => {
                let owners = ["5:6", "70000", ":9", "0:0"];
                (
                    "chown",
                    vec![plain("-h"), plain(self.of(&owners)), self.any()],
                )
            }
            13 => {
                let value = "v".repeat(usize::try_from(self.dice.below(200)).unwrap_or(0));
                let name = plain("user.comment");
                (
                    "xattr",
                    vec![plain("set"), name, Word::Plain(value), self.file()],
                )
            }
            14 => {
                let sizes = ["0", "+5000", "-3", "100000", "%4096", "<10"];
                let size = format!("--size={}", self.of(&sizes));
                ("truncate", vec![Word::Plain(size), self.file()])
            }
            15 => (
                "touch",
                vec![plain("-d"), plain("2001-02-03T04:05:06Z"), self.new_path()],
            ),
            16 | 17 => {
                let source = Word::Source(self.of(&SOURCES[..4]));
                ("cp", vec![source, self.new_path()])
            }
            18 => (
                "cp",
                vec![plain("-aT"), Word::Source("tree"), self.fresh_path()],
            ),
            _ => (
                "cp",
                vec![plain("-rT"), self.directory(), self.fresh_path()],
            ),
        };
        Edit { command, words }
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        let index = self.dice.below(choices.len() as u64);
        choices[usize::try_from(index).unwrap_or(0)]
    }

    /// Something that is there and fits, or now and then something that is not.
    fn known(&mut self, fits: impl Fn(&Known) -> bool) -> Word {
        let fitting: Vec<usize> = (0..self.known.len())
            .filter(|&index| fits(&self.known[index]))
            .collect();
        if fitting.is_empty() || self.dice.below(20) == 0 {
            return Word::Inside("/none/such".into());
        }
        let index = self.of(&fitting);
        Word::Inside(self.known[index].path.clone())
    }

    fn any(&mut self) -> Word {
        self.known(|_| true)
    }

    fn file(&mut self) -> Word {
        self.known(|known| !known.is_directory && !known.is_symlink)
    }

    fn directory(&mut self) -> Word {
        self.known(|known| known.is_directory)
    }

    /// A path that may be there or not.
    fn new_path(&mut self) -> Word {
        let name = self.of(NAMES);
        let below = match self.directory() {
            Word::Inside(path) if path.matches('/').count() < 4 => path,
            Word::Inside(_) | Word::Plain(_) | Word::Source(_) => String::new(),
        };
        if self.dice.below(DEPTH_MAX) == 0 {
            return Word::Inside(format!("/{name}"));
        }
        Word::Inside(format!("{below}/{name}"))
    }

    /// A path below the root that is not there.
    fn fresh_path(&mut self) -> Word {
        let number = self.dice.below(1 << 20);
        Word::Inside(format!("/copy-{number}"))
    }
}
