//! Makes an image in memory, writes files to it, and reads them back.
//!
//! `cargo run -p platterfs --example write_and_read -- new.img`
#![expect(clippy::print_stdout, reason = "this is a program for a terminal")]

use std::error::Error;
use std::io::Write;

use platter::{FormatOptions, Image, MountOptions, OpenOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let image = Image::in_memory(16 << 20);
    FormatOptions::default().format(&image)?;

    let volume = MountOptions::new().read_write().mount(&image)?;
    volume.create_dir_all("/etc/example")?;
    volume.write("/etc/hostname", "platter\n")?;
    let append = OpenOptions::new().append(true).create(true);
    let mut log = volume.open_with("/etc/example/log", append)?;
    writeln!(log, "first line")?;
    writeln!(log, "second line")?;
    volume.close()?;

    let volume = MountOptions::new().mount(&image)?;
    for path in ["/etc/hostname", "/etc/example/log"] {
        print!("{path}: {}", volume.read_to_string(path)?);
    }
    let target = std::env::args_os().nth(1).ok_or("which image?")?;
    Ok(std::fs::write(target, image.to_vec()?)?)
}
