//! Which resources there are: the built-in ones in a table, the others by the
//! `CustomResourceDefinition`s that were created.
//! Out: [`Resource`].

use super::object::{at, text};
use serde_json::Value;

/// One resource as it is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resource {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) plural: String,
    pub(crate) kind: String,
    pub(crate) namespaced: bool,
    /// Has `/status`, so that the main path leaves `status` alone.
    pub(crate) status: bool,
    /// From a definition: lists are atomic in patches, `/status` changes nothing else.
    pub(crate) custom: bool,
    pub(crate) short_names: Vec<String>,
}

impl Resource {
    /// `v1`, `apps/v1`.
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// `pods`, `queues.scheduling.run.ai`: the name in messages.
    pub(crate) fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.plural.clone()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// Where its objects are kept. Both faces of an event are one collection.
    pub(crate) fn collection(&self) -> Collection {
        let group = if self.plural == "events" {
            String::new()
        } else {
            self.group.clone()
        };
        Collection {
            group,
            plural: self.plural.clone(),
        }
    }

    pub(crate) fn is(&self, group: &str, plural: &str) -> bool {
        self.group == group && self.plural == plural
    }
}

/// All objects of one resource, whatever version they are served in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Collection {
    pub(crate) group: String,
    pub(crate) plural: String,
}

impl Collection {
    pub(crate) fn new(group: &str, plural: &str) -> Self {
        Self {
            group: group.to_owned(),
            plural: plural.to_owned(),
        }
    }
}

const N: bool = true;
const C: bool = false;
const S: bool = true;
const X: bool = false;

/// Group, version, plural, kind, namespaced, has status, short names.
type Row = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    bool,
    bool,
    &'static [&'static str],
);

#[rustfmt::skip]
const BUILT_IN: &[Row] = &[
    ("", "v1", "pods", "Pod", N, S, &["po"]),
    ("", "v1", "nodes", "Node", C, S, &["no"]),
    ("", "v1", "namespaces", "Namespace", C, S, &["ns"]),
    ("", "v1", "events", "Event", N, X, &["ev"]),
    ("", "v1", "secrets", "Secret", N, X, &[]),
    ("", "v1", "configmaps", "ConfigMap", N, X, &["cm"]),
    ("", "v1", "services", "Service", N, S, &["svc"]),
    ("", "v1", "endpoints", "Endpoints", N, X, &["ep"]),
    ("", "v1", "serviceaccounts", "ServiceAccount", N, X, &["sa"]),
    ("", "v1", "persistentvolumes", "PersistentVolume", C, S, &["pv"]),
    ("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", N, S, &["pvc"]),
    ("", "v1", "resourcequotas", "ResourceQuota", N, S, &["quota"]),
    ("", "v1", "limitranges", "LimitRange", N, X, &["limits"]),
    ("", "v1", "replicationcontrollers", "ReplicationController", N, S, &["rc"]),
    ("apps", "v1", "deployments", "Deployment", N, S, &["deploy"]),
    ("apps", "v1", "replicasets", "ReplicaSet", N, S, &["rs"]),
    ("apps", "v1", "statefulsets", "StatefulSet", N, S, &["sts"]),
    ("apps", "v1", "daemonsets", "DaemonSet", N, S, &["ds"]),
    ("batch", "v1", "jobs", "Job", N, S, &[]),
    ("batch", "v1", "cronjobs", "CronJob", N, S, &["cj"]),
    ("coordination.k8s.io", "v1", "leases", "Lease", N, X, &[]),
    ("events.k8s.io", "v1", "events", "Event", N, X, &[]),
    ("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", N, X, &[]),
    ("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", C, X, &["pc"]),
    ("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", N, S, &["pdb"]),
    ("storage.k8s.io", "v1", "storageclasses", "StorageClass", C, X, &["sc"]),
    ("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", N, S, &[]),
    ("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", N, X, &[]),
    ("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", C, X, &[]),
    ("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", C, X, &[]),
    ("rbac.authorization.k8s.io", "v1", "roles", "Role", N, X, &[]),
    ("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", N, X, &[]),
    ("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", C, X, &[]),
    ("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", C, X, &[]),
    ("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", C, X, &[]),
    ("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", C, X, &[]),
    ("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", C, S, &[]),
    ("admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", C, X, &[]),
    ("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", C, S, &["crd"]),
    // Answered at once, never kept.
    ("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", C, X, &[]),
    ("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", C, X, &[]),
    ("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", C, X, &[]),
    ("authorization.k8s.io", "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview", C, X, &[]),
];

/// The built-in resource of these names.
pub(crate) fn built_in(group: &str, version: &str, plural: &str) -> Option<Resource> {
    all_built_in().find(|resource| resource.is(group, plural) && resource.version == version)
}

pub(super) fn all_built_in() -> impl Iterator<Item = Resource> {
    BUILT_IN.iter().map(
        |&(group, version, plural, kind, namespaced, status, short_names)| Resource {
            group: group.to_owned(),
            version: version.to_owned(),
            plural: plural.to_owned(),
            kind: kind.to_owned(),
            namespaced,
            status,
            custom: false,
            short_names: short_names.iter().map(ToString::to_string).collect(),
        },
    )
}

/// The served versions of a `CustomResourceDefinition`.
pub(crate) fn of_definition(definition: &Value) -> Vec<Resource> {
    let names = at(definition, "spec.names");
    at(definition, "spec.versions")
        .as_array()
        .into_iter()
        .flatten()
        .filter(|version| at(version, "served").as_bool() == Some(true))
        .map(|version| Resource {
            group: text(definition, "spec.group").to_owned(),
            version: text(version, "name").to_owned(),
            plural: text(names, "plural").to_owned(),
            kind: text(names, "kind").to_owned(),
            namespaced: text(definition, "spec.scope") == "Namespaced",
            status: at(version, "subresources.status").is_object(),
            custom: true,
            short_names: at(names, "shortNames")
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|name| name.as_str().map(str::to_owned))
                .collect(),
        })
        .collect()
}
