//! A realtime section of version 5, which the kernel here does not know: `mkfs.xfs` makes it, `xfs_db` makes files
//! realtime ones, and `xfs_repair` writes their bitmap and summary.

use std::fmt::Write;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use platter::block::Access;
use platter::{DeviceRole, Image, MountOptions};
use testkit::findings::Findings;
use testkit::oracle::{Verdict, xfs};
use testkit::prng::Prng;

use super::open;
use super::printed::{Printed, ask, find, read};

const REALTIME_BYTES: u64 = 64 << 20;
/// Files that become realtime ones, with their length.
const FILES: [(&str, usize); 3] = [("first", 70_000), ("second", 300_000), ("third", 4096)];

struct Section {
    dir: tempfile::TempDir,
    image: PathBuf,
    realtime: PathBuf,
}

impl Section {
    /// An image with an ordinary file and realtime ones.
    fn make(size_mib: u64, options: &[&str]) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let (image, realtime) = (dir.path().join("image"), dir.path().join("realtime"));
        let mut text = String::from("/stub\n0 0\nd--755 0 0\n");
        for (name, len) in FILES.iter().chain(&[("ordinary", 50_000)]) {
            let path = dir.path().join(name);
            fs::write(&path, Prng::named(name.as_bytes()).bytes(*len))?;
            writeln!(text, "{name} ---640 7 9 {}", path.display())?;
        }
        text.push_str("$\n");
        let protofile = dir.path().join("protofile");
        fs::write(&protofile, text)?;
        File::create(&realtime)?.set_len(REALTIME_BYTES)?;
        let protofile = protofile.display().to_string();
        let device = format!("rtdev={}", realtime.display());
        let options = [&["-p", &protofile, "-r", &device], options].concat();
        xfs::make(&image, size_mib << 10, &options)?;
        let section = Self {
            dir,
            image,
            realtime,
        };
        section.convert()?;
        Ok(section)
    }

    /// Makes files realtime ones: their blocks have the same numbers on the realtime device.
    fn convert(&self) -> Result<()> {
        let printed = Printed::of(&self.image, None)?;
        let names = printed.list(printed.root)?;
        let device = File::options().write(true).open(&self.realtime)?;
        let mut commands = Vec::new();
        for (name, _) in FILES {
            let number = names[name];
            let inode = printed.inodes(&[number])?.remove(0);
            let contents = printed.contents(&inode)?;
            let [extent] = inode.extents[..] else {
                anyhow::bail!("{inode:?}");
            };
            device.write_all_at(&contents, extent.start * printed.block_bytes)?;
            // Nothing of it may be found on the data device.
            let data = File::options().write(true).open(&self.image)?;
            data.write_all_at(&vec![0xee; contents.len()], printed.byte_of(&extent))?;
            commands.push(format!("inode {number}"));
            commands.push("write core.realtime 1".to_owned());
        }
        for number in self.internal()? {
            commands.push(format!("inode {number}"));
            commands.push("write core.mode 0".to_owned());
        }
        ask(&self.image, &commands)?;
        // It frees the blocks on the data device, and makes bitmap and summary anew.
        xfs::repair_realtime(&self.image, &self.realtime)
    }

    /// The inodes of bitmap and summary.
    fn internal(&self) -> Result<[u64; 2]> {
        let root = Printed::of(&self.image, None)?.root;
        Ok([root + 1, root + 2])
    }

    fn options(&self) -> MountOptions {
        MountOptions::new().device(DeviceRole::Realtime, &self.realtime)
    }

    fn errors(&self) -> Result<Vec<String>> {
        let image = Image::open(&self.image, Access::Read)?;
        let mut findings = Findings::default();
        self.options().check(&image, &mut findings)?;
        Ok(findings.errors())
    }

    fn assert_clean(&self) -> Result<()> {
        let theirs = xfs::check_realtime(&self.image, &self.realtime)?;
        ensure!(theirs == Verdict::Clean, "{theirs:?}");
        let ours = self.errors()?;
        ensure!(ours.is_empty(), "{ours:?}");
        Ok(())
    }
}

#[test]
fn xfs_realtime_section_of_version_5_is_read() -> Result<()> {
    for (size_mib, options) in [
        (96, &["-m", "reflink=0,rmapbt=0"][..]),
        (
            256,
            &[
                "-m",
                "reflink=0,rmapbt=0",
                "-b",
                "size=16384",
                "-i",
                "nrext64=1",
            ],
        ),
    ] {
        let section = Section::make(size_mib, options)?;
        section.assert_clean()?;
        let image = Image::open(&section.image, Access::Read)?;
        let volume = section.options().mount(&image)?;
        let filesystem = &**volume.filesystem();
        for (name, _) in FILES {
            let expected = fs::read(section.dir.path().join(name))?;
            ensure!(read(&*find(filesystem, &[name])?)? == expected, "{name}");
        }
        let printed = Printed::of(&section.image, Some(&section.realtime))?;
        let compared = printed.compare(filesystem)?;
        ensure!(compared.inodes == 2 + FILES.len(), "{compared:?}");
        let without = open(&section.image, None)?;
        let file = find(&**without.filesystem(), &["first"])?;
        ensure!(read(&*file).is_err(), "the device was not named");
    }
    Ok(())
}

/// The 32-bit word of a file of the section, inverted.
fn invert(image: &Path, printed: &Printed<'_>, number: u64, word: u64) -> Result<()> {
    let inode = printed.inodes(&[number])?.remove(0);
    let extent = inode.extents.first().context("an extent")?;
    let at = printed.byte_of(extent) + word * 4;
    let file = File::options().read(true).write(true).open(image)?;
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, at)?;
    Ok(file.write_all_at(&bytes.map(|byte| !byte), at)?)
}

#[test]
fn xfs_check_of_a_realtime_section_agrees() -> Result<()> {
    let section = Section::make(96, &["-m", "reflink=0,rmapbt=0"])?;
    section.assert_clean()?;
    let pristine = fs::read(&section.image)?;
    let printed = Printed::of(&section.image, Some(&section.realtime))?;
    let [bitmap, summary] = section.internal()?;
    let first = printed.list(printed.root)?["first"];
    let change = |commands: &[&str]| {
        let commands: Vec<String> = commands.iter().map(|&command| command.to_owned()).collect();
        ask(&section.image, &commands).map(drop)
    };
    let of_first = format!("inode {first}");
    let of_bitmap = format!("inode {bitmap}");
    let of_summary = format!("inode {summary}");
    let broken: [(&str, &dyn Fn() -> Result<()>); 8] = [
        ("a word of the bitmap", &|| {
            invert(&section.image, &printed, bitmap, 200)
        }),
        ("the first word of the bitmap", &|| {
            invert(&section.image, &printed, bitmap, 0)
        }),
        ("a word of the summary", &|| {
            invert(&section.image, &printed, summary, 5)
        }),
        ("the count of free extents", &|| {
            change(&["sb 0", "write frextents 7"])
        }),
        ("an extent outside", &|| {
            change(&[&of_first, "write u3.bmx[0].startblock 16380"])
        }),
        ("an extent that others use", &|| {
            change(&[&of_first, "write u3.bmx[0].startblock 48"])
        }),
        ("the size of the bitmap", &|| {
            change(&[&of_bitmap, "write core.size 8192"])
        }),
        ("the size of the summary", &|| {
            change(&[&of_summary, "write core.size 4096000"])
        }),
    ];
    for (what, corrupt) in broken {
        corrupt()?;
        let theirs = xfs::check_realtime(&section.image, &section.realtime)?;
        let ours = section.errors()?;
        ensure!(
            matches!(theirs, Verdict::NotClean(_)) && !ours.is_empty(),
            "{what}: {theirs:?} and {ours:?}"
        );
        fs::write(&section.image, &pristine)?;
    }
    section.assert_clean()
}
