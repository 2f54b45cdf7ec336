//! An error is one sentence, with the exit code of its kind, and nothing is half done.

use super::cluster::{Said, aliquot};
use std::io::Write as _;
use std::process::Stdio;

fn said(args: &[&str]) -> Said {
    aliquot(args).output().unwrap().into()
}

/// One line on standard error that begins with the verb, nothing on standard output.
fn refused(args: &[&str], code: i32, words: &str) {
    let said = said(args);
    assert_eq!(said.code, Some(code), "{args:?}: {said:?}");
    assert_eq!(said.out, "", "{args:?}");
    assert_eq!(
        said.err.trim_end().lines().count(),
        1,
        "{args:?}: {}",
        said.err
    );
    assert!(
        said.err.starts_with(&format!("aliquot {}: ", args[0])),
        "{args:?}: {}",
        said.err
    );
    assert!(said.err.contains(words), "{args:?}: {}", said.err);
}

#[test]
fn without_a_cluster_every_verb_says_what_to_do() {
    for verb in [
        &["nodes"][..],
        &["cards"],
        &["shares"],
        &["queues"],
        &["top"],
        &["explain", "a"],
        &["fit", "--gpus", "1"],
        &["events"],
        &["cordon", "n/0"],
        &["uncordon", "n/0"],
        &["keys", "list"],
        &["keys", "rotate"],
        &["snapshot"],
        &["report"],
        &["doctor"],
    ] {
        refused(verb, 2, "give --kubeconfig FILE or set KUBECONFIG");
        let with = [verb, &["--kubeconfig", "/does/not/exist"]].concat();
        refused(&with, 2, "the kubeconfig /does/not/exist cannot be read");
    }
}

#[test]
fn a_cluster_that_does_not_answer_is_a_failure_of_its_own_kind() {
    let folder = tempfile::tempdir().unwrap();
    // A port that was free a moment ago and that has no listener.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let path = folder.path().join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {{}}}}]\ncurrent-context: c\n"
    );
    std::fs::write(&path, text).unwrap();
    let path = path.display().to_string();
    for verb in [
        &["nodes"][..],
        &["explain", "x"],
        &["doctor"],
        &["cordon", "n/0"],
    ] {
        let args = [verb, &["--kubeconfig", &path]].concat();
        refused(&args, 3, "does not answer");
        let args = [verb, &["--kubeconfig", &path, "--context", "other"]].concat();
        refused(&args, 2, "the kubeconfig");
    }
}

#[test]
fn files_that_cannot_be_read_are_named_with_their_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let snapshot = file("good.txt", "tick 5\nqueue default-queue\n");
    let nonsense = file("nonsense.txt", "tick 5\nnonsense\n");
    let yaml = file("broken.yaml", "kind: [");
    let empty = file("empty.yaml", "---\n");
    let refused_pod = file(
        "refused.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p, annotations: {gpu-memory: lots}}\nspec: {schedulerName: kai-scheduler, containers: [{name: c, image: x}]}\n",
    );
    let from = ["--snapshot", snapshot.as_str()];
    refused(
        &["replay", "/does/not/exist"],
        2,
        "/does/not/exist cannot be read",
    );
    refused(&["replay", &nonsense], 2, "line 2");
    refused(
        &["queues", "--snapshot", &nonsense],
        2,
        "is no snapshot: line 2",
    );
    refused(
        &[&["simulate", "-f", &yaml][..], &from].concat(),
        2,
        "this is not YAML",
    );
    refused(
        &[&["simulate", "-f", &empty][..], &from].concat(),
        2,
        "contains no manifest",
    );
    refused(
        &[&["simulate", "-f", &refused_pod][..], &from].concat(),
        2,
        "Pod p would be rejected: gpu-memory annotation value must be a positive integer",
    );
    refused(
        &[&["explain", "nobody"][..], &from].concat(),
        1,
        "no pod nobody in namespace default",
    );
    refused(
        &[&["fit", "--gpus", "1", "--queue", "x"][..], &from].concat(),
        1,
        "there is no queue x",
    );
    refused(
        &[
            "snapshot",
            "--snapshot",
            &snapshot,
            "--to",
            "/does/not/exist/file",
        ],
        2,
        "cannot be written",
    );
}

#[test]
fn the_command_line_itself_is_checked_first() {
    for args in [
        &["nodes", "-o", "xml"][..],
        &["nodes", "--interval", "5"],
        &["nodes", "--watch", "--interval", "0"],
        &["explain"],
        &["fit"],
        &["fit", "--gpu-memory", "many"],
        &["fit", "--gpus", "0"],
        &["simulate"],
        &["lint"],
        &["cordon"],
        &["completion", "tcsh"],
        &["doctor", "--root", "/"],
        &["queues", "--snapshot", "f", "--context", "c"],
        &["nonsense"],
        &[],
    ] {
        let said = said(args);
        assert_eq!(said.code, Some(2), "{args:?}: {said:?}");
        assert_eq!(said.out, "", "{args:?}");
        assert!(!said.err.contains("panicked"), "{args:?}: {}", said.err);
    }
}

/// A pipeline stops by the exit code.
#[test]
fn lint_ends_with_one_if_anything_is_wrong_or_nothing_was_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, annotations: {gpu-memory: \"2000\"}}\nspec: {schedulerName: kai-scheduler, containers: [{name: c, image: x}]}\n";
    let right = file("right.yaml", pod);
    let looked = said(&["lint", "-f", &right]);
    assert_eq!((looked.code, &*looked.err), (Some(0), ""), "{looked:?}");
    let wrong = file("wrong.yaml", &pod.replace("gpu-memory", "gpu-memroy"));
    let all = folder.path().display().to_string();
    for args in [
        &["lint", "-f", &wrong][..],
        &["lint", "-f", &right, "-f", &wrong],
        &["lint", "-f", &all, "-o", "csv"],
    ] {
        let found = said(args);
        assert_eq!((found.code, &*found.err), (Some(1), ""), "{found:?}");
        for word in [
            "wrong.yaml",
            "Pod p",
            "metadata.annotations[gpu-memroy]",
            "write gpu-memory",
        ] {
            assert!(found.out.contains(word), "{args:?}: {}", found.out);
        }
        assert!(!found.out.contains("right.yaml"), "{}", found.out);
    }
    let other = said(&["lint", "-f", &right, "--scheduler-name", "mine"]);
    assert_eq!(other.code, Some(0), "KAI's own pods are right: {other:?}");
    let mut child = aliquot(&["lint", "-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let text = pod.replace("schedulerName: kai-scheduler, ", "");
    child
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let found: Said = child.wait_with_output().unwrap().into();
    assert_eq!(found.code, Some(1), "{found:?}");
    assert!(
        found
            .out
            .starts_with("standard input: Pod p\n  spec.schedulerName is not set"),
        "{found:?}"
    );
    let none = file(
        "none.yaml",
        "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n",
    );
    refused(&["lint", "-f", &none], 1, "nothing was looked at");
    refused(&["lint", "-f", "/does/not/exist"], 2, "cannot be read");
    let broken = file("broken.yaml", "kind: [");
    refused(&["lint", "-f", &broken], 2, "this is not YAML");
}

#[test]
fn completion_knows_the_verbs_of_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let said = said(&["completion", shell]);
        assert_eq!(said.code, Some(0), "{said:?}");
        assert!(said.out.contains("uncordon"), "{shell}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut child = aliquot(&["completion", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty());
}

#[test]
fn a_snapshot_may_come_on_standard_input() {
    let mut child = aliquot(&["queues", "--snapshot", "-", "-o", "json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"queue only\n").unwrap();
    drop(stdin);
    let output: Said = child.wait_with_output().unwrap().into();
    assert_eq!(output.json()[0]["queue"], "only");
}
