//! Dirty pages that the driver writes itself, together with those of other files.

use std::fmt;
use std::sync::Arc;

use super::Core;
use super::folio::{Content, Folio};
use super::insert::DIRTY;
use super::writeback::{begin_writeback, dirty_piece, end_writeback};
use crate::sync::RwLockReadGuard;
use crate::xarray::Ref;

/// The dirty pages of a file in writeback: to be [ended](Self::end), or [failed](Self::fail). Dropped,
/// they are dirty again.
pub struct DirtyPages<E: Clone + Send + Sync + 'static> {
    core: Arc<Core<E>>,
    folios: Vec<Ref<Folio<E>>>,
}

/// The bytes of [`DirtyPages`], which no thread changes meanwhile.
pub struct LockedPages<'p, E: 'static> {
    folios: &'p [Ref<Folio<E>>],
    contents: Vec<RwLockReadGuard<'p, Content<E>>>,
}

impl<E: Clone + Send + Sync + 'static> DirtyPages<E> {
    /// All dirty pages of the file, if there are any.
    pub(super) fn take(core: &Arc<Core<E>>) -> Option<Self> {
        let folios = begin_writeback(core, 0..u64::MAX, None, DIRTY, 1).folios;
        let core = Arc::clone(core);
        (!folios.is_empty()).then_some(Self { core, folios })
    }

    /// Keeps the bytes as they are. Writers of these pages wait.
    #[must_use]
    pub fn lock(&self) -> LockedPages<'_, E> {
        LockedPages {
            folios: &self.folios,
            contents: self.folios.iter().map(|it| it.read_also()).collect(),
        }
    }

    /// They are written.
    pub fn end(mut self) {
        let folios = std::mem::take(&mut self.folios);
        end_writeback(&self.core, &folios, true);
    }

    /// Records that they could not be written: they are dirty again, and each error cursor reports it.
    pub fn fail(self, error: E) {
        self.core.errors.lock().record(error);
    }
}

impl<E: Clone + Send + Sync + 'static> Drop for DirtyPages<E> {
    fn drop(&mut self) {
        if !self.folios.is_empty() {
            end_writeback(&self.core, &self.folios, false);
        }
    }
}

impl<E: 'static> LockedPages<'_, E> {
    /// Where the pages lie that were written to, and their bytes up to the end of a file of `size`
    /// bytes, in ascending order. To be asked once.
    #[must_use]
    pub fn pieces(&self, size: u64) -> Vec<(u64, &[u8])> {
        let folios = self.folios.iter().zip(&self.contents);
        folios
            .filter_map(|(folio, content)| dirty_piece(folio, content, size))
            .collect()
    }
}

impl<E: Clone + Send + Sync + 'static> fmt::Debug for DirtyPages<E> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = out.debug_struct("DirtyPages");
        debug.field("folios", &self.folios.len());
        debug.finish_non_exhaustive()
    }
}

impl<E: 'static> fmt::Debug for LockedPages<'_, E> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = out.debug_struct("LockedPages");
        debug.field("folios", &self.folios.len());
        debug.finish_non_exhaustive()
    }
}
