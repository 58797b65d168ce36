//! The examples do what they say.

use super::*;

/// Runs an example of this package, which `cargo test` builds together with the tests.
fn run(name: &str, image: &Path) -> String {
    let tests = std::env::current_exe().unwrap();
    let dir = tests.ancestors().nth(2).unwrap().join("examples");
    let output = Command::new(dir.join(name)).arg(image).output();
    let output = output.expect("the examples are needed: cargo build --examples");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn what_one_example_writes_the_other_lists() {
    let workshop = Workshop::new();
    let image = workshop.path("new.img");
    let expected = "/etc/hostname: platter\n/etc/example/log: first line\nsecond line\n";
    assert_eq!(run("write_and_read", &image), expected);
    let listed = run("list", &image);
    assert!(
        listed.contains("          23 /etc/example/log\n"),
        "{listed}"
    );
}
