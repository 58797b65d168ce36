//! Attempts that found no space, and may find some once freed space can be used again.

use crate::{Condition, Error, Result};

/// How often an operation is tried again while others take what was freed.
const ATTEMPTS_MAX: u32 = 32;

/// A filesystem whose freed space can be allocated again only after a commit.
pub trait ReturnsSpace {
    /// A count that grows whenever freed space can be allocated again.
    fn returned(&self) -> u64;

    /// Commits what freed space, if there is any that cannot be allocated yet. The caller holds nothing
    /// that a commit or another handle may wait for.
    ///
    /// # Errors
    /// Those of the commit.
    fn return_freed(&self) -> Result<()>;
}

/// The attempts of an operation that needs space.
#[derive(Debug)]
pub struct NoSpaceRetry {
    left: u32,
    /// The count of returned space before the last attempt.
    returned: u64,
}

impl NoSpaceRetry {
    /// Begins before the first attempt.
    #[must_use]
    pub fn begin(space: &(impl ReturnsSpace + ?Sized)) -> Self {
        Self {
            left: ATTEMPTS_MAX,
            returned: space.returned(),
        }
    }

    /// Whether an attempt that ended with `error` is to be made again: it found no space, and space that
    /// was freed before can be allocated now, be it that another thread committed it. The conditions of
    /// [`ReturnsSpace::return_freed`] apply.
    ///
    /// # Errors
    /// Those of a commit.
    pub fn is_due(&mut self, space: &(impl ReturnsSpace + ?Sized), error: &Error) -> Result<bool> {
        let is_no_space = matches!(error, Error::Condition(Condition::NoSpace));
        if !is_no_space || self.left == 0 {
            return Ok(false);
        }
        self.left -= 1;
        space.return_freed()?;
        let before = self.returned;
        self.returned = space.returned();
        Ok(self.returned != before)
    }
}

/// Makes an attempt again while it finds no space and freed space can be allocated again meanwhile. The
/// conditions of [`ReturnsSpace::return_freed`] apply.
///
/// # Errors
/// Those of the last attempt, and of a commit.
pub fn retry_no_space<T>(
    space: &(impl ReturnsSpace + ?Sized),
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    let mut retry = NoSpaceRetry::begin(space);
    loop {
        match attempt() {
            Err(error) if retry.is_due(space, &error)? => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Freed space that comes back with each commit.
    struct Freed {
        returned: Cell<u64>,
        left: Cell<u64>,
    }

    impl ReturnsSpace for Freed {
        fn returned(&self) -> u64 {
            self.returned.get()
        }

        fn return_freed(&self) -> Result<()> {
            if let Some(left) = self.left.get().checked_sub(1) {
                self.left.set(left);
                self.returned.set(self.returned.get() + 1);
            }
            Ok(())
        }
    }

    fn attempts(left: u64, error: Condition) -> u32 {
        let space = Freed {
            returned: Cell::new(0),
            left: Cell::new(left),
        };
        let mut count = 0;
        let result: Result<()> = retry_no_space(&space, || {
            count += 1;
            Err(error.into())
        });
        assert!(result.is_err());
        count
    }

    #[test]
    fn attempts_end_when_no_freed_space_is_left() {
        assert_eq!(attempts(0, Condition::NoSpace), 1);
        assert_eq!(attempts(2, Condition::NoSpace), 3);
        assert_eq!(attempts(u64::MAX, Condition::NoSpace), ATTEMPTS_MAX + 1);
    }

    #[test]
    fn other_errors_are_not_retried() {
        assert_eq!(attempts(2, Condition::Exists), 1);
    }
}
