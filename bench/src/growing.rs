//! Raw runs that are measured part by part, and kept after each: a run that is killed loses one part, and
//! what fails in one does not keep the others from being measured.

use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;

use crate::record::{Extent, Record, command, dir, look};

pub(crate) struct Growing<T> {
    name: String,
    dir: PathBuf,
    extent: Extent,
    record: Record<T>,
    is_kept: bool,
}

impl<T: Serialize + Default> Growing<T> {
    /// Raw runs that are to be kept under a name.
    pub(crate) fn begin(name: &str, extent: Extent) -> Result<Self> {
        Self::begin_in(dir(extent), name, extent)
    }

    fn begin_in(dir: PathBuf, name: &str, extent: Extent) -> Result<Self> {
        let before = look("before", extent)?;
        let record = Record::of(command(), [before; 2], T::default())?;
        Ok(Self {
            name: name.to_owned(),
            dir,
            extent,
            record: Record {
                is_partial: true,
                ..record
            },
            is_kept: false,
        })
    }

    /// Measures a part, and keeps all that there is now. Of a part that fails, what it has measured before is
    /// kept with the next.
    pub(crate) fn add(&mut self, part: &str, measure: impl FnOnce(&mut T) -> Result<()>) {
        let measured = measure(&mut self.record.result).and_then(|()| self.keep());
        if let Err(error) = measured {
            let failure = format!("{part}: {error:#}");
            println!("  {failure}");
            self.record.failures.push(failure);
        }
    }

    fn keep(&mut self) -> Result<()> {
        let [_, after] = &mut self.record.quiet;
        *after = after.busier(look("after", self.extent)?);
        self.record.keep(&self.name, &self.dir)?;
        self.is_kept = true;
        Ok(())
    }

    /// Marks the runs as whole. Where no part was measured, those of an earlier run stay. Returns the result and
    /// what failed.
    pub(crate) fn end(mut self) -> Result<(T, Vec<String>)> {
        self.record.is_partial = false;
        if self.is_kept {
            self.record.keep(&self.name, &self.dir)?;
        }
        Ok((self.record.result, self.record.failures))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use anyhow::bail;

    use super::*;

    fn begun(dir: &Path) -> Growing<Vec<u64>> {
        Growing::begin_in(dir.to_owned(), "runs", Extent::Quick).unwrap()
    }

    fn kept(dir: &Path) -> Record<Vec<u64>> {
        let text = std::fs::read_to_string(dir.join("runs.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn each_part_is_kept_before_the_next_is_measured() {
        let dir = tempfile::tempdir().unwrap();
        let mut growing = begun(dir.path());
        for part in [1, 2] {
            growing.add("part", |runs| {
                runs.push(part);
                Ok(())
            });
            let record = kept(dir.path());
            assert_eq!(record.result.len() as u64, part);
            assert!(record.is_partial);
        }
        growing.end().unwrap();
        assert!(!kept(dir.path()).is_partial);
        let names = std::fs::read_dir(dir.path()).unwrap();
        assert_eq!(names.count(), 1);
    }

    #[test]
    fn a_part_that_fails_leaves_out_itself_only() {
        let dir = tempfile::tempdir().unwrap();
        let mut growing = begun(dir.path());
        growing.add("first", |runs| {
            runs.push(1);
            Ok(())
        });
        growing.add("second", |_| bail!("no disk"));
        growing.add("third", |runs| {
            runs.push(3);
            Ok(())
        });
        let (runs, failures) = growing.end().unwrap();
        assert_eq!(runs, [1, 3]);
        assert_eq!(failures, ["second: no disk"]);
        let record = kept(dir.path());
        assert_eq!((record.result, record.failures), (runs, failures));
    }

    #[test]
    fn runs_of_before_stay_where_all_parts_fail() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runs.json");
        std::fs::write(&path, "before").unwrap();
        let mut growing = begun(dir.path());
        growing.add("first", |_| bail!("no disk"));
        let (_, failures) = growing.end().unwrap();
        assert_eq!(failures, ["first: no disk"]);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "before");
    }
}
