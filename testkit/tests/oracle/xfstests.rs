//! The cases of xfstests that the documentation names, and the tests that it names for them.

use std::fs;
use std::path::Path;

const PAGE: &str = "docs/design/testing.md";
const HEADING: &str = "## Cases of xfstests";

#[test]
fn the_tests_named_for_cases_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let page = fs::read_to_string(root.join(PAGE)).unwrap();
    let (_, section) = page.split_once(HEADING).unwrap();
    let rows = section
        .lines()
        .skip_while(|line| !line.starts_with("|---"))
        .skip(1)
        .take_while(|line| line.starts_with('|'));
    let mut count = 0;
    for row in rows {
        let [file, test] = row.split('`').skip(1).step_by(2).collect::<Vec<_>>()[..] else {
            panic!("no file and test: {row}");
        };
        let source = fs::read_to_string(root.join(file)).unwrap();
        let test = format!("#[test]\nfn {test}() {{");
        assert!(source.contains(&test), "{file} has no {test}");
        count += 1;
    }
    assert!(count > 0, "{PAGE} names no tests");
}
