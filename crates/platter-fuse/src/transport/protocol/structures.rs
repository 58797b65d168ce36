//! The structures of requests and answers, as they are in memory.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! structures {
    ($($(#[$meta:meta])* $name:ident[$bytes:literal] {
        $($(#[$field_meta:meta])* $field:ident: $kind:ty,)*
    })*) => {
        $(
            $(#[$meta])*
            #[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
            #[repr(C)]
            pub(in crate::transport) struct $name {
                $($(#[$field_meta])* pub(in crate::transport) $field: $kind,)*
            }

            const _: () = assert!(size_of::<$name>() == $bytes);
        )*
    };
}

structures! {
    /// The header of every request.
    InHeader[40] {
        len: u32,
        opcode: u32,
        unique: u64,
        node: u64,
        uid: u32,
        gid: u32,
        pid: u32,
        extensions_len: u16,
        unused: u16,
    }
    /// The header of every answer.
    OutHeader[16] {
        len: u32,
        /// Zero or a negative errno.
        error: i32,
        unique: u64,
    }
    InitIn[16] {
        major: u32,
        minor: u32,
        readahead_max: u32,
        flags: u32,
    }
    InitOut[64] {
        major: u32,
        minor: u32,
        readahead_max: u32,
        flags: u32,
        background_max: u16,
        congestion_threshold: u16,
        write_max: u32,
        time_granularity: u32,
        pages_max: u16,
        map_alignment: u16,
        flags_hi: u32,
        stack_depth_max: u32,
        request_timeout: u16,
        unused: [u16; 11],
    }
    FileAttr[88] {
        inode: u64,
        size: u64,
        sectors: u64,
        accessed: u64,
        modified: u64,
        changed: u64,
        accessed_ns: u32,
        modified_ns: u32,
        changed_ns: u32,
        mode: u32,
        links: u32,
        uid: u32,
        gid: u32,
        device: u32,
        block_bytes: u32,
        flags: u32,
    }
    EntryOut[128] {
        node: u64,
        generation: u64,
        entry_valid: u64,
        attr_valid: u64,
        entry_valid_ns: u32,
        attr_valid_ns: u32,
        attr: FileAttr,
    }
    AttrOut[104] {
        attr_valid: u64,
        attr_valid_ns: u32,
        unused: u32,
        attr: FileAttr,
    }
    SetAttrIn[88] {
        valid: u32,
        unused: u32,
        handle: u64,
        size: u64,
        lock_owner: u64,
        accessed: u64,
        modified: u64,
        changed: u64,
        accessed_ns: u32,
        modified_ns: u32,
        changed_ns: u32,
        mode: u32,
        unused4: u32,
        uid: u32,
        gid: u32,
        unused5: u32,
    }
    CopyFileRangeIn[56] {
        handle_in: u64,
        offset_in: u64,
        node_out: u64,
        handle_out: u64,
        offset_out: u64,
        length: u64,
        flags: u64,
    }
    CopyFileRangeOut[8] {
        bytes: u64,
    }
    InvalidateEntryOut[16] {
        parent: u64,
        name_len: u32,
        flags: u32,
    }
    DeleteOut[24] {
        parent: u64,
        child: u64,
        name_len: u32,
        unused: u32,
    }
    MkNodIn[16] {
        mode: u32,
        device: u32,
        umask: u32,
        unused: u32,
    }
    MkDirIn[8] {
        mode: u32,
        umask: u32,
    }
    RenameIn[8] {
        new_dir: u64,
    }
    Rename2In[16] {
        new_dir: u64,
        flags: u32,
        unused: u32,
    }
    LinkIn[8] {
        node: u64,
    }
    CreateIn[16] {
        flags: u32,
        mode: u32,
        umask: u32,
        open_flags: u32,
    }
    /// Of `OPEN` and `OPENDIR`.
    OpenIn[8] {
        flags: u32,
        open_flags: u32,
    }
    OpenOut[16] {
        handle: u64,
        open_flags: u32,
        backing: u32,
    }
    ReleaseIn[24] {
        handle: u64,
        flags: u32,
        release_flags: u32,
        lock_owner: u64,
    }
    /// Of `READ`, `READDIR` and `READDIRPLUS`.
    ReadIn[40] {
        handle: u64,
        offset: u64,
        size: u32,
        read_flags: u32,
        lock_owner: u64,
        flags: u32,
        unused: u32,
    }
    WriteIn[40] {
        handle: u64,
        offset: u64,
        size: u32,
        write_flags: u32,
        lock_owner: u64,
        flags: u32,
        unused: u32,
    }
    WriteOut[8] {
        size: u32,
        unused: u32,
    }
    StatFsOut[80] {
        blocks: u64,
        blocks_free: u64,
        blocks_available: u64,
        inodes: u64,
        inodes_free: u64,
        block_bytes: u32,
        name_len_max: u32,
        fragment_bytes: u32,
        unused: u32,
        spare: [u32; 6],
    }
    FsyncIn[16] {
        handle: u64,
        flags: u32,
        unused: u32,
    }
    /// With [`InitFlags::SETXATTR_EXT`].
    SetXattrIn[16] {
        size: u32,
        flags: u32,
        more_flags: u32,
        unused: u32,
    }
    /// Without [`InitFlags::SETXATTR_EXT`].
    ShortSetXattrIn[8] {
        size: u32,
        flags: u32,
    }
    GetXattrIn[8] {
        size: u32,
        unused: u32,
    }
    GetXattrOut[8] {
        size: u32,
        unused: u32,
    }
    IoctlIn[32] {
        handle: u64,
        flags: u32,
        command: u32,
        argument: u64,
        in_size: u32,
        out_size: u32,
    }
    IoctlOut[16] {
        result: i32,
        flags: u32,
        in_vectors: u32,
        out_vectors: u32,
    }
    /// The body of [`NOTIFY_INVALIDATE`]. `len` bytes of pages from an offset on are written back
    /// and invalidated; with a negative offset, only the attributes.
    InvalidateOut[24] {
        node: u64,
        offset: i64,
        len: i64,
    }
    FallocateIn[32] {
        handle: u64,
        offset: u64,
        length: u64,
        mode: u32,
        unused: u32,
    }
    LseekIn[24] {
        handle: u64,
        offset: u64,
        whence: u32,
        unused: u32,
    }
    LseekOut[8] {
        offset: u64,
    }
    /// The name follows, padded to 8 bytes.
    Dirent[24] {
        inode: u64,
        next: u64,
        name_len: u32,
        kind: u32,
    }
    /// The fixed part of a ring entry; names and data are in another buffer.
    RingHeader[288] {
        /// Of the request, then of the answer.
        header: [u8; 128],
        /// The structure of the request, if it has one.
        structure: [u8; 128],
        flags: u64,
        /// Identifies the request when the answer is committed.
        commit: u64,
        /// Length of the data in the other buffer.
        payload_bytes: u32,
        unused: u32,
        reserved: u64,
    }
    /// The parameters of a ring command.
    RingCommand[80] {
        flags: u64,
        commit: u64,
        queue: u16,
        padding: [u16; 3],
        unused: [u64; 7],
    }
    ForgetIn[8] {
        lookups: u64,
    }
    BatchForgetIn[8] {
        count: u32,
        unused: u32,
    }
    ForgetOne[16] {
        node: u64,
        lookups: u64,
    }
    StatxIn[24] {
        getattr_flags: u32,
        unused: u32,
        handle: u64,
        statx_flags: u32,
        mask: u32,
    }
    StatxTime[16] {
        seconds: i64,
        nanoseconds: u32,
        unused: u32,
    }
    StatxOut[288] {
        attr_valid: u64,
        attr_valid_ns: u32,
        flags: u32,
        spare: [u64; 2],
        stat: Statx,
    }
    Statx[256] {
        mask: u32,
        block_bytes: u32,
        attributes: u64,
        links: u32,
        uid: u32,
        gid: u32,
        mode: u16,
        unused: u16,
        inode: u64,
        size: u64,
        sectors: u64,
        attributes_mask: u64,
        accessed: StatxTime,
        created: StatxTime,
        changed: StatxTime,
        modified: StatxTime,
        device_major: u32,
        device_minor: u32,
        filesystem_major: u32,
        filesystem_minor: u32,
        spare: [u64; 14],
    }
}
