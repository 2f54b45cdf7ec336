#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| aliquot_fuzz::run("cdi-name", input));
