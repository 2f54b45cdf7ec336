//! `/get-snapshot`: the cluster in the form of KAI's own, `snapshot.json` in a ZIP.
//!
//! In: the API server, listed on request, and the settings. Out: the archive. What containers run,
//! and their environment, is left out: no decision depends on it, and clients of the metrics port
//! must not see it. Our own snapshot, from which a core is rebuilt exactly, is `/snapshot`.

use crate::Config;
use crate::cycle::Question;
use crate::download;
use crate::label_selector;
use crate::shard::{Plan, Pool, Shard};
use axum::Router;
use axum::extract::{Query, State as Extract};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use kube::Client;
use scheduler_core::{GpuJobOrder, Placement, Resolve, Step};
use serde::ser::{Error as _, SerializeMap as _, SerializeSeq as _};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};
use std::io::{self, BufWriter, Cursor, Write as _};
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::spawn_blocking;
use zip::result::ZipResult;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// The file in the archive.
const FILE: &str = "snapshot.json";
/// Of KAI's flags.
const SCHEDULE_PERIOD_NS: u64 = 1_000_000_000;
/// Objects of one answer.
const PAGE: u32 = crate::watch::OBJECTS_AT_ONCE;
/// KAI's keys, and where those objects are that we may read.
const KINDS: [(&str, &str); 8] = [
    ("pods", "/api/v1/pods"),
    ("nodes", "/api/v1/nodes"),
    ("queues", "/apis/scheduling.run.ai/v2/queues"),
    ("podGroups", "/apis/scheduling.run.ai/v2alpha2/podgroups"),
    (
        "priorityClasses",
        "/apis/scheduling.k8s.io/v1/priorityclasses",
    ),
    ("persistentVolumeClaims", "/api/v1/persistentvolumeclaims"),
    ("storageClasses", "/apis/storage.k8s.io/v1/storageclasses"),
    ("topologies", "/apis/kai.scheduler/v1alpha1/topologies"),
];
/// KAI's keys of objects that no decision uses.
const NONE: [&str; 7] = [
    "bindRequests",
    "configMaps",
    "csiStorageCapacities",
    "csiDrivers",
    "resourceClaims",
    "resourceSlices",
    "deviceClasses",
];
/// Fields of a container that no decision uses.
const PRIVATE: [&str; 8] = [
    "args",
    "command",
    "env",
    "envFrom",
    "lifecycle",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
];

/// The sources of the page.
#[derive(Clone)]
struct Source {
    client: Client,
    scheduler: String,
    plan: Arc<Plan>,
    questions: mpsc::Sender<Question>,
    /// One at a time: it lists everything.
    turns: Arc<Semaphore>,
}

/// The page.
pub fn router(
    client: Client,
    config: &Config,
    plan: &Plan,
    questions: mpsc::Sender<Question>,
) -> Router {
    let source = Source {
        client,
        scheduler: config.scheduler_name.clone(),
        plan: Arc::new(plan.clone()),
        questions,
        turns: Arc::new(Semaphore::new(1)),
    };
    Router::new()
        .route("/get-snapshot", get(snapshot))
        .with_state(source)
}

#[derive(Deserialize)]
struct Which {
    shard: Option<String>,
}

async fn snapshot(Extract(source): Extract<Source>, Query(which): Query<Which>) -> Response {
    let shards = &source.plan.shards;
    let shard = match &which.shard {
        None => shards.first(),
        Some(name) => shards.iter().find(|shard| shard.name == *name),
    };
    let Some(shard) = shard else {
        return (StatusCode::NOT_FOUND, "there is no such shard\n").into_response();
    };
    let Ok(turn) = Arc::clone(&source.turns).try_acquire_owned() else {
        return (StatusCode::TOO_MANY_REQUESTS, "one at a time\n").into_response();
    };
    let Some(core) = in_force(&source, &shard.name).await else {
        return (StatusCode::SERVICE_UNAVAILABLE, "it ends\n").into_response();
    };
    let shard = Shard {
        core,
        ..shard.clone()
    };
    let snapshot = Snapshot {
        config: settings(&shard),
        parameters: parameters(&source.scheduler, &source.plan.queue_label, &shard),
        objects: Objects {
            client: source.client,
            runtime: Handle::current(),
        },
    };
    // Some 100 MB of a large cluster take seconds. It goes on when the client is gone, and so it
    // keeps the turn.
    let (archive, turn) = match spawn_blocking(move || (archive(&snapshot), turn)).await {
        Ok((Ok(archive), turn)) => (archive, turn),
        Ok((Err(error), _)) => {
            return (StatusCode::BAD_GATEWAY, format!("{error}\n")).into_response();
        }
        Err(_) => return (StatusCode::SERVICE_UNAVAILABLE, "it ends\n").into_response(),
    };
    let headers = [
        (header::CONTENT_TYPE, "application/zip"),
        (
            header::CONTENT_DISPOSITION,
            "attachment; filename=snapshot.zip",
        ),
    ];
    let body = download::body(turn, move |page| page.write_all(&archive));
    (headers, body).into_response()
}

/// The file. Its objects are listed while it is written: they are never in memory all at once,
/// because those of a large cluster take more than this process may have.
#[derive(Serialize)]
struct Snapshot {
    config: Value,
    #[serde(rename = "schedulerParams")]
    parameters: Value,
    #[serde(rename = "rawObjects")]
    objects: Objects,
}

/// The file in a ZIP archive, which KAI's snapshot tool opens. Called on a thread that may block.
///
/// # Errors
/// The API server refused a list, with its words.
fn archive(snapshot: &impl Serialize) -> ZipResult<Vec<u8>> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    // A file of more than 4 GiB has to be announced.
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Deflated)
        .large_file(true);
    writer.start_file(FILE, options)?;
    let mut file = BufWriter::new(&mut writer);
    serde_json::to_writer(&mut file, snapshot).map_err(io::Error::from)?;
    file.flush()?;
    drop(file);
    Ok(writer.finish()?.into_inner())
}

/// Settings of the shard as they are now: an admin may have changed them.
async fn in_force(source: &Source, shard: &str) -> Option<scheduler_core::Config> {
    let (to, settings) = oneshot::channel();
    let question = Question::Of(shard.to_owned(), Box::new(Question::Settings(to)));
    source.questions.send(question).await.ok()?;
    settings.await.ok()
}

/// All objects, by KAI's keys.
struct Objects {
    client: Client,
    runtime: Handle,
}

impl Serialize for Objects {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (key, path) in KINDS {
            map.serialize_entry(key, &List { of: self, path })?;
        }
        for key in NONE {
            map.serialize_entry(key, &[(); 0])?;
        }
        map.end()
    }
}

/// All of one kind; none where the kind is not installed.
struct List<'a> {
    of: &'a Objects,
    path: &'static str,
}

impl Serialize for List<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        let mut more = Some(String::new());
        while let Some(from) = more {
            let mut page = self.page(&from).map_err(S::Error::custom)?;
            let items = page["items"].as_array_mut().map(std::mem::take);
            for item in items.unwrap_or_default() {
                list.serialize_element(&trimmed(item))?;
            }
            // A token is base64 of the URL's alphabet.
            let next = page["metadata"]["continue"].as_str();
            more = next.filter(|next| !next.is_empty()).map(str::to_owned);
        }
        list.end()
    }
}

impl List<'_> {
    fn page(&self, from: &str) -> kube::Result<Value> {
        let path = self.path;
        let request = http::Request::get(format!("{path}?limit={PAGE}&continue={from}"))
            .body(Vec::new())
            .map_err(kube::Error::HttpError)?;
        let page = self.of.client.request(request);
        match self.of.runtime.block_on(page) {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Value::Null),
            page => page,
        }
    }
}

/// Without what decisions do not look at.
fn trimmed(mut object: Value) -> Value {
    if let Some(meta) = object["metadata"].as_object_mut() {
        meta.remove("managedFields");
        if let Some(annotations) = meta.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        }
    }
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        let containers = object.pointer_mut(&format!("/spec/{list}"));
        for container in containers
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            if let Some(container) = container.as_object_mut() {
                container.retain(|field, _| !PRIVATE.contains(&field.as_str()));
            }
        }
    }
    object
}

/// KAI's `SchedulerConfiguration`.
fn settings(shard: &Shard) -> Value {
    let core = &shard.core;
    let actions: Vec<&str> = core.actions.iter().map(|step| action(*step)).collect();
    let billionths = |value: u64| format!("{}.{:09}", value / 1_000_000_000, value % 1_000_000_000);
    let plugin = |name: &str| json!({"name": name});
    let mut plugins: Vec<Value> = [
        "predicates",
        "priority",
        "nodeavailability",
        "resourcetype",
        "elastic",
        "kubeflow",
        "ray",
        "subgrouporder",
        "taskorder",
        "nominatednode",
        "topology",
        "snapshot",
    ]
    .map(plugin)
    .into();
    plugins.push(json!({"name": "proportion", "arguments": {
        "kValue": billionths(core.k_value),
        "relcaimerSaturationMultiplier": billionths(core.saturation_multiplier),
        "queuePriorityInQuotaReclaim": core.queue_priority_in_quota.to_string(),
    }}));
    if let Some(labels) = &core.background {
        let labels = label_selector::text(labels);
        plugins.push(json!({"name": "backgroundpods", "arguments": {"labelSelector": labels}}));
    }
    if let Some(order) = core.gpu_job_order {
        let mode = match order {
            GpuJobOrder::PreferLarger => "prefer-larger",
            GpuJobOrder::PreferSmaller => "prefer-smaller",
        };
        plugins.push(json!({"name": "gpujoborder", "arguments": {"mode": mode}}));
    }
    plugins.push(json!({"name": "minruntime", "arguments": {
        "defaultPreemptMinRuntime": format!("{}ms", core.preempt_min_runtime.0),
        "defaultReclaimMinRuntime": format!("{}ms", core.reclaim_min_runtime.0),
        "reclaimResolveMethod": match core.reclaim_resolve {
            Resolve::Lca => "lca",
            Resolve::Queue => "queue",
        },
    }}));
    plugins.push(json!({"name": "nodeplacement", "arguments": {
        "gpu": strategy(core.gpu_placement),
        "cpu": strategy(core.cpu_placement),
    }}));
    if strategy(core.card_placement.unwrap_or(core.gpu_placement)) == "spread" {
        plugins.push(plugin("gpuspread"));
    } else {
        plugins.extend([plugin("gpupack"), plugin("gpusharingorder")]);
    }
    json!({"actions": actions.join(", "), "tiers": [{"plugins": plugins}]})
}

/// KAI's `SchedulerParams`; times in nanoseconds, as Go writes them.
fn parameters(scheduler: &str, queue_label: &str, shard: &Shard) -> Value {
    let core = &shard.core;
    let (key, value) = match &shard.pool {
        Pool::All => ("", ""),
        Pool::Of { key, value } => (key.as_str(), value.as_str()),
    };
    let grace = core.staleness_grace.map_or(-1, |grace| {
        i64::try_from(grace.0.saturating_mul(1_000_000)).unwrap_or(i64::MAX)
    });
    json!({
        "schedulerName": scheduler,
        "partitionParams": {"NodePoolLabelKey": key, "NodePoolLabelValue": value},
        "maxNumberConsolidationPreemptees": core.consolidation_jobs.map_or(-1, i64::from),
        "useSchedulingSignatures": true,
        "fullHierarchyFairness": true,
        "allowConsolidatingReclaim": true,
        "globalDefaultStalenessGracePeriod": grace,
        "schedulePeriod": SCHEDULE_PERIOD_NS,
        "detailedFitErrors": true,
        "updatePodEvictionCondition": true,
        "queueLabelKey": queue_label,
    })
}

fn action(step: Step) -> &'static str {
    match step {
        Step::Allocate => "allocate",
        Step::Consolidation => "consolidation",
        Step::Reclaim => "reclaim",
        Step::Preempt => "preempt",
        Step::StaleGangEviction => "stalegangeviction",
    }
}

/// KAI's nearest.
fn strategy(placement: Placement) -> &'static str {
    if placement == Placement::Spread {
        "spread"
    } else {
        "binpack"
    }
}

#[cfg(test)]
mod tests;
