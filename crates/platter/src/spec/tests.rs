//! The parsing rule, case by case.

use super::*;

fn parse(text: &[u8], existing: &[&str]) -> Result<ImageSpec, SpecError> {
    ImageSpec::parse_with(OsStr::from_bytes(text), |path| {
        existing.iter().any(|name| Path::new(name) == path)
    })
}

fn shown(text: &str, existing: &[&str]) -> (String, Option<String>, Option<String>) {
    let spec = parse(text.as_bytes(), existing).unwrap();
    (
        spec.image.to_str().unwrap().to_owned(),
        spec.partition.map(|partition| partition.to_string()),
        spec.path.map(|path| String::from_utf8(path).unwrap()),
    )
}

fn parts(image: &str, partition: &str, path: &str) -> (String, Option<String>, Option<String>) {
    let some = |text: &str| (text != "-").then(|| text.to_owned());
    (image.to_owned(), some(partition), some(path))
}

#[test]
fn the_longest_existing_prefix_is_the_image() {
    let files = ["disk.img", "a@2", "a@2:b", "dir:x/d.img", "disk@home.img"];
    for (text, expected) in [
        ("disk.img", parts("disk.img", "-", "-")),
        ("disk.img@2", parts("disk.img", "2", "-")),
        ("disk.img:/etc", parts("disk.img", "-", "/etc")),
        ("disk.img:", parts("disk.img", "-", "")),
        ("disk.img@13:a:b@c", parts("disk.img", "13", "a:b@c")),
        ("disk.img:/a@1", parts("disk.img", "-", "/a@1")),
        ("a@2", parts("a@2", "-", "-")),
        ("a@2@3:x", parts("a@2", "3", "x")),
        ("a@2:b", parts("a@2:b", "-", "-")),
        ("a@2:/b", parts("a@2", "-", "/b")),
        ("dir:x/d.img@1:y", parts("dir:x/d.img", "1", "y")),
        ("disk@home.img:/y", parts("disk@home.img", "-", "/y")),
    ] {
        assert_eq!(shown(text, &files), expected, "{text}");
    }
}

#[test]
fn without_an_existing_file_the_first_colon_ends_the_image() {
    for (text, expected) in [
        ("new.img@1:/a:b", parts("new.img", "1", "/a:b")),
        ("new@home.img:/a", parts("new@home.img", "-", "/a")),
        ("new@home", parts("new@home", "-", "-")),
        ("a@1@2", parts("a@1", "2", "-")),
    ] {
        assert_eq!(shown(text, &[]), expected, "{text}");
    }
}

#[test]
fn a_bad_selector_on_an_existing_image_is_an_error() {
    for selector in [
        "0",
        "x",
        "",
        "-1",
        "+1",
        "2x",
        "PARTUUID=1",
        "PARTLABEL=",
        "4294967296",
    ] {
        let text = format!("disk.img@{selector}:/x");
        assert_eq!(
            parse(text.as_bytes(), &["disk.img"]),
            Err(SpecError::BadPartition(selector.into())),
            "{selector}"
        );
    }
    for text in [&b""[..], b":/x", b"@1"] {
        assert_eq!(parse(text, &[]), Err(SpecError::EmptyImage));
    }
}

#[test]
fn partitions_are_named_as_in_fstab() {
    let gpt = "PARTUUID=c12a7328-f81f-11d2-ba4b-00a0c93ec93b";
    for selector in [gpt, "PARTUUID=c0ffee00-0f", "PARTLABEL=EFI system", "7"] {
        let parsed = PartitionSelector::parse(selector.as_bytes()).unwrap();
        assert_eq!(parsed.to_string(), selector);
    }
}

#[test]
fn names_are_bytes_and_shown_escaped() {
    let spec = parse(b"d\xff.img@1:\x1b\xfe", &["none"]).unwrap();
    assert_eq!(spec.image.as_os_str().as_bytes(), b"d\xff.img");
    assert_eq!(spec.to_string(), "d\\377.img@1:\\033\\376");
}
