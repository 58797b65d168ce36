//! btrfs images of the kernel compared with a kernel mount: every path, byte, attribute and hole, with every
//! profile, checksum, compression and size of tree blocks, and with losses that the profile tolerates.

mod changes;
mod check;
mod collisions;
mod corrupt;
mod corruption;
mod devices;
mod edited;
mod groups;
mod image;
mod ioctls;
mod kernel;
mod layouts;
mod log;
mod log_cuts;
mod log_write;
mod made;
mod populated;
mod quota;
mod requests;
mod rescue;
mod scrub;
mod seeds;
mod sharing;
mod space;
mod streams;
mod stream_trees;
mod subvolumes;
mod tuned;
mod user_mount;
mod usr;
mod verity;
