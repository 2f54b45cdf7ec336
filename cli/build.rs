//! Builds the NVML stand-in for the demo to embed.
//!
//! Cargo leaves a `cdylib` in its own target directory, where an installed program cannot find it.
//! The library has no dependencies, so the compiler alone builds it, for this target, in a moment.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    let source = PathBuf::from(env("CARGO_MANIFEST_DIR")).join("../sim/nvml/src");
    println!("cargo::rerun-if-changed={}", source.display());
    let library = PathBuf::from(env("OUT_DIR")).join("libnvidia_ml.so");
    // For another architecture Cargo was told which linker it has. No path of this machine is left in
    // the library: a release is the same wherever it is built.
    let linker = std::env::var("RUSTC_LINKER").ok();
    let linker = linker.map(|linker| format!("-Clinker={linker}"));
    let status = Command::new(env("RUSTC"))
        .args(linker)
        .arg("--remap-path-prefix")
        .arg(format!("{}=sim/nvml/src", source.display()))
        .args(["--crate-name", "nvidia_ml", "--crate-type", "cdylib"])
        .args([
            "--edition",
            "2024",
            "-C",
            "opt-level=2",
            "-C",
            "strip=symbols",
        ])
        .args(["--cap-lints", "allow", "--target", &env("TARGET")])
        .arg("-o")
        .arg(&library)
        .arg(source.join("lib.rs"))
        .status();
    match status {
        Ok(status) if status.success() => {}
        other => panic!("the NVML stand-in cannot be built: {other:?}"),
    }
    println!("cargo::rustc-env=NVML_STAND_IN={}", library.display());
}

fn env(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
