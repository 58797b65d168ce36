//! The raw runs that are kept, and the commands that measure what is missing.

use std::collections::BTreeMap;

use anyhow::Result;
use testkit::fs_type::FsType;

use super::aims::{self, Aim, Evidence, Jobs, Peers};
use crate::measure::{Machine, Quiet};
use crate::mechanisms::{self, Mechanism};
use crate::peers::record_name;
use crate::record::{Extent, Record};
use crate::{peers, programs, reading, scale};

/// The commands that measure.
pub(super) const MECHANISMS: &str = "cargo xtask bench mechanisms";
pub(super) const PEERS: &str = "cargo xtask bench peers";
pub(super) const SCALE: &str = "cargo xtask bench scale";
pub(super) const READING: &str = "cargo xtask bench reading";

/// What is kept of the mechanisms.
pub(super) type Mechanisms = BTreeMap<Mechanism, Record<mechanisms::Measured>>;

/// All raw runs that are kept.
#[derive(Debug, Default)]
pub(super) struct Raw {
    pub(super) peers: Peers,
    pub(super) jobs: Jobs,
    pub(super) scale: Option<Record<Vec<scale::Grown>>>,
    pub(super) mechanisms: Mechanisms,
    pub(super) reading: Option<Record<reading::Measured>>,
}

impl Raw {
    pub(super) fn load(extent: Extent) -> Result<Self> {
        let mut peers = Peers::new();
        for format in FsType::ALL {
            if let Some(record) = Record::load(record_name(format), extent)? {
                peers.insert(format, record);
            }
        }
        let mut jobs = Jobs::new();
        for format in FsType::ALL {
            if let Some(record) = Record::load(programs::record_name(format), extent)? {
                jobs.insert(format, record);
            }
        }
        let mut mechanisms = Mechanisms::new();
        for mechanism in Mechanism::ALL {
            if let Some(record) = Record::load(&mechanism.record_name(), extent)? {
                mechanisms.insert(mechanism, record);
            }
        }
        Ok(Self {
            peers,
            jobs,
            scale: Record::load("scale", extent)?,
            mechanisms,
            reading: Record::load("reading", extent)?,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.peers.is_empty()
            && self.jobs.is_empty()
            && self.scale.is_none()
            && self.mechanisms.is_empty()
            && self.reading.is_none()
    }

    /// The machines of all runs.
    pub(super) fn machines(&self) -> Vec<&Machine> {
        self.looks()
            .into_iter()
            .map(|(machine, _)| machine)
            .collect()
    }

    /// Whether no machine had anything else to do.
    pub(super) fn is_quiet(&self) -> bool {
        let mut looks = self.looks().into_iter().flat_map(|(_, quiet)| quiet);
        looks.all(Quiet::is_quiet)
    }

    fn looks(&self) -> Vec<(&Machine, [Quiet; 2])> {
        fn look<T>(record: &Record<T>) -> (&Machine, [Quiet; 2]) {
            (&record.machine, record.quiet)
        }
        let mut looks: Vec<_> = self.peers.values().map(look).collect();
        looks.extend(self.jobs.values().map(look));
        looks.extend(self.scale.as_ref().map(look));
        looks.extend(self.mechanisms.values().map(look));
        looks.extend(self.reading.as_ref().map(look));
        looks
    }

    pub(super) fn aims(&self, extent: Extent) -> Vec<Aim> {
        aims::all(Evidence {
            extent,
            peers: &self.peers,
            jobs: &self.jobs,
            scale: self.scale.as_ref().map(|record| &*record.result),
        })
    }

    /// What compares platter with its peers on ext4, of which the aims are.
    pub(super) fn ext4(&self) -> Option<&Record<peers::Measured>> {
        self.peers.get(&FsType::Ext4)
    }

    /// The raw runs without which aims cannot be judged, as far as they are missing.
    pub(super) fn missing(&self) -> impl Iterator<Item = &'static str> {
        let parts = [
            ("peers", self.ext4().is_some()),
            ("jobs", self.jobs.contains_key(&FsType::Ext4)),
            ("scale", self.scale.is_some()),
            (
                "mechanisms-m3",
                self.mechanisms.contains_key(&Mechanism::M3),
            ),
        ];
        parts
            .into_iter()
            .filter(|(_, is_there)| !is_there)
            .map(|(name, _)| name)
    }
}

/// The command that measures jobs on a format.
pub(super) fn jobs_command(format: FsType) -> String {
    format!("{} --only jobs", peers_command(format))
}

/// The command that compares platter with its peers on a format.
pub(super) fn peers_command(format: FsType) -> String {
    match format {
        FsType::Ext4 => PEERS.to_owned(),
        FsType::Btrfs | FsType::Xfs => format!("{PEERS} --format {}", format.kernel_name()),
    }
}
