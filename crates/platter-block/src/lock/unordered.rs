//! The order of locks in builds that do not assert it: no bytes, and no work.

pub(in crate::lock) struct Held;

impl Held {
    #[inline]
    pub(in crate::lock) fn ordered(_: u16, _: u64) -> Self {
        Self
    }

    #[inline]
    pub(in crate::lock) fn again(_: u16) -> Self {
        Self
    }

    #[inline]
    pub(in crate::lock) fn unordered(_: u16) -> Self {
        Self
    }

    #[inline]
    #[expect(clippy::unused_self, reason = "as with assertions")]
    pub(in crate::lock) fn assert_last(&self) {}

    #[inline]
    #[expect(clippy::unused_self, reason = "as with assertions")]
    pub(in crate::lock) fn suspended<R>(&self, action: impl FnOnce() -> R) -> R {
        action()
    }
}
