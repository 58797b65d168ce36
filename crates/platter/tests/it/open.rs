//! An image is opened by its name, or refused with a reason.

use super::*;

#[test]
fn files_are_read_by_path() {
    let workshop = Workshop::new();
    let volume = open(&workshop.filesystem("disk.img"), "").unwrap();
    assert_eq!(volume.read("/dir/file").unwrap(), b"contents\n");
    assert_eq!(volume.describe().kind, *KIND);
    assert!(volume.request_counts().is_none());
}

#[test]
fn partitions_are_found_by_number_name_and_identifier() {
    let workshop = Workshop::new();
    let disk = workshop.disk("disk.img");
    for selector in ["@2", "@PARTLABEL=root", &format!("@PARTUUID={PARTUUID}")] {
        let volume = open(&disk, selector).unwrap();
        assert_eq!(
            volume.read("dir/file").unwrap(),
            b"contents\n",
            "{selector}"
        );
        assert!(volume.name().ends_with("disk.img@2"));
    }
    let options = MountOptions::new().offset(PARTITION_2);
    assert!(options.open(&spec(&disk, "")).is_ok());
}

#[test]
fn what_cannot_be_opened_is_refused_with_a_reason() {
    let workshop = Workshop::new();
    let disk = workshop.disk("disk.img");
    let bare = workshop.filesystem("bare.img");
    let zeros = workshop.file("zeros.img", 1 << 20, &[]);
    let luks = workshop.file("luks.img", 1 << 20, &[(0, b"LUKS\xba\xbe")]);
    let tiny = workshop.file("tiny.img", 1, &[]);
    let there = format!("1 swap, 2 {}", *KIND);
    for (image, rest, reason) in [
        (
            &disk,
            "",
            format!("disk.img: is a partitioned disk; name a partition as in disk.img@2: {there}")
                .as_str(),
        ),
        (
            &disk,
            "@3",
            &format!("disk.img: has no such partition; there are: {there}"),
        ),
        (
            &disk,
            "@1",
            "disk.img@1: holds swap, which is not supported: it holds no files",
        ),
        (&bare, "@1", "bare.img: has no partition table"),
        (
            &zeros,
            "",
            "zeros.img: no filesystem and no partition table was recognised",
        ),
        (
            &tiny,
            "",
            "tiny.img: no filesystem and no partition table was recognised",
        ),
        (
            &luks,
            "",
            "luks.img: holds crypto_LUKS, which is not supported: open it with cryptsetup and \
             use the device that makes",
        ),
        (
            &workshop.path("none"),
            "",
            "none: No such file or directory",
        ),
    ] {
        assert_eq!(refusal(&workshop, open(image, rest)), reason);
    }
}

#[test]
fn requests_are_counted_when_asked_for() {
    let workshop = Workshop::new();
    let image = workshop.filesystem("disk.img");
    let options = MountOptions::new().count_requests();
    let volume = options.open(&spec(&image, "")).unwrap();
    let opened = volume.request_counts().unwrap();
    assert!(opened.reads > 0);
    volume.read("/dir/file").unwrap();
    let read = volume.request_counts().unwrap() - opened;
    assert!(read.reads > 0);
    assert_eq!((read.writes, read.flushes), (0, 0));
}

#[test]
fn a_writer_elsewhere_is_waited_out_or_passed_by() {
    let workshop = Workshop::new();
    let image = workshop.filesystem("disk.img");
    let writer = fs::File::open(&image).unwrap();
    writer.lock().unwrap();
    let reason = refusal(&workshop, open(&image, ""));
    assert!(reason.starts_with("disk.img: in use by "), "{reason}");
    let unlocked = MountOptions::new().without_lock();
    assert!(unlocked.open(&spec(&image, "")).is_ok());
}

#[test]
fn partitions_of_an_mbr_are_found_by_its_signature() {
    let workshop = Workshop::new();
    let filesystem = fs::read(workshop.filesystem("part")).unwrap();
    let disk = workshop.file("mbr.img", 12 << 20, &[(PARTITION_1, &filesystem)]);
    let script = "label: dos\nlabel-id: 0xc0ffee01\nstart=2048, size=16384, type=83\n";
    run(Command::new("sfdisk").arg("-q").arg(&disk), script);
    let volume = open(&disk, "@PARTUUID=c0ffee01-01").unwrap();
    assert_eq!(volume.read("dir/file").unwrap(), b"contents\n");
    let reason = refusal(&workshop, open(&disk, "@PARTUUID=c0ffee02-01"));
    let expected = format!("mbr.img: has no such partition; there are: 1 {}", *KIND);
    assert_eq!(reason, expected);
}

#[test]
fn an_offset_beyond_the_end_is_refused() {
    let workshop = Workshop::new();
    let image = workshop.filesystem("disk.img");
    let options = MountOptions::new().offset(8 << 20);
    let reason = refusal(&workshop, options.open(&spec(&image, "")));
    assert_eq!(
        reason,
        "disk.img: the offset 8388608 is beyond its 8388608 bytes"
    );
}

#[test]
fn a_copy_of_the_superblock_serves_where_the_first_is_gone() {
    let workshop = Workshop::new();
    let image = workshop.filesystem_of("disk.img", "16M");
    let file = fs::File::options().write(true).open(&image).unwrap();
    file.write_all_at(&[0; 1024], 1024).unwrap();
    assert!(open(&image, "").is_err());
    // Blocks of 1 KiB: the second group, and with it the first copy, begins at block 8193.
    let options = MountOptions::new().superblock_kib(8193);
    let volume = options.open(&spec(&image, "")).unwrap();
    assert_eq!(volume.read("dir/file").unwrap(), b"contents\n");
}

#[test]
fn further_devices_are_opened_locked_and_refused_by_name() {
    let workshop = Workshop::new();
    let image = workshop.filesystem("disk.img");
    let disk = workshop.disk("other.img");
    let partition = format!("{}@2", disk.display());
    let with = |role, device: &str| {
        let options = MountOptions::new().device(role, device);
        refusal(&workshop, options.open(&spec(&image, "")))
    };
    let several = "disk.img: ext: a filesystem on several devices is not supported";
    assert_eq!(with(DeviceRole::Data, &partition), several);
    assert_eq!(with(DeviceRole::Realtime, &partition), several);
    let open = |spec| MountOptions::new().open_image(&spec).unwrap();
    let set = ImageSet::new(open(spec(&image, ""))).with(DeviceRole::Data, open(spec(&disk, "@2")));
    assert_eq!(refusal(&workshop, MountOptions::new().mount(&set)), several);
    drop(set);
    let inside = format!("{partition}:/dir/file");
    assert_eq!(
        with(DeviceRole::Data, &inside),
        "other.img@2:/dir/file: names a file in an image, where a device is asked for"
    );
    let writer = MountOptions::new().writing(WriteOptions::default());
    let held = writer.open(&spec(&disk, "@2")).unwrap();
    let refused = with(DeviceRole::Data, &partition);
    assert!(refused.starts_with("other.img"), "{refused}");
    assert!(refused.contains("in use by another writer"), "{refused}");
    held.filesystem().unmount().unwrap();
}

#[test]
fn option_of_another_filesystem_is_refused_with_its_name() {
    let workshop = Workshop::new();
    let image = workshop.filesystem("disk.img");
    let with = |option| {
        let options = MountOptions::new().option(MountOption::parse(option));
        options.open(&spec(&image, ""))
    };
    assert!(with("data=journal").is_ok());
    assert_eq!(
        refusal(&workshop, with("subvol=home")),
        "disk.img: mount option subvol=home is not known for ext"
    );
    assert_eq!(
        refusal(&workshop, with("data=none")),
        "disk.img: mount option data=none takes journal, ordered or writeback"
    );
}
