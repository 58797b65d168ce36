//! What an intent in the log must hold to.

use platter_ondisk::rules;

rules! {
    /// What an intent in the log must hold to.
    pub enum IntentRule of "log intent" {
        /// The filesystem has the tree that is to change.
        Feature => "intent for a feature that the filesystem does not have",
        /// Its blocks lie within an allocation group.
        Extent => "blocks lie outside the filesystem",
        /// Its inode can be one.
        Inode => "bad inode number",
        /// Its inode is still the one that it was logged for.
        Generation => "inode has another generation",
        /// Its blocks are in use.
        DoubleFree => "blocks are free already",
        /// The realtime device has bitmaps and summaries.
        Bitmap => "can't find realtime bitmap or summary",
        /// Its file blocks lie within the number range of files.
        Offset => "bad file blocks",
    }
}
