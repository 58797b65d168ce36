//! Sizes for people, as `ls -h` writes them.

/// In powers of 1024 with one letter, rounded up; one decimal below ten.
pub(crate) fn human(size_bytes: u64) -> String {
    if size_bytes < 1024 {
        return size_bytes.to_string();
    }
    let mut unit = 1_u128;
    for letter in ["K", "M", "G", "T", "P", "E"] {
        unit *= 1024;
        let tenths = (u128::from(size_bytes) * 10).div_ceil(unit);
        if tenths < 100 {
            return format!("{}.{}{letter}", tenths / 10, tenths % 10);
        }
        let whole = u128::from(size_bytes).div_ceil(unit);
        if whole < 1024 || letter == "E" {
            return format!("{whole}{letter}");
        }
    }
    unreachable!("every size has a unit")
}

#[cfg(test)]
mod tests {
    use super::human;

    #[test]
    fn sizes_are_rounded_up_as_ls_does() {
        for (size, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10_189, "10K"),
            (1_048_575, "1.0M"),
            (1_047_553, "1.0M"),
            (1_047_552, "1023K"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(human(size), text, "{size}");
        }
    }
}
