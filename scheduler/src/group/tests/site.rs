//! The grouper against the simulated API server, and what a test does to its cluster.

use crate::config::LonePodGroups;
use crate::group::{self, FactRelay, Settings, Shared, Stamps};
use crate::watch::{self as facts, Fact, Seen};
use api::PodGroup;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, CustomResourceExt as _, ResourceExt as _};
use serde_json::{Value, json};
use sim_cluster::api_server::{ApiServer, Config, Handle};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Of all its objects.
pub(super) const NS: &str = "default";

/// A simulated API server with a grouper.
pub(super) struct Site {
    pub(super) client: Client,
    pub(super) server: Handle,
    pub(super) leading: watch::Sender<bool>,
    /// Lists pods and groups again.
    pub(super) relist: watch::Sender<u64>,
    /// What the cycle would get.
    pub(super) facts: channel::Receiver<facts::Fact>,
    pub(super) shared: Shared,
    stop: CancellationToken,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Site {
    pub(super) async fn start(leads: bool) -> Self {
        Self::start_with(leads, LonePodGroups::Write).await
    }

    pub(super) async fn start_with(leads: bool, lone_pods: LonePodGroups) -> Self {
        Self::start_of(leads, lone_pods, None).await
    }

    /// With the defaults of types in a config map of that name.
    pub(super) async fn start_of(
        leads: bool,
        lone_pods: LonePodGroups,
        types: Option<&str>,
    ) -> Self {
        let server = ApiServer::bind(Config::default()).await.unwrap();
        let handle = server.handle();
        let mut config = handle.config();
        config.default_retry = false;
        let client = Client::try_from(config).unwrap();
        let stop = CancellationToken::new();
        tokio::spawn(server.serve(stop.clone()));
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        definitions
            .create(&PostParams::default(), &PodGroup::crd())
            .await
            .unwrap();
        let (facts_out, facts_in) = channel::unbounded();
        let (relist, relisting) = watch::channel(0);
        tokio::spawn(facts::run(
            client.clone(),
            facts_out,
            |_| {},
            None,
            relisting,
            stop.clone(),
        ));
        let shared = Shared::new(client.clone(), lone_pods);
        let name = "kai-scheduler";
        let (relay, facts, told) =
            FactRelay::new(name, shared.clone(), facts_in, &channel::Lengths::default());
        tokio::spawn(relay.run());
        let (leading, leads) = watch::channel(leads);
        let settings = Settings {
            scheduler_name: "kai-scheduler".into(),
            identity: "test".into(),
            at_once: 8,
            busy: watch::channel(false).1,
            queue_label: proto::names::kai::QUEUE_LABEL.into(),
            types: types.map(|name| group::TypesAt {
                namespace: NS.to_owned(),
                name: name.to_owned(),
            }),
            alone_wait: types.is_some(),
            deployment_gangs: true,
            lengths: channel::Lengths::default(),
            wall: crate::clock::Wall::machine(),
        };
        tokio::spawn(group::run(
            settings,
            client.clone(),
            shared.clone(),
            told,
            leads,
            stop.clone(),
        ));
        Self {
            client,
            server: handle,
            leading,
            relist,
            facts,
            shared,
            stop,
        }
    }

    pub(super) async fn make(
        &self,
        api_version: &str,
        kind: &str,
        plural: &str,
        object: Value,
    ) -> Value {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let gvk = GroupVersionKind::gvk(group, version, kind);
        let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
        let mut object = object;
        object["apiVersion"] = json!(api_version);
        object["kind"] = json!(kind);
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let made = Api::namespaced_with(self.client.clone(), NS, &resource)
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
        json!({"apiVersion": api_version, "kind": kind, "name": made.name_any(), "uid": made.uid().unwrap(), "controller": true})
    }

    /// An operator's kind.
    pub(super) async fn define(&self, group: &str, version: &str, kind: &str, plural: &str) {
        let definition = json!({
            "metadata": {"name": format!("{plural}.{group}")},
            "spec": {
                "group": group, "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
                "versions": [{"name": version, "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object"}}}],
            },
        });
        let definition = serde_json::from_value(definition).unwrap();
        let definitions: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let create = PostParams::default();
        definitions.create(&create, &definition).await.unwrap();
    }

    pub(super) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NS)
    }

    pub(super) fn groups(&self) -> Api<PodGroup> {
        Api::namespaced(self.client.clone(), NS)
    }

    /// Of the pod's owner, or alone.
    pub(super) async fn pod(&self, name: &str, owner: Option<&Value>, labels: Value) -> Pod {
        let owners: Vec<&Value> = owner.into_iter().collect();
        let pod = json!({
            "metadata": {"name": name, "labels": labels, "ownerReferences": owners},
            "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "c", "image": "i"}]},
        });
        self.pods()
            .create(
                &PostParams::default(),
                &serde_json::from_value(pod).unwrap(),
            )
            .await
            .unwrap()
    }

    /// The next fact of that kind that is passed on to the cycle.
    pub(super) async fn passed<T>(&mut self, of: impl Fn(&Fact) -> Option<T>) -> T {
        let next = async {
            loop {
                let fact = self.facts.recv().await.unwrap();
                if let Some(found) = of(&fact) {
                    return found;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(20), next)
            .await
            .unwrap()
    }

    /// The next pod of that name that is passed on as a member of a group: its group and part.
    pub(super) async fn member(&mut self, name: &str) -> (String, Option<String>) {
        self.passed(|fact| match fact {
            Fact::Pod(Seen::There(pod)) if pod.name_any() == name => {
                let group = pod.annotations().get("pod-group-name")?.clone();
                let part = pod.labels().get("kai.scheduler/subgroup-name").cloned();
                Some((group, part))
            }
            _ => None,
        })
        .await
    }

    /// The group of a pod of that name, if it was passed on as a member of one by now.
    pub(super) fn try_member(&mut self, name: &str) -> Option<String> {
        std::iter::from_fn(|| self.facts.try_recv().ok()).find_map(|fact| match fact {
            Fact::Pod(Seen::There(pod)) if pod.name_any() == name => {
                pod.annotations().get("pod-group-name").cloned()
            }
            _ => None,
        })
    }

    /// Binds it as the scheduler does: with what its membership says.
    pub(super) async fn bind(&self, pod: &Pod, group: &str) {
        let binding = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod.name_any(), "uid": pod.uid(), "annotations": {"pod-group-name": group}},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "n"},
        });
        let params = PostParams::default();
        let _: kube::core::Status = self
            .pods()
            .create_subresource("binding", &pod.name_any(), &params, &binding)
            .await
            .unwrap();
    }

    /// Returns whether the annotation was taken.
    pub(super) async fn groups_stamp(&self, group: &str, value: &str) -> bool {
        let key = proto::names::kai::LAST_START;
        let wanted = Stamps::from([(key, Some(value.to_owned()))]);
        let group = format!("{NS}/{group}");
        self.shared.groups.stamp(&group.into(), &wanted).await
    }

    /// Its group, once it has one.
    pub(super) async fn grouped(&self, name: &str) -> PodGroup {
        let group = until(|| async {
            let pod = self.pods().get(name).await.unwrap();
            pod.annotations().get("pod-group-name").cloned()
        })
        .await;
        self.groups().get(&group).await.unwrap()
    }
}

/// Asks again and again.
pub(super) async fn until<T, F: Future<Output = Option<T>>>(mut of: impl FnMut() -> F) -> T {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = of().await {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "in vain");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
