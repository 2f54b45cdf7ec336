//! How many cases the properties try.

/// Few, or as many as `PROPTEST_CASES` says.
pub(crate) fn cases(few: u32) -> u32 {
    let said = std::env::var("PROPTEST_CASES").ok();
    said.and_then(|cases| cases.parse().ok()).unwrap_or(few)
}
