//! Words with a standard term: comments, literals and names use the term of the kernel and e2fsprogs,
//! so that a search for it finds something.

use std::path::{Path, PathBuf};

use super::Finding;
use super::source::Source;

/// Words that are refused, and what to write instead.
const RETIRED: &[(&str, &str)] = &[
    ("anybody", "any caller, any thread"),
    ("away", "removed, cleared, not checkpointed"),
    ("behind", "after, past, following, underlying"),
    (
        "beside",
        "next to, concurrently with, compared with, in addition to",
    ),
    ("changeover", "image commit"),
    ("committer", "commit thread"),
    ("committers", "commit threads"),
    ("damage", "corruption, corrupt"),
    ("damaged", "corrupt"),
    ("damages", "corrupts"),
    ("everybody", "all callers, all threads"),
    ("folder", "directory"),
    ("folders", "directories"),
    ("holder", "owner, user, EA inode"),
    ("holders", "owners, users, EA inodes"),
    ("home", "checkpoint, location in the filesystem"),
    ("homes", "locations"),
    ("medium", "disk, device"),
    ("mediums", "disks, devices"),
    ("meets", "encounters, overlaps, visits"),
    ("mend", "repair"),
    ("mended", "repaired"),
    ("met", "encountered, found, reached"),
    ("nobody", "no caller, no thread"),
    ("noted", "recorded"),
    ("promise", "reservation, guarantee"),
    ("promised", "reserved, guaranteed"),
    ("promises", "reservations, guarantees"),
    ("prove", "validate, check"),
    ("proved", "validated, checked"),
    ("proven", "validated, checked"),
    ("proves", "validates, checks"),
    ("relieve", "throttle, release"),
    ("relieved", "throttled, released"),
    ("relieves", "throttles, releases"),
    ("room", "space, capacity"),
    ("rooms", "space, capacity"),
    ("settle", "finish, seal"),
    ("settled", "finished, sealed"),
    ("settles", "finishes, seals"),
    ("somebody", "another thread, another process"),
    ("tell", "report, return, store"),
    ("teller", "reporter"),
    ("telling", "reporting"),
    ("tells", "reports, returns, stores"),
    ("tend", "maintain"),
    ("tended", "maintained"),
    ("tends", "maintains"),
    ("ticker", "background worker"),
    ("tickers", "background workers"),
    ("told", "reported"),
    ("undamaged", "intact"),
    ("vouch", "cover"),
    ("vouches", "covers"),
    ("who", "the caller, a thread that"),
    ("whoever", "the caller, callers that"),
    ("whom", "the caller"),
    ("window", "preallocation, partition view"),
];

/// Phrases that are refused, and what to write instead.
const RETIRED_PHRASES: &[(&str, &str)] = &[
    (". gives ", "returns"),
    ("at rest", "offline"),
    ("come home", "are checkpointed"),
    ("comes home", "is checkpointed"),
    ("cut off", "truncated"),
    ("cut short", "interrupted, truncated"),
    ("draw up", "plan"),
    ("drawn up", "planned"),
    ("draws up", "plans"),
    ("goes home", "is checkpointed"),
    ("is no case for", "is not eligible for"),
    ("let go of", "release"),
    ("lets go of", "releases"),
    ("the medium", "the disk, the device"),
];

/// Words that have another sense in some files, or below some directories.
const ALLOWED: &[(&str, &[&str])] = &[
    // Contents and names of files in fixtures, whose bytes stay.
    ("away", &["testkit/src/fixtures/catalogue/journals.rs"]),
    ("behind", &["testkit/src/fixtures/content"]),
    ("beside", &["testkit/src/fixtures/content"]),
    (
        "home",
        &[
            "README.md",
            "crates/platter-block/src/partition/kind.rs",
            "crates/platter-cli/tests/it/readme.rs",
            "crates/platter/src/spec/tests.rs",
            "crates/platter/tests/it/open.rs",
        ],
    ),
    // Of aims.
    ("met", &["bench/src/report", "docs/performance/missed"]),
    // Of readers that read ahead, and of compressed data.
    (
        "window",
        &[
            "crates/platter-btrfs/src/compress",
            "crates/platter-cache/src/page",
        ],
    ),
];

/// Types with a standard name, what to call them, and where.
const RETIRED_TYPES: &[(&str, &str, &[&str])] = &[
    ("Core", "InodeState", DRIVERS),
    ("Space", "Allocator", &["crates/platter-ext4/src"]),
    ("Tree", "SuperBlock", &["crates/platter-ext4/src"]),
    ("Volume", "FsContext", DRIVERS),
];

const DRIVERS: &[&str] = &[
    "crates/platter-btrfs/src",
    "crates/platter-ext4/src",
    "crates/platter-xfs/src",
];

/// Beginnings of documentation comments that are refused, and what to write instead.
const RETIRED_BEGINNINGS: &[(&str, &str)] = &[
    ("Gives ", "Returns"),
    ("Tells ", "Returns, reports"),
    ("Has the ", "Makes the"),
    ("Notes ", "Records"),
    ("Sees to it ", "Ensures"),
];

/// Files that quote other programs.
const QUOTING: &[&str] = &[
    "bench/src/peers/expected.rs",
    "testkit/src/fixtures/partitioned.rs",
    "testkit/tests/oracle/partitions.rs",
    "xtask/src/soak/suites/pjdfstest.rs",
];

/// The list itself.
const THIS_FILE: &str = "xtask/src/tidy/words.rs";

/// Maximum length of a function's name, for tests whose names are sentences.
const NAME_CHARS_MAX: usize = 60;

/// Finds retired words in sources and pages, and overlong names in sources.
pub(super) fn check(sources: &[Source], pages: &[(PathBuf, String)]) -> Vec<Finding> {
    let is_ours = |path: &Path| {
        path != Path::new(THIS_FILE) && !QUOTING.iter().any(|place| path.starts_with(place))
    };
    let sources = sources.iter().filter(|source| is_ours(&source.path));
    let pages = pages.iter().filter(|(path, _)| is_ours(path));
    let of_pages = pages.flat_map(|(path, text)| {
        let lines = text.lines().enumerate();
        lines.flat_map(move |(at, line)| {
            let found = retired(path, line).into_iter();
            found.map(move |message| Finding::at(path, at + 1, message))
        })
    });
    sources.flat_map(check_source).chain(of_pages).collect()
}

/// Messages about the retired words and phrases of a line.
fn retired(path: &Path, text: &str) -> Vec<String> {
    let mut messages = Vec::new();
    let spaced = words_apart(text);
    for word in spaced.split(|letter: char| !letter.is_ascii_alphabetic()) {
        if let Ok(at) = RETIRED.binary_search_by_key(&word, |&(retired, _)| retired)
            && !is_allowed(word, path)
        {
            messages.push(format!("has the word `{word}`: {}", RETIRED[at].1));
        }
    }
    for (phrase, instead) in RETIRED_PHRASES {
        if spaced.contains(phrase) {
            messages.push(format!("has the words `{phrase}`: {instead}"));
        }
    }
    messages
}

/// A line in lower case, with the words of names such as `ReadAhead` and `read_ahead` apart.
fn words_apart(text: &str) -> String {
    let mut spaced = String::with_capacity(text.len());
    let mut was_small = false;
    for letter in text.chars() {
        if was_small && letter.is_ascii_uppercase() {
            spaced.push(' ');
        }
        was_small = letter.is_ascii_lowercase();
        spaced.extend(letter.to_lowercase().map(|letter| match letter {
            '_' => ' ',
            letter => letter,
        }));
    }
    spaced
}

fn check_source(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for ((line, text), (_, code)) in source.text_lines().zip(source.code_lines()) {
        let mut find = |message: String| findings.push(Finding::at(&source.path, line, message));
        retired(&source.path, text).into_iter().for_each(&mut find);
        let documentation = text.trim_start().strip_prefix("/// ");
        for (beginning, instead) in RETIRED_BEGINNINGS {
            if documentation.is_some_and(|text| text.starts_with(beginning)) && begins(source, line)
            {
                find(format!("begins with `{}`: {instead}", beginning.trim_end()));
            }
        }
        for (name, instead, places) in RETIRED_TYPES {
            if is_below(&source.path, places) && declares(code, name) {
                find(format!("the type `{name}`: {instead}"));
            }
        }
        if let Some(name) = function_name(code)
            && name.len() > NAME_CHARS_MAX
        {
            find(format!("the name {name} is longer than {NAME_CHARS_MAX}"));
        }
    }
    findings
}

/// Whether a line of documentation, counted from 1, is the first one of its comment.
fn begins(source: &Source, line: usize) -> bool {
    let before = line
        .checked_sub(2)
        .and_then(|at| source.text.lines().nth(at));
    !before.is_some_and(|before| before.trim_start().starts_with("///"))
}

/// Whether a retired word has another sense in a file.
fn is_allowed(word: &str, path: &Path) -> bool {
    let found = ALLOWED.iter().find(|(allowed, _)| *allowed == word);
    found.is_some_and(|(_, places)| is_below(path, places))
}

fn is_below(path: &Path, places: &[&str]) -> bool {
    places.iter().any(|place| path.starts_with(place))
}

/// Whether a line declares a type of this name.
fn declares(code: &str, name: &str) -> bool {
    let is_declared = |keyword: &str| {
        let (before, after) = code.split_once(keyword)?;
        let is_keyword = before.is_empty() || before.ends_with(' ');
        let is_all = |rest: &str| {
            !rest.starts_with(|letter: char| letter == '_' || letter.is_alphanumeric())
        };
        Some(is_keyword && after.strip_prefix(name).is_some_and(is_all))
    };
    ["struct ", "enum "]
        .into_iter()
        .any(|keyword| is_declared(keyword) == Some(true))
}

/// The name of the function that a line declares.
fn function_name(code: &str) -> Option<&str> {
    let (before, after) = code.split_once("fn ")?;
    let is_keyword = before.is_empty() || before.ends_with(' ');
    let end = after.find(|letter: char| letter != '_' && !letter.is_alphanumeric())?;
    is_keyword.then_some(&after[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &str) -> Vec<String> {
        let source = Source::new("crates/platter-block/src/x.rs", text.to_owned());
        let findings = check(&[source], &[]);
        findings
            .into_iter()
            .map(|finding| finding.message)
            .collect()
    }

    #[test]
    fn lists_are_sorted() {
        assert!(RETIRED.is_sorted());
        assert!(RETIRED_PHRASES.is_sorted());
        assert!(QUOTING.is_sorted());
        assert!(ALLOWED.is_sorted());
    }

    #[test]
    fn retired_word_is_found_in_comments_literals_and_names() {
        let expected = ["has the word `whoever`: the caller, callers that"];
        for text in [
            "/// Whoever calls.",
            "let a = \"whoever\";",
            "fn whoever_calls() {}",
            "struct CallerWhoever;",
        ] {
            assert_eq!(messages(text), expected, "{text}");
        }
        assert_eq!(messages("/// The whole, wholly."), [""; 0]);
    }

    #[test]
    fn retired_phrase_and_beginning_are_found() {
        let text = "/// Gives a block.\n/// Gives it, when the device is at rest.\nfn a() {}";
        let expected = [
            "begins with `Gives`: Returns",
            "has the words `at rest`: offline",
        ];
        assert_eq!(messages(text), expected);
        assert_eq!(
            messages("fn draw_up() {}"),
            ["has the words `draw up`: plan"]
        );
    }

    #[test]
    fn retired_word_is_found_in_a_page() {
        let page = |text: &str| check(&[], &[("docs/a.md".into(), text.to_owned())]);
        let expected = "docs/a.md:2: has the word `nobody`: no caller, no thread";
        let found = page("Fine.\nNobody writes.");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].to_string(), expected);
    }

    #[test]
    fn word_with_another_sense_is_allowed_in_its_place() {
        let text = "/// A window.".to_owned();
        let found = |path| check(&[Source::new(path, text.clone())], &[]).len();
        assert_eq!(found("crates/platter-cache/src/page/fill.rs"), 0);
        assert_eq!(found("crates/platter-cache/src/buffer/mod.rs"), 1);
    }

    #[test]
    fn retired_type_is_found_in_drivers() {
        let found = |path, text: &str| check(&[Source::new(path, text.to_owned())], &[]).len();
        assert_eq!(found("crates/platter-xfs/src/x.rs", "pub struct Core {"), 1);
        assert_eq!(
            found("crates/platter-xfs/src/x.rs", "pub struct CoreMap {"),
            0
        );
        assert_eq!(
            found("crates/platter-xfs/src/x.rs", "let a = Core::new();"),
            0
        );
        assert_eq!(found("crates/platter/src/x.rs", "pub struct Volume;"), 0);
    }

    #[test]
    fn overlong_name_is_found() {
        let name = "a".repeat(NAME_CHARS_MAX + 1);
        assert_eq!(messages(&format!("fn {name}() {{}}")).len(), 1);
        assert!(messages(&format!("fn {}() {{}}", &name[1..])).is_empty());
        assert!(messages(&format!("// fn {name}()")).is_empty());
    }

    #[test]
    fn files_that_quote_programs_are_skipped() {
        let text = "/// Nobody.".to_owned();
        let quoting = Source::new(QUOTING[0], text);
        assert!(check(&[quoting], &[]).is_empty());
    }
}
