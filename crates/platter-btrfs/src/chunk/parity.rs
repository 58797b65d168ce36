//! Parity of RAID 5 and 6: P is the sum of a row's data, Q the sum weighted with powers of 2, in the
//! field of 256 elements with the polynomial 0x11d. Spec: `raid6`.

/// The sum of two elements is their exclusive or; this is twice an element.
const fn double(element: u8) -> u8 {
    let carry = if element & 0x80 == 0 { 0 } else { 0x1d };
    (element << 1) ^ carry
}

/// Powers of 2, and their inverse.
const TABLES: ([u8; 255], [u8; 256]) = {
    let mut powers = [0; 255];
    let mut logarithms = [0; 256];
    let mut element = 1;
    let mut exponent = 0;
    while exponent < 255 {
        powers[exponent as usize] = element;
        logarithms[element as usize] = exponent;
        element = double(element);
        exponent += 1;
    }
    (powers, logarithms)
};

/// The power of 2.
fn power(exponent: usize) -> u8 {
    TABLES.0[exponent % 255]
}

/// The product of two elements.
fn multiply(left: u8, right: u8) -> u8 {
    if left == 0 || right == 0 {
        return 0;
    }
    let logarithm = |element: u8| usize::from(TABLES.1[usize::from(element)]);
    power(logarithm(left) + logarithm(right))
}

/// The inverse of an element that is not zero.
fn invert(element: u8) -> u8 {
    power(255 - usize::from(TABLES.1[usize::from(element)]))
}

/// The products of an element with all others.
fn products(factor: u8) -> [u8; 256] {
    let mut table = [0; 256];
    for (product, element) in table.iter_mut().zip(0..=u8::MAX) {
        *product = multiply(factor, element);
    }
    table
}

/// Adds `data` to `sum`.
pub fn add(sum: &mut [u8], data: &[u8]) {
    for (sum, data) in sum.iter_mut().zip(data) {
        *sum ^= data;
    }
}

/// Multiplies all bytes by an element.
fn scale(bytes: &mut [u8], factor: u8) {
    let table = products(factor);
    for byte in bytes {
        *byte = table[usize::from(*byte)];
    }
}

/// Adds `data`, the row's data number `index`, to a sum of Q.
pub fn add_weighted(sum: &mut [u8], data: &[u8], index: usize) {
    let table = products(power(index));
    for (sum, data) in sum.iter_mut().zip(data) {
        *sum ^= table[usize::from(*data)];
    }
}

/// Turns the difference of Q to the sum of the other data into the data number `index`.
pub fn recover_from_q(difference: &mut [u8], index: usize) {
    scale(difference, invert(power(index)));
}

/// Two data of a row are lost. Turns the difference of P to the sum of the others into the data number
/// `index`; `q` is the difference of Q to the sum of the others.
pub fn recover_two(p: &mut [u8], q: &[u8], index: usize, other: usize) {
    scale(p, power(other));
    add(p, q);
    scale(p, invert(power(index) ^ power(other)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Vec<Vec<u8>> {
        let data = |seed: u8| (0..=u8::MAX).map(|byte| byte.wrapping_mul(seed)).collect();
        [7, 13, 101, 255].map(data).to_vec()
    }

    fn sums(row: &[Vec<u8>], without: &[usize]) -> (Vec<u8>, Vec<u8>) {
        let (mut p, mut q) = (vec![0; 256], vec![0; 256]);
        for (index, data) in row.iter().enumerate() {
            if !without.contains(&index) {
                add(&mut p, data);
                add_weighted(&mut q, data, index);
            }
        }
        (p, q)
    }

    #[test]
    fn elements_have_inverses() {
        assert_eq!(double(0x80), 0x1d);
        for element in 1..=u8::MAX {
            assert_eq!(multiply(element, invert(element)), 1, "{element}");
        }
        assert_eq!(multiply(3, 0), 0);
    }

    #[test]
    fn lost_data_is_recovered() {
        let row = row();
        let (p, q) = sums(&row, &[]);
        for (lost, expected) in row.iter().enumerate() {
            let (mut from_p, mut from_q) = sums(&row, &[lost]);
            add(&mut from_p, &p);
            assert_eq!(&from_p, expected);
            add(&mut from_q, &q);
            recover_from_q(&mut from_q, lost);
            assert_eq!(&from_q, expected);
        }
    }

    #[test]
    fn two_lost_data_are_recovered() {
        let row = row();
        let (p, q) = sums(&row, &[]);
        for lost in 0..row.len() {
            for other in (0..row.len()).filter(|&other| other != lost) {
                let (mut from_p, mut from_q) = sums(&row, &[lost, other]);
                add(&mut from_p, &p);
                add(&mut from_q, &q);
                recover_two(&mut from_p, &from_q, lost, other);
                assert_eq!(from_p, row[lost], "{lost} {other}");
            }
        }
    }
}
