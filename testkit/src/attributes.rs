//! Extended attributes of a file, as the host gives them.

use std::path::Path;

/// The largest list of names, and the largest value, that a host gives.
const BYTES_MAX: usize = 1 << 16;

/// All names with their values, in the host's order; of a link those of the link.
pub fn of(path: &Path) -> rustix::io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut names = vec![0; BYTES_MAX];
    let length = rustix::fs::llistxattr(path, &mut names[..])?;
    let names = names[..length].split(|&byte| byte == 0);
    names
        .filter(|name| !name.is_empty())
        .map(|name| {
            let mut value = vec![0; BYTES_MAX];
            let length = rustix::fs::lgetxattr(path, name, &mut value[..])?;
            value.truncate(length);
            Ok((name.to_vec(), value))
        })
        .collect()
}
