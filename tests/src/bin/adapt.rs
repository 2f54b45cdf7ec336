//! Helm's post-renderer for the cluster of these tests: objects in, the same objects out,
//! fitted by [`aliquot_tests::adapt`].

use std::io::{Read, Write};

use aliquot_tests::adapt::adapt;
use aliquot_tests::manifest::documents;
use anyhow::Result;

fn main() -> Result<()> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let mut out = std::io::stdout().lock();
    for mut object in documents(&text)? {
        adapt(&mut object)?;
        // JSON is YAML.
        writeln!(out, "---\n{object}")?;
    }
    Ok(())
}
