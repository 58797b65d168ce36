//! The devices of a btrfs.

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_btrfs::PoolRequest;
use platter_btrfs::ondisk::DeviceId;
use platter_vfs::{CheckSink, Result};

use super::MountRequest;
use super::btrfs::{BtrfsDriver, devices_of, options_of};
use super::pool::{Balance, Moved, Moving, Pool, Scrubbed};

impl Pool for BtrfsDriver {
    fn scrub(
        &self,
        request: MountRequest,
        repairs: bool,
        sink: &mut dyn CheckSink,
    ) -> Result<Scrubbed> {
        pool_request(&request)?.scrub(repairs, sink)
    }

    fn balance(
        &self,
        request: MountRequest,
        balance: &Balance,
        moving: Moving<'_>,
    ) -> Result<Moved> {
        pool_request(&request)?.balance(balance, moving)
    }

    fn add_device(&self, request: MountRequest, device: &Arc<dyn BlockDevice>) -> Result<u64> {
        pool_request(&request)?.add_device(device)
    }

    fn remove_device(
        &self,
        request: MountRequest,
        device: u64,
        moving: Moving<'_>,
    ) -> Result<Moved> {
        pool_request(&request)?.remove_device(DeviceId(device), moving)
    }

    fn replace_device(
        &self,
        request: MountRequest,
        device: u64,
        target: &Arc<dyn BlockDevice>,
        sink: &mut dyn CheckSink,
    ) -> Result<Scrubbed> {
        let request = pool_request(&request)?;
        request.replace_device(DeviceId(device), target, sink)
    }

    fn resize_device(
        &self,
        request: MountRequest,
        device: u64,
        len_bytes: u64,
        moving: Moving<'_>,
    ) -> Result<Moved> {
        let request = pool_request(&request)?;
        request.resize_device(DeviceId(device), len_bytes, moving)
    }
}

fn pool_request(request: &MountRequest) -> Result<PoolRequest> {
    Ok(PoolRequest {
        devices: devices_of(request)?,
        options: options_of(request),
        budget: Arc::clone(&request.budget),
        clock: Arc::clone(&request.clock),
    })
}
