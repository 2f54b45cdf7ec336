//! An OpenTelemetry collector that keeps what it gets.
//!
//! In: spans, by OTLP over gRPC. Out: those of one trace. It lives as long as its owner.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

/// One span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// `service.name` of the sender.
    pub service: String,
    /// What was done.
    pub name: String,
    /// Its attributes that are texts.
    pub attributes: Vec<(String, String)>,
}

impl Span {
    /// One of its attributes.
    pub fn attribute(&self, key: &str) -> Option<&str> {
        let mut found = self.attributes.iter().filter(|(name, _)| name == key);
        found.next().map(|(_, value)| value.as_str())
    }
}

type Got = Arc<Mutex<Vec<ExportTraceServiceRequest>>>;

#[derive(Debug)]
struct Service(Got);

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut got = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        got.push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// The collector.
#[derive(Debug)]
pub struct Collector {
    endpoint: String,
    got: Got,
    task: JoinHandle<()>,
}

impl Collector {
    /// On a free port.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let got = Got::default();
        let service = TraceServiceServer::new(Service(Arc::clone(&got)));
        let serving = tonic::transport::Server::builder()
            .add_service(service)
            .serve_with_incoming(TcpListenerStream::new(listener));
        let task = tokio::spawn(async move {
            if let Err(error) = serving.await {
                eprintln!("the collector ended: {error}");
            }
        });
        Ok(Self {
            endpoint,
            got,
            task,
        })
    }

    /// Where it is reached.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The spans of the trace with this id.
    pub fn trace(&self, id: u128) -> Vec<Span> {
        let got = self.got.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = Vec::new();
        for resource in got.iter().flat_map(|request| &request.resource_spans) {
            let about = resource.resource.as_ref();
            let about = texts(about.map_or(&[], |about| about.attributes.as_slice()));
            let service = about.iter().find(|(key, _)| key == "service.name");
            for span in resource.scope_spans.iter().flat_map(|scope| &scope.spans) {
                if span.trace_id == id.to_be_bytes() {
                    out.push(Span {
                        service: service.map(|(_, name)| name.clone()).unwrap_or_default(),
                        name: span.name.clone(),
                        attributes: texts(&span.attributes),
                    });
                }
            }
        }
        out
    }
}

fn texts(attributes: &[KeyValue]) -> Vec<(String, String)> {
    let text = |one: &KeyValue| match one.value.as_ref()?.value.as_ref()? {
        any_value::Value::StringValue(value) => Some((one.key.clone(), value.clone())),
        _ => None,
    };
    attributes.iter().filter_map(text).collect()
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}
