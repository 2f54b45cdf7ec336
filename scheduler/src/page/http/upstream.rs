//! Requests to others that an answer needs: to the API server, to Prometheus, to the core.

use super::{Answered, HttpState, Refusal, read, tagged};
use crate::convert::World;
use crate::cycle::Question;
use crate::history::Span;
use crate::page::answer::{Line, Pods, Query, Rights, Series};
use crate::page::range::{self, Of};
use crate::page::timeline::{self, PodFacts};
use crate::trial::{Wanted, WhatIf, what_if};
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query as Parameters, State as Extract};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{Api, ListParams};
use scheduler_core::Core;
use scheduler_core::units::Time;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::oneshot;

/// Timeout for one answer of the API server.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pods of one question at most.
const MOST: u32 = 1000;

pub(super) fn routes() -> Router<HttpState> {
    Router::new()
        .route("/api/pods/{uid}", get(pod))
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
    // Only users who may see cards see their names.
    if value["node"].is_null() && state.rights(&headers).await?.cards {
        value["explain"] = json!(state.explain(&uid).await);
    }
    Ok(tagged(&headers, "application/json", value.to_string()))
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
            let text = "there is no such pod, as far as you may list pods";
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
    value["waits"] = live["waits"].as_bool().unwrap_or_default().into();
    if let Some(pod) = &found {
        value["node"] = json!(pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()));
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.clone());
        value["phase"] = json!(crate::crash::of(pod).or(phase));
    }
    value["range"] = json!(state.prometheus.is_some());
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
            let text = "there is no such pod, as far as you may list pods";
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
    let Ok(_trial) = state.trials.clone().try_acquire_owned() else {
        let text = "another request is being tried; try again in a moment";
        return Err(Refusal(StatusCode::TOO_MANY_REQUESTS, text.to_owned()));
    };
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
    let answer = tried.await.map_err(|_| super::ended())?.map_err(bad)?;
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
