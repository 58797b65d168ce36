//! Where chunks are placed, if not wherever there is space.

use crate::ondisk::DeviceId;
use crate::ondisk::chunk_item::{BlockGroupFlags, Profile};

/// Where chunks are placed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Placing {
    /// The profiles of types that are being converted.
    pub profiles: Vec<(BlockGroupFlags, Profile)>,
    /// Devices that get none.
    pub without: Vec<DeviceId>,
    /// The most bytes of a chunk, if that is less than otherwise.
    pub bytes_max: Option<u64>,
    /// Devices that are used up to some place.
    pub limits: Vec<(DeviceId, u64)>,
}

impl Placing {
    /// The profile that chunks of a type get, if they are being converted.
    #[must_use]
    pub fn profile_of(&self, kind: BlockGroupFlags) -> Option<Profile> {
        let found = self.profiles.iter().find(|(of, _)| kind.intersects(*of));
        found.map(|(_, profile)| *profile)
    }
}
