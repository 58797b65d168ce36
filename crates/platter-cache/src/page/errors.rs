//! Errors of writing back: each one who asks learns of each error once.

/// Up to which error somebody has looked. Taken when a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorCursor(u64);

/// The last error of a mapping, and how many there were that somebody saw.
#[derive(Debug)]
pub(super) struct ErrorSequence<E> {
    last: Option<E>,
    sequence: u64,
    /// Somebody has seen the last one: the next counts as another.
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

    /// Where one who comes now begins: an error that nobody has seen is still ahead.
    pub(super) fn cursor(&self) -> ErrorCursor {
        ErrorCursor(self.sequence - u64::from(!self.is_seen))
    }

    /// The last error, if it is news to the holder of `cursor`.
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
    fn each_holder_sees_an_error_once() {
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
    fn an_unseen_error_waits_for_the_next_who_opens() {
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
        let mut holder = errors.cursor();
        errors.record("a");
        errors.record("b");
        assert_eq!(errors.check(&mut holder), Err("b"));
        assert_eq!(errors.check(&mut holder), Ok(()));
    }
}
