//! The images of one filesystem.

use crate::Image;
use crate::devices::{DeviceRole, Devices, NamedDevice};

/// The images that one filesystem lies on, each with its role. The first names the filesystem.
///
/// ```no_run
/// use platter::{DeviceRole, Image, ImageSet, MountOptions};
/// use platter::block::Access;
///
/// let images = ["a.img", "b.img"].map(|path| Image::open(path.as_ref(), Access::Read));
/// let [first, second] = images;
/// let set = ImageSet::new(first?).with(DeviceRole::Data, second?);
/// let volume = MountOptions::new().mount(&set)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct ImageSet {
    first: Image,
    others: Vec<(DeviceRole, Image)>,
}

impl ImageSet {
    /// A filesystem on one image.
    #[must_use]
    pub fn new(image: Image) -> Self {
        Self {
            first: image,
            others: Vec::new(),
        }
    }

    /// Adds a further image of the same filesystem.
    #[must_use]
    pub fn with(mut self, role: DeviceRole, image: Image) -> Self {
        self.others.push((role, image));
        self
    }

    /// The image that names the filesystem.
    #[must_use]
    pub fn first(&self) -> &Image {
        &self.first
    }

    /// Iterates over the images with their roles, in order.
    pub fn iter(&self) -> impl Iterator<Item = (DeviceRole, &Image)> {
        let others = self.others.iter().map(|(role, image)| (*role, image));
        std::iter::once((DeviceRole::Data, &self.first)).chain(others)
    }

    /// The number of images.
    #[must_use]
    pub fn len(&self) -> usize {
        1 + self.others.len()
    }

    /// Never: there is a first one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    pub(crate) fn devices(&self) -> Devices {
        let others = self.others.iter();
        let others = others.map(|(role, image)| NamedDevice::new(*role, image));
        Devices::new(&self.first, others.collect())
    }
}

impl From<Image> for ImageSet {
    fn from(image: Image) -> Self {
        Self::new(image)
    }
}

impl From<&Image> for ImageSet {
    fn from(image: &Image) -> Self {
        Self::new(image.clone())
    }
}

impl From<&Self> for ImageSet {
    fn from(set: &Self) -> Self {
        set.clone()
    }
}
