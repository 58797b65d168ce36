//! The raw runs that are kept, and the commands that measure what is missing.

use std::collections::BTreeMap;

use anyhow::Result;
use testkit::fs_type::FsType;

use super::aims::{self, Aim, Evidence, Jobs, Peers};
use crate::measure::{Machine, Quiet};
use crate::mechanisms::{self, Mechanism};
use crate::peers::record_name;
use crate::record::{Extent, Record};
use crate::{applications, checks, peers, programs, reading, scale};

/// The commands that measure.
pub(super) const MECHANISMS: &str = "cargo xtask bench mechanisms";
pub(super) const PEERS: &str = "cargo xtask bench peers";
pub(super) const SCALE: &str = "cargo xtask bench scale";
pub(super) const READING: &str = "cargo xtask bench reading";
pub(super) const CHECKS: &str = "cargo xtask bench checks";
pub(super) const APPLICATIONS: &str = "cargo xtask bench applications";

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
    pub(super) checks: Option<Record<checks::Measured>>,
    pub(super) applications: Option<Record<applications::Measured>>,
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
            checks: Record::load("checks", extent)?,
            applications: Record::load("applications", extent)?,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.peers.is_empty()
            && self.jobs.is_empty()
            && self.scale.is_none()
            && self.mechanisms.is_empty()
            && self.reading.is_none()
            && self.checks.is_none()
            && self.applications.is_none()
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
        looks.extend(self.checks.as_ref().map(look));
        looks.extend(self.applications.as_ref().map(look));
        looks
    }

    pub(super) fn aims(&self, extent: Extent) -> Vec<Aim> {
        aims::all(Evidence {
            extent,
            peers: &self.peers,
            jobs: &self.jobs,
            scale: self.scale.as_ref().map(|record| &*record.result),
            checks: self.checks.as_ref().map(|record| &record.result),
            applications: self.applications.as_ref().map(|record| &record.result),
        })
    }

    /// What compares platter with its peers on ext4, of which the aims are.
    pub(super) fn ext4(&self) -> Option<&Record<peers::Measured>> {
        self.peers.get(&FsType::Ext4)
    }

    /// What the pages need and no run has measured, with the command that does.
    pub(super) fn missing(&self) -> Vec<String> {
        let mut parts = Vec::new();
        for format in FsType::ALL {
            let (peers, jobs) = (self.peers.get(&format), self.jobs.get(&format));
            parts.push((
                record_name(format).to_owned(),
                peers.is_some(),
                peers_command(format),
            ));
            let name = programs::record_name(format).to_owned();
            parts.push((name, jobs.is_some(), jobs_command(format)));
        }
        for mechanism in Mechanism::ALL {
            let command = format!("{MECHANISMS} --only {}", mechanism.word());
            let is_there = self.mechanisms.contains_key(&mechanism);
            parts.push((mechanism.record_name(), is_there, command));
        }
        let others = [
            ("scale", self.scale.is_some(), SCALE),
            ("reading", self.reading.is_some(), READING),
            ("checks", self.checks.is_some(), CHECKS),
            ("applications", self.applications.is_some(), APPLICATIONS),
        ];
        parts.extend(
            others.map(|(name, is_there, command)| (name.to_owned(), is_there, command.to_owned())),
        );
        let missing = parts.into_iter().filter(|(_, is_there, _)| !is_there);
        missing
            .map(|(name, _, command)| format!("{name}: {command}"))
            .collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_the_pages_need_is_missing_at_first() {
        let names = |raw: &Raw| -> Vec<String> {
            let missing = raw.missing().into_iter();
            let names = missing.map(|text| text.split(':').next().unwrap().to_owned());
            names.collect()
        };
        let all = [
            "peers",
            "jobs",
            "peers-btrfs",
            "jobs-btrfs",
            "peers-xfs",
            "jobs-xfs",
            "mechanisms-m0",
            "mechanisms-m1",
            "mechanisms-m2",
            "mechanisms-m3",
            "mechanisms-m4",
            "scale",
            "reading",
            "checks",
            "applications",
        ];
        assert_eq!(names(&Raw::default()), all);
        let kept = Raw::load(Extent::Full).unwrap();
        let dir = crate::record::dir(Extent::Full);
        let is_missing = |name: &&str| !dir.join(format!("{name}.json")).exists();
        let missing: Vec<&str> = all.into_iter().filter(is_missing).collect();
        assert_eq!(names(&kept), missing);
    }
}
