//! `tests/gpu/run --simulated`, as a claim: it is run on a GPU seldom, and must not rot.
// Clippy takes helpers outside a test for no test.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

/// Runs it with these arguments: whether all claims held, the page, and the output.
fn asked(words: &[&str]) -> (bool, String, String) {
    let program = Path::new(env!("CARGO_BIN_EXE_gpu"));
    let stand_ins = std::env::current_exe().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.md");
    let output = Command::new(program)
        .args(["ask", "--simulated"])
        .arg(stand_ins.parent().unwrap())
        .arg("--out")
        .arg(&page)
        .args(words)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let page = std::fs::read_to_string(page).unwrap_or_default();
    (output.status.success(), page, format!("{said}\n{errors}"))
}

fn count(page: &str, word: &str) -> usize {
    page.lines().filter(|line| line.starts_with(word)).count()
}

#[test]
fn everything_that_is_said_of_a_gpu_holds_on_the_simulated_one() {
    // No claim is left out because the machine has other work.
    let (so, page, said) = asked(&["--budget", "3600", "--may-set-compute-mode"]);
    assert!(so, "{said}");
    // Those of MPS, those of shares, and the settings.
    assert_eq!(count(&page, "| holds |"), 16, "{said}");
    assert_eq!(count(&page, "| DIFFERS |"), 0, "{said}");
    // A question whose answer is that it failed is none.
    assert!(count(&page, "| answer |") >= 18, "{said}");
    assert!(page.contains("$ mps: get_server_list"), "{page}");
    for seen in [
        // The client, from none to the list of MPS and away; a program without a server.
        " ms C+M, ",
        " ms C, ",
        "listed as G",
        "listed as C+M+G",
        "without it: CUDA_ERROR_OUT_OF_MEMORY at ",
        "files-rw: a context success; 8 MiB of a file: CAN",
        "files-ro: a context success; 8 MiB of a file: Read-only file system",
    ] {
        assert!(page.contains(seen), "{seen} is not in {page}");
    }
}

#[test]
fn everything_that_is_said_of_slices_holds_on_the_simulated_one() {
    let (so, page, said) = asked(&["--mig", "--budget", "3600"]);
    assert!(so, "{said}");
    // The four of slices, and the settings.
    assert_eq!(count(&page, "| holds |"), 5, "{said}");
    assert!(page.contains("MIG 3g.40gb"), "{page}");
}

#[test]
fn what_does_not_fit_into_the_budget_is_not_asked_and_said_so() {
    let (so, page, said) = asked(&["--budget", "1"]);
    assert!(so, "{said}");
    assert_eq!(count(&page, "| DIFFERS |"), 0, "{said}");
    assert!(count(&page, "| not asked |") >= 30, "{said}");
    assert!(page.contains("--budget"), "{page}");
}
