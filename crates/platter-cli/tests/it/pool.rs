//! Pools: a btrfs or an XFS in `pool.img`, which tools and the kernel make and look at.

use super::mount::Mounted;
use super::*;

/// Mounts an image in a mount namespace that ends with the shell, and runs a script there.
const MOUNTED: &str = r#"
set -e
mount -t tmpfs none /mnt
mkdir /mnt/fs
mount -t btrfs -o loop "$1" /mnt/fs
cd /mnt/fs
sh -e -c "$2"
cd /
umount /mnt/fs
"#;

impl Workshop {
    /// Puts a btrfs into `pool.img`.
    pub(super) fn btrfs(&self, script: &str) {
        let image = self.path("pool.img");
        fs::File::create(&image)
            .unwrap()
            .set_len(160 << 20)
            .unwrap();
        let mut mkfs = Command::new("mkfs.btrfs");
        run_tool(mkfs.args(["-q", "-d", "single"]).arg(&image), "");
        self.in_kernel_mount(script);
    }

    /// Runs a script at the root of a kernel mount of `pool.img`.
    pub(super) fn in_kernel_mount(&self, script: &str) {
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "sh", "-c", MOUNTED, "sh"]);
        run_tool(unshare.arg(self.path("pool.img")).arg(script), "");
    }

    /// Has btrfs-progs check `pool.img`, data and metadata.
    pub(super) fn assert_checked(&self) {
        let mut check = Command::new("btrfs");
        check.args(["check", "--check-data-csum"]);
        run_tool(check.arg(self.path("pool.img")), "");
    }

    /// Mounts `pool.img`, a btrfs, on `mnt`.
    pub(super) fn mount_btrfs(&self, script: &str, options: &str) -> Mounted<'_> {
        self.btrfs(script);
        Mounted::with(self, options, "pool.img")
    }

    /// The paths of `subvolume list`, with what follows them.
    pub(super) fn subvolumes_of(&self, operand: &str) -> Vec<String> {
        let list = self.read(&["subvolume", "list", operand]);
        let lines = list.lines();
        lines
            .map(|line| line.split_once(" path ").unwrap().1.to_owned())
            .collect()
    }

    /// Unmounts, and has btrfs-progs and this program check the image.
    pub(super) fn unmount_and_check(&self, mounted: Mounted<'_>) {
        self.read(&["umount", "mnt"]);
        drop(mounted);
        run_tool(
            Command::new("btrfs")
                .arg("check")
                .arg(self.path("pool.img")),
            "",
        );
        let checked = self.run(&["check", "--data", "pool.img"]);
        assert_eq!(checked.status, 0, "{}", checked.out);
    }

    /// Puts an XFS with files of `mkfs.xfs -p` into `pool.img`, and its log into `pool.log`.
    pub(super) fn xfs(&self) {
        self.make_xfs("pool.log", 64, &["-l", "logdev=pool.log,size=64m"]);
    }

    /// Puts an XFS with files of `mkfs.xfs -p` into `pool.img`, with another device of so many MiB.
    pub(super) fn make_xfs(&self, device: &str, device_mib: u64, options: &[&str]) {
        for (name, mib) in [("pool.img", 96), (device, device_mib)] {
            let file = fs::File::create(self.path(name)).unwrap();
            file.set_len(mib << 20).unwrap();
        }
        let source = self.path("source/etc/passwd");
        let source = source.display();
        let text = format!(
            "/stub\n0 0\nd--755 0 0\netc d--755 0 0\npasswd ---644 7 9 {source}\nmtab l--777 0 0 passwd\n$\n$\n"
        );
        fs::write(self.path("protofile"), text).unwrap();
        let mut mkfs = Command::new("mkfs.xfs");
        mkfs.current_dir(self.0.path()).args(options);
        mkfs.args(["-q", "-f", "--unsupported", "-L", "data"]);
        mkfs.args(["-m", &format!("uuid={UUID}"), "-p"]);
        run_tool(mkfs.args(["protofile", "pool.img"]), "");
        // Users may read it.
        for name in ["pool.img", device] {
            let mode = fs::Permissions::from_mode(0o644);
            fs::set_permissions(self.path(name), mode).unwrap();
        }
        fs::set_permissions(self.0.path(), fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Makes `etc/passwd` a realtime file, whose blocks have the same numbers on the realtime device, with other contents.
    pub(super) fn move_to_realtime(&self, device: &str) -> String {
        let contents = fs::read_to_string(self.path("source/etc/passwd")).unwrap();
        let contents = contents.to_uppercase();
        let print = ["-c", "path /etc/passwd", "-c", "bmap"];
        let printed = self.xfs_db(&print);
        let (_, start) = printed.split_once(" startblock ").expect("an extent");
        let start: u64 = start.split(' ').next().unwrap().parse().unwrap();
        let file = fs::File::options().write(true).open(self.path(device));
        let file = file.unwrap();
        file.write_all_at(contents.as_bytes(), start * 4096)
            .unwrap();
        self.xfs_db(&["-c", "path /etc/passwd", "-c", "write core.realtime 1"]);
        contents
    }

    /// Says in the superblock that the filesystem must be repaired.
    pub(super) fn set_needs_repair(&self) {
        const NEEDS_REPAIR: u32 = 0x10;
        let print = ["-c", "sb 0", "-c", "print features_incompat"];
        let printed = self.xfs_db(&print);
        let (_, bits) = printed.trim().split_once(" = 0x").expect("the features");
        let bits = u32::from_str_radix(bits, 16).unwrap() | NEEDS_REPAIR;
        let write = format!("write features_incompat {bits:#x}");
        self.xfs_db(&["-c", "sb 0", "-c", &write]);
    }

    /// What `xfs_db` prints of `pool.img`, or does to it.
    fn xfs_db(&self, commands: &[&str]) -> String {
        let mut xfs_db = Command::new("xfs_db");
        xfs_db.arg("-x").args(commands).arg(self.path("pool.img"));
        let output = xfs_db.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Makes `1.img`, `2.img` and so on, of 256 MiB each, a btrfs with a file.
    pub(super) fn pool(&self, count: usize, profile: &str) {
        let names: Vec<_> = (1..=count).map(|number| format!("{number}.img")).collect();
        for name in &names {
            self.sparse(name, 256);
        }
        let mut arguments = vec!["mkfs", "btrfs", "1.img", "--data", profile];
        arguments.extend(["--metadata", profile, "--from", "source", "--seed", "1"]);
        for name in &names[1..] {
            arguments.extend(["--device", name]);
        }
        self.read(&arguments);
    }

    pub(super) fn sparse(&self, name: &str, mib: u64) {
        let file = fs::File::create(self.path(name)).unwrap();
        file.set_len(mib << 20).unwrap();
    }

    /// The lines on standard error of a command that fails, after `platter: `.
    pub(super) fn complaint(&self, arguments: &[&str]) -> String {
        let ran = self.run(arguments);
        assert_ne!(ran.status, 0, "{arguments:?}");
        let line = ran.err.strip_prefix("platter: ");
        let line = line.unwrap_or_else(|| panic!("{arguments:?}: {}", ran.err));
        line.trim_end().to_owned()
    }
}
