use super::*;
use scheduler_core::Config;

/// Two nodes with one card each. `small` and `large` are on the first, `whole` on the second, so
/// `late` has no place.
const CLUSTER: &str = "\
tick 1000
node n1 cpu=64000 memory=274877906944 pods=110 gpus=1 managed extended.aliquot.dev/gpu-share=48
cards n1 default=mps
  card GPU-1 product=L4 total=23034 reserved=34
node n2 cpu=64000 memory=274877906944 pods=110 gpus=1 managed extended.aliquot.dev/gpu-share=48
cards n2 default=mps
  card GPU-2 product=L4 total=23034 reserved=34
queue default-queue
pod small ns=team created=1 gpu-memory.main=3000 extended.aliquot.dev/gpu-share=1 phase=running on=n1
  grant main cards=GPU-1 memory=3000 mode=mps
pod large ns=team created=2 gpu-memory.main=15000 extended.aliquot.dev/gpu-share=1 phase=running on=n1
  grant main cards=GPU-1 memory=15000 mode=mps
pod whole ns=team created=3 gpus.main=1 phase=running on=n2
  grant main cards=GPU-2 memory=23000 mode=exclusive
";

fn explained(more: &str, pod: &str) -> Report {
    let shadow = Shadow::of_text(&format!("{CLUSTER}{more}"), Config::default(), "")
        .unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(shadow.problems, Vec::<String>::new());
    report(&shadow, "team", pod).unwrap_or_else(|failure| panic!("{}", failure.sentence))
}

fn text(report: &Report) -> String {
    Output::default().render(report, false)
}

fn share(name: &str, mib: u64, more: &str) -> String {
    format!(
        "pod {name} ns=team created=9 gpu-memory.main={mib} extended.aliquot.dev/gpu-share=1 {more}\n"
    )
}

#[test]
fn a_pod_that_waits_is_told_card_by_card_who_holds_what_it_needs() {
    let text = text(&explained(&share("late", 6000, ""), "late"));
    let (head, rest) = text.split_once("\n\n").unwrap();
    assert!(
        head.starts_with("team/late waits in queue default-queue: no nodes with enough"),
        "{text}"
    );
    assert_eq!(
        rest.trim_end(),
        "\
NODE  GPU  FREE MIB  HELD BY                            FITS  WHY NOT
n1      0      5000  team/large 15000, team/small 3000  no    5000 of 23000 MiB free, 6000 needed
n2      0         0  team/whole 23000                   no    held as a whole GPU

The cheapest change that lets it run: request gpu-memory: \"5000\" instead of \"6000\"
Also:
  - wait for the end of team/small (queue default-queue, 3000 MiB), or end it
  - one more node like n1, empty"
    );
}

/// The pod's queue is missing, and the node has room on another card.
#[test]
fn a_full_card_does_not_fit_on_a_node_that_has_room() {
    let cluster = "\
node n1 cpu=64000 memory=274877906944 pods=110 gpus=3 managed extended.aliquot.dev/gpu-share=48
cards n1 default=mps
  card GPU-1 product=L4 total=23034 reserved=34
  card GPU-2 product=L4 total=23034 reserved=34 index=1
  card GPU-3 product=L4 total=23034 reserved=34 index=2
queue default-queue
pod whole ns=team created=3 gpus.main=1 phase=running on=n1
  grant main cards=GPU-1 memory=23000 mode=exclusive
pod share ns=team created=3 gpu-memory.main=20000 extended.aliquot.dev/gpu-share=1 phase=running on=n1
  grant main cards=GPU-2 memory=20000 mode=mps
pod lost ns=team queue=teem-a created=9 gpus.main=1
";
    let fits = |more: &str, pod: &str| -> Vec<(Value, Value)> {
        let cluster = format!("{cluster}{more}");
        let shadow = Shadow::of_text(&cluster, Config::default(), "").unwrap();
        assert_eq!(shadow.problems, Vec::<String>::new());
        let report = report(&shadow, "team", pod).unwrap();
        let cards = report.document.unwrap()["cards"].clone();
        let cards = cards.as_array().unwrap().iter();
        cards
            .map(|card| (card["fits"].clone(), card["why"].clone()))
            .collect()
    };
    let no = |why: &str| (json!(false), json!(why));
    let yes = (json!(true), json!(""));
    let whole = no("held as a whole GPU");
    assert_eq!(
        fits("", "lost"),
        [whole.clone(), no("1 share on it"), yes.clone()]
    );
    let small = share("small", 5000, "queue=teem-a");
    assert_eq!(
        fits(&small, "small"),
        [
            whole,
            no("3000 of 23000 MiB free, 5000 needed"),
            yes.clone()
        ]
    );
}

#[test]
fn what_costs_nobody_anything_comes_first() {
    let cordoned = "\
cards n2 default=mps
  card GPU-2 product=L4 total=23034 reserved=34 cordoned
pod-gone whole
";
    let report = explained(&format!("{cordoned}{}", share("late", 20000, "")), "late");
    let changes = report.document.unwrap()["changes"].clone();
    assert_eq!(changes[0]["what"], "uncordon GPU 0 of node n2");
    assert_eq!(changes[0]["command"], "aliquot uncordon n2/0");
}

#[test]
fn queues_gates_and_selectors_are_named_where_they_hinder() {
    for (more, expected) in [
        (
            "queue tight gpu=0/0/1000000\n".to_owned() + &share("late", 1000, "queue=tight"),
            "raise the limit of the queue tight",
        ),
        (
            share("late", 1000, "queue=nowhere"),
            "create the queue nowhere, or name another",
        ),
        (share("late", 1000, "gated"), "remove its scheduling gates"),
        (
            share("late", 1000, "selector.zone=b"),
            "remove its node selector and node affinity",
        ),
    ] {
        let report = explained(&more, "late");
        let changes = report.document.clone().unwrap()["changes"].clone();
        let first = changes[0]["what"]
            .as_str()
            .unwrap_or_else(|| panic!("{}", text(&report)));
        assert!(first.starts_with(expected), "{expected}: {}", text(&report));
    }
}

#[test]
fn what_is_missing_is_named_first_and_so_is_a_request_that_no_card_can_grant() {
    let fresh = share;
    let share = |name: &str, more: &str| fresh(name, 1000, more);
    let full = "pod rest ns=team created=4 gpu-memory.main=5000 extended.aliquot.dev/gpu-share=1 phase=running on=n1\n  grant main cards=GPU-1 memory=5000 mode=mps\n";
    let group = "group team/train uid=train queue=default-queue min=1\n";
    for (more, expected) in [
        (
            format!("queue research\n{full}{}", share("late", "queue=researc")),
            "Before anything else helps: create the queue researc, or name another in the label kai.scheduler/queue (did you mean research?)",
        ),
        (
            format!(
                "queue research\ngroup team/old queue=researc min=1\n{}",
                share("late", "group=team/old queue=research")
            ),
            "Before anything else helps: name the pod's queue research in its PodGroup, which names researc: kubectl patch podgroup old -n team --type merge -p '{\"spec\":{\"queue\":\"research\"}}'",
        ),
        (
            format!("{group}{}", share("late", "group=team/trian")),
            "Before anything else helps: create the PodGroup team/trian (did you mean team/train?), or remove the annotation pod-group-name",
        ),
        (
            fresh("late", 200_000, ""),
            "Before anything else helps: request at most 23000 MiB for container main: no card of this cluster can grant 200000",
        ),
    ] {
        let text = text(&explained(&more, "late"));
        assert!(text.contains(expected), "{text}");
    }
    // A request that some card can grant, in a queue that exists, gets no such advice.
    let text = text(&explained(&fresh("late", 6000, ""), "late"));
    assert!(!text.contains("Before anything else"), "{text}");
}

#[test]
fn several_gpus_for_a_container_are_possible_in_another_mode() {
    let cluster = "\
node n1 cpu=64000 memory=274877906944 pods=110 gpus=2 managed extended.aliquot.dev/gpu-share=48
cards n1 default=mps
  card GPU-1 product=L4 total=23034 reserved=34 switchable=exclusive,mps,time-slicing
  card GPU-2 product=L4 total=23034 reserved=34 index=1 switchable=exclusive,mps,time-slicing
queue default-queue
pod late ns=team created=9 gpu-fraction.main=500000000 devices.main=2 mode.main=mps extended.aliquot.dev/gpu-share=1
";
    let shadow = Shadow::of_text(cluster, Config::default(), "").unwrap();
    let report = report(&shadow, "team", "late").unwrap();
    let text = text(&report);
    assert!(
        text.contains("(annotation kai.scheduler/gpu-compute-sharing-mode: time-slicing)"),
        "{text}"
    );
}

#[test]
fn a_pod_that_runs_or_will_run_says_so() {
    let runs = explained("", "small");
    assert_eq!(
        text(&runs),
        "team/small runs on node n1, with mps 3000 MiB of GPU-1\n"
    );
    let soon = explained(&share("late", 1000, ""), "late");
    assert!(
        text(&soon).starts_with(
            "team/late: the next decision places it on node n1, with mps 1000 MiB of GPU-1\n"
        ),
        "{}",
        text(&soon)
    );
    assert_eq!(soon.document.unwrap()["waits"], false);
}

#[test]
fn a_pod_that_is_not_there_or_not_ours_is_refused_in_one_sentence() {
    let shadow = Shadow::of_text(
        &format!("{CLUSTER}pod foreign ns=team foreign phase=running on=n1\n"),
        Config::default(),
        "",
    )
    .unwrap();
    for (name, words) in [
        ("nobody", "no pod nobody in namespace team"),
        ("foreign", "team/foreign is placed by another scheduler"),
    ] {
        let failure = report(&shadow, "team", name).unwrap_err();
        assert_eq!(failure.code, 1);
        assert!(failure.sentence.starts_with(words), "{}", failure.sentence);
    }
}

/// Such a pod has no reason and no event: Kubernetes found nothing wrong with it.
#[test]
fn a_pod_that_gets_no_gpu_by_a_mistake_is_told_which() {
    let pod = |name: &str, key: &str, scheduler: &str, node: Option<&str>| {
        let pod = json!({
            "metadata": {"name": name, "namespace": "team", "uid": name, "annotations": {key: "2000"}},
            "spec": {"schedulerName": scheduler, "nodeName": node, "containers": [{"name": "c"}]},
            "status": {"phase": if node.is_some() { "Running" } else { "Pending" }},
        });
        serde_json::from_value(pod).unwrap()
    };
    let node =
        json!({"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "4", "pods": "9"}}});
    let objects = crate::shadow::Objects {
        nodes: vec![serde_json::from_value(node).unwrap()],
        pods: vec![
            pod("typo", "gpu-memroy", "kai-scheduler", Some("n1")),
            pod("cpu", "example.com/gpu", "kai-scheduler", Some("n1")),
            pod("other", "gpu-memory", "default-scheduler", None),
        ],
        ..Default::default()
    };
    let now = scheduler_core::units::Time(1_800_000_000_000);
    let shadow = Shadow::of_objects(objects, Config::default(), "kai-scheduler", now);
    let typo = text(&report(&shadow, "team", "typo").unwrap());
    assert_eq!(
        typo,
        "team/typo runs on node n1\nteam/typo gets no GPU: metadata.annotations[gpu-memroy] is no annotation of Aliquot or KAI, so nothing reads it: write gpu-memory\n"
    );
    let cpu = text(&report(&shadow, "team", "cpu").unwrap());
    assert_eq!(cpu, "team/cpu runs on node n1\n");
    let failure = report(&shadow, "team", "other").unwrap_err();
    assert_eq!(
        failure.sentence,
        "team/other gets no GPU: spec.schedulerName is default-scheduler, so that Aliquot does not see the pod: set it to kai-scheduler"
    );
}

#[test]
fn a_pod_that_gets_a_place_by_time_alone_says_when() {
    let more = "\
queue rich gpu=1000000000/-1/1000000
queue default-queue gpu=0/-1/1000000 reclaim-min-runtime=60000
pod late ns=team queue=rich created=9 gpus.main=1
life pod:small last-start=1000
life pod:large last-start=1000
life pod:whole last-start=1000
";
    let later = text(&explained(more, "late"));
    assert!(
        later.starts_with("team/late: if nothing changes, a decision 60 s from now evicts team/"),
        "{later}"
    );
}

#[test]
fn a_pod_that_waits_is_told_when_it_starts() {
    use proto::names::request::RUN_TIME;
    use scheduler::watch::{Fact, Seen};
    let cluster = "tick 100000000\nnode n1 cpu=1000 memory=274877906944 pods=110\n\
        queue default-queue cpu=-1/-1/1\n";
    let name = proto::names::kai::SCHEDULER_NAME;
    let mut shadow = Shadow::of_text(cluster, Config::default(), name).unwrap();
    let pod = |name: &str, more: Value| {
        let mut pod = json!({
            "metadata": {"name": name, "namespace": "team", "uid": name},
            "spec": {"schedulerName": proto::names::kai::SCHEDULER_NAME, "containers": [
                {"name": "main", "resources": {"requests": {"cpu": "1"}}}]},
        });
        for (path, value) in more.as_object().unwrap() {
            let (parent, field) = path.rsplit_once('/').unwrap();
            pod.pointer_mut(parent).unwrap()[field] = value.clone();
        }
        Fact::Pod(Seen::There(serde_json::from_value(pod).unwrap()))
    };
    shadow.take(pod("late", json!({})));
    let waits = |shadow: &Shadow| report(shadow, "team", "late").unwrap();
    // Forty minutes ago.
    let status = json!({"phase": "Running", "startTime": "1970-01-02T03:06:40Z"});
    let runs = json!({"/spec/nodeName": "n1", "/status": status});
    shadow.take(pod("runs", runs.clone()));
    let told = text(&waits(&shadow));
    assert!(
        told.contains("estimated start: unknown: the run time of a pod in its way is not known"),
        "{told}"
    );
    let mut says = runs.clone();
    says["/metadata/annotations"] = json!({RUN_TIME: "2h"});
    shadow.take(pod("runs", says));
    let report = waits(&shadow);
    let told = text(&report);
    assert!(
        told.contains("estimated start: about 05:06 UTC (in 1 h 20 min), when team/runs ends (expected after 2 h); the run time of all pods in its way is known"),
        "{told}"
    );
    assert_eq!(
        report.document.unwrap()["estimatedStart"],
        json!({"kind": "about", "timeMs": 104_800_000, "after": "team/runs", "knownRunTimes": 1, "podsInTheWay": 1})
    );
    // It says nothing, and three like it have ended, one of them sooner than it.
    let mut silent = runs;
    silent["/spec/restartPolicy"] = json!("Never");
    for (name, end) in [("one", "00:10"), ("two", "03:00"), ("three", "02:00")] {
        let mut past = silent.clone();
        past["/status"] = json!({"phase": "Succeeded", "startTime": "1970-01-01T00:00:00Z",
            "containerStatuses": [{"name": "main", "image": "", "imageID": "", "ready": false,
                "restartCount": 0, "state": {"terminated": {"exitCode": 0,
                    "finishedAt": format!("1970-01-01T{end}:00Z")}}}]});
        shadow.take(pod(name, past));
    }
    shadow.take(pod("runs", silent));
    let told = text(&waits(&shadow));
    assert!(
        told.contains("about 06:06 UTC (in 2 h 20 min), when team/runs ends (expected after 3 h, the median of 2 past runs); the run time of all pods in its way is known"),
        "{told}"
    );
}
