//! A server of Prometheus' HTTP API over samples that a test puts in.
//!
//! `POST /api/v1/query` with the documented form and answers (Prometheus, "HTTP API"). Of `PromQL`
//! it knows what a scheduler asks for past use: `sum_over_time((...)[range:step])` of selectors by
//! name and one label, `sum`, `max`, `max by (queue_name)`, `or`, and `* (0.5 ^ ((number - time())
//! / number))`. Everything else is a parse error, as in Prometheus. A step is a multiple of its
//! length since 1970; a sample counts for 5 minutes.

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// How long a sample counts, in seconds.
const LOOKBACK: u64 = 300;

/// Labels of a series.
type Labels = BTreeMap<String, String>;
/// Series and their values at one time.
type Vector = Vec<(Labels, f64)>;

/// The response.
#[derive(Clone, Debug, Default)]
pub enum Answer {
    /// What the samples say.
    #[default]
    Samples,
    /// This.
    Raw(u16, Arc<str>),
    /// Nothing, ever.
    Silence,
}

#[derive(Debug, Default)]
struct Store {
    /// By name and labels, values by second since 1970.
    series: BTreeMap<(String, Labels), BTreeMap<u64, f64>>,
    answer: Answer,
    queries: Vec<String>,
}

/// A server, until it is dropped.
#[derive(Debug)]
pub struct Prometheus {
    address: SocketAddr,
    store: Arc<Mutex<Store>>,
    task: JoinHandle<()>,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Prometheus {
    /// Listens on loopback.
    ///
    /// # Errors
    /// There is no free port.
    pub async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let store = Arc::new(Mutex::new(Store::default()));
        let pages = Router::new()
            .route("/api/v1/query", post(query))
            .with_state(Arc::clone(&store));
        let task = tokio::spawn(async move {
            let _ = axum::serve(listener, pages).await;
        });
        Ok(Self {
            address,
            store,
            task,
        })
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A sample, at a second since 1970.
    pub fn put(&self, name: &str, labels: &[(&str, &str)], at: u64, value: f64) {
        let labels = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        let mut store = self.store();
        let series = store.series.entry((name.to_owned(), labels)).or_default();
        series.insert(at, value);
    }

    /// From now on this is answered.
    pub fn answer(&self, answer: Answer) {
        self.store().answer = answer;
    }

    /// The queries so far.
    pub fn queries(&self) -> Vec<String> {
        self.store().queries.clone()
    }
}

async fn query(State(store): State<Arc<Mutex<Store>>>, body: String) -> Response {
    let form = |key: &str| {
        let mut pairs = body.split('&').filter_map(|pair| pair.split_once('='));
        let found = pairs.find(|(name, _)| *name == key);
        found.map(|(_, value)| decoded(value)).unwrap_or_default()
    };
    let (text, time) = (form("query"), form("time"));
    let answer = {
        let mut store = store.lock().unwrap_or_else(PoisonError::into_inner);
        store.queries.push(text.clone());
        store.answer.clone()
    };
    let page = |status: StatusCode, kind: &'static str, body: String| {
        (status, [(header::CONTENT_TYPE, kind)], body).into_response()
    };
    match answer {
        Answer::Silence => std::future::pending().await,
        Answer::Raw(status, body) => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
            page(status, "text/html", body.to_string())
        }
        Answer::Samples => {
            let now = time.parse().unwrap_or_default();
            let store = store.lock().unwrap_or_else(PoisonError::into_inner);
            let (status, body) = match store.range(&text, now) {
                Some(vector) => (StatusCode::OK, success(vector, now)),
                None => (
                    StatusCode::BAD_REQUEST,
                    json!({"status": "error", "errorType": "bad_data",
                        "error": "invalid parameter \"query\": parse error"}),
                ),
            };
            page(status, "application/json", body.to_string())
        }
    }
}

fn success(vector: Vector, now: u64) -> Value {
    let series = vector
        .into_iter()
        .map(|(metric, value)| json!({"metric": metric, "value": [now, value.to_string()]}));
    json!({"status": "success",
        "data": {"resultType": "vector", "result": series.collect::<Vec<_>>()}})
}

/// `%20` and `+` as a form has them.
fn decoded(text: &str) -> String {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || bytes.next().and_then(|byte| char::from(byte).to_digit(16));
                let (high, low) = (digit().unwrap_or(0), digit().unwrap_or(0));
                u8::try_from(high * 16 + low).unwrap_or(b'?')
            }
            other => other,
        });
    }
    String::from_utf8_lossy(&out).into_owned()
}

impl Store {
    /// `sum_over_time((...)[range:step])`.
    fn range(&self, text: &str, now: u64) -> Option<Vector> {
        let inner = text.strip_prefix("sum_over_time((")?.strip_suffix("s])")?;
        let (inner, spans) = inner.rsplit_once(")[")?;
        let (range, step) = spans.split_once("s:")?;
        let (range, step): (u64, u64) = (range.parse().ok()?, step.parse().ok()?);
        let mut sums: BTreeMap<Labels, f64> = BTreeMap::new();
        let first = now.saturating_sub(range) / step + 1;
        for at in (first..=now / step).map(|count| count * step) {
            for (labels, value) in self.instant(inner, at)? {
                *sums.entry(labels).or_default() += value;
            }
        }
        Some(sums.into_iter().collect())
    }

    fn instant(&self, text: &str, at: u64) -> Option<Vector> {
        let text = text.trim();
        if let Some((query, decay)) = text.rsplit_once(") * (0.5 ^ ((") {
            let query = query.strip_prefix('(')?;
            let (now, half) = decay.split_once(" - time()) / ")?;
            let half: f64 = half.strip_suffix("))")?.parse().ok()?;
            let now: u64 = now.parse().ok()?;
            #[expect(clippy::cast_precision_loss, reason = "seconds since 1970")]
            let factor = (-(now as f64 - at as f64) / half).exp2();
            let vector = self.instant(query, at)?.into_iter();
            return Some(
                vector
                    .map(|(labels, value)| (labels, value * factor))
                    .collect(),
            );
        }
        if let Some((one, other)) = text.split_once(" or ") {
            let (one, other) = (self.instant(one, at)?, self.instant(other, at)?);
            return Some(if one.is_empty() { other } else { one });
        }
        for (name, label, largest) in [
            ("max by (queue_name) (", Some("queue_name"), true),
            ("max(", None, true),
            ("sum(", None, false),
        ] {
            if let Some(inner) = text.strip_prefix(name) {
                let inner = self.instant(inner.strip_suffix(')')?, at)?;
                let mut groups: BTreeMap<Labels, f64> = BTreeMap::new();
                for (labels, value) in inner {
                    let kept = |(key, _): &(String, String)| Some(key.as_str()) == label;
                    let labels: Labels = labels.into_iter().filter(kept).collect();
                    let sum = groups.entry(labels).or_insert(0.0);
                    *sum = if largest {
                        sum.max(value)
                    } else {
                        *sum + value
                    };
                }
                return Some(groups.into_iter().collect());
            }
        }
        self.select(text, at)
    }

    fn select(&self, text: &str, at: u64) -> Option<Vector> {
        let (name, label) = match text.strip_suffix("\"}") {
            Some(text) => {
                let (name, matcher) = text.split_once('{')?;
                (name, Some(matcher.split_once("=\"")?))
            }
            None => (text, None),
        };
        if !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return None;
        }
        let matches = |labels: &Labels| {
            label.is_none_or(|(key, value)| labels.get(key).is_some_and(|has| has == value))
        };
        let found = self
            .series
            .iter()
            .filter(|((of, labels), _)| of == name && matches(labels))
            .filter_map(|((_, labels), samples)| {
                let since = at.saturating_sub(LOOKBACK) + 1;
                let (_, value) = samples.range(since..=at).next_back()?;
                Some((labels.clone(), *value))
            });
        Some(found.collect())
    }
}
