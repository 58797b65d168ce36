//! The words of `-o`: some are about the mount, some about the image.

use std::path::PathBuf;
use std::time::Duration;

use platter::open::check_option;
use platter::{MountOption, OnError, OptionError, WriteOptions};
use platter_fuse::MountOptions;

use crate::args::{ImageOptions, parse_size};
use crate::output::error::{misuse, usage};

/// Options of `-o`, taken apart.
#[derive(Debug, Default)]
pub(super) struct MountWords {
    /// Those about the mount.
    pub(super) fuse: MountOptions,
    /// `rw` was asked for in so many words.
    pub(super) insists_on_writing: bool,
    /// Those that only some filesystems have.
    pub(super) driver: Vec<MountOption>,
    image: ImageWords,
    writing: WriteOptions,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct ImageWords {
    offset: Option<u64>,
    norecovery: bool,
    devices: Vec<PathBuf>,
    journal: Option<PathBuf>,
    rtdev: Option<PathBuf>,
    superblock: Option<u64>,
    cache: Option<u64>,
}

impl MountWords {
    /// Takes all lists that were given, the later after the earlier.
    pub(super) fn parse(lists: &[String]) -> anyhow::Result<Self> {
        let mut words = Self::default();
        for list in lists {
            let others = words.fuse.parse(list).map_err(usage)?;
            for word in others {
                words.take(word)?;
            }
            if let Some(word) = list.split(',').rfind(|word| ["ro", "rw"].contains(word)) {
                words.insists_on_writing = word == "rw";
            }
        }
        Ok(words)
    }

    fn take(&mut self, word: &str) -> anyhow::Result<()> {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let size = || match parse_size(value) {
            Ok(size) => Ok(size),
            Err(reason) => misuse!("mount option {name}=: {reason}"),
        };
        match name {
            "offset" => self.image.offset = Some(size()?),
            "norecovery" | "noload" => self.image.norecovery = true,
            "device" => self.image.devices.push(value.into()),
            "journal_path" | "logdev" => self.image.journal = Some(value.into()),
            "rtdev" => self.image.rtdev = Some(value.into()),
            "sb" => self.image.superblock = Some(size()?),
            "cachesize" => self.image.cache = Some(size()?),
            "workers" => {
                let Ok(workers) = value.parse() else {
                    misuse!("mount option workers= takes a number");
                };
                self.fuse.threads = Some(workers);
            }
            "errors" => self.writing.on_error = Some(on_error(value)?),
            "commit" => self.writing.commit_interval = Some(interval(value)?),
            "sync" | "dirsync" => misuse!("mount option {word} is not supported"),
            _ => {
                let option = MountOption::parse(word);
                match check_option(&option) {
                    Err(error @ OptionError::Invalid(_)) => misuse!("mount option {name}= {error}"),
                    Err(error) => misuse!("mount option {word} {error}"),
                    Ok(()) => self.driver.push(option),
                }
            }
        }
        Ok(())
    }

    /// How the filesystem is kept up while it may be written.
    pub(super) fn write_options(&self) -> WriteOptions {
        // Every user with access is the superuser, or may do all that the superuser may.
        let is_privileged = rustix::process::geteuid().is_root() || self.fuse.no_permission_checks;
        WriteOptions {
            uses_reserve: is_privileged && !self.fuse.allow_other,
            ..self.writing
        }
    }

    /// The options of the command line, with what the words say besides.
    pub(super) fn image_options(&self, given: &ImageOptions) -> ImageOptions {
        let image = &self.image;
        ImageOptions {
            offset: image.offset.or(given.offset),
            norecovery: image.norecovery || given.norecovery,
            devices: [&*given.devices, &*image.devices].concat(),
            journal: image.journal.clone().or_else(|| given.journal.clone()),
            rtdev: image.rtdev.clone().or_else(|| given.rtdev.clone()),
            superblock: image.superblock.or(given.superblock),
            cache: image.cache.unwrap_or(given.cache),
            ..given.clone()
        }
    }
}

fn on_error(value: &str) -> anyhow::Result<OnError> {
    match value {
        "continue" => Ok(OnError::Continue),
        "remount-ro" => Ok(OnError::ReadOnly),
        "panic" => misuse!("mount option errors=panic is not supported"),
        _ => misuse!("mount option errors= takes continue or remount-ro"),
    }
}

/// Seconds; zero means the usual number of them.
fn interval(value: &str) -> anyhow::Result<Duration> {
    let Ok(seconds) = value.parse::<u32>() else {
        misuse!("mount option commit= takes a number of seconds");
    };
    let usual = WriteOptions::default().commit_interval;
    Ok(match seconds {
        0 => usual.unwrap_or_default(),
        seconds => Duration::from_secs(seconds.into()),
    })
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
        let words = parse(&[
            "ro,allow_other,offset=1M,device=a,device=b",
            "noload,sb=32768,workers=3,logdev=c",
        ])
        .unwrap();
        assert!(words.fuse.read_only && words.fuse.allow_other);
        assert_eq!(words.fuse.threads, Some(3));
        let expected = ImageWords {
            offset: Some(1 << 20),
            norecovery: true,
            superblock: Some(32768),
            devices: vec!["a".into(), "b".into()],
            journal: Some("c".into()),
            ..ImageWords::default()
        };
        assert_eq!(words.image, expected);
    }

    #[test]
    fn unknown_words_are_refused() {
        for list in [
            "nonsense",
            "offset=x",
            "workers=many",
            "uid=me",
            "commit=x",
            "data=none",
            "noperm,allow_other",
            "writeback=maybe",
        ] {
            let error = parse(&[list]).unwrap_err();
            assert!(crate::output::error::is_usage(&error), "{list}: {error}");
        }
        for list in ["sync", "errors=panic", "nodelalloc"] {
            let error = parse(&[list]).unwrap_err().to_string();
            assert_eq!(error, format!("mount option {list} is not supported"));
        }
    }

    #[test]
    fn words_about_writing_are_taken() {
        let words = parse(&[
            "errors=remount-ro,data=ordered,acl",
            "commit=30,rw,no_mbcache",
        ])
        .unwrap();
        assert!(words.insists_on_writing && !words.fuse.read_only);
        let expected = WriteOptions {
            on_error: Some(OnError::ReadOnly),
            commit_interval: Some(Duration::from_secs(30)),
            uses_reserve: false,
        };
        assert_eq!(words.writing, expected);
        let driver = ["data=ordered", "acl", "no_mbcache"].map(MountOption::parse);
        assert_eq!(words.driver, driver);
        let words = parse(&["rw", "ro", "commit=0"]).unwrap();
        assert!(!words.insists_on_writing && words.fuse.read_only);
        assert_eq!(words.writing, WriteOptions::default());
    }

    #[test]
    fn reserve_is_used_only_without_allow_other() {
        let uses_reserve = |list: &str| parse(&[list]).unwrap().write_options().uses_reserve;
        assert!(uses_reserve("noperm"));
        assert!(!uses_reserve("allow_other"));
        assert_eq!(uses_reserve("rw"), rustix::process::geteuid().is_root());
    }
}
