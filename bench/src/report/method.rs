//! The page about how figures are measured.

use platter::open::CACHE_BYTES_DEFAULT;

use super::page::{METHOD, Page};
use crate::peers;

const TEXT: &str = "\
All pages are made by `cargo xtask bench report` from the raw runs in `bench/results/`. No figure in them is written \
by hand, except what others published, which is quoted with its conditions, and what profiles show in `docs/performance/missed/`, \
which says why aims are missed. Every page names the commands that measured it and the commits that were measured.

## Comparisons

The sides of a comparison take turns in one run, first in one order, then in the reverse order. Each turn has \
its own process, server, image and mount. Working threads are bound to one processor each, except where they wait for \
a disk or the filesystem compresses; servers may use all of them. Images lie on tmpfs, where a flush does nothing, except where a page says that they lie on the disk; each is \
checked after its turn by `e2fsck`, `btrfs check` or `xfs_repair -n`. The caches of platter are limited to {PEERS_MIB} MiB in \
comparisons of mounts, and to {DEFAULT_MIB} MiB, the default, in whole jobs and where costs grow, except where the caches are what \
grows; those of the kernel are limited by the memory of the machine. Each workload is written once, and is done through the library or \
by system calls in whatever is mounted.

*Cold* means freshly mounted, with empty caches of the filesystem. The null server, which would lose its files, stays, and the \
caches of the kernel are dropped. Where images lie on tmpfs they are in memory; those of *reading btrfs and XFS* lie on the \
disk, and are dropped from the page cache of the host.

## Transports

A mount by an ordinary user takes requests over the device `/dev/fuse`: that is the default, and stands first. *Rings* \
are FUSE over `io_uring(7)`. The kernel offers them since Linux 6.14 where root has set `fuse.enable_uring`, which is \
off after a boot; the benchmark sets it while it mounts. The FUSE servers of others use the device only. The null \
server is our FUSE server with a filesystem in memory that stores names and contents and does nothing else: it shows what a \
request costs to be handed over and answered. It is no strict limit: it allocates memory for all contents that it is given, \
which platter writes to an image that has its space, and is slower than platter in some rows of writes. bindfs is run with its defaults, by which the FUSE library splits writes into 4 \
KiB; with `big_writes` it is not so limited, and aims are judged by that form where it was measured.

The library has no cache of the host to go past and no system calls: it is compared with the kernel because a program \
can use either, not because both do the same. In *tree*, the library reads attributes by the inode numbers that it found \
in directories, and the others by names.

## Figures

Rates and times are medians of all runs, with the interval that contains the true median, or ratio of medians, with 95 \
% confidence (bootstrap). *No effect* means that the interval of a ratio contains 1. Counts of requests, \
writes, walks, nodes and instructions are exact on any machine. Ratios hold for machines like the one that is named; \
times are context.

Writes and flushes are requests to the image: of platter as it issues them, of the kernel as its block layer counts \
them, after merging. fuse2fs has no such counter, so its counts are those of one more turn with a tenth of the work, \
on an image in a filesystem of ours that counts them. The others have no image.";

pub(super) fn page() -> Page {
    let mut page = Page::new(METHOD, "How performance is measured");
    let mib = |bytes: u64| (bytes >> 20).to_string();
    let text = TEXT
        .replace("{PEERS_MIB}", &mib(peers::CACHE_BYTES))
        .replace("{DEFAULT_MIB}", &mib(CACHE_BYTES_DEFAULT));
    page.paragraph(&text);
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_caches_are_those_that_are_used() {
        let page = page();
        let text = page.text();
        assert!(
            text.contains("limited to 512 MiB in comparisons of mounts"),
            "{text}"
        );
        assert!(text.contains("to 64 MiB, the default") && !text.contains('{'));
    }
}
