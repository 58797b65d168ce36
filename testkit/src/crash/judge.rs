//! One crash state, and what each judge finds in it.

use std::sync::Arc;

use anyhow::Result;
use platter_block::sim::{CrashOptions, Recorder, RecordingDevice};
use platter_block::{Access, BlockDevice};

use super::Recorded;
use super::image::ImageFiles;
use crate::fs_type::FsType;
use crate::subject::{Devices, Scene, overlays, shared};
use crate::workload::{Durability, Session, Tree};

/// What our mount is called.
const OURS: &str = "our mount";
/// States of a recovery that was cut, of those that are possible.
const CUTS_OF_RECOVERY: usize = 8;

/// One state of a cut.
#[derive(Clone, Copy)]
pub(super) struct Judge<'a> {
    pub(super) scene: &'a Scene,
    pub(super) recorded: &'a Recorded,
    /// What is left, which nothing is written to.
    pub(super) devices: &'a Devices,
    /// The position of the cut.
    pub(super) cut: usize,
    pub(super) seed: u64,
}

/// What was found in it.
#[derive(Debug, Default)]
pub(super) struct Judged {
    /// Errors, independent of the durability guarantees.
    pub(super) complaints: Vec<String>,
    /// Whether it had a log of what single files were synced to.
    pub(super) has_file_log: bool,
    /// Whether a file in it was stored compressed.
    pub(super) is_compressed: bool,
    /// Its contents, by the judge that read them.
    trees: Vec<(&'static str, Tree)>,
}

impl Judged {
    fn complain(&mut self, judge_name: &str, lines: impl IntoIterator<Item = String>) {
        let lines = lines
            .into_iter()
            .map(|line| format!("{judge_name}: {line}"));
        self.complaints.extend(lines);
    }

    /// Records what a judge read, or its error.
    fn note(&mut self, judge_name: &'static str, tree: Result<Tree>) {
        match tree {
            Ok(tree) => self.trees.push((judge_name, tree)),
            Err(error) => self.complain(judge_name, [format!("{error:#}")]),
        }
    }
}

impl Judge<'_> {
    /// Where what was found is not what the history allows.
    pub(super) fn compare(&self, judged: &Judged) -> Vec<String> {
        let (history, cut) = (&self.recorded.history, self.cut);
        let mut found = Vec::new();
        for (judge_name, tree) in &judged.trees {
            let lines = history.judge(cut, tree, self.scene.durability());
            found.extend(
                lines
                    .into_iter()
                    .map(|line| format!("{judge_name}: {line}")),
            );
        }
        found
    }

    /// Mounts and checks the state.
    pub(super) fn judge(&self, by_fsck: bool, by_kernel: bool) -> Result<Judged> {
        let mut judged = Judged::default();
        let devices = self.devices;
        match self.scene.durability() {
            Durability::Journaled | Durability::Logged => {
                judged.has_file_log = self.scene.subject.has_file_log(devices)?;
                self.judge_recovered(by_fsck, &mut judged)?;
                if by_fsck {
                    let image = ImageFiles::of(devices)?;
                    judged.complain("fsck's replay", image.recover(self.scene)?);
                    let replayed = self.read(&image);
                    if let Ok(theirs) = &replayed {
                        self.compare_replays(theirs, &mut judged);
                    }
                    judged.note("fsck's replay", replayed);
                }
                if by_kernel {
                    self.judge_kernel(&ImageFiles::of(devices)?, &mut judged)?;
                }
            }
            Durability::Synced => {
                // Without a journal, e2fsck has to repair the filesystem first.
                let image = ImageFiles::of(devices)?;
                if let Err(error) = image.repair(self.scene) {
                    judged.complain("repaired", [error.to_string()]);
                    return Ok(judged);
                }
                if by_kernel {
                    let repaired = image.devices(Access::Read)?;
                    self.judge_kernel(&ImageFiles::of(&repaired)?, &mut judged)?;
                }
                self.judge_ours(&image.devices(Access::Write)?, &mut judged);
                if by_fsck {
                    judged.complain("fsck after us", image.complaints(self.scene)?);
                }
            }
        }
        Ok(judged)
    }

    /// Cuts the power while the state is recovered, and has that recovered again. Returns how many states were judged,
    /// and what is wrong.
    pub(super) fn judge_cut_recovery(&self) -> Result<(usize, Vec<String>)> {
        if self.scene.durability() == Durability::Synced {
            return Ok((0, Vec::new()));
        }
        let recorder = Recorder::new(self.devices.clone());
        let device = |device: &Arc<RecordingDevice>| -> Arc<dyn BlockDevice> { device.clone() };
        let recorded: Devices = recorder.devices().iter().map(device).collect();
        let fs = self.scene.mount(&recorded, self.seed)?;
        let recording = recorder.recording();
        drop(fs);
        let options = CrashOptions {
            seed: self.seed,
            mixes_per_position: 1,
            ..CrashOptions::default()
        };
        let possible = recording.crash_states(options).count();
        let step = possible.div_ceil(CUTS_OF_RECOVERY).max(1);
        let mut count = 0;
        for state in recording.crash_states(options).step_by(step) {
            let state = state?;
            let again = Judge {
                devices: &shared(state.devices()?),
                ..*self
            };
            let mut judged = Judged::default();
            again.judge_recovered(true, &mut judged)?;
            count += 1;
            let mut lines = judged.complaints.clone();
            lines.extend(again.compare(&judged));
            if !lines.is_empty() {
                lines.insert(0, format!("recovery cut at {}:", state.position));
                return Ok((count, lines));
            }
        }
        Ok((count, Vec::new()))
    }

    /// What our recovery makes of it; by the checker of Linux, too, if it is asked.
    fn judge_recovered(&self, by_fsck: bool, judged: &mut Judged) -> Result<()> {
        let ours = overlays(self.devices);
        self.judge_ours(&ours, judged);
        if by_fsck {
            let found = ImageFiles::of(&ours)?.complaints(self.scene)?;
            judged.complain("fsck after us", found);
        }
        Ok(())
    }

    /// Mounts for writing, which replays, reads everything, unmounts and checks.
    fn judge_ours(&self, devices: &Devices, judged: &mut Judged) {
        let read = self.mount(devices, &mut judged.is_compressed);
        judged.note(OURS, read);
        match self.scene.check(devices) {
            Ok(found) => judged.complain("our check", found),
            Err(error) => judged.complain("our check", [error.to_string()]),
        }
    }

    fn mount(&self, devices: &Devices, is_compressed: &mut bool) -> Result<Tree> {
        let fs = self.scene.mount(devices, self.seed)?;
        let tree = Tree::read(&*fs, Some(self.recorded.history.now()))?;
        if self.scene.subject.compresses() {
            let session = Session::new(&*fs);
            for (path, _) in tree.files() {
                *is_compressed |= session.is_compressed(path)?;
            }
        }
        fs.unmount()?;
        Ok(tree)
    }

    fn read(&self, image: &ImageFiles) -> Result<Tree> {
        let fs = self.scene.mount_to_read(&image.devices(Access::Read)?)?;
        Tree::read(&*fs, Some(self.recorded.history.now()))
    }

    fn judge_kernel(&self, image: &ImageFiles, judged: &mut Judged) -> Result<()> {
        let view = image.kernel_view(self.scene);
        if let Ok(theirs) = &view {
            self.compare_replays(theirs, judged);
        }
        judged.note("the kernel's mount", view);
        judged.complain("fsck after the kernel", image.complaints(self.scene)?);
        Ok(())
    }

    /// Where replays may come to different moments, all come to the same one.
    fn compare_replays(&self, theirs: &Tree, judged: &mut Judged) {
        if self.scene.subject.fs_type() != FsType::Ext4 {
            let ours = judged.trees.iter().find(|(name, _)| *name == OURS);
            let lines = ours.map(|(_, ours)| ours.differences(theirs));
            judged.complain(
                "our replay compared with another",
                lines.unwrap_or_default(),
            );
        }
    }
}
