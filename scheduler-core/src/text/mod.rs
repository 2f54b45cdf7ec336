//! Events and decisions as text: what snapshots, golden scenarios and bug reports are
//! written in.
//!
//! One event per line, what belongs to it indented below. A line is a word for the kind,
//! its name, then `key=value` pairs and flags in any order; values with blanks stand in
//! double quotes, in which `\"` and `\\` are escaped. What has its default is left out.
//! `#` starts a comment at the beginning of a line. Units: millicores, bytes, MiB,
//! milliseconds, nano-GPU.
//!
//! ```text
//! node n1 cpu=64000 memory=274877906944 pods=110 managed
//! cards n1 default=mps
//!   card GPU-1 product="RTX 6000 Ada" total=46068 reserved=568 grantable=45500
//! queue default-queue
//! pod p1 gpu-memory.main=2000
//! ```

mod config;
mod line;
mod read;
mod read_cards;
mod read_devices;
mod read_pod_rules;
mod read_queue;
mod read_volumes;
mod taints;
mod topology_manager;
mod write;
mod write_devices;
mod write_pod_rules;
mod write_queue;
mod write_volumes;

pub use line::TextError;
pub use read::{event, read};
pub use write::{append, decision, write};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_without_any_set_stays_one() {
        for text in [
            "group g queue=q no-sets\n",
            "group g queue=q\n  set default min=1\n",
        ] {
            let events = read(text).unwrap();
            assert_eq!(read(&write(&events)), Ok(events), "{text}");
        }
        assert_ne!(read("group g no-sets\n"), read("group g\n"));
    }
}
