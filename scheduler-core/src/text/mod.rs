//! Snapshots, golden scenarios and bug reports are events and decisions as text.
//!
//! An event is a line, and its parts are indented below it. A line is a word for the kind, a name,
//! then `key=value` pairs and flags in any order. Values with blanks are in double quotes, in which
//! `\"` and `\\` are escaped. A field with its default is left out. `#` starts a comment at the
//! beginning of a line. The units are millicores, bytes, MiB, milliseconds and nano-GPU.
//!
//! Each object has one table of its fields, from which it is read and written (`field.rs`): a new
//! field is one row.
//!
//! ```text
//! node n1 cpu=64000 memory=274877906944 pods=110 managed
//! cards n1 default=mps
//!   card GPU-1 product="RTX 6000 Ada" total=46068 reserved=568 grantable=45500
//! queue default-queue
//! pod p1 gpu-memory.main=2000
//! ```

mod config;
mod decision;
mod device;
mod event;
mod field;
mod group;
mod line;
mod node;
mod pod;
mod queue;
mod rules;
mod share;
mod value;
mod volume;

pub use decision::decision;
pub use event::{append, event, read, write};
pub use line::TextError;

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

    #[test]
    fn words_and_indented_lines_that_no_table_knows_are_refused() {
        for (text, why) in [
            ("node n cpus=4\n", "line 1: cpus is not known here"),
            (
                "queue q\n  limit gpu=1\n",
                "line 2: limit is not known here",
            ),
            (
                "pod p\n  port TCP port=80 on=x\n",
                "line 2: on is not known here",
            ),
            (
                "pod p mode.main=mps\n",
                "line 1: mode.main is not known here",
            ),
            (
                "pod p gpus.main=1 mode.main=mps\n",
                "line 1: mode.main is not known here",
            ),
        ] {
            let refused = read(text).map_err(|error| error.to_string());
            assert_eq!(refused, Err(why.to_owned()), "{text}");
        }
    }
}
