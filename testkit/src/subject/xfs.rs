//! XFS with xfsprogs.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use platter_block::BlockDevice;
use platter_vfs::{CheckSink, Filesystem};
use platter_xfs::{MountOptions, Xfs};

use super::{Mode, MountRequest, Scene, Subject};
use crate::edits::Maker;
use crate::fs_type::FsType;
use crate::oracle::xfs;
use crate::workload::{Abilities, Durability};

/// What contents are moved by: a multiple of every block here.
const SHIFT_BYTES: u64 = 4096;

const DEFAULT: &[&str] = &["-d", "agcount=2"];
const RMAP: &[&str] = &["-d", "agcount=2", "-m", "rmapbt=1"];
const SMALL_BLOCKS: &[&str] = &["-d", "agcount=2", "-b", "size=1024", "-m", "rmapbt=1"];
const PLAIN: &[&str] = &[
    "-d",
    "agcount=2",
    "-m",
    "finobt=0,reflink=0,bigtime=0",
    "-i",
    "sparse=0",
];
const STRIPE: &[&str] = &["-d", "agcount=2", "-l", "su=32k", "-i", "nrext64=1"];
const LARGE_DIRECTORIES: &[&str] = &["-d", "agcount=2", "-n", "size=16384", "-m", "rmapbt=1"];

/// All scenes of XFS.
pub(super) const SCENES: &[Scene] = &[
    scene_of("xfs", DEFAULT),
    scene_of("xfs_rmap", RMAP),
    scene_of("xfs_1k", SMALL_BLOCKS),
    scene_of("xfs_plain", PLAIN),
    scene_of("xfs_stripe", STRIPE),
    scene_of("xfs_dirs", LARGE_DIRECTORIES),
];

const fn scene_of(name: &'static str, options: &'static [&'static str]) -> Scene {
    Scene {
        name,
        mode: Mode::Xfs,
        subject: &XfsSubject,
        options,
        members: 1,
        size_kib: 32 << 10,
    }
}

/// The XFS driver, compared with xfsprogs and the kernel's XFS.
#[derive(Debug, Clone, Copy)]
pub struct XfsSubject;

impl Subject for XfsSubject {
    fn fs_type(&self) -> FsType {
        FsType::Xfs
    }

    fn durability(&self, _: &Scene) -> Durability {
        Durability::Journaled
    }

    fn abilities(&self, scene: &Scene) -> Abilities {
        Abilities {
            fallocate: true,
            copies: true,
            clones: !scene.options.concat().contains("reflink=0"),
            shift_bytes: SHIFT_BYTES,
            ..Abilities::default()
        }
    }

    fn make(&self, scene: &Scene, images: &[&Path], size_kib: u64) -> Result<()> {
        xfs::make(single(images)?, size_kib, scene.options)
    }

    fn mount(
        &self,
        devices: &[Arc<dyn BlockDevice>],
        request: MountRequest,
    ) -> platter_vfs::Result<Arc<dyn Filesystem>> {
        let device = Arc::clone(&devices[0]);
        let options = MountOptions::default();
        if request.read_only {
            return Ok(Arc::new(Xfs::mount(device, &options, request.budget)?));
        }
        let (budget, clock) = (request.budget, request.clock);
        Ok(Arc::new(Xfs::mount_writable(
            device, &options, budget, clock,
        )?))
    }

    fn check(
        &self,
        devices: &[Arc<dyn BlockDevice>],
        request: MountRequest,
        sink: &mut dyn CheckSink,
    ) -> platter_vfs::Result<()> {
        let options = MountOptions::default();
        platter_xfs::check::check(&devices[0], &options, &request.budget, sink)?;
        Ok(())
    }

    fn repair(&self, images: &[&Path]) -> Result<()> {
        xfs::repair(single(images)?, true)
    }

    fn edit_maker(&self, scene: &Scene) -> Option<Maker> {
        Some(Maker::Xfs(scene.options))
    }
}

fn single<'i>(images: &[&'i Path]) -> Result<&'i Path> {
    ensure!(images.len() == 1, "an XFS here has one device");
    images.first().copied().context("no image")
}
