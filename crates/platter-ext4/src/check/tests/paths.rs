//! Findings carry the paths of their inodes.

use platter_ondisk::Rule;

use super::*;

fn paths_of<R: Rule>(image: &Image, rule: R) -> Vec<Option<String>> {
    let findings = image.findings(&[]);
    let of_rule = findings
        .into_iter()
        .filter(|finding| finding.corruption.rule == rule.text());
    let text = |path: Vec<u8>| String::from_utf8(path).unwrap();
    of_rule.map(|finding| finding.path.map(text)).collect()
}

#[test]
fn deferred_findings_have_paths() {
    let mut image = Image::plain();
    let below = format!("many/{:0>40}", 7);
    for path in ["file", "sub/other", &below] {
        image.inode(path).blocks_lo.set(44);
    }
    let mut found = paths_of(&image, InodeUseRule::BlockCount);
    found.sort_unstable();
    // A file with two names is reported with the first one found.
    let expected = ["/file".to_owned(), format!("/{below}"), "/other".to_owned()];
    assert_eq!(found, expected.map(Some));
}

#[test]
fn findings_about_directories_have_paths() {
    let mut image = Image::plain();
    image.inode("sub/below").links.set(7);
    let found = paths_of(&image, InodeUseRule::Links);
    assert_eq!(found, [Some("/sub/below".to_owned())]);
}

#[test]
fn unattached_inode_has_no_path() {
    let mut image = Image::plain();
    image.entry("", "sub")[..4].fill(0);
    let found = paths_of(&image, DirectoryUseRule::Unreachable);
    assert_eq!(found, [None]);
    let mut image = Image::plain();
    image.inode("").links.set(7);
    assert_eq!(
        paths_of(&image, InodeUseRule::Links),
        [Some("/".to_owned())]
    );
}
