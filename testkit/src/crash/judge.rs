//! One state that a cut left: what everyone finds in it.

use std::sync::Arc;

use anyhow::Result;
use platter_block::sim::CrashState;
use platter_block::{Access, BlockDevice};

use super::image::ImageFile;
use super::{Recorded, Scene};
use crate::workload::{Durability, Tree};

/// One state of a cut.
pub(super) struct Judge<'a> {
    pub(super) scene: &'a Scene,
    pub(super) recorded: &'a Recorded,
    pub(super) state: &'a CrashState<'a>,
    pub(super) seed: u64,
}

/// What was found in it.
#[derive(Debug, Default)]
pub(super) struct Judged {
    /// What is wrong with it, whatever was promised.
    pub(super) complaints: Vec<String>,
    /// What it holds, by who says so.
    trees: Vec<(&'static str, Tree)>,
}

impl Judged {
    fn complain(&mut self, who: &str, lines: impl IntoIterator<Item = String>) {
        let lines = lines.into_iter().map(|line| format!("{who}: {line}"));
        self.complaints.extend(lines);
    }

    /// Notes what somebody read, or why it could not.
    fn note(&mut self, who: &'static str, tree: Result<Tree>) {
        match tree {
            Ok(tree) => self.trees.push((who, tree)),
            Err(error) => self.complain(who, [format!("{error:#}")]),
        }
    }
}

impl Judge<'_> {
    /// Where what was found is not what the history allows.
    pub(super) fn compare(&self, judged: &Judged) -> Vec<String> {
        let (history, cut) = (&self.recorded.history, self.state.position);
        let mut found = Vec::new();
        for (who, tree) in &judged.trees {
            let lines = history.judge(cut, tree, self.scene.durability());
            found.extend(lines.into_iter().map(|line| format!("{who}: {line}")));
        }
        found
    }

    /// Has the state mounted and checked.
    pub(super) fn judge(&self, by_e2fsck: bool, by_kernel: bool) -> Result<Judged> {
        let mut judged = Judged::default();
        let device = self.state.device()?;
        match self.scene.durability() {
            Durability::Journaled => {
                let ours: Arc<dyn BlockDevice> = Arc::new(device.fork());
                self.judge_ours(&ours, &mut judged);
                if by_e2fsck {
                    let found = ImageFile::of(&*ours)?.complaints()?;
                    judged.complain("e2fsck after us", found);
                    let image = ImageFile::of(&device)?;
                    judged.complain("e2fsck's replay", image.recover()?);
                    judged.note("e2fsck's replay", self.read(&image));
                }
                if by_kernel {
                    judge_kernel(&ImageFile::of(&device)?, &mut judged)?;
                }
            }
            Durability::Synced => {
                // Without a journal somebody has to put the halves together first.
                let image = ImageFile::of(&device)?;
                if let Err(error) = image.mend() {
                    judged.complain("mended", [error.to_string()]);
                    return Ok(judged);
                }
                if by_kernel {
                    let mended = image.device(Access::Read)?;
                    judge_kernel(&ImageFile::of(&*mended)?, &mut judged)?;
                }
                self.judge_ours(&image.device(Access::Write)?, &mut judged);
                if by_e2fsck {
                    judged.complain("e2fsck after us", image.complaints()?);
                }
            }
        }
        Ok(judged)
    }

    /// Mounts for writing, which replays, reads everything, unmounts and checks.
    fn judge_ours(&self, device: &Arc<dyn BlockDevice>, judged: &mut Judged) {
        judged.note("our mount", self.mount(device));
        match self.scene.check(Arc::clone(device)) {
            Ok(found) => judged.complain("our check", found),
            Err(error) => judged.complain("our check", [error.to_string()]),
        }
    }

    fn mount(&self, device: &Arc<dyn BlockDevice>) -> Result<Tree> {
        let fs = self.scene.mount(Arc::clone(device), self.seed)?;
        let tree = Tree::read(&*fs, Some(self.recorded.history.now()))?;
        fs.unmount()?;
        Ok(tree)
    }

    fn read(&self, image: &ImageFile) -> Result<Tree> {
        let fs = self.scene.mount_to_read(image.device(Access::Read)?)?;
        Tree::read(&fs, Some(self.recorded.history.now()))
    }
}

fn judge_kernel(image: &ImageFile, judged: &mut Judged) -> Result<()> {
    judged.note("the kernel's mount", image.kernel_view());
    judged.complain("e2fsck after the kernel", image.complaints()?);
    Ok(())
}
