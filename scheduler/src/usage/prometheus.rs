//! Past use from a server of Prometheus' HTTP API.
//!
//! One question is six instant queries, `POST /api/v1/query`: what the cluster had and what each
//! queue held, of each resource, as sums over the window at `queryResolution`. As KAI's, but for
//! two things:
//! - `max by (queue_name)`: several replicas are scraped, and a restart begins another series.
//!   KAI takes any one of them.
//! - `tumbling` and `cron` are windows that end now, as `sliding` is; KAI asks a range query for
//!   `sum_over_time` of an instant vector, which Prometheus refuses.

use super::{Address, Server, Settings, Source, Uses, part};
use base64::Engine as _;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::rt::TokioExecutor;
use kube::client::ConfigExt as _;
use scheduler_core::ids::QueueName;
use scheduler_core::units::Time;
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::error::Error as _;

/// An answer to one query is at most so long: 30,000 queues with Prometheus' labels.
const LONGEST: usize = 4 << 20;
/// What is repeated of the server's own words.
const WORDS: usize = 200;
const RESOURCES: [&str; 3] = ["GPU", "CPU", "memory"];

/// Asks for past use as of `now`.
///
/// # Errors
/// One sentence on why there is no answer, without a full stop.
pub(super) async fn ask(settings: &Settings, now: Time) -> Result<Uses, String> {
    let Source::Prometheus(server) = &settings.source else {
        return Err("no server is named".to_owned());
    };
    let Some(range) = range(settings, now) else {
        // The window has just begun.
        return Ok(Uses::new());
    };
    let door = door(&server.address)?;
    let timeout = std::time::Duration::from_millis(server.timeout.0);
    let asked = tokio::time::timeout(timeout, async {
        let mut capacity = [0.0; 3];
        for (index, query) in server.capacity.iter().enumerate() {
            let query = sum(query, server, settings, range, now);
            let series = door.query(&query, now).await?;
            capacity[index] = one(&series, RESOURCES[index])?;
        }
        let mut used: BTreeMap<QueueName, [f64; 3]> = BTreeMap::new();
        for (index, query) in server.allocation.iter().enumerate() {
            let query = format!("max by (queue_name) ({query})");
            let query = sum(&query, server, settings, range, now);
            for series in door.query(&query, now).await? {
                let value = amount(&series, RESOURCES[index])?;
                if let Some(queue) = series.metric.queue_name {
                    used.entry(QueueName::from(queue)).or_default()[index] = value;
                }
            }
        }
        let parts = |used: [f64; 3]| [0, 1, 2].map(|index| part(used[index], capacity[index]));
        let uses = used.into_iter().map(|(queue, used)| (queue, parts(used)));
        Ok(uses.filter(|(_, parts)| *parts != [0; 3]).collect())
    });
    match asked.await {
        Ok(answered) => answered,
        Err(_) => Err(format!(
            "{} did not answer within usageQueryTimeout, {} s",
            door.shown,
            server.timeout.0.div_ceil(1000)
        )),
    }
}

/// Seconds of the window so far. `None`: less than one.
fn range(settings: &Settings, now: Time) -> Option<u64> {
    let seconds = now.since(settings.window.begin(now)).0 / 1000;
    (seconds > 0).then_some(seconds)
}

/// A query summed over the window.
fn sum(query: &str, server: &Server, settings: &Settings, range: u64, now: Time) -> String {
    let resolution = server.resolution.0.div_ceil(1000);
    let query = match settings.half_life {
        Some(half) => Cow::from(format!(
            "({query}) * (0.5 ^ (({} - time()) / {}))",
            now.0 / 1000,
            half.0.div_ceil(1000)
        )),
        None => Cow::from(query),
    };
    format!("sum_over_time(({query})[{range}s:{resolution}s])")
}

/// Prometheus' answer.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    status: String,
    #[serde(default)]
    error: String,
    data: Option<Data>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Data {
    result_type: String,
    result: serde_json::Value,
}

/// One sample of a vector.
#[derive(Debug, Deserialize)]
struct Series {
    metric: Labels,
    /// Seconds since 1970, and the number as text.
    value: (f64, String),
}

#[derive(Debug, Deserialize)]
struct Labels {
    queue_name: Option<String>,
}

/// What an answer has.
fn read(status: StatusCode, body: &[u8]) -> Result<Vec<Series>, String> {
    let answer: Answer = match serde_json::from_slice(body) {
        Ok(answer) => answer,
        Err(_) if status.is_success() => {
            return Err("its answer is not that of Prometheus' API".to_owned());
        }
        Err(_) => return Err(format!("it answered {status}")),
    };
    if answer.status != "success" {
        return Err(format!("it answered: {}", words(&answer.error)));
    }
    let data = answer.data.ok_or("its answer has no data")?;
    if data.result_type != "vector" {
        let kind = words(&data.result_type);
        return Err(format!(
            "its answer is a {kind} where a vector was asked for"
        ));
    }
    serde_json::from_value(data.result)
        .map_err(|error| format!("its vector cannot be read: {}", words(&error.to_string())))
}

/// A number that can be an amount.
fn amount(series: &Series, resource: &str) -> Result<f64, String> {
    let text = &series.value.1;
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => {
            let of = match &series.metric.queue_name {
                Some(queue) => format!("{resource} use of queue {}", words(queue)),
                None => format!("{resource} of the cluster"),
            };
            Err(format!("its {of} is {}, which is no amount", words(text)))
        }
    }
}

fn one(series: &[Series], resource: &str) -> Result<f64, String> {
    let first = series.first().ok_or_else(|| {
        format!("it knows no {resource} capacity of the cluster: let it scrape this scheduler or kube-state-metrics")
    })?;
    amount(first, resource)
}

/// A few words of somebody else's.
fn words(text: &str) -> String {
    let safe = |c: char| if c.is_control() { ' ' } else { c };
    let mut words: String = text.chars().map(safe).take(WORDS).collect();
    if words.len() < text.len() {
        words.push_str("...");
    }
    words
}

/// A server that is asked.
struct Door<C> {
    client: Client<C, Full<Bytes>>,
    uri: Uri,
    authorization: Option<HeaderValue>,
    /// Its address without a password.
    shown: String,
}

/// The server at this address.
fn door(address: &Address) -> Result<Door<impl Connect + Clone + Send + Sync + 'static>, String> {
    let text: Cow<'_, str> = match address {
        Address::Url(url) => Cow::from(&**url),
        Address::Variable(name) => match std::env::var(&**name) {
            Ok(url) if !url.is_empty() => Cow::from(url),
            _ => return Err(format!("the environment variable {name} is not set")),
        },
    };
    let (uri, user) = url(&text)?;
    let mut config = kube::Config::new(uri.clone());
    if uri.scheme_str() == Some("http") {
        // The machine's roots are read where they are needed: an image may have none.
        config.root_cert = Some(Vec::new());
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    let tls = config
        .rustls_https_connector_with_connector(tcp)
        .map_err(|error| format!("TLS cannot be set up: {error}"))?;
    let authorization = user.map(|user| {
        let encoded = base64::engine::general_purpose::STANDARD.encode(user);
        HeaderValue::try_from(format!("Basic {encoded}"))
    });
    let authorization = authorization
        .transpose()
        .map_err(|error| error.to_string())?;
    Ok(Door {
        client: Client::builder(TokioExecutor::new()).build(tls),
        shown: uri.authority().map(ToString::to_string).unwrap_or_default(),
        uri,
        authorization,
    })
}

impl<C: Connect + Clone + Send + Sync + 'static> Door<C> {
    async fn query(&self, query: &str, now: Time) -> Result<Vec<Series>, String> {
        let path = self.uri.path().trim_end_matches('/');
        let form = form_urlencoded::Serializer::new(String::new())
            .append_pair("query", query)
            .append_pair("time", &(now.0 / 1000).to_string())
            .finish();
        let mut request = Request::post(format!(
            "{}://{}{path}/api/v1/query",
            self.uri.scheme_str().unwrap_or("http"),
            self.shown,
        ))
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request
            .body(Full::new(Bytes::from(form)))
            .map_err(|error| error.to_string())?;
        let said = |why: String| format!("{}: {why}", self.shown);
        let answer = self.client.request(request).await.map_err(|error| {
            let cause = error
                .source()
                .map_or_else(|| error.to_string(), ToString::to_string);
            said(words(&cause))
        })?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, LONGEST).collect().await;
        let body = body.map_err(|error| {
            if error.is::<http_body_util::LengthLimitError>() {
                said(format!("its answer is longer than {} MiB", LONGEST >> 20))
            } else {
                said(words(&error.to_string()))
            }
        })?;
        read(head.status, &body.to_bytes()).map_err(said)
    }
}

/// A URL and the user with the password in it.
pub(crate) fn url(text: &str) -> Result<(Uri, Option<String>), String> {
    // Not repeated: it may have a password.
    let no =
        || "the connection string is no URL, such as http://prometheus.monitoring:9090".to_owned();
    let uri: Uri = text.trim().parse().map_err(|_| no())?;
    let (Some("http" | "https"), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(no());
    };
    let Some((user, host)) = authority.as_str().rsplit_once('@') else {
        return Ok((uri, None));
    };
    let user = user.to_owned();
    let mut parts = uri.clone().into_parts();
    parts.authority = Some(host.parse().map_err(|_| no())?);
    Ok((Uri::from_parts(parts).map_err(|_| no())?, Some(user)))
}
