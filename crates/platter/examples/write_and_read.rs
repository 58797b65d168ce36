//! Makes an image, writes files to it in one edit, and reads them back.
//!
//! `cargo run -p platterfs --example write_and_read -- new.img`
#![expect(clippy::print_stdout, reason = "this is a program for a terminal")]

use std::error::Error;
use std::ffi::OsString;

use platter::make::{Generation, MkfsOptions};
use platter::{ImageSpec, Maker, OpenOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1);
    let spec = ImageSpec::new(path.unwrap_or(OsString::from("example.img")));

    let maker = Maker::new(MkfsOptions::new(Generation::Ext4)).size_bytes(16 << 20);
    maker.make(&spec, &mut |_| {})?;

    // Nothing is in the image before the commit, and all of it after.
    let edit = OpenOptions::new().edit(&spec)?;
    edit.make_dirs(b"/etc/example", None)?;
    edit.write(b"/etc/hostname", b"platter\n")?;
    edit.append(b"/etc/example/log", b"first line\n")?;
    edit.append(b"/etc/example/log", b"second line\n")?;
    edit.commit()?;

    let volume = OpenOptions::new().open(&spec)?;
    for path in ["/etc/hostname", "/etc/example/log"] {
        let bytes = volume.read(path, 1 << 20)?;
        print!("{path}: {}", String::from_utf8_lossy(&bytes));
    }
    Ok(())
}
