//! `aliquot simulate -f FILE`: what the scheduler would do with these manifests.

use super::intake::Intake;
use crate::actions;
use crate::connect::block_on;
use crate::failure::{Failure, NO, Outcome};
use crate::manifest;
use crate::progress::Progress;
use crate::report::{Cell, Output, Report, Tone};
use crate::shadow::{Shadow, Source};
use scheduler::trial::is_placed;
use scheduler_core::Action;
use scheduler_core::ids::PodUid;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

/// Flags of `aliquot simulate`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Manifests, or folders with files that end with .yaml, .yml or .json; may be given several
    /// times; `-` is standard input.
    #[arg(short = 'f', long = "file", value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    output: Output,
}

/// Runs it.
pub(crate) fn run(args: &Args) -> Outcome {
    let objects = manifest::of_files(&args.files)?;
    let objects: Vec<Value> = objects.into_iter().map(|(_, object)| object).collect();
    let report = block_on(async {
        let mut progress = Progress::of("reading the cluster", 0);
        progress.spin();
        let shadow = args.source.load().await?;
        drop(progress);
        let (report, all) = simulated(shadow, &objects)?;
        args.output.print(&report)?;
        Ok(all)
    })?;
    Ok(if report {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(NO)
    })
}

/// The report, and whether every pod of the manifests gets a place.
fn simulated(mut shadow: Shadow, objects: &[Value]) -> Result<(Report, bool), Failure> {
    // What would happen anyway is not these manifests' doing.
    let mut progress = Progress::of("deciding without the manifests", 0);
    shadow.settle_in_time(|_| progress.step());
    drop(progress);
    let mut progress = Progress::of("manifests", objects.len());
    let mut intake = Intake::default();
    // Queues, groups and classes first: pods may come before them in a file.
    let pods = [
        "Pod",
        "Deployment",
        "ReplicaSet",
        "StatefulSet",
        "ReplicationController",
        "Job",
    ];
    let is_pod = |object: &&Value| pods.contains(&object["kind"].as_str().unwrap_or_default());
    let others = objects.iter().filter(|object| !is_pod(object));
    for object in others.chain(objects.iter().filter(is_pod)) {
        intake.take(&mut shadow, object)?;
        progress.step();
    }
    drop(progress);
    let mut progress = Progress::of("pods with a place", intake.pods.len());
    let mut bound = 0;
    let settled = shadow.settle_in_time(|decision| {
        let binds = |action: &&Action| matches!(action, Action::Bind(_));
        bound += decision.actions.iter().filter(binds).count();
        progress.at(bound.min(intake.pods.len()));
    });
    drop(progress);
    let rounds = &settled.rounds;
    let mine = |uid: &PodUid| intake.pods.iter().any(|(pod, _)| pod == uid);
    let placed = intake
        .pods
        .iter()
        .filter(|(uid, _)| is_placed(rounds, uid))
        .count();
    let evicted = rounds
        .iter()
        .flat_map(|round| &round.actions)
        .filter(|action| matches!(action, Action::Evict(_)))
        .count();
    let total = intake.pods.len();
    // A pod that was to have a GPU and runs without one has no place that its author wants.
    let lacks = |uid: &PodUid| {
        let pod = shadow.core().pod(uid);
        intake.without.contains(uid) && pod.is_none_or(|pod| pod.gpus.is_empty())
    };
    let lacking: BTreeSet<&str> = (intake.pods.iter())
        .filter(|(uid, _)| lacks(uid) && is_placed(rounds, uid))
        .map(|(uid, _)| uid.as_str())
        .collect();
    let all = placed == total && total > 0 && lacking.is_empty() && !intake.undecided;
    let verdict = match total {
        0 => "Nothing was decided: the manifests contain no pod that the scheduler would place."
            .to_owned(),
        _ => format!(
            "{placed} of {total} {} a place{}{}.",
            if total == 1 { "pod gets" } else { "pods get" },
            match lacking.len() {
                0 => String::new(),
                1 => "; 1 pod runs without a GPU".to_owned(),
                many => format!("; {many} pods run without a GPU"),
            },
            match evicted {
                0 => String::new(),
                1 => "; 1 pod is evicted for it".to_owned(),
                many => format!("; {many} pods are evicted for it"),
            }
        ),
    };
    let mut report = Report::from(actions::table(rounds, mine));
    let gets = report.table.columns.iter();
    let gets = gets.clone().position(|column| column.key == "grants");
    for row in &mut report.table.rows {
        let uid = row.last().and_then(|uid| uid.value.as_str());
        let lacks = uid.is_some_and(|uid| lacking.contains(uid));
        if let Some(cell) = gets.and_then(|at| row.get_mut(at)).filter(|_| lacks) {
            "no GPU".clone_into(&mut cell.shown);
            cell.tone = Tone::Bad;
        }
    }
    report
        .below
        .push(Cell::from(verdict).tone(if all { Tone::Good } else { Tone::Bad }));
    report
        .below
        .extend(settled.of_time().into_iter().map(Cell::from));
    report.below.extend(
        intake
            .notes
            .iter()
            .map(|note| Cell::from(note.clone()).tone(Tone::Warn)),
    );
    report.document = Some(json!({
        "pods": total, "placed": placed, "evicted": evicted, "withoutGpu": lacking.len(),
        "seconds": settled.took.0.div_ceil(1000), "searching": settled.searching,
        "actions": report.table.objects(), "notes": intake.notes,
    }));
    Ok((report, all))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: &str = "\
tick 100000
node n1 cpu=64000 memory=274877906944 pods=110 gpus=1 managed extended.aliquot.dev/gpu-share=48
cards n1 default=mps
  card GPU-1 product=L4 total=23034 reserved=34
queue default-queue
queue rich gpu=1000000000/-1/1000000
queue poor gpu=0/-1/1000000
pod guest ns=team queue=poor created=1 gpus.main=1 phase=running on=n1
  grant main cards=GPU-1 memory=23000 mode=exclusive
";

    fn manifests(text: &str) -> Vec<Value> {
        manifest::parse(text).unwrap_or_else(|why| panic!("{why}"))
    }

    fn simulate(text: &str) -> Result<(String, bool), String> {
        let shadow = Shadow::of_text(CLUSTER, scheduler_core::Config::default(), "kai-scheduler")?;
        let (report, all) =
            simulated(shadow, &manifests(text)).map_err(|failure| failure.sentence)?;
        Ok((Output::default().render(&report, false), all))
    }

    fn pod(name: &str, queue: &str, annotations: &str, limits: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{kai.scheduler/queue: {queue}}}, annotations: {{{annotations}}}}}\nspec: {{schedulerName: kai-scheduler, containers: [{{name: main, image: x, resources: {{limits: {{{limits}}}}}}}]}}\n---\n"
        )
    }

    #[test]
    fn a_share_that_its_queue_deserves_evicts_who_took_it() {
        let text = pod("mine", "rich", "gpu-memory: \"2000\"", "");
        let (text, all) = simulate(&text).unwrap();
        assert!(all, "{text}");
        assert!(text.contains("evict   team       guest"), "{text}");
        assert!(text.contains("mps 2000 MiB of GPU-1"), "{text}");
        assert!(
            text.contains("1 of 1 pod gets a place; 1 pod is evicted for it."),
            "{text}"
        );
    }

    /// Kubernetes accepts each of these pods, and they run without the GPU that their authors meant.
    #[test]
    fn a_pod_that_loses_its_gpu_by_a_mistake_is_no_success() {
        let wrong = pod("p", "rich", "gpu-memroy: \"2000\"", "");
        let (text, all) = simulate(&wrong).unwrap();
        assert!(!all, "{text}");
        assert!(text.contains("no GPU"), "{text}");
        assert!(
            text.contains("1 of 1 pod gets a place; 1 pod runs without a GPU."),
            "{text}"
        );
        assert!(text.contains("Pod p: metadata.annotations[gpu-memroy] is no annotation of Aliquot or KAI, so nothing reads it: write gpu-memory"), "{text}");
        let right = wrong.replace("gpu-memroy", "gpu-memory");
        let (text, all) = simulate(&right).unwrap();
        assert!(all && !text.contains("without a GPU"), "{text}");
        let owner = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, annotations: {gpu-memory: \"2000\"}, labels: {kai.scheduler/queue: rich}}\nspec: {replicas: 2, template: {spec: {schedulerName: kai-scheduler, containers: [{name: main, image: x}]}}}\n";
        let (text, all) = simulate(owner).unwrap();
        assert!(!all && text.contains("2 pods run without a GPU"), "{text}");
        assert!(
            text.contains("Deployment web: metadata.annotations[gpu-memory] is on the Deployment"),
            "{text}"
        );
        // One pod names another scheduler, and one names none.
        for name in ["", "schedulerName: aliquot, "] {
            let wrong = right.replace("schedulerName: kai-scheduler, ", name);
            let (text, all) = simulate(&format!("{wrong}{right}")).unwrap();
            assert!(
                !all && text.contains("another scheduler decides, and gives it no GPU"),
                "{text}"
            );
        }
        let class = right.replace("labels: {", "labels: {priorityClassName: trian, ");
        let (text, _) = simulate(&class).unwrap();
        assert!(text.contains("write train"), "{text}");
    }

    #[test]
    fn a_kind_about_whose_pods_nothing_was_decided_is_no_success() {
        let text = pod("mine", "rich", "gpu-memory: \"2000\"", "");
        let job = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: ddp}\nspec: {pytorchReplicaSpecs: {Worker: {replicas: 2, template: {spec: {containers: []}}}}}\n";
        let (text, all) = simulate(&format!("{text}{job}")).unwrap();
        assert!(!all, "{text}");
        assert!(
            text.contains("PyTorchJob ddp: nothing is decided about its pods"),
            "{text}"
        );
    }

    #[test]
    fn a_number_without_quotes_is_refused_with_the_quotes() {
        let error = simulate(&pod("bad", "rich", "gpu-memory: 2000", "")).unwrap_err();
        assert!(error.contains("write it in quotes, \"2000\""), "{error}");
    }

    #[test]
    fn what_is_decided_later_says_how_much_later() {
        let life = "queue poor gpu=0/-1/1000000 reclaim-min-runtime=60000\nlife pod:guest last-start=90000\n";
        let text = format!("{CLUSTER}{life}");
        let shadow = Shadow::of_text(&text, scheduler_core::Config::default(), "kai-scheduler");
        let mine = pod("mine", "rich", "gpu-memory: \"2000\"", "");
        let (report, all) = simulated(shadow.unwrap(), &manifests(&mine)).unwrap_or_else(|why| {
            panic!("{}", why.sentence);
        });
        assert!(all);
        let text = Output::default().render(&report, false);
        assert!(
            text.contains("1 pod is evicted for it.\nThe last of it is decided after 50 s.\n"),
            "{text}"
        );
        assert_eq!(report.document.unwrap()["seconds"], 50);
    }

    #[test]
    fn who_gets_no_place_is_told_why() {
        let (text, all) = simulate(&pod("mine", "poor", "gpu-memory: \"2000\"", "")).unwrap();
        assert!(!all);
        assert!(text.contains("waits   default    mine"), "{text}");
        assert!(text.contains("0 of 1 pod gets a place."), "{text}");
    }

    #[test]
    fn workloads_are_taken_apart_and_what_is_not_ours_is_said() {
        let text = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {kai.scheduler/queue: rich}}
spec:
  replicas: 3
  template:
    metadata: {annotations: {gpu-memory: \"7000\"}}
    spec: {schedulerName: kai-scheduler, containers: [{name: main, image: x}]}
---
apiVersion: v1
kind: Pod
metadata: {name: other}
spec: {containers: [{name: main, image: x}]}
---
apiVersion: v1
kind: Secret
metadata: {name: c}
";
        let (text, all) = simulate(text).unwrap();
        assert!(all, "{text}");
        assert!(text.contains("web-2"), "{text}");
        assert!(
            text.contains("3 of 3 pods get a place; 1 pod is evicted for it."),
            "{text}"
        );
        assert!(
            text.contains("Pod other: its spec.schedulerName is default-scheduler"),
            "{text}"
        );
        assert!(
            text.contains("Secret c: nothing is decided about a Secret"),
            "{text}"
        );
    }

    #[test]
    fn manifests_without_a_pod_are_no_success() {
        let foreign = "apiVersion: v1\nkind: Pod\nmetadata: {name: other}\nspec: {containers: [{name: main, image: x}]}\n";
        let cron = "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: nightly}\n";
        for text in [foreign, cron] {
            let (text, all) = simulate(text).unwrap();
            assert!(!all, "{text}");
            assert!(text.contains("Nothing was decided: "), "{text}");
        }
    }

    /// The trial follows the scheduler's grouper: a Deployment above its queue's quota waits, even
    /// if cards are free.
    #[test]
    fn a_deployment_is_serving_unless_it_says_otherwise() {
        let deployment = |labels: &str| {
            format!(
                "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web, labels: {{kai.scheduler/queue: none{labels}}}}}\nspec:\n  template:\n    metadata: {{annotations: {{gpu-memory: \"7000\"}}}}\n    spec: {{schedulerName: kai-scheduler, containers: [{{name: main, image: x}}]}}\n"
            )
        };
        let simulate = |labels: &str| {
            let (cluster, _) = CLUSTER.split_once("pod guest").unwrap();
            let cluster = format!("{cluster}queue none gpu=0/-1/1000000\n");
            let shadow =
                Shadow::of_text(&cluster, scheduler_core::Config::default(), "kai-scheduler");
            let simulated = simulated(shadow.unwrap(), &manifests(&deployment(labels)));
            let (report, all) = simulated.unwrap_or_else(|why| panic!("{}", why.sentence));
            (Output::default().render(&report, false), all)
        };
        let (text, all) = simulate("");
        assert!(!all, "{text}");
        assert!(
            text.contains("Non-preemptible workload is over quota"),
            "{text}"
        );
        for way in [
            ", priorityClassName: train",
            ", kai.scheduler/preemptibility: preemptible",
        ] {
            let (text, all) = simulate(way);
            assert!(all, "{way}: {text}");
        }
    }

    /// A file may contain the objects that its pods need.
    #[test]
    fn a_config_map_of_the_manifests_is_there() {
        let text = pod("mine", "rich", "gpu-memory: \"2000\"", "").replace(
            "name: main, image: x",
            "name: main, image: x, envFrom: [{configMapRef: {name: settings}}]",
        );
        let config = scheduler_core::Config::default();
        let live = || {
            let mut shadow = Shadow::of_objects(
                crate::shadow::Objects::default(),
                config.clone(),
                "kai-scheduler",
                scheduler_core::units::Time(5),
            );
            shadow.feed(CLUSTER).unwrap();
            shadow
        };
        let simulate = |text: &str| {
            let simulated = simulated(live(), &manifests(text));
            let (report, all) = simulated.unwrap_or_else(|why| panic!("{}", why.sentence));
            (Output::default().render(&report, false), all)
        };
        let (shown, all) = simulate(&text);
        assert!(!all && shown.contains("settings"), "{shown}");
        let map =
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {a: b}\n---\n";
        let (shown, all) = simulate(&format!("{text}{map}"));
        assert!(all, "{shown}");
    }

    #[test]
    fn claims_that_wait_for_their_first_consumer_decide_where_pods_go() {
        let disk = |name: &str| {
            format!(
                "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {name}}}\nspec: {{storageClassName: local, capacity: {{storage: 10Gi}}, accessModes: [ReadWriteOnce], local: {{path: /disk}}, nodeAffinity: {{required: {{nodeSelectorTerms: [{{matchFields: [{{key: metadata.name, operator: In, values: [n1]}}]}}]}}}}}}\n---\n"
            )
        };
        let set = "\
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, labels: {kai.scheduler/queue: rich}}
spec:
  replicas: 2
  template:
    spec: {schedulerName: kai-scheduler, containers: [{name: main, image: x}]}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {storageClassName: local, accessModes: [ReadWriteOnce], resources: {requests: {storage: 5Gi}}}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: local}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
---
";
        let (text, all) = simulate(&format!("{set}{}", disk("one"))).unwrap();
        assert!(!all, "{text}");
        assert!(
            text.contains(
                "available persistent volumes to bind to persistentvolumeclaim default/data-db-1"
            ),
            "{text}"
        );
        let (text, all) = simulate(&format!("{set}{}{}", disk("one"), disk("two"))).unwrap();
        assert!(all, "{text}");
    }

    /// A node with a device of a driver, which runs in a queue without quota.
    const DEVICES: &str = "\
apiVersion: v1
kind: Node
metadata: {name: n1, uid: n1}
status: {allocatable: {cpu: '64', memory: 256Gi, pods: '110'}, conditions: [{type: Ready, status: 'True'}]}
---
apiVersion: scheduling.run.ai/v2
kind: Queue
metadata: {name: rich}
spec: {resources: {gpu: {quota: 1, limit: -1, overQuotaWeight: 1}, cpu: {quota: -1, limit: -1}, memory: {quota: -1, limit: -1}}}
---
apiVersion: scheduling.run.ai/v2
kind: Queue
metadata: {name: poor}
spec: {resources: {gpu: {quota: 0, limit: -1, overQuotaWeight: 1}, cpu: {quota: -1, limit: -1}, memory: {quota: -1, limit: -1}}}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.example.com}
spec: {selectors: [{cel: {expression: device.driver == 'gpu.example.com'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: n1-gpu}
spec: {driver: gpu.example.com, nodeName: n1, pool: {name: n1, generation: 1, resourceSliceCount: 1}, devices: [{name: gpu-0}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: guest-gpu, namespace: team, uid: claim-1, ownerReferences: [{apiVersion: v1, kind: Pod, name: guest, uid: guest, controller: true}]}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.example.com, allocationMode: ExactCount, count: 1}}]}}
status:
  allocation: {devices: {results: [{request: gpu, driver: gpu.example.com, pool: n1, device: gpu-0}]}}
  reservedFor: [{resource: pods, name: guest, uid: guest}]
---
apiVersion: v1
kind: Pod
metadata: {name: guest, namespace: team, uid: guest, labels: {kai.scheduler/queue: poor}, creationTimestamp: '2026-01-01T00:00:00Z'}
spec: {schedulerName: kai-scheduler, nodeName: n1, resourceClaims: [{name: gpu, resourceClaimTemplateName: one}], containers: [{name: main, image: x, resources: {claims: [{name: gpu}]}}]}
status: {phase: Running, resourceClaimStatuses: [{name: gpu, resourceClaimName: guest-gpu}]}
";

    fn all<K: serde::de::DeserializeOwned>(objects: &[Value], kind: &str) -> Vec<K> {
        let of = objects.iter().filter(|object| object["kind"] == kind);
        of.map(|object| serde_json::from_value(object.clone()).unwrap())
            .collect()
    }

    /// On the cluster with the device.
    fn simulate_devices(text: &str) -> (String, bool) {
        let there = manifests(DEVICES);
        let objects = crate::shadow::Objects {
            nodes: all(&there, "Node"),
            queues: all(&there, "Queue"),
            device_classes: all(&there, "DeviceClass"),
            slices: all(&there, "ResourceSlice"),
            device_claims: all(&there, "ResourceClaim"),
            pods: all(&there, "Pod"),
            ..Default::default()
        };
        let config = scheduler_core::Config::default();
        let now = scheduler_core::units::Time(1_800_000_000_000);
        let shadow = Shadow::of_objects(objects, config, "kai-scheduler", now);
        let (report, all) = simulated(shadow, &manifests(text)).unwrap();
        (Output::default().render(&report, false), all)
    }

    fn claiming(name: &str, template: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{kai.scheduler/queue: rich}}}}\nspec: {{schedulerName: kai-scheduler, resourceClaims: [{{name: gpu, resourceClaimTemplateName: {template}}}], containers: [{{name: main, image: x, resources: {{claims: [{{name: gpu}}]}}}}]}}\n---\n"
        )
    }

    const TEMPLATE: &str = "\
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.example.com, allocationMode: ExactCount, count: 1}}]}}}
---
";

    #[test]
    fn claims_are_made_of_their_templates_and_get_devices_that_others_held() {
        let (text, all) = simulate_devices(&format!("{}{TEMPLATE}", claiming("asks", "one")));
        assert!(all, "{text}");
        assert!(text.contains("gpu.example.com/n1/gpu-0 by claim"), "{text}");
        assert!(
            text.contains("1 of 1 pod gets a place; 1 pod is evicted for it."),
            "{text}"
        );
        let (text, all) = simulate_devices(&claiming("asks", "one"));
        assert!(!all && text.contains("is not created yet"), "{text}");
        // With a second device no pod is evicted.
        let second = "apiVersion: resource.k8s.io/v1\nkind: ResourceSlice\nmetadata: {name: more}\nspec: {driver: gpu.example.com, nodeName: n1, pool: {name: more, generation: 1, resourceSliceCount: 1}, devices: [{name: gpu-7}]}\n---\n";
        let (text, all) =
            simulate_devices(&format!("{}{TEMPLATE}{second}", claiming("asks", "one")));
        assert!(all && !text.contains("evict"), "{text}");
        assert!(
            text.contains("gpu.example.com/more/gpu-7 by claim"),
            "{text}"
        );
    }

    #[test]
    fn on_a_snapshot_nothing_is_decided_about_new_claims() {
        let (text, all) = simulate(&format!("{}{TEMPLATE}", claiming("asks", "one"))).unwrap();
        assert!(!all, "{text}");
        assert!(
            text.contains(
                "ResourceClaimTemplate one: a snapshot does not hold the attributes of devices"
            ),
            "{text}"
        );
    }

    #[test]
    fn what_the_webhook_would_refuse_is_refused_in_its_words() {
        let error = simulate(&pod("bad", "rich", "gpu-memory: \"0\"", "")).unwrap_err();
        assert_eq!(
            error,
            "Pod bad would be rejected: gpu-memory annotation value must be a positive integer greater than 0; it is \"0\": write the number of MiB in digits alone, such as \"2000\""
        );
        let error = simulate("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {schedulerName: kai-scheduler, containers: 7}\n").unwrap_err();
        assert!(
            error.starts_with("Pod p would be rejected: the object is not a pod"),
            "{error}"
        );
    }
}
