//! Words with a standard term: comments, literals and names use the term of the kernel and e2fsprogs,
//! so that a search for it finds something.

use std::path::Path;

use super::Finding;
use super::source::Source;

/// Words that are refused, and what to write instead.
const RETIRED: &[(&str, &str)] = &[
    ("anybody", "any caller, any thread"),
    ("changeover", "image commit"),
    ("committer", "commit thread"),
    ("committers", "commit threads"),
    ("everybody", "all callers, all threads"),
    ("mend", "repair"),
    ("mended", "repaired"),
    ("nobody", "no caller, no thread"),
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
    ("settle", "finish, seal"),
    ("settled", "finished, sealed"),
    ("settles", "finishes, seals"),
    ("somebody", "another thread, another process"),
    ("tell", "report, return, store"),
    ("teller", "reporter"),
    ("tells", "reports, returns, stores"),
    ("tend", "maintain"),
    ("tended", "maintained"),
    ("tends", "maintains"),
    ("ticker", "background worker"),
    ("tickers", "background workers"),
    ("told", "reported"),
    ("vouch", "cover"),
    ("vouches", "covers"),
    ("who", "the caller, a thread that"),
    ("whoever", "the caller, callers that"),
    ("whom", "the caller"),
];

/// Phrases that are refused, and what to write instead.
const RETIRED_PHRASES: &[(&str, &str)] = &[
    ("at rest", "offline"),
    ("come home", "are checkpointed"),
    ("comes home", "is checkpointed"),
    ("cut off", "truncated"),
    ("cut short", "interrupted, truncated"),
    ("draw up", "plan"),
    ("draw_up", "plan"),
    ("drawn up", "planned"),
    ("draws up", "plans"),
    ("goes home", "is checkpointed"),
    ("is no case for", "is not eligible for"),
    ("let go of", "release"),
    ("lets go of", "releases"),
    ("the medium", "the disk, the device"),
];

/// Beginnings of documentation comments that are refused, and what to write instead.
const RETIRED_BEGINNINGS: &[(&str, &str)] = &[
    ("Gives ", "Returns"),
    ("Tells ", "Returns, reports"),
    ("Has the ", "Makes the"),
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

/// Finds retired words and overlong names.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let is_ours = |path: &Path| {
        path != Path::new(THIS_FILE) && !QUOTING.iter().any(|place| path.starts_with(place))
    };
    sources
        .iter()
        .filter(|source| is_ours(&source.path))
        .flat_map(check_source)
        .collect()
}

fn check_source(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for ((line, text), (_, code)) in source.text_lines().zip(source.code_lines()) {
        let mut find = |message: String| findings.push(Finding::at(&source.path, line, message));
        let lower = text.to_lowercase();
        for word in lower.split(|letter: char| !letter.is_ascii_alphabetic()) {
            if let Ok(at) = RETIRED.binary_search_by_key(&word, |&(retired, _)| retired) {
                find(format!("has the word `{word}`: {}", RETIRED[at].1));
            }
        }
        for (phrase, instead) in RETIRED_PHRASES {
            if lower.contains(phrase) {
                find(format!("has the words `{phrase}`: {instead}"));
            }
        }
        let documentation = text.trim_start().strip_prefix("/// ");
        for (beginning, instead) in RETIRED_BEGINNINGS {
            if documentation.is_some_and(|text| text.starts_with(beginning)) && begins(source, line)
            {
                find(format!("begins with `{}`: {instead}", beginning.trim_end()));
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
        let findings = check(&[source]);
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
    }

    #[test]
    fn retired_word_is_found_in_comments_literals_and_names() {
        let expected = ["has the word `whoever`: the caller, callers that"];
        for text in [
            "/// Whoever calls.",
            "let a = \"whoever\";",
            "fn whoever_calls() {}",
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
        assert!(check(&[quoting]).is_empty());
    }
}
