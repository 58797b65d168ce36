//! Counts of the requests that reach the devices of a filesystem.

use std::sync::Arc;

use platter_block::{CountingDevice, Counts};

use crate::devices::Devices;

/// The counters below a filesystem, one for each device.
#[derive(Debug, Clone)]
pub(crate) struct Counting(Arc<[Arc<CountingDevice>]>);

impl Counting {
    /// Counts the requests to `devices`.
    pub(crate) fn below(devices: &mut Devices) -> Self {
        let mut counting = Vec::new();
        *devices = devices.map(|device| {
            let counted = Arc::new(CountingDevice::new(Arc::clone(&device.device)));
            counting.push(Arc::clone(&counted));
            counted
        });
        Self(counting.into())
    }

    /// The requests so far, of all devices together.
    pub(crate) fn counts(&self) -> Counts {
        self.0.iter().map(|device| device.counts()).sum()
    }
}
