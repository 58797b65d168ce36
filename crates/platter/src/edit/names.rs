//! Names that come, go and move, as mkdir(1), rm(1), mv(1) and ln(1) have it.

use platter_vfs::{Condition, Context, CreateKind, FileKind, RenameMode};

use super::{Edit, Existing, Missing, ModeChange, Removal, Target};
use crate::volume::place::{Place, last_name};
use crate::{Cause, Result};

/// The permission bits that new directories ask for.
const DIRECTORY_PERMISSIONS: u32 = 0o777;

impl Edit {
    /// Makes a directory, with permission bits changed by `mode`, whatever the umask.
    ///
    /// # Errors
    /// `Exists` for what is there.
    pub fn make_dir(&self, path: &[u8], mode: Option<&ModeChange>) -> Result<()> {
        let place = self.place(path, Condition::Exists)?;
        let kind = CreateKind::Directory;
        let made = place.create(&self.context, kind, DIRECTORY_PERMISSIONS);
        let inode = self.named(path, made)?;
        match mode {
            Some(mode) => self.change_mode_of(path, &*inode, mode),
            None => Ok(()),
        }
    }

    /// Makes a directory and those above it, as far as they are not there yet. Those above can be
    /// written and searched by their owner.
    pub fn make_dirs(&self, path: &[u8], mode: Option<&ModeChange>) -> Result<()> {
        let above = Context {
            umask: self.context.umask & !0o300,
            ..self.context.clone()
        };
        let mut end = 0;
        loop {
            let rest = &path[end..];
            let skipped = rest.iter().take_while(|&&byte| byte == b'/').count();
            let name = rest[skipped..].iter().take_while(|&&byte| byte != b'/');
            let name_len = name.count();
            if name_len == 0 {
                return Ok(());
            }
            end += skipped + name_len;
            let is_last = path[end..].iter().all(|&byte| byte == b'/');
            let part = &path[..end];
            match self.volume.walker().resolve(part) {
                Ok(found) => {
                    let kind = self.named(part, found.attr())?.kind;
                    let wrong = if is_last {
                        Condition::Exists
                    } else {
                        Condition::NotDirectory
                    };
                    if kind != FileKind::Directory {
                        return Err(self.error(part, platter_vfs::Error::from(wrong)));
                    }
                }
                Err(platter_vfs::Error::Condition(Condition::NotFound)) if is_last => {
                    self.make_dir(path, mode)?;
                }
                Err(platter_vfs::Error::Condition(Condition::NotFound)) => {
                    let place = self.place(part, Condition::Exists)?;
                    let kind = CreateKind::Directory;
                    let made = place.create(&above, kind, DIRECTORY_PERMISSIONS);
                    self.named(part, made)?;
                }
                Err(error) => return Err(self.error(part, error)),
            }
        }
    }

    /// Removes a name of a file, or a directory if `removal` is for it.
    ///
    /// # Errors
    /// `InvalidArgument` for the root, `.` and `..`.
    pub fn remove(&self, path: &[u8], removal: Removal, missing: Missing) -> Result<()> {
        let passed_over = missing == Missing::PassOver;
        let place = match self.place(path, Condition::InvalidArgument) {
            Err(error) if passed_over && is_missing(&error) => return Ok(()),
            place => place?,
        };
        let Some(victim) = self.named(path, place.find())? else {
            if passed_over {
                return Ok(());
            }
            return Err(self.error(path, platter_vfs::Error::from(Condition::NotFound)));
        };
        let attr = self.named(path, victim.attr())?;
        match (attr.kind, removal) {
            (FileKind::Directory, Removal::File) => {
                Err(self.error(path, platter_vfs::Error::from(Condition::IsDirectory)))
            }
            (FileKind::Directory, Removal::Tree) => self.volume.remove_tree(place, victim),
            _ => self.named(path, place.remove(&*victim)),
        }
    }

    /// Moves a file to another name, or into a directory under its own.
    ///
    /// # Errors
    /// What rename(2) answers; [`Cause::SameFile`] where nothing would move.
    pub fn rename(
        &self,
        path: &[u8],
        target: &[u8],
        meaning: Target,
        existing: Existing,
    ) -> Result<()> {
        let source = self.place(path, Condition::Busy)?;
        let found = self.named(path, source.find())?;
        let missing = || self.error(path, platter_vfs::Error::from(Condition::NotFound));
        let moved = found.ok_or_else(missing)?;
        self.named(path, source.check_may_remove(&*moved))?;
        let goal = self.goal(&source.name, target, meaning, Condition::Busy)?;
        let kind = self.named(path, moved.attr())?.kind;
        let wrong =
            |condition: Condition| self.error(&goal.path, platter_vfs::Error::from(condition));
        if goal.is_directory && kind != FileKind::Directory {
            return Err(wrong(Condition::NotDirectory));
        }
        if let Some(victim) = self.named(&goal.path, goal.find())? {
            match existing {
                Existing::Refuse => return Err(wrong(Condition::Exists)),
                Existing::Keep => return Ok(()),
                Existing::Replace => {}
            }
            if victim.id() == moved.id() {
                // rename(2) would keep both names.
                return Err(self.error(path, Cause::SameFile));
            }
            self.named(&goal.path, goal.check_may_remove(&*victim))?;
        }
        self.named(&goal.path, goal.check_may_create())?;
        let renamed = source.dir.rename(
            &Context::root(),
            source.name.as_name(),
            goal.dir.id(),
            goal.name.as_name(),
            RenameMode::Replace,
        );
        self.named(&goal.path, renamed)
    }

    /// Makes a hard link to a file. A symbolic link at the end of `path` is not followed.
    pub fn link(
        &self,
        path: &[u8],
        target: &[u8],
        meaning: Target,
        existing: Existing,
    ) -> Result<()> {
        let file = self.volume.open_no_follow(path)?;
        if file.attr()?.kind == FileKind::Directory {
            return Err(self.error(path, platter_vfs::Error::from(Condition::NotPermitted)));
        }
        let name = last_name(path).unwrap_or_default();
        let goal = self.goal(name, target, meaning, Condition::Exists)?;
        if let Some(there) = self.named(&goal.path, goal.find())?
            && there.id() == file.inode().id()
            && existing == Existing::Replace
        {
            return Err(self.error(&goal.path, Cause::SameFile));
        }
        if self.make_way(&goal, existing)? {
            let linked = goal.link(&self.context, &**file.inode());
            self.named(&goal.path, linked)?;
        }
        Ok(())
    }

    /// Makes a symbolic link with this text.
    pub fn symlink(
        &self,
        text: &[u8],
        target: &[u8],
        meaning: Target,
        existing: Existing,
    ) -> Result<()> {
        let name = last_name(text).unwrap_or_default();
        let goal = self.goal(name, target, meaning, Condition::Exists)?;
        if self.make_way(&goal, existing)? {
            let kind = CreateKind::Symlink(text.to_vec());
            let made = goal.create(&self.context, kind, DIRECTORY_PERMISSIONS);
            self.named(&goal.path, made)?;
        }
        Ok(())
    }

    /// Whether something may be made in a place: what was there is gone then.
    fn make_way(&self, goal: &Place, existing: Existing) -> Result<bool> {
        let Some(there) = self.named(&goal.path, goal.find())? else {
            return Ok(true);
        };
        let wrong =
            |condition: Condition| self.error(&goal.path, platter_vfs::Error::from(condition));
        match existing {
            Existing::Keep => Ok(false),
            Existing::Refuse => Err(wrong(Condition::Exists)),
            Existing::Replace
                if self.named(&goal.path, there.attr())?.kind == FileKind::Directory =>
            {
                Err(wrong(Condition::IsDirectory))
            }
            Existing::Replace => {
                self.named(&goal.path, goal.remove(&*there))?;
                Ok(true)
            }
        }
    }

    /// The place that `target` means for something called `name`.
    pub(super) fn goal(
        &self,
        name: &[u8],
        target: &[u8],
        meaning: Target,
        otherwise: Condition,
    ) -> Result<Place> {
        if meaning == Target::Into
            && let Some(dir) = self.directory(target)
        {
            let inside = Place::inside(dir, target, name);
            return self.named(target, inside);
        }
        self.place(target, otherwise)
    }
}

/// Whether a path leads to nothing, or through something that is no directory.
fn is_missing(error: &crate::Error) -> bool {
    let Cause::Filesystem(platter_vfs::Error::Condition(condition)) = &error.cause else {
        return false;
    };
    matches!(condition, Condition::NotFound | Condition::NotDirectory)
}
