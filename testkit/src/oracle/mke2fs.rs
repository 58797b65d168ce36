//! `mke2fs` and `tune2fs` with everything random fixed, so that equal options give equal bytes.

use std::path::Path;

use anyhow::Result;

use crate::tool;

/// The UUID of every filesystem made here; it seeds the directory hash too.
pub const UUID: &str = "6f1c2a70-59d3-4b1e-8f0a-c0ffee000001";

/// Makes a filesystem of `size_kib` in a new sparse file, filled from `dir` when one is given.
pub fn make(image: &Path, size_kib: u64, options: &[&str], dir: Option<&Path>) -> Result<()> {
    let file = std::fs::File::create(image)?;
    file.set_len(size_kib * 1024)?;
    make_in_place(image, size_kib, options, dir)
}

/// Makes a filesystem of `size_kib` at the start of a file or device that exists.
pub fn make_in_place(
    device: &Path,
    size_kib: u64,
    options: &[&str],
    dir: Option<&Path>,
) -> Result<()> {
    let mut extended = format!("hash_seed={UUID},root_owner=0:0,lazy_itable_init=0");
    let mut arguments = Vec::new();
    let mut rest = options.iter();
    while let Some(&option) = rest.next() {
        if option == "-E" {
            extended.push(',');
            extended.push_str(rest.next().copied().unwrap_or_default());
        } else {
            arguments.push(option);
        }
    }
    let mut mke2fs = tool::command("mke2fs");
    mke2fs.args(["-q", "-F", "-U", UUID, "-E", &extended]);
    mke2fs.args(&arguments);
    if let Some(dir) = dir {
        mke2fs.arg("-d").arg(dir);
    }
    mke2fs.arg(device).arg(format!("{size_kib}k"));
    tool::succeed(&mut mke2fs)?;
    Ok(())
}

/// Changes a filesystem that is not mounted.
pub fn tune(image: &Path, options: &[&str]) -> Result<()> {
    tool::succeed(tool::command("tune2fs").args(options).arg(image))?;
    Ok(())
}

/// What `mke2fs` says its version is.
pub fn version() -> Result<String> {
    Ok(tool::succeed(tool::command("mke2fs").arg("-V"))?.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_options_make_equal_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let images = ["a", "b"].map(|name| dir.path().join(name));
        for image in &images {
            make(image, 1024, &["-t", "ext4", "-O", "^has_journal"], None).unwrap();
        }
        let [first, second] = images.map(|image| std::fs::read(image).unwrap());
        assert!(first == second);
    }
}
