//! Attempts that found no space, and may find some once what was freed can be used.

use platter_vfs::{Condition, Error, Result};

use super::Space;
use crate::Volume;

/// How often somebody tries again while others take what comes back.
const ATTEMPTS_MAX: u32 = 32;

/// The attempts of one who needs space.
#[derive(Debug)]
pub struct Attempts {
    left: u32,
    /// How often freed space had come back before the last one.
    returned: u64,
}

impl Space {
    /// For who is about to try.
    #[must_use]
    pub fn attempts(&self) -> Attempts {
        Attempts {
            left: ATTEMPTS_MAX,
            returned: self.counters.returned.get(),
        }
    }

    /// Whether an attempt that ended with `error` is to be made again: it found no space, and some that
    /// was freed before can be used now, be it that another one saw to that. The caller holds
    /// nothing that a commit or another handle may wait for, as for [`take`](Self::take).
    ///
    /// # Errors
    /// Those of a commit.
    pub fn try_again(
        &self,
        volume: &Volume,
        attempts: &mut Attempts,
        error: &Error,
    ) -> Result<bool> {
        let is_no_space = matches!(error, Error::Condition(Condition::NoSpace));
        if !is_no_space || attempts.left == 0 {
            return Ok(false);
        }
        attempts.left -= 1;
        self.settle(volume)?;
        let before = attempts.returned;
        attempts.returned = self.counters.returned.get();
        Ok(attempts.returned != before)
    }
}
