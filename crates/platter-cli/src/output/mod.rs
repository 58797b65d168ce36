//! How things are shown.

pub(crate) mod attributes;
pub(crate) mod base64;
pub(crate) mod columns;
pub(crate) mod error;
pub(crate) mod flags;
pub(crate) mod filesystem;
pub(crate) mod json;
pub(crate) mod kind;
pub(crate) mod progress;
pub(crate) mod quoting;
pub(crate) mod size;
pub(crate) mod time;
