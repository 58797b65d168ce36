//! Names in columns, as `ls` fills a terminal.

/// The least columns of a terminal that is worth filling.
const WIDTH_MIN: usize = 20;

/// Between two columns.
const GAP: usize = 2;

/// How names of these widths are laid out on lines of `line_width`: the number of rows, and the
/// width of each column. Names go down the columns.
pub(crate) fn layout(widths: &[usize], line_width: usize) -> (usize, Vec<usize>) {
    let line_width = line_width.max(WIDTH_MIN);
    for rows in 1..widths.len() {
        let columns: Vec<usize> = widths
            .chunks(rows)
            .map(|column| column.iter().copied().max().unwrap_or(0))
            .collect();
        if columns.iter().sum::<usize>() + GAP * (columns.len() - 1) <= line_width {
            return (rows, columns);
        }
        // Even the narrowest names would need more rows than this: skip ahead.
    }
    (
        widths.len(),
        vec![widths.iter().copied().max().unwrap_or(0)],
    )
}

/// The indices of the names in each line, with the columns to fill up to after each but the last.
pub(crate) fn lines(widths: &[usize], line_width: usize) -> Vec<Vec<(usize, usize)>> {
    let (rows, columns) = layout(widths, line_width);
    (0..rows.min(widths.len()))
        .map(|row| {
            let mut line: Vec<(usize, usize)> = (row..widths.len())
                .step_by(rows.max(1))
                .zip(&columns)
                .map(|(index, column)| (index, column + GAP - widths[index]))
                .collect();
            if let Some(last) = line.last_mut() {
                last.1 = 0;
            }
            line
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_down_as_few_rows_as_fit() {
        assert_eq!(lines(&[], 80), Vec::<Vec<_>>::new());
        assert_eq!(lines(&[3], 80), [[(0, 0)]]);
        assert_eq!(lines(&[3, 4, 5], 80), [[(0, 2), (1, 2), (2, 0)]]);
        assert_eq!(lines(&[9, 9, 3], 20), [vec![(0, 2), (2, 0)], vec![(1, 0)]]);
        assert_eq!(lines(&[30, 30], 20), [[(0, 0)], [(1, 0)]]);
    }
}
