//! The webhook configurations: the requests that are sent here, and the authority that the API
//! server trusts. Written by this process because only it knows its authority.
//!
//! Two webhooks send pods here. A pod with a share must not be created without its token, which
//! cannot be added later: `Fail`. All other pods only need a clear refusal of contradictions:
//! `Ignore`, so that they are created while no replica is ready.
//!
//! A third webhook, of manifests, only warns. Pods of other schedulers and the owners of pods are
//! sent to it if they speak of GPUs or of this scheduler, and none waits longer than a second for
//! it. What controllers write is not sent: nobody would read the warning.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use kube::api::{Api, Patch, PatchParams};
use proto::names::object;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Time between two checks: during an upgrade, two versions that want different things write no
/// more often.
const LOOK: Duration = Duration::from_secs(10);
/// Between two tries.
const RETRY: Duration = Duration::from_secs(1);
/// The API server's timeout for a response, seconds.
const TIMEOUT_S: i32 = 5;
/// CEL: whether a pod requests a share, and so must not be created without its token. A map reads
/// `{"key":"value"}` as text; one that only looks so in a value is taken for a share as well.
const SHARE: &str = "'gpu-memory' in object.metadata.?annotations.orValue({}) \
    || 'gpu-fraction' in object.metadata.?annotations.orValue({}) \
    || '%s'.format([object.metadata.?annotations.orValue({})]).contains('\"nvidia.com/container.')";

/// A CEL expression that is true if the annotations or labels of an object, or of its pods, mention
/// GPUs or Aliquot. Each map is read as one text.
const SPEAKS: &str = "[object.metadata.?annotations.orValue({}), object.metadata.?labels.orValue({}), \
    object.spec.?template.?metadata.?annotations.orValue({}), object.spec.?template.?metadata.?labels.orValue({}), \
    object.spec.?jobTemplate.?spec.?template.?metadata.?annotations.orValue({}), \
    object.spec.?jobTemplate.?spec.?template.?metadata.?labels.orValue({})]\
    .exists(m, '%s'.format([m]).contains('gpu') || '%s'.format([m]).contains('kai.scheduler') \
    || '%s'.format([m]).contains('aliquot.dev'))";
/// A CEL expression that is true if people wrote the object, or programs on their behalf. Kubernetes'
/// own controllers have accounts in kube-system, or this name.
const BY_PEOPLE: &str = "!(request.userInfo.username == 'system:kube-controller-manager' \
    || request.userInfo.username.startsWith('system:serviceaccount:kube-system:'))";
/// The API server's timeout for a warning, in seconds. It is short, because advice must not delay a
/// manifest.
const WARNING_TIMEOUT_S: i32 = 1;

/// How the API server comes to the webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// By this URL: scheme, host and port.
    Url(String),
    /// By Service `aliquot-webhook` in our namespace.
    Service,
}

/// The objects as they must be.
#[derive(Debug)]
pub(super) struct Configuration {
    mutating: Value,
    validating: Value,
}

impl Configuration {
    pub(super) fn new(settings: &Settings, ca_pem: &str) -> Self {
        let mut exempt = vec!["kube-system", settings.namespace.as_str()];
        exempt.extend(settings.exempt_namespaces.iter().map(String::as_str));
        exempt.sort_unstable();
        exempt.dedup();
        let rule = |group: &str, version: &str, resource: &str, operations: &[&str]| {
            json!({
                "operations": operations,
                "apiGroups": [group],
                "apiVersions": [version],
                "resources": [resource],
            })
        };
        let ours = json!({
            "name": "pods-of-this-scheduler",
            "expression":
                format!("object.spec.schedulerName == {}", quoted(&settings.scheduler_name)),
        });
        let pods = |name: &str, policy: &str, condition: (&str, &str)| {
            json!({
                "name": name,
                "admissionReviewVersions": ["v1"],
                "clientConfig": client(settings, ca_pem, PODS),
                "rules": [rule("", "v1", "pods", &["CREATE"])],
                "failurePolicy": policy,
                "matchPolicy": "Equivalent",
                "sideEffects": "None",
                "reinvocationPolicy": "IfNeeded",
                "timeoutSeconds": TIMEOUT_S,
                "namespaceSelector": {"matchExpressions": [{
                    "key": "kubernetes.io/metadata.name",
                    "operator": "NotIn",
                    "values": &exempt,
                }]},
                "matchConditions": [
                    &ours,
                    {"name": condition.0, "expression": condition.1},
                ],
            })
        };
        let mutating = [
            pods("pods.aliquot.dev", "Fail", ("asks-for-a-share", SHARE)),
            pods(
                "other-pods.aliquot.dev",
                "Ignore",
                ("asks-for-no-share", &format!("!({SHARE})")),
            ),
        ];
        let written = ["CREATE", "UPDATE"];
        let objects = json!({
            "name": "objects.aliquot.dev",
            "admissionReviewVersions": ["v1"],
            "clientConfig": client(settings, ca_pem, OBJECTS),
            "rules": [
                rule("scheduling.run.ai", "v2", "queues", &written),
                rule("scheduling.run.ai", "v2alpha2", "podgroups", &written),
                rule("kai.scheduler", "v1alpha1", "topologies", &written),
            ],
            "failurePolicy": "Ignore",
            "matchPolicy": "Equivalent",
            "sideEffects": "None",
            "timeoutSeconds": TIMEOUT_S,
            // What we write ourselves, a group for each workload, need not come back here.
            "matchConditions": [{
                "name": "not-written-by-this-scheduler",
                "expression": format!(
                    "request.userInfo.username != {}",
                    quoted(&format!(
                        "system:serviceaccount:{}:{}",
                        settings.namespace,
                        object::SCHEDULER_ACCOUNT
                    ))
                ),
            }],
        });
        let manifests = json!({
            "name": "manifests.aliquot.dev",
            "admissionReviewVersions": ["v1"],
            "clientConfig": client(settings, ca_pem, MANIFESTS),
            "rules": [
                rule("", "v1", "pods", &["CREATE"]),
                rule("apps", "v1", "deployments", &written),
                rule("apps", "v1", "statefulsets", &written),
                rule("apps", "v1", "daemonsets", &written),
                rule("batch", "v1", "jobs", &["CREATE"]),
                rule("batch", "v1", "cronjobs", &written),
            ],
            "failurePolicy": "Ignore",
            "matchPolicy": "Equivalent",
            "sideEffects": "None",
            "timeoutSeconds": WARNING_TIMEOUT_S,
            "namespaceSelector": {"matchExpressions": [{
                "key": "kubernetes.io/metadata.name",
                "operator": "NotIn",
                "values": &exempt,
            }]},
            "matchConditions": [
                {"name": "written-by-people", "expression": BY_PEOPLE},
                {
                    "name": "no-pod-of-this-scheduler",
                    "expression": format!(
                        "object.spec.?schedulerName.orValue('') != {}",
                        quoted(&settings.scheduler_name)
                    ),
                },
                {
                    "name": "speaks-of-gpus",
                    "expression": format!(
                        "{SPEAKS} || {name} == object.spec.?template.?spec.?schedulerName.orValue('') \
                         || {name} == object.spec.?jobTemplate.?spec.?template.?spec.?schedulerName.orValue('')",
                        name = quoted(&settings.scheduler_name)
                    ),
                },
            ],
        });
        let resizes = json!({
            "name": "resizes.aliquot.dev",
            "admissionReviewVersions": ["v1"],
            "clientConfig": client(settings, ca_pem, RESIZES),
            "rules": [rule("", "v1", "pods/resize", &["UPDATE"])],
            "failurePolicy": "Ignore",
            "matchPolicy": "Equivalent",
            "sideEffects": "None",
            "timeoutSeconds": TIMEOUT_S,
            "matchConditions": [ours],
        });
        Self {
            mutating: object("MutatingWebhookConfiguration", &mutating),
            validating: object(
                "ValidatingWebhookConfiguration",
                &[objects, resizes, manifests],
            ),
        }
    }

    pub(super) fn objects(self) -> [Value; 2] {
        [self.mutating, self.validating]
    }

    /// Keeps them so in the cluster, until `stop`. They stay when we go: other replicas
    /// serve them, and pods of ours are not to be made without.
    pub(super) async fn keep(&self, client: kube::Client, stop: CancellationToken) {
        let mutating = Api::<MutatingWebhookConfiguration>::all(client.clone());
        let validating = Api::<ValidatingWebhookConfiguration>::all(client);
        loop {
            let looked = async {
                look(&mutating, &self.mutating).await?;
                look(&validating, &self.validating).await
            };
            let pause = match looked.await {
                Ok(()) => LOOK,
                Err(error) => {
                    tracing::warn!(%error, "webhook configurations");
                    RETRY
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}

async fn look<K>(api: &Api<K>, wanted: &Value) -> kube::Result<()>
where
    K: Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let name = object::WEBHOOK_CONFIGURATION;
    let found = api.get_opt(name).await?;
    let found = serde_json::to_value(&found).map_err(kube::Error::SerdeError)?;
    if covers(&found["webhooks"], &wanted["webhooks"]) {
        return Ok(());
    }
    if found.is_null() {
        // Refused where `deploy/` says what we may do: the manifests make it.
        let parameters = PatchParams::apply(object::SCHEDULER_ACCOUNT);
        api.patch(name, &parameters, &Patch::Apply(wanted)).await?;
    } else {
        // The whole list: where to call is one of two fields, and the other must go.
        let parameters = PatchParams {
            field_manager: Some(object::SCHEDULER_ACCOUNT.to_owned()),
            ..PatchParams::default()
        };
        let webhooks = json!({
            "metadata": {"resourceVersion": found["metadata"]["resourceVersion"]},
            "webhooks": wanted["webhooks"],
        });
        api.patch(name, &parameters, &Patch::Merge(webhooks))
            .await?;
    }
    tracing::info!(kind = wanted["kind"].as_str(), name, "configured");
    Ok(())
}

fn object(kind: &str, webhooks: &[Value]) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {
            "name": object::WEBHOOK_CONFIGURATION,
            "labels": {"app.kubernetes.io/part-of": "aliquot"},
        },
        "webhooks": webhooks,
    })
}

fn client(settings: &Settings, ca_pem: &str, path: &str) -> Value {
    let mut client = match &settings.reach {
        Reach::Url(base) => json!({"url": format!("{}{path}", base.trim_end_matches('/'))}),
        Reach::Service => json!({"service": {
            "namespace": settings.namespace,
            "name": object::WEBHOOK_SERVICE,
            "path": path,
            "port": 443,
        }}),
    };
    client["caBundle"] = json!(STANDARD.encode(ca_pem));
    client
}

/// A CEL string literal.
fn quoted(text: &str) -> String {
    let mut out = String::from("'");
    for c in text.chars() {
        if matches!(c, '\'' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('\'');
    out
}

/// Whether all that is wanted is there; what the server adds beside it is its own.
fn covers(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => wanted
            .iter()
            .all(|(key, wanted)| found.get(key).is_some_and(|found| covers(found, wanted))),
        (Value::Array(found), Value::Array(wanted)) => {
            found.len() == wanted.len()
                && found
                    .iter()
                    .zip(wanted)
                    .all(|(found, wanted)| covers(found, wanted))
        }
        _ => found == wanted,
    }
}

/// Where pods are sent.
pub(super) const PODS: &str = "/mutate-pods";

/// Where the other kinds are sent.
pub(super) const OBJECTS: &str = "/validate";

/// The path of the webhook that only warns of manifests.
pub(super) const MANIFESTS: &str = "/lint";

/// Where resizes of pods are sent.
pub(super) const RESIZES: &str = "/validate-resize";

/// What admission needs to know.
#[derive(Debug)]
pub struct Settings {
    /// How the API server comes here.
    pub reach: Reach,
    /// Our namespace.
    pub namespace: String,
    /// The `schedulerName` of the pods that this scheduler places.
    pub scheduler_name: String,
    /// Namespaces that are left alone, beside `kube-system` and ours.
    pub exempt_namespaces: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_schedulers_own_writes_pass_the_validating_webhook_by() {
        let settings = Settings {
            reach: Reach::Service,
            namespace: "here".to_owned(),
            scheduler_name: "us".to_owned(),
            exempt_namespaces: Vec::new(),
        };
        let wanted = Configuration::new(&settings, "PEM");
        assert_eq!(
            wanted.validating["webhooks"][0]["matchConditions"],
            json!([{
                "name": "not-written-by-this-scheduler",
                "expression":
                    "request.userInfo.username != 'system:serviceaccount:here:aliquot-scheduler'",
            }])
        );
    }

    #[test]
    fn a_pod_with_a_share_needs_an_answer_and_every_other_pod_is_made_without() {
        let settings = Settings {
            reach: Reach::Service,
            namespace: "here".to_owned(),
            scheduler_name: "us".to_owned(),
            exempt_namespaces: Vec::new(),
        };
        let wanted = Configuration::new(&settings, "PEM").mutating;
        let of = |at: usize, condition: usize| {
            let webhook = &wanted["webhooks"][at];
            let condition = &webhook["matchConditions"][condition]["expression"];
            (webhook["failurePolicy"].clone(), condition.clone())
        };
        for at in [0, 1] {
            assert_eq!(of(at, 0).1, "object.spec.schedulerName == 'us'");
        }
        assert_eq!(of(0, 1), (json!("Fail"), json!(SHARE)));
        // No pod goes to both, and none to neither.
        assert_eq!(of(1, 1), (json!("Ignore"), json!(format!("!({SHARE})"))));
        for key in [
            proto::names::request::MEMORY,
            proto::names::request::FRACTION,
        ] {
            assert!(SHARE.contains(&format!("'{key}'")), "{key}");
        }
        assert!(SHARE.contains(proto::names::request::CONTAINER_PREFIX));
    }

    /// An answer of admission that comes late, or never, holds up nobody's Deployment.
    #[test]
    fn manifests_wait_for_no_warning() {
        let settings = Settings {
            reach: Reach::Service,
            namespace: "here".to_owned(),
            scheduler_name: "us".to_owned(),
            exempt_namespaces: Vec::new(),
        };
        let wanted = Configuration::new(&settings, "PEM").validating;
        let webhook = &wanted["webhooks"][2];
        assert_eq!(webhook["failurePolicy"], "Ignore");
        assert_eq!(webhook["timeoutSeconds"], 1);
        let others = "object.spec.?schedulerName.orValue('') != 'us'";
        assert_eq!(webhook["matchConditions"][1]["expression"], others);
        assert!(!SPEAKS.contains("  ") && !BY_PEOPLE.contains("  "));
    }

    #[test]
    fn what_the_server_adds_is_not_fought_over_and_what_is_changed_is_mended() {
        let wanted = json!([{"name": "a", "rules": [{"x": 1}]}]);
        for (found, holds) in [
            (
                json!([{"name": "a", "rules": [{"x": 1, "scope": "*"}], "timeoutSeconds": 10}]),
                true,
            ),
            (json!([{"name": "a", "rules": []}]), false),
            (json!([{"name": "a", "rules": [{"x": 2}]}]), false),
            (json!([{"name": "a"}]), false),
            (Value::Null, false),
            (
                json!([{"name": "a", "rules": [{"x": 1}]}, {"name": "b"}]),
                false,
            ),
        ] {
            assert_eq!(covers(&found, &wanted), holds, "{found}");
        }
    }

    #[test]
    fn a_schedulers_name_cannot_break_out_of_the_condition() {
        assert_eq!(quoted("kai-scheduler"), "'kai-scheduler'");
        assert_eq!(quoted(r"a'b\"), r"'a\'b\\'");
    }
}
