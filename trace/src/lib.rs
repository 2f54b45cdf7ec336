//! A program's log and traces, and the one id by which a pod is found in all of them.
//!
//! The log goes to standard error. With an OTLP endpoint spans go to a collector, too. All
//! spans of one pod are of one trace, and the trace's id is the pod's UID: scheduler and
//! agent need not tell each other of it.
#![forbid(unsafe_code)]

use opentelemetry::trace::{
    SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

/// Spans cannot be sent there.
#[derive(Debug, thiserror::Error)]
#[error("traces cannot be sent to {endpoint}: {source}")]
pub struct TraceError {
    endpoint: String,
    #[source]
    source: opentelemetry_otlp::ExporterBuildError,
}

/// While it lives spans are sent; what waits is sent when it goes.
#[derive(Debug)]
#[must_use]
pub struct Traces(Option<SdkTracerProvider>);

impl Drop for Traces {
    fn drop(&mut self) {
        // A collector that does not respond does not delay the exit.
        if let Some(provider) = self.0.take()
            && let Err(error) = provider.shutdown()
        {
            tracing::warn!(%error, "some spans were not sent");
        }
    }
}

/// Starts the log, by `RUST_LOG`, and, with an endpoint such as `http://collector:4317`, the
/// sending of spans by OTLP over gRPC. Once per process, and inside of a tokio runtime where
/// there is an endpoint.
///
/// # Errors The endpoint is not a URL. A missing collector is no error: spans are dropped.
///
/// # Panics
/// The process has a log already.
pub fn start(service: &'static str, endpoint: Option<&str>) -> Result<Traces, TraceError> {
    let provider = endpoint.map(|endpoint| provider(service, endpoint));
    let provider = provider.transpose()?;
    let log = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_filter(EnvFilter::from_default_env());
    let spans = provider.as_ref().map(|provider| {
        // The programs' own spans alone: what libraries have would be sent by sending it.
        let ours = tracing_subscriber::filter::filter_fn(|metadata| {
            metadata.is_span() && metadata.target() == TARGET
        });
        tracing_opentelemetry::layer()
            .with_tracer(provider.tracer(service))
            .with_filter(ours)
    });
    tracing_subscriber::registry().with(log).with(spans).init();
    Ok(Traces(provider))
}

/// Says why a program ends: in its log, where that has begun, else on standard error.
pub fn fatal(error: &impl std::fmt::Display) {
    if tracing::dispatcher::has_been_set() {
        tracing::error!("{error:#}");
    } else {
        eprintln!("{error:#}");
    }
}

fn provider(service: &'static str, endpoint: &str) -> Result<SdkTracerProvider, TraceError> {
    let exporter = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .build()
        .map_err(|source| TraceError {
            endpoint: endpoint.to_owned(),
            source,
        })?;
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let resource = Resource::builder()
        .with_service_name(service)
        .with_attribute(version);
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource.build())
        .build())
}

/// The target of spans that are sent.
pub const TARGET: &str = "aliquot";

/// Makes a new span one of this pod's trace. Where nothing is sent, and where the UID is none
/// of 128 bits, it does nothing. To be called before the span is entered.
pub fn of_pod(span: &Span, uid: &str) {
    let Some(trace) = trace_id(uid) else {
        return;
    };
    // A span belongs to a trace by its parent: one that is never sent stands for the pod.
    let parent = SpanId::from(u64::from_be_bytes(
        trace.to_bytes()[8..].try_into().unwrap_or([1; 8]),
    ));
    let pod = SpanContext::new(
        trace,
        parent,
        TraceFlags::SAMPLED,
        true,
        TraceState::default(),
    );
    // No layer: nothing is sent.
    let _ = span.set_parent(Context::new().with_remote_span_context(pod));
}

/// `2a7f…-…`: the 32 digits of a UID. `None`: it has others, as mirror pods may.
fn trace_id(uid: &str) -> Option<TraceId> {
    let digits: String = uid.chars().filter(|one| *one != '-').collect();
    let id = (digits.len() == 32).then(|| TraceId::from_hex(&digits).ok())?;
    id.filter(|id| *id != TraceId::INVALID)
}

#[cfg(test)]
mod tests {
    use super::*;
    use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
        TraceService, TraceServiceServer,
    };
    use opentelemetry_proto::tonic::collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
    };
    use std::sync::{Arc, Mutex};
    use tokio::net::TcpListener;
    use tokio_stream::wrappers::TcpListenerStream;

    type Got = Arc<Mutex<Vec<ExportTraceServiceRequest>>>;

    struct Collector(Got);

    #[tonic::async_trait]
    impl TraceService for Collector {
        async fn export(
            &self,
            request: tonic::Request<ExportTraceServiceRequest>,
        ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
            self.0.lock().unwrap().push(request.into_inner());
            Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_pods_spans_come_to_the_collector_as_one_trace_with_its_uid() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let got = Got::default();
        let service = TraceServiceServer::new(Collector(Arc::clone(&got)));
        tokio::spawn(
            tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(TcpListenerStream::new(listener)),
        );
        let traces = start("test", Some(&endpoint)).unwrap();
        let uid = "2a7f0c1e-8b5d-4f60-9d53-3c4f7b1a9e02";
        for name in ["7-1", "7-2"] {
            let span = tracing::info_span!(target: TARGET, "bind", decision = name);
            of_pod(&span, uid);
            span.in_scope(|| tracing::info!("bound"));
        }
        drop(tracing::info_span!("of a library"));
        tokio::task::spawn_blocking(move || drop(traces))
            .await
            .unwrap();

        let got = got.lock().unwrap();
        let spans: Vec<_> = got
            .iter()
            .flat_map(|request| &request.resource_spans)
            .flat_map(|resource| &resource.scope_spans)
            .flat_map(|scope| &scope.spans)
            .collect();
        assert_eq!(spans.len(), 2, "{spans:?}");
        for (span, decision) in spans.iter().zip(["7-1", "7-2"]) {
            let id = u128::from_str_radix(&uid.replace('-', ""), 16).unwrap();
            assert_eq!(span.trace_id, id.to_be_bytes());
            assert_eq!(span.name, "bind");
            let said = format!("{:?}", span.attributes);
            assert!(
                said.contains("decision") && said.contains(decision),
                "{said}"
            );
        }
    }

    #[test]
    fn a_uid_of_another_form_makes_no_trace() {
        assert!(trace_id("2a7f0c1e-8b5d-4f60-9d53-3c4f7b1a9e02").is_some());
        for uid in [
            "",
            "p",
            "00000000-0000-0000-0000-000000000000",
            &"g".repeat(32),
        ] {
            assert_eq!(trace_id(uid), None, "{uid}");
        }
    }
}
