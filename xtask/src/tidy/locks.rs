//! The table of locks in `ARCHITECTURE.md`: every `Mutex` and `RwLock` that is a field in a library crate or the command,
//! with the rank that its type has. `cargo xtask locks` writes the table.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::Finding;
use super::source::{Source, has_word};
use crate::workspace::Workspace;

const FILE: &str = "ARCHITECTURE.md";
const TABLE_HEADER: &str = "| rank | lock | kind | guards |";
/// Where the crates are whose locks are listed.
const CRATES: &str = "crates";
/// Types of locks.
const KINDS: &[&str] = &["Mutex", "RwLock"];
/// Files and directories that declare the types of locks.
const LOCK_TYPES: &[&str] = &[
    "crates/platter-block/src/lock",
    "crates/platter-cache/src/sync.rs",
    "crates/platter-vfs/src/sync.rs",
];
/// What begins the path of a lock without a rank.
const UNRANKED: &[&str] = &["parking_lot::", "std::sync::Mutex", "std::sync::RwLock"];

/// The place of a lock in the order: two numbers, or the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank(u32, u32);

impl Rank {
    const LEAF: Self = Self(u32::MAX, 0);

    /// The rank of a type; without one it is a leaf. `None` where it is not read: the type goes on in the next line, or
    /// has its rank from elsewhere.
    fn of_type(text: &str) -> Option<Self> {
        let Some((_, rank)) = text.split_once("rank(") else {
            let text = text.replace("->", "");
            let is_whole = text.matches('<').count() == text.matches('>').count();
            return (is_whole && !text.contains('{')).then_some(Self::LEAF);
        };
        let (rank, step) = rank.split_once(')')?.0.split_once(", ")?;
        Some(Self(rank.parse().ok()?, step.parse().ok()?))
    }

    fn text(self) -> String {
        match self {
            Self::LEAF => "leaf".to_owned(),
            Self(rank, 0) => rank.to_string(),
            Self(rank, step) => format!("{rank}.{step}"),
        }
    }
}

/// A lock as the code declares it.
#[derive(Debug)]
struct Lock<'s> {
    source: &'s Source,
    line: usize,
    name: String,
    kind: &'static str,
    rank: Option<Rank>,
    guards: String,
}

/// Compares the table with the code, and finds locks that have no rank.
pub(super) fn check(architecture: &str, sources: &[Source]) -> Vec<Finding> {
    let locks = locks(sources);
    let unranked = listed(sources).flat_map(unranked);
    let unread = locks.iter().filter(|lock| lock.rank.is_none());
    let unread = unread.map(|lock| {
        let message = format!("the rank of the lock {} is not `rank(N, N)`", lock.name);
        Finding::at(&lock.source.path, lock.line, message)
    });
    let mut findings: Vec<Finding> = unranked.chain(unread).collect();
    if findings.is_empty() && replace(architecture, &table(&locks)).as_deref() != Some(architecture)
    {
        let message = "the table of locks is not that of the code: run `cargo xtask locks`";
        findings.push(Finding::new(FILE, message));
    }
    findings
}

/// Locks that are not those with a rank.
fn unranked(source: &Source) -> impl Iterator<Item = Finding> {
    let code = &source.code[..source.code.len() - source.test_code().len()];
    let is_std = |(at, _): &(usize, &str)| {
        let import = code[*at..].split(';').next().unwrap_or("");
        KINDS.iter().any(|kind| has_word(import, kind))
    };
    let found = code.match_indices("use std::sync::{").filter(is_std);
    let found = UNRANKED
        .iter()
        .flat_map(|path| code.match_indices(path))
        .chain(found);
    found.map(|(at, _)| {
        let message = "a lock without a rank: take those of `platter_block::lock`";
        let line = code[..at].matches('\n').count() + 1;
        Finding::at(&source.path, line, message.to_owned())
    })
}

/// Writes the table.
pub(crate) fn write(workspace: &Workspace) -> Result<()> {
    let files = workspace.files()?;
    let sources = Source::read_all(workspace, &files)?;
    let locks = locks(&sources);
    if let Some(lock) = locks.iter().find(|lock| lock.rank.is_none()) {
        bail!("the lock {} has no rank", lock.name);
    }
    let text = replace(&workspace.read(FILE)?, &table(&locks));
    let text = text.with_context(|| format!("{FILE} has no table of locks"))?;
    std::fs::write(workspace.root.join(FILE), text)?;
    println!("{} locks", locks.len());
    Ok(())
}

/// `architecture` with the rows of the table replaced; `None` if it has no table.
fn replace(architecture: &str, rows: &str) -> Option<String> {
    let start = format!("{TABLE_HEADER}\n|---|---|---|---|\n");
    let (before, after) = architecture.split_once(&start)?;
    let end = after.find("\n\n").map_or(after.len(), |at| at + 1);
    let (_, rest) = after.split_at(end);
    Some([before, &start, rows, rest].concat())
}

fn table(locks: &[Lock<'_>]) -> String {
    let mut sorted: Vec<_> = locks
        .iter()
        .filter_map(|lock| Some((lock.rank?, lock)))
        .collect();
    sorted.sort_by(|(rank, lock), (other_rank, other)| {
        (rank, &lock.name).cmp(&(other_rank, &other.name))
    });
    sorted.iter().fold(String::new(), |mut rows, (rank, lock)| {
        let rank = rank.text();
        let _ = writeln!(
            rows,
            "| {rank} | `{}` | {} | {} |",
            lock.name, lock.kind, lock.guards
        );
        rows
    })
}

/// The sources whose locks are listed.
fn listed(sources: &[Source]) -> impl Iterator<Item = &Source> {
    sources.iter().filter(|source| {
        let mut parts = source.path.iter();
        let is_listed = parts.next().is_some_and(|part| part == CRATES)
            && parts.nth(1).is_some_and(|part| part == "src");
        let is_type = LOCK_TYPES.iter().any(|file| source.path.starts_with(file));
        let is_test = source
            .path
            .iter()
            .any(|part| part == "tests" || part == "tests.rs");
        is_listed && !is_type && !is_test
    })
}

fn locks(sources: &[Source]) -> Vec<Lock<'_>> {
    listed(sources).flat_map(locks_of).collect()
}

fn locks_of(source: &Source) -> Vec<Lock<'_>> {
    let lines: Vec<&str> = source.text.lines().collect();
    let code = &source.code[..source.code.len() - source.test_code().len()];
    let mut found = Vec::new();
    let mut structure = None;
    for (at, line) in code.lines().enumerate() {
        let after = line.split_once("struct ").filter(|(before, _)| {
            before.is_empty() || before.starts_with("pub") && before.ends_with(' ')
        });
        if let Some((_, after)) = after {
            structure = Some(word(after));
        } else if line.starts_with('}') {
            structure = None;
        }
        let Some(name) = structure else {
            continue;
        };
        if line.ends_with(';') {
            structure = None;
        }
        let (field, kind) = match after {
            Some((_, after)) => ("0", after),
            None => match line.split_once(": ") {
                Some((field, kind)) => (field.trim().rsplit(' ').next().unwrap_or(""), kind),
                None => continue,
            },
        };
        let is_kind = |name: &&&str| kind.contains(&format!("{name}<")) && has_word(kind, name);
        let Some(name_of_kind) = KINDS.iter().find(is_kind).filter(|_| !kind.contains('&')) else {
            continue;
        };
        let above = lines[..at].iter().rev().map(|line| line.trim());
        let above = above.take_while(|line| line.starts_with("//") || line.starts_with("#["));
        let above: Vec<&str> = above.collect();
        let documentation = above
            .iter()
            .rev()
            .filter_map(|line| line.strip_prefix("/// "));
        let documentation = documentation.collect::<Vec<_>>().join(" ");
        let guards = documentation.split_inclusive(". ").next().unwrap_or("");
        found.push(Lock {
            source,
            line: at + 1,
            name: format!("{}::{name}::{field}", module(&source.path)),
            kind: name_of_kind,
            rank: Rank::of_type(kind),
            guards: guards.trim().trim_end_matches('.').to_owned(),
        });
    }
    found
}

/// The module in a file, from its crate on.
fn module(path: &Path) -> String {
    let text = path.with_extension("").display().to_string();
    let text = text.strip_prefix("crates/").unwrap_or(&text);
    let text = text.strip_prefix("platter-").unwrap_or(text);
    let text = text.replacen("/src", "", 1).replace('/', "::");
    let text = text.strip_suffix("::mod").unwrap_or(&text);
    text.strip_suffix("::lib").unwrap_or(text).to_owned()
}

fn word(code: &str) -> &str {
    let end = code.find(|letter: char| letter != '_' && !letter.is_alphanumeric());
    &code[..end.unwrap_or(code.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "/// X.\npub struct X {\n    /// The bytes. More.\n    pub(super) bytes: Padded<Mutex<u8, { rank(12, 1) }>>,\n    other: u8,\n    #[a]\n    order: RwLock<()>,\n    plain: &Mutex<u8>,\n}\nstruct Y(RwLock<(), { rank(3, 0) }>);\nfn f(a: Mutex<u8>) {}\n";
    const ROWS: &str = "| 3 | `vfs::a::Y::0` | RwLock |  |\n| 12.1 | `vfs::a::X::bytes` | Mutex | The bytes |\n| leaf | `vfs::a::X::order` | RwLock |  |\n";

    fn source(text: &str) -> [Source; 1] {
        [Source::new("crates/platter-vfs/src/a.rs", text.to_owned())]
    }

    #[test]
    fn table_lists_locks_by_rank() {
        assert_eq!(table(&locks(&source(CODE))), ROWS);
    }

    #[test]
    fn table_that_differs_from_the_code_is_found() {
        let page = |rows: &str| format!("a\n\n{TABLE_HEADER}\n|---|---|---|---|\n{rows}\nb\n");
        assert_eq!(check(&page(ROWS), &source(CODE)), []);
        assert_eq!(check(&page(&ROWS[5..]), &source(CODE)).len(), 1);
        assert_eq!(check("a", &source(CODE)).len(), 1);
    }

    #[test]
    fn lock_without_rank_is_found() {
        let messages = |code: &str| {
            let found = check("", &source(code));
            found
                .into_iter()
                .map(|found| found.message)
                .collect::<Vec<_>>()
        };
        let expected = ["the rank of the lock vfs::a::X::a is not `rank(N, N)`"];
        for field in [
            "Mutex<(), { rank(A, 1) }>,",
            "Mutex<(), { LAST }>,",
            "Mutex<",
        ] {
            let code = format!("struct X {{\n    a: {field}\n}}\n");
            assert_eq!(messages(&code), expected);
        }
        let expected = ["a lock without a rank: take those of `platter_block::lock`"];
        assert_eq!(messages("use std::sync::{Arc, Mutex};\n"), expected);
        assert_eq!(
            messages("use std::sync::{\n    Arc, Mutex,\n};\n"),
            expected
        );
        assert_eq!(messages("use parking_lot::RwLock;\n"), expected);
    }
}
