//! Aims that belong together, and stand in one table.

/// A group of aims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::report) enum Group {
    /// Mounts over the device, as every user gets them, compared with the limit of that and with bindfs.
    Stock,
    /// Mounts, compared with fuse2fs.
    Fuse2fs,
    /// Mounts, compared with bindfs.
    Bindfs,
    /// The library, compared with the kernel.
    Library,
    /// Programs that do a whole job.
    Jobs,
    /// What stays as something grows.
    Growth,
    /// Checking images, compared with the checkers of each format.
    Checks,
    /// Applications on mounts, compared with the kernel.
    Applications,
}

impl Group {
    pub(in crate::report) const ALL: [Self; 8] = [
        Self::Stock,
        Self::Fuse2fs,
        Self::Bindfs,
        Self::Library,
        Self::Jobs,
        Self::Growth,
        Self::Checks,
        Self::Applications,
    ];

    pub(in crate::report) const fn title(self) -> &'static str {
        match self {
            Self::Stock => {
                "Mounts over `/dev/fuse`, compared with a null server and bindfs over the same"
            }
            Self::Fuse2fs => "Mounts, compared with fuse2fs",
            Self::Bindfs => "Mounts, compared with bindfs on tmpfs",
            Self::Library => "The library, compared with system calls on the kernel's filesystems",
            Self::Jobs => "Whole jobs of the `platter` command",
            Self::Growth => "As things grow",
            Self::Checks => "Checking images, compared with the checkers of each format",
            Self::Applications => {
                "Applications on mounts over `/dev/fuse`, compared with the kernel"
            }
        }
    }

    /// Whether the aims are of mounts through FUSE, and judged over both transports.
    pub(in crate::report) const fn is_mounted(self) -> bool {
        matches!(self, Self::Fuse2fs | Self::Bindfs)
    }
}
