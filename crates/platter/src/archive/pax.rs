//! PAX extended header records. Spec: POSIX.1-2017, pax, "pax Extended Header", and the vendor
//! keywords of star (`SCHILY.`), GNU tar (`GNU.sparse.`) and libarchive's `hdrcharset` use.

use platter_vfs::Timestamp;

/// Appends one record, `LENGTH KEYWORD=VALUE\n`, where the length counts its own digits.
pub(super) fn append_record(out: &mut Vec<u8>, keyword: &[u8], value: &[u8]) {
    // The space, the equals sign and the newline.
    let rest = keyword.len() + value.len() + 3;
    let mut length = rest + decimal_digits(rest);
    if decimal_digits(length) != decimal_digits(rest) {
        length = rest + decimal_digits(length);
    }
    append_decimal(out, length as u64);
    out.push(b' ');
    out.extend_from_slice(keyword);
    out.push(b'=');
    out.extend_from_slice(value);
    out.push(b'\n');
}

/// Appends a record whose value is a number.
pub(super) fn append_number(out: &mut Vec<u8>, keyword: &[u8], value: u64) {
    let mut text = Vec::with_capacity(20);
    append_decimal(&mut text, value);
    append_record(out, keyword, &text);
}

/// Appends `value` in decimal.
pub(super) fn append_decimal(out: &mut Vec<u8>, value: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = value;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// A moment as a decimal fraction of seconds, without needless zeros.
pub(super) fn time_text(time: Timestamp) -> String {
    // The timestamp counts nanoseconds upwards from the second below; decimals of a negative
    // number count downwards.
    let (sign, seconds, nanoseconds) = match (time.seconds, time.nanoseconds) {
        (seconds @ 0.., nanoseconds) => ("", seconds.unsigned_abs(), nanoseconds),
        (seconds, 0) => ("-", seconds.unsigned_abs(), 0),
        (seconds, nanoseconds) => (
            "-",
            (seconds + 1).unsigned_abs(),
            1_000_000_000 - nanoseconds,
        ),
    };
    if nanoseconds == 0 {
        return format!("{sign}{seconds}");
    }
    let text = format!("{sign}{seconds}.{nanoseconds:09}");
    text.trim_end_matches('0').to_owned()
}

/// The keyword of an extended attribute. GNU tar escapes `=` and `%` in names this way, since a
/// keyword ends at the first `=`.
pub(super) fn xattr_keyword(name: &[u8]) -> Vec<u8> {
    let mut keyword = b"SCHILY.xattr.".to_vec();
    for &byte in name {
        match byte {
            b'=' => keyword.extend_from_slice(b"%3D"),
            b'%' => keyword.extend_from_slice(b"%25"),
            plain => keyword.push(plain),
        }
    }
    keyword
}

fn decimal_digits(value: usize) -> usize {
    value.checked_ilog10().map_or(1, |log| log as usize + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_its_own_length() {
        for value_len in (0..120).chain(980..1010).chain([9_990, 99_989]) {
            let mut out = Vec::new();
            append_record(&mut out, b"k", &vec![b'v'; value_len]);
            let text = String::from_utf8(out.clone()).unwrap();
            let (length, rest) = text.split_once(' ').unwrap();
            assert_eq!(length.parse::<usize>().unwrap(), out.len(), "{value_len}");
            assert!(rest.starts_with("k=") && rest.ends_with('\n'));
        }
        let mut out = Vec::new();
        append_record(&mut out, b"mtime", b"1350244992.023960108");
        assert_eq!(out, b"30 mtime=1350244992.023960108\n");
    }

    #[test]
    fn times_before_1970_count_backwards() {
        for (seconds, nanoseconds, text) in [
            (0, 0, "0"),
            (5, 1, "5.000000001"),
            (5, 120_000_000, "5.12"),
            (100, 0, "100"),
            (-1, 0, "-1"),
            (-1, 500_000_000, "-0.5"),
            (-2, 999_999_999, "-1.000000001"),
            (i64::MIN, 0, "-9223372036854775808"),
            (i64::MIN, 1, "-9223372036854775807.999999999"),
        ] {
            let time = Timestamp {
                seconds,
                nanoseconds,
            };
            assert_eq!(time_text(time), text);
        }
    }

    #[test]
    fn attribute_names_cannot_end_the_keyword() {
        assert_eq!(xattr_keyword(b"user.a=b%"), b"SCHILY.xattr.user.a%3Db%25");
    }
}
