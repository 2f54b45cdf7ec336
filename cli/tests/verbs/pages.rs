//! What the pages tell a reader to type and to apply, done.

use super::cluster::Demo;
use std::path::{Path, PathBuf};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

/// Blocks of one language, in the order of the page.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let mut blocks: Vec<String> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        let fence = line.trim_start();
        if fence.starts_with("```") {
            inside = fence == format!("```{language}");
            if inside {
                blocks.push(String::new());
            }
        } else if inside && let Some(block) = blocks.last_mut() {
            block.push_str(line);
            block.push('\n');
        }
    }
    blocks
}

/// The quickstart's part on the demo, line by line, in a shell.
pub(crate) fn the_quickstart_does_what_it_says(demo: &Demo) {
    let page = std::fs::read_to_string(docs().join("quickstart.md")).unwrap();
    let (part, _) = page.split_once("## A real node").unwrap();
    let first = blocks(part, "yaml").remove(0);
    let file = demo.write("first.yaml", &first);
    let mut count = 0;
    for line in blocks(part, "sh").concat().lines().map(str::trim) {
        let skipped = ["aliquot demo", "cargo", "export", "kubectl"];
        let later = ["aliquot explain first-share"];
        if skipped.iter().any(|start| line.starts_with(start)) || later.contains(&line) {
            continue;
        }
        let line = line.replace("/tmp/aliquot.snapshot", &demo.path("snapshot"));
        let line = line.replace("first.yaml", &file);
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[0], "aliquot", "{line}");
        demo.told(&words[1..]);
        count += 1;
    }
    assert!(
        count >= 15,
        "only {count} lines of the quickstart are commands"
    );
}

/// Of manifests that a trial decides nothing about. Other tests read each of them.
const ELSEWHERE: [&str; 10] = [
    // Prices of `aliquot report`.
    "gpuHour:",
    // Files and objects that the scheduler reads for itself.
    "kind: SchedulerConfiguration",
    "kind: SchedulingShard",
    "nodeTemplates:",
    // An agent's settings for its node.
    "kind: GpuNode",
    // The chart's values: the tests of `chart`.
    "pageLinks:",
    // Rights: the tests of `deploy`.
    "rbac.authorization.k8s.io",
    // Shares by claim: the tests on real daemons run that page as it is.
    "resource.k8s.io/v1",
    // What other programs read: Karpenter's claim takes the page's, Kueue's has its own.
    "karpenter.sh/v1",
    "config.kueue.x-k8s.io",
];

/// No manifest of the pages is refused.
pub(crate) fn manifests_of_the_pages_can_be_applied(demo: &Demo) {
    let mut count = 0;
    for folder in [docs(), docs().join("concepts")] {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "md") {
                continue;
            }
            let page = std::fs::read_to_string(&path).unwrap();
            let mut manifests = blocks(&page, "yaml");
            manifests.retain(|block| {
                let names = |text: &&str| block.contains(text);
                !ELSEWHERE.iter().any(names)
            });
            let manifests = manifests.join("---\n");
            if manifests.is_empty() {
                continue;
            }
            let file = demo.write("page.yaml", &manifests);
            let said = demo.ask(&["simulate", "-f", &file]);
            // A gang of one of two waits; nothing may be refused.
            assert!(
                said.code == Some(0) || said.code == Some(1),
                "{}: {said:?}",
                path.display()
            );
            assert!(
                !said.out.contains("nothing is decided about"),
                "{}: {}",
                path.display(),
                said.out
            );
            // What is copied from a page has no mistake; some pages have no pods.
            let linted = demo.ask(&["lint", "-f", &file]);
            assert!(
                linted.code == Some(0) || linted.err.contains("nothing was looked at"),
                "{}: {linted:?}",
                path.display()
            );
            count += 1;
        }
    }
    assert!(count >= 4, "only {count} pages with manifests");
}
