//! What the superblock says of quota.

use bitflags::bitflags;

bitflags! {
    /// `sb_qflags`: whose use is accounted, whose limits are enforced, and whose use a quotacheck counted. Version 4
    /// has one pair of flags for the limits and counts of groups or projects.
    /// Spec: `xfs-headers/xfs_log_format.h`, `XFS_UQUOTA_ACCT` and those after it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct QuotaFlags: u16 {
        /// `XFS_UQUOTA_ACCT`.
        const USERS_ACCOUNTED = 0x1;
        /// `XFS_UQUOTA_ENFD`.
        const USERS_ENFORCED = 0x2;
        /// `XFS_UQUOTA_CHKD`.
        const USERS_CHECKED = 0x4;
        /// `XFS_PQUOTA_ACCT`.
        const PROJECTS_ACCOUNTED = 0x8;
        /// `XFS_OQUOTA_ENFD`.
        const OTHERS_ENFORCED = 0x10;
        /// `XFS_OQUOTA_CHKD`.
        const OTHERS_CHECKED = 0x20;
        /// `XFS_GQUOTA_ACCT`.
        const GROUPS_ACCOUNTED = 0x40;
        /// `XFS_GQUOTA_ENFD`.
        const GROUPS_ENFORCED = 0x80;
        /// `XFS_GQUOTA_CHKD`.
        const GROUPS_CHECKED = 0x100;
        /// `XFS_PQUOTA_ENFD`.
        const PROJECTS_ENFORCED = 0x200;
        /// `XFS_PQUOTA_CHKD`.
        const PROJECTS_CHECKED = 0x400;
    }
}
