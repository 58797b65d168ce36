//! Ioctls by their numbers.

/// An ioctl that is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    GetFlags,
    SetFlags,
    /// `FS_IOC_FSGETXATTR`.
    GetXflags,
    /// `FS_IOC_FSSETXATTR`.
    SetXflags,
    GetGeneration,
    GetLabel,
    SetLabel,
    /// `FITRIM`.
    Trim,
    Shutdown,
    /// Everything done so far becomes durable.
    Sync,
    /// As [`Sync`](Self::Sync); returns a transaction to wait for.
    StartSync,
    /// Waits for a transaction.
    WaitSync,
    FsInfo,
    /// What the filesystem says of itself, and what it counted.
    Report,
    /// A file shares what is equal in another one.
    Dedupe,
    /// What backs a file, as `FIEMAP` lists it.
    Extents,
    /// Extents of a part of a file are written anew, in one step.
    DefragmentStep,
    /// Extents of all of a file are written anew.
    Defrag,
    /// The same, a range of a file.
    DefragRange,
    /// Another size of the whole filesystem.
    Resize,
    /// A send stream, to a descriptor of the caller.
    SendToFile,
    Send(SendCommand),
    Devices(DevicesCommand),
    Subvolume(SubvolumeCommand),
}

/// An ioctl about a send stream, which is made in a thread of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendCommand {
    /// Begins one, of a subvolume.
    Start,
    /// The next piece, as far as there is any by now.
    Read,
    /// Ends it early.
    End,
}

/// An ioctl about a command on the devices of the filesystem, which runs in a thread of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DevicesCommand {
    Start,
    /// What became of it so far.
    Status,
    /// Has it end as soon as it can.
    Cancel,
}

/// An ioctl about subvolumes. Those with a second version have flags there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SubvolumeCommand {
    Create,
    CreateV2,
    Snapshot,
    SnapshotV2,
    Delete,
    DeleteV2,
    GetFlags,
    SetFlags,
    SetDefault,
    /// The subvolume of a file.
    Lookup,
    Info,
    /// Records what was received into it.
    SetReceived,
    /// Lists subvolumes one by one.
    Next,
}

/// By their numbers; some have one more, by which the kernel asks on behalf of a 32-bit program. What Linux has no
/// ioctl for is in a group of its own, `0xf1`.
const COMMANDS: [(u32, Command); 47] = [
    (0x8008_6601, Command::GetFlags),      // FS_IOC_GETFLAGS
    (0x8004_6601, Command::GetFlags),      // FS_IOC32_GETFLAGS
    (0x4008_6602, Command::SetFlags),      // FS_IOC_SETFLAGS
    (0x4004_6602, Command::SetFlags),      // FS_IOC32_SETFLAGS
    (0x801c_581f, Command::GetXflags),     // FS_IOC_FSGETXATTR
    (0x401c_5820, Command::SetXflags),     // FS_IOC_FSSETXATTR
    (0x8008_7601, Command::GetGeneration), // FS_IOC_GETVERSION
    (0x8004_7601, Command::GetGeneration), // FS_IOC32_GETVERSION
    (0x8008_6603, Command::GetGeneration), // EXT3_IOC_GETVERSION
    (0x8004_6603, Command::GetGeneration), // EXT3_IOC32_GETVERSION
    (0x8100_9431, Command::GetLabel),      // FS_IOC_GETFSLABEL
    (0x4100_9432, Command::SetLabel),      // FS_IOC_SETFSLABEL
    (0xc018_5879, Command::Trim),          // FITRIM
    (0x8004_587d, Command::Shutdown),      // FS_IOC_SHUTDOWN, XFS_IOC_GOINGDOWN
    (0x0000_9408, Command::Sync),          // BTRFS_IOC_SYNC
    (0x8008_9418, Command::StartSync),     // BTRFS_IOC_START_SYNC
    (0x4008_9416, Command::WaitSync),      // BTRFS_IOC_WAIT_SYNC
    (0x8400_941f, Command::FsInfo),        // BTRFS_IOC_FS_INFO
    (0x5000_9402, Command::Defrag),        // BTRFS_IOC_DEFRAG
    (0x4030_9410, Command::DefragRange),   // BTRFS_IOC_DEFRAG_RANGE
    (0x5000_9403, Command::Resize),        // BTRFS_IOC_RESIZE
    (0x4010_586e, Command::Resize),        // XFS_IOC_FSGROWFSDATA
    (0x4008_6610, Command::Resize),        // of the ext family
    (0x4048_9426, Command::SendToFile),    // BTRFS_IOC_SEND
    (0x5000_940e, Command::Subvolume(SubvolumeCommand::Create)), // BTRFS_IOC_SUBVOL_CREATE
    (0x5000_9418, Command::Subvolume(SubvolumeCommand::CreateV2)), // BTRFS_IOC_SUBVOL_CREATE_V2
    (0x5000_9401, Command::Subvolume(SubvolumeCommand::Snapshot)), // BTRFS_IOC_SNAP_CREATE
    (
        0x5000_9417,
        Command::Subvolume(SubvolumeCommand::SnapshotV2),
    ), // BTRFS_IOC_SNAP_CREATE_V2
    (0x5000_940f, Command::Subvolume(SubvolumeCommand::Delete)), // BTRFS_IOC_SNAP_DESTROY
    (0x5000_943f, Command::Subvolume(SubvolumeCommand::DeleteV2)), // BTRFS_IOC_SNAP_DESTROY_V2
    (0x8008_9419, Command::Subvolume(SubvolumeCommand::GetFlags)), // BTRFS_IOC_SUBVOL_GETFLAGS
    (0x4008_941a, Command::Subvolume(SubvolumeCommand::SetFlags)), // BTRFS_IOC_SUBVOL_SETFLAGS
    (
        0x4008_9413,
        Command::Subvolume(SubvolumeCommand::SetDefault),
    ), // BTRFS_IOC_DEFAULT_SUBVOL
    (0xd000_9412, Command::Subvolume(SubvolumeCommand::Lookup)), // BTRFS_IOC_INO_LOOKUP
    (0x81f8_943c, Command::Subvolume(SubvolumeCommand::Info)), // BTRFS_IOC_GET_SUBVOL_INFO
    (
        0xc0c8_9425,
        Command::Subvolume(SubvolumeCommand::SetReceived),
    ), // BTRFS_IOC_SET_RECEIVED_SUBVOL
    (0xd200_f101, Command::Subvolume(SubvolumeCommand::Next)),
    (0xd020_f102, Command::Devices(DevicesCommand::Start)),
    (0xd4f0_f103, Command::Devices(DevicesCommand::Status)),
    (0x0000_f104, Command::Devices(DevicesCommand::Cancel)),
    (0xe000_f105, Command::Report),
    (0xc030_f106, Command::Dedupe),
    (0xe010_f107, Command::Extents),
    (0xc040_f108, Command::DefragmentStep),
    (0xe028_f109, Command::Send(SendCommand::Start)),
    (0xfff8_f10a, Command::Send(SendCommand::Read)),
    (0x4008_f10b, Command::Send(SendCommand::End)),
];

/// Whether an ioctl changes flags of an inode.
pub(crate) fn sets_flags(number: u32) -> bool {
    let command = Command::decode(number);
    matches!(command, Some(Command::SetFlags | Command::SetXflags))
}

impl Command {
    pub(crate) fn decode(number: u32) -> Option<Self> {
        let mut commands = COMMANDS.iter();
        let found = commands.find(|(known, _)| *known == number);
        found.map(|(_, command)| *command)
    }

    /// The number to call it by.
    pub(crate) fn number(self) -> u32 {
        let mut commands = COMMANDS.iter();
        let found = commands.find(|(_, command)| *command == self);
        found.map_or(0, |(number, _)| *number)
    }

    /// Whether it concerns the whole filesystem, which takes `CAP_SYS_ADMIN`.
    pub(crate) fn takes_admin(self) -> bool {
        matches!(
            self,
            Self::SetLabel
                | Self::Trim
                | Self::Shutdown
                | Self::Resize
                | Self::Dedupe
                | Self::Report
                | Self::SendToFile
                | Self::Send(_)
                | Self::Devices(_)
                | Self::Subvolume(SubvolumeCommand::SetDefault | SubvolumeCommand::Next)
        )
    }
}

/// How many bytes the argument of an ioctl has, by its number (`_IOC_SIZE`).
pub(crate) fn argument_bytes(number: u32) -> usize {
    (number >> 16 & 0x3fff) as usize
}

#[cfg(test)]
mod tests {
    use super::super::structures::{
        DedupeRange, DefragRange, DefragmentStep, DeviceCommand, DeviceStatus, FSLABEL_BYTES,
        FileExtents, FsInfo, InoLookup, NextSubvolume, ReceivedSubvolume, ReportPage, SendPiece,
        SendStart, SubvolumeInfo, TrimRange, VolArgs, VolArgsV2,
    };
    use super::*;

    #[test]
    fn numbers_are_those_of_their_commands() {
        for (number, command) in COMMANDS {
            assert_eq!(Command::decode(number), Some(command));
            assert_eq!(Command::decode(command.number()), Some(command));
        }
        assert_eq!(Command::decode(0), None);
    }

    #[test]
    fn numbers_have_the_sizes_of_their_structures() {
        use SubvolumeCommand as Subvolume;
        for (command, bytes) in [
            (Subvolume::Create, size_of::<VolArgs>()),
            (Subvolume::CreateV2, size_of::<VolArgsV2>()),
            (Subvolume::SnapshotV2, size_of::<VolArgsV2>()),
            (Subvolume::Delete, size_of::<VolArgs>()),
            (Subvolume::Lookup, size_of::<InoLookup>()),
            (Subvolume::Info, size_of::<SubvolumeInfo>()),
            (Subvolume::SetReceived, size_of::<ReceivedSubvolume>()),
            (Subvolume::Next, size_of::<NextSubvolume>()),
        ] {
            let number = Command::Subvolume(command).number();
            assert_eq!(argument_bytes(number), bytes, "{command:?}");
        }
        for (command, bytes) in [
            (
                Command::Devices(DevicesCommand::Start),
                size_of::<DeviceCommand>(),
            ),
            (
                Command::Devices(DevicesCommand::Status),
                size_of::<DeviceStatus>(),
            ),
            (Command::Send(SendCommand::Start), size_of::<SendStart>()),
            (Command::Send(SendCommand::Read), size_of::<SendPiece>()),
            (Command::Send(SendCommand::End), size_of::<u64>()),
            (Command::FsInfo, size_of::<FsInfo>()),
            (Command::Report, size_of::<ReportPage>()),
            (Command::Dedupe, size_of::<DedupeRange>()),
            (Command::Extents, size_of::<FileExtents>()),
            (Command::DefragmentStep, size_of::<DefragmentStep>()),
            (Command::Defrag, size_of::<VolArgs>()),
            (Command::DefragRange, size_of::<DefragRange>()),
            (Command::Trim, size_of::<TrimRange>()),
            (Command::SetLabel, FSLABEL_BYTES),
            (Command::Sync, 0),
        ] {
            assert_eq!(argument_bytes(command.number()), bytes, "{command:?}");
        }
    }
}
