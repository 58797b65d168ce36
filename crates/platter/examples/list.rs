//! Lists all files of an image with their sizes, without writing a byte to it.
//!
//! `cargo run -p platterfs --example list -- disk.img@2`
#![expect(clippy::print_stdout, reason = "this is a program for a terminal")]

use std::error::Error;

use platter::vfs::{FileKind, WalkOrder};
use platter::{Escaped, File, ImageSpec, MountOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let image = std::env::args_os().nth(1).ok_or("which image?")?;
    let volume = MountOptions::new().open(&ImageSpec::parse(image)?)?;
    let mut directories: Vec<File> = vec![volume.open("/")?];
    while let Some(directory) = directories.pop() {
        for entry in directory.loaded_entries(WalkOrder::Name) {
            // An error names the image, the path and what is wrong with it.
            let (file, attr) = entry?.file?;
            println!("{:>12} {}", attr.size_bytes, Escaped(file.path()));
            if attr.kind == FileKind::Directory {
                directories.push(file);
            }
        }
    }
    Ok(())
}
