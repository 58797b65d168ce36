//! Extents of files in lists, with the flags of `FIEMAP`. See `linux/fiemap.h`.

use std::ops::ControlFlow;

use platter_vfs::{Extent, Place};
use rustix::io::Errno;
use zerocopy::FromZeros;

use super::structures::{EXTENTS_MAX, FileExtent, FileExtents};

/// `FIEMAP_EXTENT_UNKNOWN`: where it lies is not known.
const UNKNOWN: u32 = 0x2;
/// `FIEMAP_EXTENT_DELALLOC`.
const DELAYED: u32 = 0x4;
/// `FIEMAP_EXTENT_ENCODED`.
const ENCODED: u32 = 0x8;
/// `FIEMAP_EXTENT_DATA_INLINE`.
const INLINE: u32 = 0x200;
/// `FIEMAP_EXTENT_UNWRITTEN`.
const UNWRITTEN: u32 = 0x800;
/// `FIEMAP_EXTENT_SHARED`.
const SHARED: u32 = 0x2000;

impl FileExtents {
    /// A request for the extents from a byte on.
    pub(crate) fn request(start: u64) -> Self {
        Self {
            start,
            ..Self::new_zeroed()
        }
    }

    /// Adds an extent; breaks when no more fit.
    pub(crate) fn push(&mut self, extent: &Extent) -> ControlFlow<()> {
        let count = usize::try_from(self.count).unwrap_or(EXTENTS_MAX);
        let Some(place) = self.extents.get_mut(count) else {
            return ControlFlow::Break(());
        };
        *place = FileExtent::encode(extent);
        self.count += 1;
        if count + 1 == EXTENTS_MAX {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Whether there may be more extents than these.
    pub(crate) fn is_full(&self) -> bool {
        self.count == EXTENTS_MAX as u64
    }

    /// The extents, in their order from the byte on that was asked for.
    ///
    /// # Errors
    /// `EPROTO` where they are not.
    pub(crate) fn decode(&self) -> Result<Vec<Extent>, Errno> {
        let count = usize::try_from(self.count).map_err(|_| Errno::PROTO)?;
        let listed = self.extents.get(..count).ok_or(Errno::PROTO)?;
        let mut at = self.start;
        let mut extents = Vec::with_capacity(count);
        for listed in listed {
            let extent = listed.decode()?;
            if extent.file.start < at || extent.file.is_empty() {
                return Err(Errno::PROTO);
            }
            at = extent.file.end;
            extents.push(extent);
        }
        Ok(extents)
    }
}

impl FileExtent {
    fn encode(extent: &Extent) -> Self {
        let flag = |flag: u32, is_set: bool| if is_set { flag } else { 0 };
        Self {
            start: extent.file.start,
            end: extent.file.end,
            physical: extent.physical.map_or(0, |place| place.offset),
            member: extent.physical.map_or(0, |place| place.member.into()),
            flags: flag(UNKNOWN, extent.physical.is_none())
                | flag(DELAYED, extent.delayed)
                | flag(ENCODED, extent.encoded)
                | flag(INLINE, extent.inline)
                | flag(UNWRITTEN, extent.unwritten)
                | flag(SHARED, extent.shared),
        }
    }

    /// The extent; where it lies on the devices is not passed on.
    fn decode(&self) -> Result<Extent, Errno> {
        let has = |flag: u32| self.flags & flag != 0;
        let physical = Place {
            member: u16::try_from(self.member).map_err(|_| Errno::PROTO)?,
            offset: self.physical,
        };
        Ok(Extent {
            physical: (!has(UNKNOWN)).then_some(physical),
            encoded: has(ENCODED),
            inline: has(INLINE),
            unwritten: has(UNWRITTEN),
            delayed: has(DELAYED),
            shared: has(SHARED),
            ..Extent::of(self.start..self.end)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_of_a_list_are_what_they_were() {
        let extents: Vec<Extent> = (0..EXTENTS_MAX as u64)
            .map(|nth| Extent {
                physical: (nth % 3 > 0).then_some(Place {
                    member: u16::MAX,
                    offset: u64::MAX - nth,
                }),
                encoded: nth & 1 > 0,
                inline: nth & 2 > 0,
                unwritten: nth & 4 > 0,
                delayed: nth & 8 > 0,
                shared: nth & 16 > 0,
                ..Extent::of(4096 * nth + 5..4096 * (nth + 1))
            })
            .collect();
        for start in [0, 5] {
            let mut list = FileExtents::request(start);
            assert_eq!(list.decode(), Ok(Vec::new()));
            for (nth, extent) in extents.iter().enumerate() {
                assert!(!list.is_full());
                let is_last = nth + 1 == EXTENTS_MAX;
                assert_eq!(list.push(extent).is_break(), is_last);
            }
            assert!(list.is_full());
            assert!(list.push(&extents[0]).is_break());
            assert_eq!(list.decode(), Ok(extents.clone()));
        }
    }

    #[test]
    fn list_of_another_form_is_refused() {
        let list = |change: fn(&mut FileExtents)| {
            let mut list = FileExtents::request(4096);
            for start in [4096, 8192] {
                let _: ControlFlow<()> = list.push(&Extent::of(start..start + 4096));
            }
            change(&mut list);
            list.decode().map(|extents| extents.len())
        };
        assert_eq!(list(|_| ()), Ok(2));
        let changes: [fn(&mut FileExtents); 5] = [
            |list| list.count = 257,
            |list| list.start = 4097,
            |list| list.extents[0].end = 8193,
            |list| list.extents[1].end = 8192,
            |list| list.extents[1].member = 1 << 16,
        ];
        for change in changes {
            assert_eq!(list(change), Err(Errno::PROTO));
        }
    }
}
