//! Parent pointers of the inodes of a mounted XFS, as the kernel lists them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::tool;

/// Prints each pointer of the files that are named on the standard input: inode, parent, name.
const LIST_PARENTS: &str = r#"
use strict;
use Fcntl;
while (my $path = <STDIN>) {
    chomp $path;
    sysopen(my $file, $path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW) or die "$path: $!";
    my $inode = (stat($file))[1];
    my $cursor = "\0" x 16;
    while (1) {
        my $buffer = "\0" x 65536;
        my $request = $cursor . pack("S S L Q Q", 0, 0, 65536, 0, unpack("Q", pack("p", $buffer)));
        ioctl($file, 0xc028583e, $request) or die "$path: parents: $!";
        $cursor = substr($request, 0, 16);
        my $flags = unpack("S", substr($request, 18, 2));
        my $at = 0;
        while ($at < 65536) {
            my ($generation, $parent, $length) = unpack("x12 L Q L", substr($buffer, $at, 32));
            last unless $length;
            my $name = unpack("Z*", substr($buffer, $at + 32, $length - 32));
            print "$inode $parent $name\n";
            $at += $length;
        }
        last if $flags & 2;
    }
}
"#;

type Pointers = BTreeMap<u64, BTreeSet<(u64, Vec<u8>)>>;

/// Compares the pointers of all files and directories below the root of a mount with the names that lead to them.
/// Links and devices cannot be opened for this. Returns the number of inodes compared.
pub fn compare(root: &Path) -> Result<usize> {
    let mut expected = Pointers::new();
    let mut paths = Vec::new();
    let mut seen = BTreeSet::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        let parent = directory.metadata()?.ino();
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            let metadata = entry.path().symlink_metadata()?;
            let pointers = expected.entry(metadata.ino()).or_default();
            pointers.insert((parent, entry.file_name().as_bytes().to_vec()));
            let is_open = metadata.is_file() || metadata.is_dir();
            if is_open && seen.insert(metadata.ino()) {
                paths.push(entry.path().into_os_string());
            }
            if metadata.is_dir() {
                directories.push(entry.path());
            }
        }
    }
    expected.retain(|inode, _| seen.contains(inode));
    let found = list(&paths)?;
    for (inode, pointers) in &expected {
        let found = found.get(inode);
        ensure!(
            found == Some(pointers),
            "inode {inode} has the pointers {found:?}, and the names {pointers:?}"
        );
    }
    ensure!(found.len() == expected.len(), "pointers of other inodes");
    Ok(expected.len())
}

fn list(paths: &[impl AsRef<OsStr>]) -> Result<Pointers> {
    let mut input = tempfile::tempfile()?;
    for path in paths {
        input.write_all(path.as_ref().as_bytes())?;
        input.write_all(b"\n")?;
    }
    input.seek(SeekFrom::Start(0))?;
    let mut perl = tool::command("perl");
    let listed = tool::succeed(perl.args(["-e", LIST_PARENTS]).stdin(input))?;
    let mut found = Pointers::new();
    for line in listed.stdout.split(|&byte| byte == b'\n') {
        let mut words = line.splitn(3, |&byte| byte == b' ');
        let mut number = || -> Option<u64> { str::from_utf8(words.next()?).ok()?.parse().ok() };
        let (Some(inode), Some(parent)) = (number(), number()) else {
            ensure!(line.is_empty(), "{}", String::from_utf8_lossy(line));
            continue;
        };
        let name = words.next().context("a name")?.to_vec();
        found.entry(inode).or_default().insert((parent, name));
    }
    Ok(found)
}
