//! A reservation for the duration of one operation.

use std::sync::Arc;

use platter_vfs::Result;

use super::{Owners, QuotaTable};

/// Space and inodes that are reserved for owners until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Held {
    table: Arc<QuotaTable>,
    owners: Owners,
    space_bytes: u64,
    inodes: u64,
}

impl Held {
    /// Returns a reservation of nothing.
    pub fn nothing(table: Arc<QuotaTable>, owners: Owners) -> Self {
        Self {
            table,
            owners,
            space_bytes: 0,
            inodes: 0,
        }
    }

    /// Reserves more; see [`QuotaTable::reserve`].
    ///
    /// # Errors
    /// Those of `reserve`.
    pub fn add(&mut self, space_bytes: u64, inodes: u64, may_exceed: bool) -> Result<()> {
        self.table
            .reserve(&self.owners, space_bytes, inodes, may_exceed)?;
        self.space_bytes = self.space_bytes.saturating_add(space_bytes);
        self.inodes = self.inodes.saturating_add(inodes);
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.table
            .release(&self.owners, self.space_bytes, self.inodes);
    }
}
