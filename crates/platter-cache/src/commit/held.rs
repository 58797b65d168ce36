//! Which transactions a thread has a handle of, known to debug builds: beginning another one, or a commit,
//! would wait for a commit that waits for the first.

use std::cell::RefCell;
use std::marker::PhantomData;

thread_local! {
    static HELD: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Says that this thread has a handle of `T`, which stays on the thread.
#[derive(Debug)]
pub struct HeldHandle {
    owner: usize,
    /// Not to be sent to another thread.
    thread: PhantomData<*const ()>,
}

impl HeldHandle {
    /// Records a handle of `owner`.
    pub fn note<T>(owner: &T) -> Self {
        let owner = address(owner);
        if cfg!(debug_assertions) {
            HELD.with_borrow_mut(|held| held.push(owner));
        }
        Self {
            owner,
            thread: PhantomData,
        }
    }

    /// Asserts that this thread may wait for a commit of `owner`.
    pub fn assert_none<T>(owner: &T) {
        debug_assert!(
            HELD.with_borrow(|held| !held.contains(&address(owner))),
            "a thread with a handle waits for no commit"
        );
    }
}

impl Drop for HeldHandle {
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            HELD.with_borrow_mut(|held| {
                if let Some(index) = held.iter().position(|owner| *owner == self.owner) {
                    held.swap_remove(index);
                }
            });
        }
    }
}

fn address<T>(owner: &T) -> usize {
    std::ptr::from_ref(owner).addr()
}
