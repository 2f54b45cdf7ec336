//! A client of Prometheus' HTTP API: instant and range queries, by `POST`.
//!
//! Past use, the page's longer ranges and `aliquot report` ask by it. An answer is bounded, and
//! what the server says of itself is repeated in a few words without control characters.

use base64::Engine as _;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::rt::TokioExecutor;
use kube::client::ConfigExt as _;
use scheduler_core::units::{Duration, Time};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::error::Error as _;

/// Longest answer to one query
const LONGEST: usize = 4 << 20;
/// Longest part of the server's error that is repeated.
const WORDS: usize = 200;

/// One sample of a vector.
#[derive(Clone, Debug, Deserialize)]
pub struct Sample<L> {
    /// Its labels, as far as they are asked for.
    pub metric: L,
    /// Seconds since 1970, and the number as text.
    pub value: (f64, String),
}

/// One series of a matrix.
#[derive(Clone, Debug, Deserialize)]
pub struct Run<L> {
    /// Its labels, as far as they are asked for.
    pub metric: L,
    /// Seconds since 1970, and the numbers as texts.
    pub values: Vec<(f64, String)>,
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

/// What an answer has.
fn read<A: DeserializeOwned>(status: StatusCode, body: &[u8], kind: &str) -> Result<A, String> {
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
    if data.result_type != kind {
        let other = words(&data.result_type);
        return Err(format!(
            "its answer is a {other} where a {kind} was asked for"
        ));
    }
    serde_json::from_value(data.result)
        .map_err(|error| format!("its {kind} cannot be read: {}", words(&error.to_string())))
}

/// A few words of the server's own, without control characters.
pub(crate) fn words(text: &str) -> String {
    let safe = |c: char| if c.is_control() { ' ' } else { c };
    let mut words: String = text.chars().map(safe).take(WORDS).collect();
    if words.len() < text.len() {
        words.push_str("...");
    }
    words
}

/// A server to query.
#[derive(Debug)]
pub struct PrometheusClient<C> {
    client: Client<C, Full<Bytes>>,
    uri: Uri,
    authorization: Option<HeaderValue>,
    /// Its address without a password.
    shown: String,
}

/// The server at this URL, which may have a user and a password in it.
///
/// # Errors One sentence. The URL is not repeated.
pub fn client(
    text: &str,
) -> Result<PrometheusClient<impl Connect + Clone + Send + Sync + 'static>, String> {
    let (uri, user) = url(text)?;
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
    Ok(PrometheusClient {
        client: Client::builder(TokioExecutor::new()).build(tls),
        shown: uri.authority().map(ToString::to_string).unwrap_or_default(),
        uri,
        authorization,
    })
}

impl<C: Connect + Clone + Send + Sync + 'static> PrometheusClient<C> {
    /// Its address without a password.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// The value of a query at one moment.
    ///
    /// # Errors
    /// One sentence on why there is none.
    pub async fn instant<L: DeserializeOwned>(
        &self,
        query: &str,
        now: Time,
    ) -> Result<Vec<Sample<L>>, String> {
        let time = (now.0 / 1000).to_string();
        self.ask("query", "vector", &[("query", query), ("time", &time)])
            .await
    }

    /// The values of a query from one moment to another, every so often.
    ///
    /// # Errors
    /// One sentence on why there are none.
    pub async fn range<L: DeserializeOwned>(
        &self,
        query: &str,
        from: Time,
        until: Time,
        step: Duration,
    ) -> Result<Vec<Run<L>>, String> {
        let [from, until, step] = [from.0, until.0, step.0].map(|time| (time / 1000).to_string());
        let form = [
            ("query", query),
            ("start", &from),
            ("end", &until),
            ("step", &step),
        ];
        self.ask("query_range", "matrix", &form).await
    }

    /// What a page of the server has, below its address.
    ///
    /// # Errors
    /// One sentence on why it has nothing.
    pub async fn page(&self, page: &str) -> Result<String, String> {
        let request = Request::get(self.below(page)).body(Full::default());
        let (status, body) = self.send(request).await?;
        let body = String::from_utf8_lossy(&body).into_owned();
        if status.is_success() {
            return Ok(body);
        }
        Err(format!(
            "{}: it answered {status}: {}",
            self.shown,
            words(&body)
        ))
    }

    fn below(&self, page: &str) -> String {
        let path = self.uri.path().trim_end_matches('/');
        let scheme = self.uri.scheme_str().unwrap_or("http");
        format!("{scheme}://{}{path}{page}", self.shown)
    }

    async fn ask<A: DeserializeOwned>(
        &self,
        what: &str,
        kind: &str,
        form: &[(&str, &str)],
    ) -> Result<A, String> {
        let form = form_urlencoded::Serializer::new(String::new())
            .extend_pairs(form)
            .finish();
        let request = Request::post(self.below(&format!("/api/v1/{what}")))
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Full::new(Bytes::from(form)));
        let (status, body) = self.send(request).await?;
        read(status, &body, kind).map_err(|why| format!("{}: {why}", self.shown))
    }

    async fn send(
        &self,
        request: http::Result<Request<Full<Bytes>>>,
    ) -> Result<(StatusCode, Bytes), String> {
        let mut request = request.map_err(|error| error.to_string())?;
        if let Some(authorization) = &self.authorization {
            let headers = request.headers_mut();
            headers.insert(AUTHORIZATION, authorization.clone());
        }
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
        Ok((head.status, body.to_bytes()))
    }
}

/// A URL and the user with the password in it.
pub(crate) fn url(text: &str) -> Result<(Uri, Option<String>), String> {
    // Not repeated: it may have a password.
    let no = || {
        "the connection string is not a URL, such as http://prometheus.monitoring:9090".to_owned()
    };
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
