//! `renameat2(2)` in the memory filesystem.

use super::change::NewNode;
use super::node::{LINKS_MAX, Nodes, Number};
use crate::attr::DeviceNumber;
use crate::{Condition, Context, CreateKind, Name, RenameMode, Result, Timestamp};

/// A name in a directory.
type Place<'a> = (Number, Name<'a>);

impl Nodes {
    /// Moves a name; what lost its last name with it is returned.
    pub(super) fn rename(
        &mut self,
        context: &Context,
        from: Place<'_>,
        to: Place<'_>,
        mode: RenameMode,
        now: Timestamp,
    ) -> Result<Option<Number>> {
        if from.1.is_dot_or_dotdot() || to.1.is_dot_or_dotdot() {
            return Err(Condition::Busy.into());
        }
        let moved = self.named(from.0, from.1)?;
        let there = self.get(to.0).directory()?.get(to.1);
        match (mode, there) {
            (RenameMode::NoReplace, Some(_)) => return Err(Condition::Exists.into()),
            (RenameMode::Exchange, None) => return Err(Condition::NotFound.into()),
            _ => {}
        }
        let below_itself = self.is_within(to.0, moved);
        if let (RenameMode::Exchange, Some(there)) = (mode, there) {
            if below_itself || self.is_within(from.0, there) {
                return Err(Condition::InvalidArgument.into());
            }
            // Names of one file are not exchanged, as they are not moved over each other.
            if there == moved {
                return Ok(None);
            }
            self.exchange((from, moved), (to, there), now)?;
            return Ok(None);
        }
        if below_itself {
            return Err(Condition::InvalidArgument.into());
        }
        if there == Some(moved) {
            return Ok(None);
        }
        self.must_be_replaceable(from.0, moved, there)?;
        self.must_accept(from.0, moved, to.0, there)?;
        self.move_name(context, (from, moved), (to, there), mode, now)
    }

    /// What a moved file would replace has to be of its sort, and empty.
    fn must_be_replaceable(
        &self,
        from: Number,
        moved: Number,
        there: Option<Number>,
    ) -> Result<()> {
        let Some(there) = there else { return Ok(()) };
        if self.is_within(from, there) {
            return Err(Condition::NotEmpty.into());
        }
        let there = self.get(there);
        match (self.get(moved).is_directory(), there.is_directory()) {
            (true, false) => Err(Condition::NotDirectory.into()),
            (false, true) => Err(Condition::IsDirectory.into()),
            (true, true) if !there.directory()?.is_empty() => Err(Condition::NotEmpty.into()),
            (true, true) | (false, false) => Ok(()),
        }
    }

    /// The new directory is still there, and one that gets a subdirectory has room for its link.
    fn must_accept(
        &self,
        from: Number,
        moved: Number,
        to: Number,
        there: Option<Number>,
    ) -> Result<()> {
        let comes = self.get(moved).is_directory() && from != to;
        if comes && there.is_none() && self.get(to).links >= LINKS_MAX {
            return Err(Condition::TooManyLinks.into());
        }
        if self.get(to).links == 0 {
            return Err(Condition::NotFound.into());
        }
        Ok(())
    }

    fn move_name(
        &mut self,
        context: &Context,
        (from, moved): (Place<'_>, Number),
        (to, there): (Place<'_>, Option<Number>),
        mode: RenameMode,
        now: Timestamp,
    ) -> Result<Option<Number>> {
        if mode == RenameMode::Whiteout {
            let number = self.reserve_number();
            let new = NewNode {
                number,
                kind: CreateKind::CharDevice(DeviceNumber::default()),
                permissions: 0,
            };
            self.create(from.0, None, new, context, now)?;
            let node = self.get_mut(number);
            (node.links, node.may_get_first_name) = (1, false);
            self.touch_names(from.0, now).replace(from.1, number);
        } else {
            self.remove_name(from.0, from.1, now);
        }
        let mut gone = None;
        if let Some(there) = there {
            self.touch_names(to.0, now).replace(to.1, moved);
            if self.get(there).is_directory() {
                self.get_mut(there).links -= 1;
                self.get_mut(to.0).links -= 1;
            }
            gone = self.drop_link(there, now);
        } else {
            self.touch_names(to.0, now).insert(to.1, moved);
        }
        self.get_mut(moved).changed = now;
        self.set_parent(moved, from.0, to.0);
        Ok(gone)
    }

    fn exchange(
        &mut self,
        (from, moved): (Place<'_>, Number),
        (to, there): (Place<'_>, Number),
        now: Timestamp,
    ) -> Result<()> {
        let is_directory = |number| self.get(number).is_directory();
        let gains = |number: Number, comes, goes| {
            is_directory(comes) && !is_directory(goes) && self.get(number).links >= LINKS_MAX
        };
        if from.0 != to.0 && (gains(to.0, moved, there) || gains(from.0, there, moved)) {
            return Err(Condition::TooManyLinks.into());
        }
        self.touch_names(from.0, now).replace(from.1, there);
        self.touch_names(to.0, now).replace(to.1, moved);
        self.set_parent(moved, from.0, to.0);
        self.set_parent(there, to.0, from.0);
        self.get_mut(moved).changed = now;
        self.get_mut(there).changed = now;
        Ok(())
    }

    /// Makes `..` of a directory that moved right, and the links that come with it.
    fn set_parent(&mut self, moved: Number, from: Number, to: Number) {
        if from == to {
            return;
        }
        let Ok(directory) = self.get_mut(moved).directory_mut() else {
            return;
        };
        directory.parent = to;
        self.get_mut(from).links -= 1;
        self.get_mut(to).links += 1;
    }

    /// Whether `dir` is `top` or lies below it.
    fn is_within(&self, dir: Number, top: Number) -> bool {
        let mut dir = dir;
        loop {
            if dir == top {
                return true;
            }
            match self.get(dir).directory() {
                Ok(directory) if directory.parent != dir => dir = directory.parent,
                _ => return false,
            }
        }
    }
}
