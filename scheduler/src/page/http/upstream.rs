//! Requests to others that an answer needs: to the API server, to Prometheus, to the core.

use super::state::{Answered, HttpState, Refusal, ended, read, tagged};
use crate::convert::World;
use crate::cycle::Question;
use crate::history::Span;
use crate::page::answer::{Line, Pods, Query, Rights, Series};
use crate::page::range::{self, Of};
use crate::page::timeline::{self, PodFacts};
use crate::trial::{ClusterState, Wanted, WhatIf, advice, what_if};
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query as Parameters, State as Extract};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{Api, ListParams};
use scheduler_core::Core;
use scheduler_core::ids::PodUid;
use scheduler_core::units::Time;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// Timeout for one answer of the API server.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pods of one question at most.
const MOST: u32 = 1000;
/// Changes are tried for this time: in a large cluster all of them would take minutes.
const ADVICE: Duration = Duration::from_secs(5);
/// How the line with the estimate begins ([`crate::forecast::Estimate::line`]).
const START: &str = "estimated start: ";

pub(super) fn routes() -> Router<HttpState> {
    Router::new()
        .route("/api/pods/{uid}", get(pod))
        .route("/api/advice/{uid}", get(advice_for))
        .route("/api/timeline/{uid}", get(timeline_of))
        .route("/api/time", get(time))
        .route("/api/whatif", get(whatif))
}

impl HttpState {
    /// Where the pod could go, a line per node and card; nothing if the cycle has ended.
    async fn explain(&self, uid: &str) -> Option<String> {
        let (to, answer) = oneshot::channel();
        let question = Question::Explain(uid.into(), to);
        self.questions.send(question).await.ok()?;
        let text = answer.await.ok()??;
        // The first line is the reason, which is shown already.
        Some(text.split_once('\n')?.1.to_owned())
    }

    /// The turn of a trial. One is tried at a time: each takes copies of the core.
    fn trial(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        self.trials.clone().try_acquire_owned().map_err(|_| {
            let text = "another request is being tried; try again in a moment";
            Refusal(StatusCode::TOO_MANY_REQUESTS, text.to_owned())
        })
    }

    /// The core of the shard that has this queue, once more.
    async fn fork(&self, queue: &str) -> Option<Box<Core>> {
        let (to, answer) = oneshot::channel();
        let question = Question::ForkOf(queue.into(), to);
        self.questions.send(question).await.ok()?;
        answer.await.ok()
    }
}

async fn pod(
    Extract(state): Extract<HttpState>,
    headers: HeaderMap,
    Path(uid): Path<String>,
) -> Answered {
    let mut value = state.ask(&headers, Query::Pod(uid.clone())).await?;
    if value["node"].is_null() {
        let rights = state.rights(&headers).await?;
        let text = state.explain(&uid).await.unwrap_or_default();
        let start = text.lines().find_map(|line| line.strip_prefix(START));
        value["start"] = json!(start.map(|start| estimate_for(start, &rights)));
        // Only users who may see cards see their names.
        if rights.cards {
            value["explain"] = json!(text);
        } else {
            value["lacks"] = json!("gpunodes.aliquot.dev");
        }
    }
    Ok(tagged(&headers, "application/json", value.to_string()))
}

/// The estimate as this reader may see it: what follows the time names a pod of any namespace.
fn estimate_for<'a>(start: &'a str, rights: &Rights) -> &'a str {
    let time = start.split(", when ").next().unwrap_or(start);
    if rights.pods == Pods::All {
        start
    } else {
        time
    }
}

/// Changes that would let a waiting pod run, tried on copies of the core.
async fn advice_for(
    Extract(state): Extract<HttpState>,
    headers: HeaderMap,
    Path(uid): Path<String>,
) -> Answered {
    // Whether the reader may see the pod is decided here.
    state.ask(&headers, Query::Pod(uid.clone())).await?;
    let rights = state.rights(&headers).await?;
    let _trial = state.trial()?;
    let (to, answer) = oneshot::channel();
    let question = Question::ForkOfPod(uid.as_str().into(), to);
    let asked = state.questions.send(question).await;
    asked.map_err(|_| ended())?;
    let core = answer.await.map_err(|_| ended())?.ok_or_else(|| {
        let text = "the scheduler does not know the pod";
        Refusal(StatusCode::NOT_FOUND, text.to_owned())
    })?;
    let tried = tokio::task::spawn_blocking(move || changes(&core, &PodUid::from(uid.as_str())));
    let changes = tried.await.map_err(|_| ended())?;
    let all = rights.cards && rights.pods == Pods::All;
    let (shown, hidden): (Vec<_>, Vec<_>) = changes
        .into_iter()
        .partition(|change| all || !change.names_others);
    let shown = shown.iter().map(|change| {
        json!({"what": change.what, "command": change.command, "suffices": change.suffices})
    });
    let value = json!({"changes": shown.collect::<Vec<_>>(), "hidden": hidden.len()});
    Ok(tagged(&headers, "application/json", value.to_string()))
}

fn changes(core: &Core, uid: &PodUid) -> Vec<advice::Change> {
    let facts = ClusterState::of(core);
    let explanation = core.explain(uid);
    let Some((pod, explanation)) = facts.pods.get(uid).zip(explanation) else {
        return Vec::new();
    };
    let until = Some(Instant::now() + ADVICE);
    advice::that_help(core, core.now(), &facts, pod, explanation.kind, until)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    /// `NAMESPACE/NAME`, of a pod that this process may not know any more.
    #[serde(default)]
    pod: String,
}

/// A pod's timeline, from the API server and its agent.
async fn timeline_of(
    Extract(state): Extract<HttpState>,
    headers: HeaderMap,
    Path(uid): Path<String>,
    named: Result<Parameters<Named>, QueryRejection>,
) -> Answered {
    let Named { pod } = read(named)?;
    let rights = state.rights(&headers).await?;
    let live = state.ask(&headers, Query::Whereabouts(uid.clone())).await;
    let live = match live {
        Ok(live) => live,
        Err(Refusal(StatusCode::NOT_FOUND, _)) => Value::Null,
        Err(refusal) => return Err(refusal),
    };
    let known = live["namespace"].as_str().zip(live["name"].as_str());
    let (namespace, name) = known
        .or_else(|| pod.split_once('/'))
        .filter(|(namespace, name)| rights.sees(namespace) && !name.is_empty())
        .ok_or_else(|| {
            let text = "there is no such pod, or you may not list pods in its namespace";
            Refusal(StatusCode::NOT_FOUND, text.to_owned())
        })?;
    let pods: Api<Pod> = Api::namespaced(state.client.clone(), namespace);
    let found = patient(pods.get_opt(name)).await.map_err(|why| {
        let text = format!("the API server does not say how the pod is: {why}");
        Refusal(StatusCode::BAD_GATEWAY, text)
    })?;
    let found = found.filter(|pod| pod.metadata.uid.as_deref() == Some(uid.as_str()));
    let events = if state.may_list_events(&headers, namespace).await? {
        let of = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
        let events: Api<Event> = Api::namespaced(state.client.clone(), namespace);
        // Without the right to list them, or without an answer, the rest is returned.
        patient(events.list(&of)).await.ok().map(|list| list.items)
    } else {
        None
    };
    if found.is_none() && known.is_none() && events.as_ref().is_none_or(Vec::is_empty) {
        let text = "nothing is known of such a pod any more";
        return Err(Refusal(StatusCode::NOT_FOUND, text.to_owned()));
    }
    let mut value = timeline::tell(&PodFacts {
        uid: &uid,
        pod: found.as_ref(),
        events: events.as_deref(),
        live: &live,
    });
    value["uid"] = json!(uid);
    value["namespace"] = json!(namespace);
    value["name"] = json!(name);
    value["queue"] = live["queue"].clone();
    value["shares"] = live["shares"].clone();
    value["holds"] = live["holds"].clone();
    value["owner"] = live["owner"].clone();
    value["waits"] = live["waits"].as_bool().unwrap_or_default().into();
    if let Some(pod) = &found {
        value["node"] = json!(pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()));
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.clone());
        value["phase"] = json!(crate::crash::of(pod).or(phase));
    }
    value["range"] = json!(state.prometheus.is_some());
    let about = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let values = ["namespace", "name", "uid", "node", "queue"].map(|key| (key, about(key)));
    let links = state
        .links
        .iter()
        .map(|link| json!({"name": link.name, "url": link.of(&values)}));
    value["links"] = links.collect();
    Ok(tagged(&headers, "application/json", value.to_string()))
}

async fn patient<T>(asked: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err("no answer in time".to_owned()),
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Fleet,
    Card,
    Queue,
    Waiting,
    Pod,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Back {
    #[default]
    Hour,
    Day,
    Fortnight,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Stretch {
    of: Kind,
    #[serde(default)]
    name: String,
    #[serde(default)]
    span: Back,
    /// Milliseconds since 1970: from Prometheus.
    from: Option<u64>,
    until: Option<u64>,
}

/// The history, or a range from Prometheus.
async fn time(
    Extract(state): Extract<HttpState>,
    headers: HeaderMap,
    stretch: Result<Parameters<Stretch>, QueryRejection>,
) -> Answered {
    let stretch = read(stretch)?;
    let name = stretch.name;
    let series = match stretch.of {
        Kind::Fleet => Series::Fleet,
        Kind::Card => Series::Card(name.clone()),
        Kind::Queue => Series::Queue(name.clone()),
        Kind::Waiting | Kind::Pod => Series::Waiting,
    };
    let bad = |text: &str| Refusal(StatusCode::BAD_REQUEST, text.to_owned());
    let (Some(from), Some(until)) = (stretch.from, stretch.until) else {
        if stretch.from.is_some() || stretch.until.is_some() {
            return Err(bad("a range needs both from and until"));
        }
        if stretch.of == Kind::Pod {
            return Err(bad(
                "no pod is remembered: give from and until for Prometheus",
            ));
        }
        let span = match stretch.span {
            Back::Hour => Span::Hour,
            Back::Day => Span::Day,
            Back::Fortnight => Span::Fortnight,
        };
        let line = Line { of: series, span };
        let mut value = state.ask(&headers, Query::Time(line)).await?;
        value["range"] = json!(state.prometheus.is_some());
        return Ok(tagged(&headers, "application/json", value.to_string()));
    };
    let Some(url) = &state.prometheus else {
        let text = "this scheduler was started without --prometheus-url";
        return Err(Refusal(StatusCode::NOT_FOUND, text.to_owned()));
    };
    let rights = state.rights(&headers).await?;
    let of = if stretch.of == Kind::Pod {
        let pod = name.split_once('/');
        let pod = pod.filter(|(namespace, _)| rights.sees(namespace));
        let (namespace, name) = pod.ok_or_else(|| {
            let text = "there is no such pod, or you may not list pods in its namespace";
            Refusal(StatusCode::NOT_FOUND, text.to_owned())
        })?;
        Of::Pod(namespace.to_owned(), name.to_owned())
    } else {
        may_see(&series, &rights)?;
        Of::Series(series)
    };
    let answer = range::ask(url, &of, Time(from), Time(until)).await;
    let mut value = answer.map_err(|why| Refusal(StatusCode::BAD_GATEWAY, why))?;
    value["range"] = json!(true);
    Ok(tagged(&headers, "application/json", value.to_string()))
}

fn may_see(series: &Series, rights: &Rights) -> Result<(), Refusal> {
    let lacks = match series {
        Series::Fleet | Series::Card(_) => (!rights.cards).then_some("gpunodes.aliquot.dev"),
        Series::Queue(_) | Series::Waiting => {
            (!rights.queues).then_some("queues.scheduling.run.ai")
        }
    };
    match lacks {
        Some(what) => Err(Refusal(
            StatusCode::FORBIDDEN,
            format!("you may not list {what}"),
        )),
        None => Ok(()),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    queue: String,
    /// MiB.
    memory: Option<u64>,
    fraction: Option<String>,
    gpus: Option<u32>,
    devices: Option<u32>,
    /// Name of the priority class.
    #[serde(default)]
    class: String,
    count: Option<u32>,
}

/// The victims of a request.
async fn whatif(
    Extract(state): Extract<HttpState>,
    headers: HeaderMap,
    request: Result<Parameters<Request>, QueryRejection>,
) -> Answered {
    let request = read(request)?;
    let rights = state.rights(&headers).await?;
    may_see(&Series::Waiting, &rights)?;
    let bad = |text: String| Refusal(StatusCode::BAD_REQUEST, text);
    let asked = [
        request.memory.is_some(),
        request.fraction.is_some(),
        request.gpus.is_some(),
    ];
    if asked.into_iter().filter(|is| *is).count() != 1 {
        let text = "ask for one of memory (MiB), fraction and gpus";
        return Err(bad(text.to_owned()));
    }
    let count = request.count.unwrap_or(1);
    if !(1..=MOST).contains(&count) {
        return Err(bad(format!("count must be from 1 to {MOST}")));
    }
    let _trial = state.trial()?;
    let Some(core) = state.fork(&request.queue).await else {
        return Err(bad(format!("there is no queue {}", request.queue)));
    };
    let wanted = Wanted {
        memory: request.memory,
        fraction: request.fraction,
        gpus: request.gpus,
        devices: request.devices,
        queue: request.queue,
        class: request.class,
        ..Wanted::default()
    };
    let scheduler = state.scheduler.clone();
    let tried = tokio::task::spawn_blocking(move || {
        let mut world = World::new(&scheduler).with_storage_listed();
        what_if(*core, &mut world, &scheduler, &wanted, count)
    });
    let answer = tried.await.map_err(|_| ended())?.map_err(bad)?;
    let value = shown(&answer, &rights);
    Ok(tagged(&headers, "application/json", value.to_string()))
}

/// The answer as this reader may see it.
fn shown(answer: &WhatIf, rights: &Rights) -> Value {
    let victims: Vec<Value> = answer
        .victims
        .iter()
        .map(|victim| {
            let sees = rights.pods == Pods::All || rights.sees(&victim.namespace);
            json!({
                "namespace": if sees { &victim.namespace } else { "" },
                "name": if sees { &victim.name } else { "" },
                "queue": victim.queue, "cause": victim.cause, "moves": victim.moves,
            })
        })
        .collect();
    let nodes = rights.cards.then_some(&answer.nodes);
    json!({
        "wanted": answer.wanted, "placed": answer.placed, "nodes": nodes, "victims": victims,
        "seconds": answer.took.0.div_ceil(1000), "searching": answer.searching,
        "why": answer.why.as_deref().filter(|_| rights.cards).or(answer.why.as_ref().map(|_| "there is no room")),
    })
}
