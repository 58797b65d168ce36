//! Writeback errors: each cursor reports each error once, as `errseq_t` does.

/// The sequence number of the last error that was reported to an opener. Sampled when a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorCursor(u64);

/// The last error of a mapping, and its sequence number: errors between two reports count as one.
#[derive(Debug)]
pub(super) struct ErrorSequence<E> {
    last: Option<E>,
    sequence: u64,
    /// The last error was reported: the next counts as another.
    is_seen: bool,
}

impl<E> Default for ErrorSequence<E> {
    fn default() -> Self {
        Self {
            last: None,
            sequence: 0,
            is_seen: true,
        }
    }
}

impl<E: Clone> ErrorSequence<E> {
    pub(super) fn record(&mut self, error: E) {
        self.sequence += u64::from(self.is_seen);
        self.is_seen = false;
        self.last = Some(error);
    }

    /// Returns the cursor of a file opened now: an error that was not reported yet is still ahead.
    pub(super) fn cursor(&self) -> ErrorCursor {
        ErrorCursor(self.sequence - u64::from(!self.is_seen))
    }

    /// The last error, if `cursor` has not seen it.
    pub(super) fn check(&mut self, cursor: &mut ErrorCursor) -> Result<(), E> {
        if cursor.0 == self.sequence {
            return Ok(());
        }
        cursor.0 = self.sequence;
        self.is_seen = true;
        self.last.clone().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cursor_sees_an_error_once() {
        let mut errors = ErrorSequence::default();
        let (mut first, mut second) = (errors.cursor(), errors.cursor());
        errors.record("a");
        assert_eq!(errors.check(&mut first), Err("a"));
        assert_eq!(errors.check(&mut first), Ok(()));
        assert_eq!(errors.check(&mut second), Err("a"));
        errors.record("b");
        assert_eq!(errors.check(&mut second), Err("b"));
        assert_eq!(errors.check(&mut first), Err("b"));
    }

    #[test]
    fn an_unseen_error_is_reported_to_the_next_opener() {
        let mut errors = ErrorSequence::default();
        errors.record("a");
        let mut late = errors.cursor();
        assert_eq!(errors.check(&mut late), Err("a"));
        let mut later = errors.cursor();
        assert_eq!(errors.check(&mut later), Ok(()));
    }

    #[test]
    fn unseen_errors_are_one() {
        let mut errors = ErrorSequence::default();
        let mut cursor = errors.cursor();
        errors.record("a");
        errors.record("b");
        assert_eq!(errors.check(&mut cursor), Err("b"));
        assert_eq!(errors.check(&mut cursor), Ok(()));
    }
}
