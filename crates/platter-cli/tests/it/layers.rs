//! `mkfs --from` with several sources, and with images of containers.

use super::*;

/// Makes an OCI image layout `image`, with two layers, and what unpacking them leaves in `expected`.
const LAYOUT: &str = r#"
set -e
mkdir -p lower/etc lower/bin upper/etc expected
echo one > lower/etc/kept; echo two > lower/etc/removed; echo old > lower/bin/tool
mkdir lower/var; echo x > lower/var/a
echo new > upper/etc/added; : > upper/etc/.wh.removed
mkdir -p upper/bin upper/var; echo newer > upper/bin/tool; : > upper/var/.wh..wh..opq
ln upper/bin/tool upper/bin/link
mkdir -p image/blobs/sha256
blob() { sum=$(sha256sum "$1" | cut -d' ' -f1); mv "$1" image/blobs/sha256/$sum; size=$(stat -c %s image/blobs/sha256/$sum); }
tar --sort=name --owner=0 --group=0 -C lower -cf lower.tar .
tar --sort=name --owner=0 --group=0 -C upper -czf upper.tar.gz .
cp lower.tar plain.tar
blob lower.tar; lower="{\"mediaType\": \"application/vnd.oci.image.layer.v1.tar\", \"digest\": \"sha256:$sum\", \"size\": $size}"
blob upper.tar.gz; upper="{\"mediaType\": \"application/vnd.oci.image.layer.v1.tar+gzip\", \"digest\": \"sha256:$sum\", \"size\": $size}"
top=$sum
echo "{\"schemaVersion\": 2, \"layers\": [$lower, $upper]}" > manifest
blob manifest
manifest="\"mediaType\": \"application/vnd.oci.image.manifest.v1+json\", \"digest\": \"sha256:$sum\", \"size\": $size"
echo '{"imageLayoutVersion": "1.0.0"}' > image/oci-layout
echo "{\"schemaVersion\": 2, \"manifests\": [
  {$manifest, \"annotations\": {\"org.opencontainers.image.ref.name\": \"first\"}},
  {$manifest, \"annotations\": {\"org.opencontainers.image.ref.name\": \"second\"}}]}" > image/index.json
echo $top > top
"#;

fn script(workshop: &Workshop, script: &str) {
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).current_dir(workshop.path(""));
    let ran = shell.output().unwrap();
    assert!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
}

fn is_clean(workshop: &Workshop, image: &str) {
    let mut fsck = Command::new("e2fsck");
    let ran = fsck.arg("-fn").arg(workshop.path(image)).output().unwrap();
    assert!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stdout)
    );
}

#[test]
fn oci_image_becomes_a_filesystem_with_whiteouts_applied() {
    let workshop = Workshop::new();
    script(&workshop, LAYOUT);
    workshop.read(&["mkfs", "ext4", "oci.img", "--from", "oci:image:second"]);
    is_clean(&workshop, "oci.img");
    let names = |dir: &str| workshop.read(&["ls", &format!("oci.img:/{dir}")]);
    assert_eq!(names(""), "bin\netc\nlost+found\nvar\n");
    assert_eq!(names("etc"), "added\nkept\n");
    assert_eq!(names("var"), "");
    assert_eq!(workshop.read(&["cat", "oci.img:/bin/link"]), "newer\n");
    let stat = |path: &str| workshop.read(&["--json", "stat", path]);
    let inode = |text: String| {
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        value[0]["inode"].as_u64().unwrap()
    };
    assert_eq!(
        inode(stat("oci.img:/bin/link")),
        inode(stat("oci.img:/bin/tool"))
    );

    // The same from its layers, one by one.
    script(&workshop, "cp image/blobs/sha256/$(cat top) upper.layer");
    let layers = ["--from", "plain.tar", "--from", "layer:upper.layer"];
    workshop.read(&[&["mkfs", "ext4", "layers.img", "--seed", "1"][..], &layers].concat());
    let oci = [
        "mkfs",
        "ext4",
        "again.img",
        "--seed",
        "1",
        "--from",
        "oci:image:first",
    ];
    workshop.read(&oci);
    let bytes = |name: &str| fs::read(workshop.path(name)).unwrap();
    assert!(bytes("layers.img") == bytes("again.img"));
}

#[test]
fn oci_images_are_named_and_verified() {
    let workshop = Workshop::new();
    script(&workshop, LAYOUT);
    let fails = |from: &str| {
        let ran = workshop.run(&["mkfs", "ext4", "oci.img", "--from", from]);
        assert_eq!(ran.status, 1);
        assert!(!workshop.path("oci.img").exists());
        ran.err
    };
    assert!(fails("oci:image").contains("several images; name one: first, second"));
    let missing = fails("oci:image:third");
    assert!(
        missing.contains("no image is tagged 'third'; there are: first, second"),
        "{missing}"
    );
    assert!(fails("oci:plain.tar").contains("tar -xf"));
    assert!(fails("oci:lower").contains("oci-layout"));
    script(
        &workshop,
        "printf x | dd of=image/blobs/sha256/$(cat top) bs=1 seek=20 conv=notrunc",
    );
    let corrupt = fails("oci:image:first");
    assert!(corrupt.contains("the digest does not match"), "{corrupt}");
}

#[test]
fn sources_are_applied_in_order() {
    let workshop = Workshop::new();
    script(
        &workshop,
        "mkdir -p one/d two/d three; echo 1 > one/d/a; echo 1 > one/d/b; echo 2 > two/d/b; echo 2 > two/c
         echo 3 > three/d; tar -C three -cf three.tar d",
    );
    let make = |image: &str, sources: &[&str]| {
        let mut words = vec!["mkfs", "ext4", image];
        words.extend(sources.iter().flat_map(|source| ["--from", source]));
        workshop.read(&words);
        is_clean(&workshop, image);
    };
    make("12.img", &["one", "two"]);
    assert_eq!(workshop.read(&["ls", "12.img:/d"]), "a\nb\n");
    assert_eq!(
        workshop.read(&["cat", "12.img:/d/b", "12.img:/c"]),
        "2\n2\n"
    );
    make("21.img", &["two", "one"]);
    assert_eq!(workshop.read(&["cat", "21.img:/d/b"]), "1\n");
    make("123.img", &["one", "two", "three.tar"]);
    assert_eq!(workshop.read(&["cat", "123.img:/d"]), "3\n");
    let twice = workshop.run(&["mkfs", "ext4", "no.img", "--from", "-", "--from", "-"]);
    assert_eq!(twice.status, 2, "{}", twice.err);
}
