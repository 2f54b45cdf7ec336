//! TBD

fn main() {}
