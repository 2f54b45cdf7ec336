use super::*;
use crate::label_selector;
use scheduler_core::units::Duration;
use scheduler_core::{GpuJobOrder, Placement, Resolve, Step, Workers};

fn read(text: &str) -> (Plan, Vec<String>) {
    let (plan, remarks) = Plan::read(text, &Config::default(), 7).unwrap();
    let remarks = remarks
        .into_iter()
        .map(|r| format!("{}: {}", r.line, r.why));
    (plan, remarks.collect())
}

const HEAD: &str =
    "apiVersion: kai.scheduler/v1\nkind: SchedulingShard\nmetadata:\n  name: a\nspec:\n";

fn refused(spec: &str) -> String {
    let refused = Plan::read(&format!("{HEAD}{spec}"), &Config::default(), 7).unwrap_err();
    format!("{}: {}", refused.line, refused.why)
}

#[test]
fn the_file_in_the_docs_can_be_read() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/migration.md");
    let page = std::fs::read_to_string(page).unwrap();
    let blocks = page.split("```yaml\n").skip(1);
    let ours = blocks.filter(|block| block.contains("kind: SchedulerConfiguration"));
    let files: Vec<&str> = ours.filter_map(|block| block.split("```").next()).collect();
    let [file] = files.as_slice() else {
        panic!("{files:?}");
    };
    assert_eq!(read(file).1, Vec::<String>::new());
}

#[test]
fn kais_fields_and_arguments_mean_here_what_they_mean_there() {
    let (plan, remarks) = read(&format!(
        "{HEAD}  args:
    max-consolidation-preemptees: \"-1\"
    default-staleness-grace-period: 90s
  placementStrategy: {{gpu: spread, cpu: binpack}}
  partitionLabelValue: pool-a
  minRuntime:
    preemptMinRuntime: 5m
    reclaimMinRuntime: 1h
  kValue: 0.5
  plugins:
    proportion:
      arguments:
        relcaimerSaturationMultiplier: \"1.25\"
  actions:
    preempt:
      priority: 450
    consolidation:
      enabled: false
"
    ));
    assert_eq!(remarks, Vec::<String>::new());
    let [shard] = plan.shards.as_slice() else {
        panic!("{plan:?}")
    };
    assert_eq!(
        (shard.name.as_str(), shard.pool.value()),
        ("a", Some("pool-a"))
    );
    let core = &shard.core;
    assert_eq!(core.gpu_placement, Placement::Spread);
    assert_eq!(core.cpu_placement, Placement::Binpack);
    assert_eq!(core.consolidation_jobs, None);
    assert_eq!(core.staleness_grace, Some(Duration(90_000)));
    assert_eq!(core.preempt_min_runtime, Duration(300_000));
    assert_eq!(core.reclaim_min_runtime, Duration(3_600_000));
    assert_eq!(core.k_value, 500_000_000);
    assert_eq!(core.saturation_multiplier, 1_250_000_000);
    assert_eq!(
        core.actions,
        [
            Step::Allocate,
            Step::Preempt,
            Step::Reclaim,
            Step::StaleGangEviction
        ]
    );
}

#[test]
fn what_kais_flags_switch_and_these_decisions_do_not_is_said_however_go_writes_it() {
    let said = |flag: &str, value: &str| {
        let args = format!("{HEAD}  args:\n    {flag}: \"{value}\"\n");
        read(&args).1.join("; ")
    };
    for (flag, effect, harmless, word) in [
        (
            "full-hierarchy-fairness",
            ["false", "False", "f", "0"],
            "true",
            "cannot be switched off",
        ),
        (
            "allow-consolidating-reclaim",
            ["false", "FALSE", "F", "0"],
            "T",
            "cannot be switched off",
        ),
        (
            "schedule-csi-storage",
            ["true", "TRUE", "T", "1"],
            "0",
            "has no effect",
        ),
    ] {
        for value in effect {
            let said = said(flag, value);
            assert!(
                said.contains(flag) && said.contains(word),
                "{flag} {value}: {said}"
            );
        }
        assert_eq!(said(flag, harmless), "", "{flag}");
        let odd = refused(&format!("  args:\n    {flag}: \"maybe\"\n"));
        assert!(odd.contains("maybe is neither true nor false"), "{odd}");
    }
}

#[test]
fn nodes_are_for_pods_with_gpus_or_without_by_kais_labels_or_an_admins() {
    let with = |args: &str| {
        let (plan, said) = read(&format!("{HEAD}  args: {{{args}}}\n"));
        let labels = |workers: Workers| (workers.gpu.to_string(), workers.cpu.to_string());
        let workers = plan.shards[0].core.workers.clone().map(labels);
        (workers, said.join("; "))
    };
    let of = |gpu: &str, cpu: &str| Some((gpu.to_owned(), cpu.to_owned()));
    let role = |of: &str| format!("node-role.kubernetes.io/{of}-worker");
    let (gpu, cpu) = (role("gpu"), role("cpu"));
    let restricted = with("restrict-node-scheduling: True");
    assert_eq!(restricted, (of(&gpu, &cpu), String::new()));
    // In whichever order.
    let (workers, said) = with("gpu-worker-node-label-key: pool/gpu, restrict-node-scheduling: t");
    assert_eq!((workers, said.as_str()), (of("pool/gpu", &cpu), ""));
    let (workers, said) = with("restrict-node-scheduling: f, cpu-worker-node-label-key: pool/cpu");
    assert_eq!(workers, None);
    assert!(
        said.contains("cpu-worker-node-label-key has no effect"),
        "{said}"
    );
    let odd = refused("  args: {restrict-node-scheduling: maybe}\n");
    assert!(odd.contains("maybe is neither true nor false"), "{odd}");
}

#[test]
fn which_pods_are_background_work_is_set_as_kai_has_it() {
    let with = |plugin: &str| format!("  plugins: {{backgroundpods: {{{plugin}}}}}\n");
    let of = |plugin: &str| {
        let core = read(&format!("{HEAD}{}", with(plugin)))
            .0
            .shards
            .swap_remove(0)
            .core;
        core.background.map(|labels| label_selector::text(&labels))
    };
    let argument = |text: &str| format!("arguments: {{labelSelector: \"{text}\"}}");
    assert_eq!(
        of("").as_deref(),
        Some("kai.scheduler/background in (true)")
    );
    let named = argument("role in (check,probe)");
    assert_eq!(of(&named).as_deref(), Some("role in (check,probe)"));
    assert_eq!(of(&format!("enabled: false, {named}")), None);
    for (odd, why) in [
        ("role in", "no requirement of labels"),
        ("", "the selector is empty"),
    ] {
        let odd = refused(&with(&argument(odd)));
        assert!(odd.contains(why), "{odd}");
    }
}

#[test]
fn whose_time_counts_and_what_priority_takes_are_set_as_kai_has_it() {
    let with = |plugin: &str, argument: &str| {
        format!("  plugins:\n    {plugin}: {{arguments: {{{argument}}}}}\n")
    };
    let of = |spec: &str| read(&format!("{HEAD}{spec}")).0.shards.swap_remove(0).core;
    let plain = of("  args: {}\n");
    assert_eq!(plain.reclaim_resolve, Resolve::Lca);
    assert!(!plain.queue_priority_in_quota);
    let queue = of(&with("minruntime", "reclaimResolveMethod: queue"));
    assert_eq!(queue.reclaim_resolve, Resolve::Queue);
    let taken = of(&with("proportion", "queuePriorityInQuotaReclaim: \"true\""));
    assert!(taken.queue_priority_in_quota);
    for name in [
        "relcaimerSaturationMultiplier",
        "reclaimerUtilizationMultiplier",
    ] {
        let more = of(&with("proportion", &format!("{name}: \"1.5\"")));
        assert_eq!(more.saturation_multiplier, 1_500_000_000);
    }
    assert_eq!(plain.gpu_job_order, None);
    let larger = of("  plugins: {gpujoborder: {}}\n");
    assert_eq!(larger.gpu_job_order, Some(GpuJobOrder::PreferLarger));
    let smaller = of(&with("gpujoborder", "mode: prefer-smaller"));
    assert_eq!(smaller.gpu_job_order, Some(GpuJobOrder::PreferSmaller));
    let off = "{gpujoborder: {enabled: false, arguments: {mode: prefer-smaller}}}";
    assert_eq!(of(&format!("  plugins: {off}\n")).gpu_job_order, None);
    let odd = refused(&with("gpujoborder", "mode: largest"));
    assert!(
        odd.contains("largest is neither prefer-larger nor prefer-smaller"),
        "{odd}"
    );
    let odd = refused(&with("minruntime", "reclaimResolveMethod: parent"));
    assert!(odd.contains("parent is neither lca nor queue"), "{odd}");
}

#[test]
fn each_shard_has_its_nodes_its_settings_and_decisions_of_its_own() {
    let (plan, _) = read(
        "# ours\napiVersion: aliquot.dev/v1alpha1\nkind: SchedulerConfiguration\n\
             queueLabelKey: team\nnodePoolLabelKey: pool\nkeepEmptyNodes: 2\n---\n\
             apiVersion: kai.scheduler/v1\nkind: SchedulingShard\nmetadata: {name: default}\n---\n\
             apiVersion: kai.scheduler/v1\nkind: SchedulingShard\nmetadata: {name: b}\n\
             spec: {partitionLabelValue: b}\n",
    );
    assert_eq!(plan.queue_label, "team");
    let seen: Vec<_> = plan
        .shards
        .iter()
        .map(|shard| {
            (
                shard.pool.value(),
                shard.core.epoch,
                shard.core.keep_empty_nodes,
            )
        })
        .collect();
    assert_eq!(seen, [(Some(""), 7, 2), (Some("b"), 8, 2)]);
    assert_eq!(plan.pools().unwrap(), ["", "b"]);
}

#[test]
fn what_has_no_effect_is_said_with_its_line() {
    let (_, remarks) = read(&format!(
        "{HEAD}  args:
    schedule-period: 1s
    no-such-flag: x
  plugins:
    dreams: {{}}
    topology: {{enabled: false}}
  queueDepthPerAction: {{allocate: 10}}
"
    ));
    assert_eq!(remarks.len(), 5, "{remarks:?}");
    for (remark, (line, word)) in remarks.iter().zip([
        ("7: ", "schedule-period"),
        ("8: ", "no-such-flag"),
        ("10: ", "dreams"),
        ("11: ", "topology"),
        ("12: ", "queueDepthPerAction"),
    ]) {
        assert!(
            remark.starts_with(line) && remark.contains(word),
            "{remark}"
        );
    }
}

#[test]
fn what_cannot_be_meant_is_refused_with_its_line() {
    for (spec, line, words) in [
        ("  placementStrategy: {gpu: thin}\n", "6: ", "thin"),
        ("  actions:\n    dance: {}\n", "7: ", "dance"),
        (
            "  args:\n    max-consolidation-preemptees: many\n",
            "7: ",
            "many",
        ),
        ("  kValue: -1\n", "6: ", "kValue"),
        (
            "  minRuntime:\n    preemptMinRuntime: soon\n",
            "7: ",
            "soon",
        ),
        ("  strategy: x\n", "6: ", "strategy"),
        (
            "  plugins:\n    proportion:\n      arguments:\n        relcaimerSaturationMultiplier: \"0.5\"\n",
            "9: ",
            "relcaimerSaturationMultiplier",
        ),
        ("  {}\n---\nkind: Pod\napiVersion: v1\n", "8: ", "Pod"),
        (
            "  {}\n---\napiVersion: kai.scheduler/v1\nkind: SchedulingShard\nmetadata:\n  name: b\n",
            "11: ",
            "same nodes",
        ),
        (
            "  {}\n---\napiVersion: aliquot.dev/v1alpha1\nkind: SchedulerConfiguration\nqueueLabel: x\n",
            "10: ",
            "queueLabel",
        ),
    ] {
        let said = refused(spec);
        assert!(
            said.starts_with(line) && said.contains(words),
            "{spec}{said}"
        );
    }
}
