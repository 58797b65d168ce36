//! Owners as chown(1) takes them: `USER`, `USER:GROUP`, `USER:` for the user's own group, `:GROUP`;
//! numbers, or names of the image.

use crate::{Accounts, Cause};

/// An owner, a group, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Owner {
    /// The user id.
    pub uid: Option<u32>,
    /// The group id.
    pub gid: Option<u32>,
}

impl Owner {
    /// Reads an owner; `accounts` says what names mean.
    ///
    /// # Errors
    /// [`Cause::NoSuchUser`] and [`Cause::NoSuchGroup`].
    pub fn parse(text: &[u8], accounts: &Accounts) -> Result<Self, Cause> {
        let colon = text.iter().position(|&byte| byte == b':');
        let (user, group) = match colon {
            Some(colon) => (&text[..colon], Some(&text[colon + 1..])),
            None => (text, None),
        };
        let no_user = || Cause::NoSuchUser(user.to_vec());
        let account = str::from_utf8(user)
            .ok()
            .and_then(|user| accounts.account(user));
        let uid = match (user, account) {
            (b"", _) if colon.is_some() => None,
            (_, Some((uid, _))) => Some(uid),
            (user, None) => Some(number(user).ok_or_else(no_user)?),
        };
        let gid = match group {
            None => None,
            // Without a group's name, the user's own; with neither, nothing changes.
            Some(b"") if user.is_empty() => None,
            Some(b"") => Some(account.and_then(|(_, gid)| gid).ok_or_else(no_user)?),
            Some(group) => {
                let named = str::from_utf8(group)
                    .ok()
                    .and_then(|name| accounts.group_id(name));
                let no_group = || Cause::NoSuchGroup(group.to_vec());
                Some(named.or_else(|| number(group)).ok_or_else(no_group)?)
            }
        };
        Ok(Self { uid, gid })
    }
}

/// An id. The largest number means no id to Linux.
fn number(text: &[u8]) -> Option<u32> {
    let digits = text.iter().all(u8::is_ascii_digit);
    let number = str::from_utf8(text).ok().filter(|_| digits)?.parse().ok()?;
    (number != u32::MAX).then_some(number)
}
