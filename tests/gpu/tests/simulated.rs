//! `tests/gpu/run --simulated`, as a claim: it is run on a GPU seldom, and must not rot.

use std::path::Path;
use std::process::Command;

#[test]
fn everything_that_is_said_of_a_gpu_holds_on_the_simulated_one() {
    let program = Path::new(env!("CARGO_BIN_EXE_gpu"));
    let stand_ins = std::env::current_exe().unwrap();
    let stand_ins = stand_ins.parent().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.md");
    let output = Command::new(program)
        .arg("ask")
        .arg("--simulated")
        .arg(stand_ins)
        .arg("--out")
        .arg(&page)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{errors}");
    let page = std::fs::read_to_string(page).unwrap();
    let count = |word: &str| page.lines().filter(|line| line.starts_with(word)).count();
    // Those of MPS, those of shares, and the settings.
    assert_eq!(count("| holds |"), 12, "{said}");
    assert_eq!(count("| DIFFERS |"), 0, "{said}");
    // A question whose answer is that it failed is none.
    assert!(count("| answer |") >= 10, "{said}");
    assert!(page.contains("$ mps: get_server_list"), "{page}");
}
