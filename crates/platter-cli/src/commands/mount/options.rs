//! The words of `-o`: some are about the mount, some about the image.

use std::path::PathBuf;

use anyhow::{Context, bail};
use platter_fuse::MountOptions;

use crate::args::{ImageOptions, parse_size};

/// Options of `-o`, taken apart.
#[derive(Debug, Default)]
pub(super) struct MountWords {
    /// Those about the mount.
    pub(super) fuse: MountOptions,
    image: ImageWords,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct ImageWords {
    offset: Option<u64>,
    norecovery: bool,
    journal: Option<PathBuf>,
    superblock: Option<u64>,
    cache: Option<u64>,
}

impl MountWords {
    /// Takes all lists that were given, the later after the earlier.
    pub(super) fn parse(lists: &[String]) -> anyhow::Result<Self> {
        let mut words = Self::default();
        for list in lists {
            for word in words.fuse.parse(list)? {
                words.take(word)?;
            }
        }
        Ok(words)
    }

    fn take(&mut self, word: &str) -> anyhow::Result<()> {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let size = || match parse_size(value) {
            Ok(size) => Ok(size),
            Err(reason) => bail!("mount option {name}=: {reason}"),
        };
        match name {
            "offset" => self.image.offset = Some(size()?),
            "norecovery" | "noload" => self.image.norecovery = true,
            "journal_path" => self.image.journal = Some(value.into()),
            "sb" => self.image.superblock = Some(size()?),
            "cachesize" => self.image.cache = Some(size()?),
            "workers" => {
                let workers = value
                    .parse()
                    .context("mount option workers= takes a number")?;
                self.fuse.threads = Some(workers);
            }
            _ => bail!("mount option {word} is not known"),
        }
        Ok(())
    }

    /// The options of the command line, with what the words say besides.
    pub(super) fn image_options(&self, given: &ImageOptions) -> ImageOptions {
        let image = &self.image;
        ImageOptions {
            offset: image.offset.or(given.offset),
            norecovery: image.norecovery || given.norecovery,
            journal: image.journal.clone().or_else(|| given.journal.clone()),
            superblock: image.superblock.or(given.superblock),
            cache: image.cache.unwrap_or(given.cache),
            ..given.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(lists: &[&str]) -> anyhow::Result<MountWords> {
        let lists: Vec<String> = lists.iter().map(|&list| list.to_owned()).collect();
        MountWords::parse(&lists)
    }

    #[test]
    fn words_reach_the_mount_and_the_image() {
        let words = parse(&["ro,allow_other,offset=1M", "noload,sb=32768,workers=3"]).unwrap();
        assert!(words.fuse.read_only && words.fuse.allow_other);
        assert_eq!(words.fuse.threads, Some(3));
        let expected = ImageWords {
            offset: Some(1 << 20),
            norecovery: true,
            superblock: Some(32768),
            ..ImageWords::default()
        };
        assert_eq!(words.image, expected);
    }

    #[test]
    fn words_nobody_knows_are_refused() {
        for list in ["nonsense", "offset=x", "workers=many", "uid=me"] {
            assert!(parse(&[list]).is_err(), "{list}");
        }
    }
}
