//! Where the hours come from: what a scheduler remembers, or Prometheus.

use super::args::Args;
use super::uses::{Key, Use, Uses};
use crate::connect::Cluster;
use crate::failure::Failure;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use proto::names::NAMESPACE;
use scheduler::page::ReportBy;
use scheduler::prometheus::{Sample, client};
use scheduler_core::units::Time;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// Label of the scheduler's pods, and its port of metrics (`deploy/scheduler.yaml`).
const LABEL: (&str, &str) = ("app.kubernetes.io/name", "aliquot-scheduler");
const PORT: u16 = 9401;
/// Bytes.
const MIB: f64 = 1_048_576.0;
/// Timeout for a query of Prometheus.
const PATIENCE: Duration = Duration::from_mins(1);
/// Points of a range that Prometheus adds up.
const POINTS: u64 = 10_000;

pub(super) async fn ask(args: &Args) -> Result<Uses, Failure> {
    if let Some(url) = &args.prometheus {
        let asked = tokio::time::timeout(PATIENCE, prometheus(url, args.by, args.last));
        let told = asked.await.map_err(|_| {
            Failure::cluster(format!(
                "Prometheus did not answer within {} s",
                PATIENCE.as_secs()
            ))
        })?;
        return told.map_err(Failure::cluster);
    }
    let page = format!("/report?by={}&hours={}", args.by.as_str(), args.last);
    let text = match &args.scheduler {
        Some(url) => {
            let prometheus = client(url).map_err(|_| {
                Failure::input("--scheduler is not a URL, such as http://localhost:9401")
            })?;
            prometheus.page(&page).await.map_err(Failure::cluster)?
        }
        None => by_api_server(&args.place.connect().await?, &page).await?,
    };
    let answer: Value = serde_json::from_str(&text)
        .map_err(|error| Failure::cluster(format!("this is not a scheduler's report: {error}")))?;
    remembered(&answer).ok_or_else(|| Failure::cluster("this is not a scheduler's report"))
}

/// A page of the scheduler that runs longest, through the API server.
async fn by_api_server(cluster: &Cluster, page: &str) -> Result<String, Failure> {
    let pods: Vec<Pod> = cluster.list_in(NAMESPACE).await?;
    let runs = |pod: &Pod| {
        let status = pod.status.as_ref();
        pod.labels()
            .get(LABEL.0)
            .is_some_and(|name| name == LABEL.1)
            && status.and_then(|status| status.phase.as_deref()) == Some("Running")
    };
    let started = |pod: &Pod| {
        let status = pod.status.as_ref();
        status.and_then(|status| status.start_time.as_ref().map(|at| at.0))
    };
    let mut running: Vec<&Pod> = pods.iter().filter(|pod| runs(pod)).collect();
    running.sort_by_key(|pod| started(pod));
    let pod = running.first().ok_or_else(|| {
        Failure::no(format!(
            "no scheduler runs in {NAMESPACE}: give --scheduler URL or --prometheus URL"
        ))
    })?;
    let path = format!(
        "/api/v1/namespaces/{NAMESPACE}/pods/{}:{PORT}/proxy{page}",
        pod.name_any()
    );
    let request = http::Request::get(path)
        .body(Vec::new())
        .map_err(Failure::no)?;
    cluster.client.request_text(request).await.map_err(|error| {
        let failure = cluster.failure("pods/proxy", &error);
        Failure::cluster(format!(
            "{}; or: kubectl -n {NAMESPACE} port-forward {} {PORT}, and --scheduler http://localhost:{PORT}",
            failure.sentence,
            pod.name_any()
        ))
    })
}

/// A scheduler's answer: thousandths of GPU-hours, and MiB-hours.
fn remembered(answer: &Value) -> Option<Uses> {
    let number = |of: &Value, key: &str| of[key].as_u64();
    let mut uses = Uses {
        until: number(answer, "until")?,
        ..Uses::default()
    };
    uses.from = number(answer, "from").unwrap_or(uses.until);
    for row in answer["rows"].as_array()? {
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let key = Key {
            queue: text("queue"),
            namespace: text("namespace"),
            owner: text("owner"),
        };
        let products = uses.rows.entry(key).or_default();
        for (product, of) in row["products"].as_object()? {
            let hours = Use {
                gpu: thousandths(number(of, "gpuHours")?),
                gpu_unused: Some(thousandths(number(of, "unusedGpuHours")?)),
                mib: Some(whole(number(of, "grantedMibHours")?)),
                mib_unused: Some(whole(number(of, "unusedMibHours")?)),
                // A scheduler of an earlier release does not say.
                longest_idle: number(of, "longestIdleMinutes"),
            };
            products.insert(product.clone(), hours);
        }
    }
    let cards = &answer["cards"];
    uses.cards = number(cards, "gpuHours")
        .zip(number(cards, "freeGpuHours"))
        .map(|(all, free)| (thousandths(all), thousandths(free)));
    let since = number(answer, "since").unwrap_or(0);
    if since > uses.from {
        uses.notes.push(format!(
            "The scheduler's history begins at {}.",
            stamp(since)
        ));
    }
    if let Some(from) = number(answer, "ownersFrom").filter(|_| answer["by"] != "queue") {
        uses.notes.push(format!(
            "Before {} there is no breakdown by workload.",
            stamp(from)
        ));
    }
    Some(uses)
}

fn stamp(millis: u64) -> String {
    let at = i64::try_from(millis).unwrap_or(0);
    jiff::Timestamp::from_millisecond(at).map_or_else(|_| String::new(), |at| at.to_string())
}

#[expect(clippy::cast_precision_loss, reason = "hours of a cluster")]
fn whole(number: u64) -> f64 {
    number as f64
}

fn thousandths(number: u64) -> f64 {
    whole(number) / 1000.0
}

#[derive(Debug, Default, Deserialize)]
struct Labels {
    queue_name: Option<String>,
    namespace: Option<String>,
    owner_kind: Option<String>,
    owner_name: Option<String>,
    #[serde(rename = "modelName")]
    product: Option<String>,
}

impl Labels {
    fn key(&self) -> Key {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let owner = self.owner_kind.as_deref().zip(self.owner_name.as_deref());
        Key {
            queue: text(&self.queue_name),
            namespace: text(&self.namespace),
            owner: owner
                .map(|(kind, name)| format!("{kind}/{name}"))
                .unwrap_or_default(),
        }
    }
}

/// The queries: GPU-hours, MiB-hours and unused MiB-hours, each a sum over `[range:step]` of
/// what `step` is multiplied by.
fn queries(by: ReportBy) -> [Option<String>; 3] {
    let limit =
        "max by (namespace, pod, container, UUID, modelName) (aliquot_share_memory_limit_bytes)";
    // The memory in use of a share is for all of its cards together, and is repeated for each.
    let unused = format!(
        "clamp_min(sum by (namespace, pod, container, modelName) ({limit}) - on (namespace, pod, container) group_left () \
         max by (namespace, pod, container) (aliquot_share_memory_used_bytes), 0)"
    );
    let part = format!(
        "({limit}) / on (UUID) group_left () max by (UUID) (aliquot_gpu_memory_grantable_bytes)"
    );
    let sum = |of: &str| match by {
        ReportBy::Queue => None,
        ReportBy::Namespace => Some(format!("sum by (namespace, modelName) ({of})")),
        ReportBy::Owner => Some(format!(
            "sum by (namespace, owner_kind, owner_name, modelName) (({of}) * on (namespace, pod) group_left (owner_kind, owner_name) \
             max by (namespace, pod, owner_kind, owner_name) (kube_pod_owner))"
        )),
    };
    let queue = "max by (queue_name) (kai_queue_allocated_gpus)";
    [
        sum(&part).or_else(|| Some(queue.to_owned())),
        sum(limit),
        sum(&unused),
    ]
}

/// The same of Prometheus, which may reach further back.
async fn prometheus(url: &str, by: ReportBy, hours: u64) -> Result<Uses, String> {
    let prometheus = client(url)?;
    let seconds = hours * 3600;
    let step = (seconds / POINTS).max(60);
    let now = crate::shadow::clock();
    let ask = async |query: &str| -> Result<Vec<(Labels, f64)>, String> {
        let query = format!("sum_over_time(({query})[{seconds}s:{step}s]) * {step} / 3600");
        let samples: Vec<Sample<Labels>> = prometheus.instant(&query, now).await?;
        let value = |sample: Sample<Labels>| {
            let number: Option<f64> = sample.value.1.parse().ok();
            let number = number.filter(|number| number.is_finite())?;
            Some((sample.metric, number))
        };
        Ok(samples.into_iter().filter_map(value).collect())
    };
    let mut rows: BTreeMap<Key, BTreeMap<String, Use>> = BTreeMap::new();
    let [gpu, mib, unused] = queries(by);
    let of = |rows: &mut BTreeMap<Key, BTreeMap<String, Use>>,
              labels: &Labels,
              set: &dyn Fn(&mut Use)| {
        let product = labels.product.clone().unwrap_or_default();
        set(rows
            .entry(labels.key())
            .or_default()
            .entry(product)
            .or_default());
    };
    for (labels, hours) in ask(&gpu.unwrap_or_default()).await? {
        of(&mut rows, &labels, &|all| all.gpu = hours);
    }
    if let (Some(mib), Some(unused)) = (mib, unused) {
        for (labels, bytes) in ask(&mib).await? {
            of(&mut rows, &labels, &|all| all.mib = Some(bytes / MIB));
        }
        for (labels, bytes) in ask(&unused).await? {
            of(&mut rows, &labels, &|all| {
                all.mib_unused = Some(bytes / MIB);
            });
        }
    }
    for all in rows.values_mut().flat_map(BTreeMap::values_mut) {
        let part = all.mib_unused.zip(all.mib.filter(|mib| *mib > 0.0));
        all.gpu_unused = part.map(|(unused, mib)| all.gpu * unused / mib);
    }
    let one = async |query: &str| -> Result<Option<f64>, String> {
        Ok(ask(query).await?.first().map(|(_, value)| *value))
    };
    let cards = one("count(max by (UUID) (aliquot_gpu_memory_grantable_bytes))").await?;
    let free = one(
        "sum(clamp_min(1 - max by (UUID) (aliquot_gpu_memory_granted_bytes) / max by (UUID) (aliquot_gpu_memory_grantable_bytes), 0))",
    )
    .await?;
    let mut notes = Vec::new();
    if by == ReportBy::Queue {
        notes.push(
            "A queue's hours include those of all queues below it. Prometheus has no unused hours by queue: use --by namespace."
                .to_owned(),
        );
    }
    if by == ReportBy::Owner && rows.is_empty() {
        notes.push(
            "Workloads are known to Prometheus by kube-state-metrics (kube_pod_owner).".to_owned(),
        );
    }
    Ok(Uses {
        rows,
        cards: cards.zip(free),
        from: Time(now.0.saturating_sub(seconds * 1000)).0,
        until: now.0,
        notes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_queries_are_prometheus_language() {
        for by in [ReportBy::Queue, ReportBy::Namespace, ReportBy::Owner] {
            for query in queries(by).into_iter().flatten() {
                let query = format!("sum_over_time(({query})[3600s:60s]) * 60 / 3600");
                let parsed = promql_parser::parser::parse(&query);
                assert!(parsed.is_ok(), "{query}: {parsed:?}");
            }
        }
    }

    #[test]
    fn what_a_scheduler_remembers_is_read_and_other_answers_are_refused() {
        let answer = json!({
            "by": "owner", "from": 3_600_000, "until": 7_200_000, "since": 5_000_000, "ownersFrom": null,
            "rows": [{"queue": "q", "namespace": "ns", "owner": "Job/a", "products":
                {"L4": {"gpuHours": 1500, "unusedGpuHours": 500, "grantedMibHours": 30_000, "unusedMibHours": 10_000, "longestIdleMinutes": 95}}}],
            "cards": {"gpuHours": 8000, "freeGpuHours": 6500},
        });
        let uses = remembered(&answer).unwrap();
        let (key, products) = uses.rows.iter().next().unwrap();
        assert_eq!((key.owner.as_str(), products["L4"].gpu), ("Job/a", 1.5));
        assert_eq!(products["L4"].mib_unused, Some(10_000.0));
        assert_eq!(products["L4"].longest_idle, Some(95));
        assert_eq!(uses.cards, Some((8.0, 6.5)));
        assert_eq!(
            uses.notes,
            ["The scheduler's history begins at 1970-01-01T01:23:20Z."]
        );
        for other in [
            json!(null),
            json!({"rows": []}),
            json!({"until": 1, "rows": [{}]}),
        ] {
            assert!(remembered(&other).is_none(), "{other}");
        }
    }
}
