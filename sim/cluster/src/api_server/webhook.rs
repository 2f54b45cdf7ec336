//! Admission webhooks, really called: HTTPS, with the configuration's `caBundle`.
//!
//! In: the configurations, a pod that is to be created. Out: the pod as the webhooks changed it with
//! their warnings, or their refusal. Honoured for CREATE of pods alone; `matchConditions` are not
//! evaluated as CEL but approximated: a condition about annotations holds where the pod has one that
//! is quoted in it or contains what `.contains('...')` looks for, `!(...)` where it has none; one
//! about `schedulerName` alone where the pod's scheduler is quoted in it, with `!=` where it is not.
//! Only `clientConfig.url` can be called.

use super::error::ApiError;
use super::object::{at, name, namespace, text};
use super::selector::label_selector_matches;
use base64::Engine as _;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// One webhook of one configuration.
#[derive(Clone, Debug)]
pub(crate) struct Webhook {
    definition: Value,
    mutating: bool,
}

/// The webhooks of a configuration object.
pub(crate) fn of_configuration(configuration: &Arc<Value>, mutating: bool) -> Vec<Webhook> {
    at(configuration, "webhooks")
        .as_array()
        .into_iter()
        .flatten()
        .map(|definition| Webhook {
            definition: definition.clone(),
            mutating,
        })
        .collect()
}

/// The fields of an `AdmissionReview` besides the object.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) uid: String,
    pub(crate) user: Value,
    pub(crate) namespace_labels: Value,
    pub(crate) dry_run: bool,
}

/// Sends a pod through the webhooks that want it.
pub(crate) async fn admit(
    webhooks: &[Webhook],
    mut pod: Value,
    request: &Request,
) -> Result<(Value, Vec<String>), ApiError> {
    let mut warnings = Vec::new();
    for webhook in webhooks {
        if !webhook.wants(&pod, &request.namespace_labels) {
            continue;
        }
        match webhook.call(&pod, request).await {
            Ok(response) => {
                pod = webhook.take(pod, &response)?;
                let said = at(&response, "warnings").as_array();
                let said = said.into_iter().flatten().filter_map(Value::as_str);
                warnings.extend(said.map(str::to_owned));
            }
            Err(why) if text(&webhook.definition, "failurePolicy") == "Ignore" => {
                tracing::warn!(webhook = webhook.name(), why, "webhook failed, ignored");
            }
            Err(why) => {
                return Err(ApiError::internal(format!(
                    "Internal error occurred: failed calling webhook \"{}\": {why}",
                    webhook.name()
                )));
            }
        }
    }
    Ok((pod, warnings))
}

impl Webhook {
    fn name(&self) -> &str {
        text(&self.definition, "name")
    }

    fn wants(&self, pod: &Value, namespace_labels: &Value) -> bool {
        let covers = |rule: &Value, list: &str, value: &str| {
            at(rule, list)
                .as_array()
                .into_iter()
                .flatten()
                .any(|one| one == value || one == "*")
        };
        let ruled = at(&self.definition, "rules")
            .as_array()
            .into_iter()
            .flatten()
            .any(|rule| {
                covers(rule, "operations", "CREATE")
                    && covers(rule, "apiGroups", "")
                    && covers(rule, "resources", "pods")
            });
        let mut conditions = at(&self.definition, "matchConditions")
            .as_array()
            .into_iter()
            .flatten()
            .map(|condition| text(condition, "expression"));
        let scheduler = text(pod, "spec.schedulerName");
        let annotations = at(pod, "metadata.annotations").as_object();
        let meant = conditions.all(|expression| {
            if expression.contains("annotations") {
                let labels = at(pod, "metadata.labels").as_object();
                let labels = labels.filter(|_| expression.contains("labels"));
                let maps = annotations.into_iter().chain(labels);
                let mut keys = maps.flat_map(serde_json::Map::keys);
                let has = keys.any(|key| speaks_of(expression, key));
                has != expression.starts_with("!(")
            } else if expression.contains("schedulerName") {
                let quoted = expression.contains(&format!("'{scheduler}'"))
                    || expression.contains(&format!("\"{scheduler}\""));
                quoted != expression.contains("!=")
            } else {
                true
            }
        });
        ruled
            && meant
            && label_selector_matches(
                at(&self.definition, "objectSelector"),
                at(pod, "metadata.labels"),
            )
            && label_selector_matches(at(&self.definition, "namespaceSelector"), namespace_labels)
    }

    async fn call(&self, pod: &Value, request: &Request) -> Result<Value, String> {
        let url = text(&self.definition, "clientConfig.url");
        if url.is_empty() {
            return Err("only clientConfig.url can be called here".to_owned());
        }
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": request.uid,
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "resource": {"group": "", "version": "v1", "resource": "pods"},
                "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
                "requestResource": {"group": "", "version": "v1", "resource": "pods"},
                "name": name(pod), "namespace": namespace(pod), "operation": "CREATE",
                "userInfo": request.user, "object": pod, "oldObject": null, "dryRun": request.dry_run,
                "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
            },
        });
        let seconds = at(&self.definition, "timeoutSeconds")
            .as_u64()
            .unwrap_or(10);
        let call = post(
            url,
            text(&self.definition, "clientConfig.caBundle"),
            &review,
        );
        let answer = tokio::time::timeout(Duration::from_secs(seconds), call)
            .await
            .map_err(|_| "context deadline exceeded".to_owned())??;
        let response = at(&answer, "response");
        if text(response, "uid") != request.uid {
            return Err("the response's uid is not the request's".to_owned());
        }
        Ok(response.clone())
    }

    fn take(&self, mut pod: Value, response: &Value) -> Result<Value, ApiError> {
        if at(response, "allowed").as_bool() != Some(true) {
            let why = text(response, "status.message");
            let mut refusal = ApiError::forbidden(format!(
                "admission webhook \"{}\" denied the request: {}",
                self.name(),
                if why.is_empty() {
                    "without a reason"
                } else {
                    why
                }
            ));
            if let Some(code) = at(response, "status.code")
                .as_u64()
                .and_then(|code| u16::try_from(code).ok())
                .filter(|code| (400..600).contains(code))
            {
                refusal.code = code;
            }
            return Err(refusal);
        }
        let encoded = text(response, "patch");
        if !self.mutating || encoded.is_empty() {
            return Ok(pod);
        }
        let broken = |why: String| {
            ApiError::internal(format!(
                "webhook \"{}\" answered a patch that cannot be applied: {why}",
                self.name()
            ))
        };
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(encoded)
            .map_err(|error| broken(error.to_string()))?;
        let patch: Value =
            serde_json::from_slice(&bytes).map_err(|error| broken(error.to_string()))?;
        super::patch::json(&mut pod, &patch, "pods").map_err(|error| broken(error.message))?;
        Ok(pod)
    }
}

/// Whether a condition quotes this annotation, or the part of its name before the first dot
/// after the domain, as `"nvidia.com/container.`.
fn speaks_of(expression: &str, key: &str) -> bool {
    let of_domain = key.split_once('/').and_then(|(domain, name)| {
        let (first, _) = name.split_once('.')?;
        Some(format!("\"{domain}/{first}."))
    });
    let mut words = expression.split(".contains('").skip(1);
    expression.contains(&format!("'{key}'"))
        || words.any(|rest| {
            rest.split_once("')")
                .is_some_and(|(word, _)| key.contains(word))
        })
        || of_domain.is_some_and(|prefix| expression.contains(&prefix))
}

async fn post(url: &str, bundle: &str, review: &Value) -> Result<Value, String> {
    let uri: http::Uri = url.parse().map_err(|_| format!("{url} is not a URL"))?;
    let authority = uri
        .authority()
        .filter(|_| uri.scheme_str() == Some("https"))
        .ok_or_else(|| format!("{url} is not an https URL"))?;
    let server = format!("https://{authority}");
    let mut config = kube::Config::new(server.parse().map_err(|_| format!("{url} is not a URL"))?);
    if !bundle.is_empty() {
        let pem = base64::engine::general_purpose::STANDARD
            .decode(bundle)
            .map_err(|error| format!("caBundle: {error}"))?;
        let roots: Vec<Vec<u8>> = CertificateDer::pem_slice_iter(&pem)
            .map(|one| one.map(|der| der.as_ref().to_vec()))
            .collect::<Result<_, _>>()
            .map_err(|error| format!("caBundle: {error}"))?;
        config.root_cert = Some(roots);
    }
    let client = kube::Client::try_from(config).map_err(|error| error.to_string())?;
    let request = http::Request::post(uri.path_and_query().map_or("/", |path| path.as_str()))
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(review.to_string().into_bytes())
        .map_err(|error| error.to_string())?;
    client.request::<Value>(request).await.map_err(|error| {
        let mut why = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(inner) = cause {
            why = format!("{why}: {inner}");
            cause = inner.source();
        }
        why
    })
}
