//! The scheduler's own core, fed by lists instead of watches, for questions.
//!
//! In: the objects that the scheduler watches, listed once, or a snapshot file. Out: a [`Shadow`]
//! that answers as the scheduler would decide. Never asks the scheduler, and never writes: trials
//! run on a copy.

use crate::connect::{Cluster, ClusterArgs};
use crate::failure::Failure;
use api::kai::Config as KaiConfig;
use api::lint::Finding;
use api::visible::visible;
use api::{GpuNode, PodGroup, Queue, SchedulingShard, Topology};
use k8s_openapi::api::core::v1::{
    ConfigMap, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod,
};
use k8s_openapi::api::resource::v1::{
    DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice,
};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass};
use kube::core::PartialObjectMeta;
use proto::telemetry::NodeState;
use scheduler::config::Strategy;
use scheduler::convert::World;
use scheduler::forecast::{self, Budget, Forecast};
use scheduler::shard::{Live, Shard};
use scheduler::telemetry::AgentEvent;
use scheduler::trial::{self, AdmittedPod, ClaimTemplates, TrialResult};
use scheduler::watch::{Fact, Seen};
use scheduler_core::ids::{PodUid, QueueName};
use scheduler_core::units::{Duration, Time};
use scheduler_core::{Core, Decision, Event, QueueView, Step, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// KAI's classes and their values.
const CLASSES: [(&str, i32); 4] = [
    ("train", 50),
    ("build-preemptible", 75),
    ("build", 100),
    ("inference", 125),
];
/// Where the state comes from, and how its scheduler is set.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Source {
    #[command(flatten)]
    pub(crate) place: ClusterArgs,
    /// Ask a snapshot (`aliquot snapshot`) instead of a cluster; `-` is standard input.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kubeconfig", "context"])]
    pub(crate) snapshot: Option<PathBuf>,
    /// As the scheduler's own flag.
    #[arg(long, value_name = "NAME", default_value = proto::names::kai::SCHEDULER_NAME)]
    pub(crate) scheduler_name: String,
    /// As the scheduler's own flag; what the shard or the snapshot says when unset.
    #[arg(long, value_enum)]
    pub(crate) gpu_placement: Option<Strategy>,
    /// As the scheduler's own flag; what the shard or the snapshot says when unset.
    #[arg(long, value_enum)]
    pub(crate) cpu_placement: Option<Strategy>,
}

impl Source {
    /// The cluster, or the snapshot, as a core.
    pub(crate) async fn load(&self) -> Result<Shadow, Failure> {
        let config = scheduler::Config::default().core(0);
        let mut shadow = if let Some(path) = &self.snapshot {
            let text = read(path)?;
            Shadow::of_text(&text, config, &self.scheduler_name).map_err(|why| {
                Failure::input(format!("{} is no snapshot: {why}", path.display()))
            })?
        } else {
            let cluster = self.place.connect().await?;
            // Boxed: it waits for all lists at once.
            let objects = Box::pin(Objects::list(&cluster)).await?;
            for sentence in objects.unread.values() {
                // A note: the answer stands on what could be read.
                let _ = writeln!(
                    std::io::stderr(),
                    "aliquot: {}; what pods name of them counts as there",
                    visible(sentence)
                );
            }
            Shadow::of_objects(objects, config, &self.scheduler_name, clock())
        };
        shadow.configure(|config| {
            if let Some(placement) = self.gpu_placement {
                config.gpu_placement = placement.into();
            }
            if let Some(placement) = self.cpu_placement {
                config.cpu_placement = placement.into();
            }
        });
        Ok(shadow)
    }

    /// The namespace of the context; `default` for a snapshot.
    pub(crate) async fn namespace(&self) -> Result<String, Failure> {
        if self.snapshot.is_some() {
            return Ok("default".to_owned());
        }
        Ok(self.place.connect().await?.namespace)
    }
}

/// A file, or standard input.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    if path.as_os_str() == "-" {
        let mut text = String::new();
        return match std::io::stdin().read_to_string(&mut text) {
            Ok(_) => Ok(text),
            Err(error) => Err(Failure::input(format!("standard input: {error}"))),
        };
    }
    std::fs::read_to_string(path)
        .map_err(|error| Failure::input(format!("{} cannot be read: {error}", path.display())))
}

/// Everything that the scheduler watches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Objects {
    pub(crate) pods: Vec<Pod>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) gpu_nodes: Vec<GpuNode>,
    pub(crate) queues: Vec<Queue>,
    pub(crate) groups: Vec<PodGroup>,
    pub(crate) topologies: Vec<Topology>,
    pub(crate) shards: Vec<SchedulingShard>,
    pub(crate) classes: Vec<PriorityClass>,
    pub(crate) namespaces: Vec<Namespace>,
    pub(crate) claims: Vec<PersistentVolumeClaim>,
    pub(crate) volumes: Vec<PersistentVolume>,
    pub(crate) storage: Vec<StorageClass>,
    pub(crate) csi_nodes: Vec<CSINode>,
    pub(crate) csi_drivers: Vec<CSIDriver>,
    pub(crate) csi_capacities: Vec<CSIStorageCapacity>,
    pub(crate) slices: Vec<ResourceSlice>,
    pub(crate) device_classes: Vec<DeviceClass>,
    pub(crate) device_claims: Vec<ResourceClaim>,
    pub(crate) templates: Vec<ResourceClaimTemplate>,
    /// Only metadata is read, because the contents of a config map are not needed here.
    pub(crate) config_maps: Vec<PartialObjectMeta<ConfigMap>>,
    pub(crate) configs: Vec<KaiConfig>,
    /// The plural names of the kinds that could not be listed, each with the reason in one
    /// sentence.
    pub(crate) unread: BTreeMap<String, String>,
}

impl Objects {
    /// One list of each kind.
    pub(crate) async fn list(cluster: &Cluster) -> Result<Self, Failure> {
        let (pods, nodes, gpu_nodes, queues, groups, topologies, classes) = tokio::try_join!(
            cluster.list_known(),
            cluster.list_known(),
            cluster.list_known(),
            cluster.list_known(),
            cluster.list(),
            cluster.list(),
            cluster.list(),
        )?;
        let config_maps = cluster.list_names::<ConfigMap>().await;
        // Without the right to list these kinds, each of their objects that a pod names counts as
        // present.
        let mut unread = BTreeMap::new();
        let config_maps = or_unread::<ConfigMap, _>(config_maps, &mut unread);
        let configs = readable(cluster, &mut unread).await;
        let shards = readable(cluster, &mut unread).await;
        let namespaces = readable(cluster, &mut unread).await;
        let claims = readable(cluster, &mut unread).await;
        let volumes = readable(cluster, &mut unread).await;
        let storage = readable(cluster, &mut unread).await;
        let csi_nodes = readable(cluster, &mut unread).await;
        let csi_drivers = readable(cluster, &mut unread).await;
        let csi_capacities = readable(cluster, &mut unread).await;
        let slices = readable(cluster, &mut unread).await;
        let device_classes = readable(cluster, &mut unread).await;
        let device_claims = readable(cluster, &mut unread).await;
        let templates = readable(cluster, &mut unread).await;
        Ok(Self {
            pods,
            nodes,
            gpu_nodes,
            queues,
            groups,
            topologies,
            shards,
            classes,
            namespaces,
            claims,
            volumes,
            storage,
            csi_nodes,
            csi_drivers,
            csi_capacities,
            slices,
            device_classes,
            device_claims,
            templates,
            config_maps,
            configs,
            unread,
        })
    }
}

/// Everything of one kind; nothing, and why in `unread`, where it cannot be listed.
async fn readable<K>(cluster: &Cluster, unread: &mut BTreeMap<String, String>) -> Vec<K>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    K::DynamicType: Default,
{
    or_unread::<K, _>(cluster.list().await, unread)
}

fn or_unread<K, T>(listed: Result<Vec<T>, Failure>, unread: &mut BTreeMap<String, String>) -> Vec<T>
where
    K: kube::Resource,
    K::DynamicType: Default,
{
    listed.unwrap_or_else(|failure| {
        let kind = K::plural(&K::DynamicType::default()).into_owned();
        unread.insert(kind, failure.sentence);
        Vec::new()
    })
}

/// A core whose actions are not carried out.
#[derive(Debug)]
pub(crate) struct Shadow {
    /// The name in the specs of our pods.
    pub(crate) scheduler: String,
    world: World,
    core: Core,
    pub(crate) now: Time,
    /// What could not be used of the input.
    pub(crate) problems: Vec<String>,
    /// The pods with a container that does not run, each with the reason. A snapshot has no such pods.
    pub(crate) crashes: BTreeMap<PodUid, String>,
    /// The mistakes by which pods get no GPU that their authors meant, by namespace and name. A
    /// snapshot has no such pods.
    pub(crate) mistakes: BTreeMap<(String, String), Vec<Finding>>,
    /// What claims of new pods are made of.
    pub(crate) templates: ClaimTemplates,
    /// It was made of a snapshot, which does not hold what selectors of devices look at.
    pub(crate) of_snapshot: bool,
}

impl Shadow {
    /// From objects, as the scheduler takes them in.
    pub(crate) fn of_objects(
        objects: Objects,
        config: scheduler_core::Config,
        scheduler: &str,
        now: Time,
    ) -> Self {
        let settings = scheduler::Config {
            scheduler_name: scheduler.to_owned(),
            ..scheduler::Config::default()
        };
        let shard = Shard::of_all(&settings, config.clone());
        let live = shard.live.then(|| Live::new(&shard, None));
        let mut shadow = Self {
            core: Core::new(config),
            scheduler: scheduler.to_owned(),
            world: World::new(scheduler)
                .with_storage_listed()
                .with_unread(objects.unread.keys().map(String::as_str))
                .of_shard(&shard.pool, live),
            now,
            problems: Vec::new(),
            crashes: BTreeMap::new(),
            mistakes: BTreeMap::new(),
            templates: ClaimTemplates::default(),
            of_snapshot: false,
        };
        for template in objects.templates {
            shadow.templates.insert(template);
        }
        shadow.apply(Event::Tick(now));
        shadow.take_all(objects.shards, Fact::Shard);
        shadow.take_all(objects.configs, Fact::Config);
        // Classes come first: a pod's priority is its class's.
        shadow.take_all(objects.classes, Fact::Class);
        let states: Vec<NodeState> = objects
            .gpu_nodes
            .iter()
            .filter(|node| node.status.is_some())
            .map(scheduler::observe::said)
            .collect();
        shadow.take_all(objects.nodes, Fact::Node);
        shadow.take_all(objects.gpu_nodes, Fact::GpuNode);
        shadow.take_all(objects.queues, Fact::Queue);
        shadow.take_all(objects.topologies, Fact::Topology);
        shadow.take_all(objects.groups, Fact::Group);
        shadow.take_all(objects.namespaces, Fact::Namespace);
        shadow.take_all(objects.config_maps, Fact::ConfigMap);
        shadow.take_all(objects.storage, Fact::Storage);
        shadow.take_all(objects.csi_nodes, Fact::CsiNode);
        shadow.take_all(objects.csi_drivers, Fact::CsiDriver);
        shadow.take_all(objects.csi_capacities, Fact::CsiCapacity);
        shadow.take_all(objects.volumes, Fact::Volume);
        shadow.take_all(objects.claims, Fact::Claim);
        shadow.take_all(objects.device_classes, Fact::DeviceClass);
        shadow.take_all(objects.slices, Fact::DeviceSlice);
        shadow.take_all(objects.device_claims, Fact::DeviceClaim);
        let crash = |pod: &Pod| {
            let uid = PodUid::new(pod.metadata.uid.clone()?);
            Some((uid, scheduler::crash::of(pod)?))
        };
        shadow.crashes = objects.pods.iter().filter_map(crash).collect();
        let known = shadow.known();
        let mistaken = objects.pods.iter().filter_map(|pod| mistakes(pod, &known));
        shadow.mistakes = mistaken.collect();
        shadow.take_all(objects.pods, Fact::Pod);
        for state in states {
            let node = state.node.clone();
            let events = shadow.world.hear(AgentEvent::State { node, state });
            for event in events {
                shadow.apply(event);
            }
        }
        shadow.evaluate();
        shadow
    }

    /// From a snapshot.
    pub(crate) fn of_text(
        text: &str,
        config: scheduler_core::Config,
        scheduler: &str,
    ) -> Result<Self, String> {
        let mut shadow = Self::of_events(Vec::new(), config, scheduler);
        shadow.feed(text)?;
        Ok(shadow)
    }

    fn of_events(events: Vec<Event>, config: scheduler_core::Config, scheduler: &str) -> Self {
        let mut shadow = Self {
            core: Core::new(config),
            scheduler: scheduler.to_owned(),
            // A snapshot does not name these objects, so new pods are decided as if they existed.
            world: World::new(scheduler)
                .with_storage_listed()
                .with_unread(["configmaps", "persistentvolumeclaims"]),
            now: Time(0),
            problems: Vec::new(),
            crashes: BTreeMap::new(),
            mistakes: BTreeMap::new(),
            templates: ClaimTemplates::default(),
            of_snapshot: true,
        };
        for event in events {
            if let Event::Tick(time) = event {
                shadow.now = shadow.now.max(time);
            }
            shadow.apply(event);
        }
        // Events carry the values of classes, not the classes.
        for (name, value) in CLASSES {
            let mut class = PriorityClass::default();
            class.metadata.name = Some(name.to_owned());
            class.value = Some(value);
            shadow.take(Fact::Class(Seen::There(Box::new(class))));
        }
        shadow
    }

    /// From now on only places what fits, without evictions.
    pub(crate) fn without_evictions(mut self) -> Self {
        self.configure(|config| config.actions = vec![Step::Allocate]);
        self
    }

    /// An equal one, to try things on.
    pub(crate) fn copy(&self) -> Self {
        let config = self.core.config().clone();
        Self::of_events(self.events(), config, &self.scheduler)
    }

    /// Other settings from now on.
    fn configure(&mut self, change: impl FnOnce(&mut scheduler_core::Config)) {
        let mut config = self.core.config().clone();
        change(&mut config);
        self.apply(Event::Config(Box::new(config)));
    }

    /// Returns the queue of a pod.
    pub(crate) fn queue_of(&self, pod: &PodUid) -> Option<QueueName> {
        self.core.queue_of(pod)
    }

    /// Estimates when each waiting pod starts. A snapshot does not say how long pods run.
    pub(crate) fn forecast(&self) -> Forecast {
        let run_times = self.world.run_times(self.now);
        forecast::forecast(self.core.fork(), &run_times, self.now, Budget::of_one())
    }

    /// What the kubelet says of the pod's resize; a snapshot has none.
    pub(crate) fn resize(&self, pod: &PodUid) -> Option<&str> {
        self.world.resize(pod)
    }

    fn take_all<K>(&mut self, objects: Vec<K>, of: fn(Seen<K>) -> Fact) {
        self.take(of(Seen::Listing));
        for object in objects {
            self.take(of(Seen::There(Box::new(object))));
        }
        self.take(of(Seen::Listed));
    }

    /// One more fact, as the scheduler would take it in. Answers the events that it made.
    pub(crate) fn take(&mut self, fact: Fact) -> Vec<Event> {
        let events = self.world.take(fact);
        events.iter().cloned().for_each(|event| self.apply(event));
        events
    }

    /// Selectors of claims are evaluated for all devices, where they have yet to be.
    pub(crate) fn evaluate(&mut self) {
        while self.world.is_due() {
            for event in self.world.elapse(self.now) {
                self.apply(event);
            }
        }
    }

    /// One more event.
    pub(crate) fn apply(&mut self, event: Event) {
        let problems = self.core.apply(event);
        self.problems
            .extend(problems.iter().map(ToString::to_string));
    }

    /// More events, as text.
    pub(crate) fn feed(&mut self, text: &str) -> Result<(), String> {
        for event in text::read(text).map_err(|error| error.to_string())? {
            if let Event::Tick(time) = event {
                self.now = self.now.max(time);
            }
            self.apply(event);
        }
        Ok(())
    }

    /// The state as the event list that rebuilds it.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.core.snapshot()
    }

    /// Returns the facts about the cluster that manifests are checked against.
    pub(crate) fn known(&self) -> api::lint::Cluster {
        let classes = self.world.priority_classes().map(str::to_owned);
        api::lint::Cluster {
            scheduler: self.scheduler.clone(),
            classes: classes.collect(),
            all_classes: !self.of_snapshot,
        }
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// The tree of queues, in order of name.
    pub(crate) fn queues(&mut self) -> Vec<QueueView> {
        self.core.queues()
    }

    /// Decides once.
    pub(crate) fn decide(&mut self) -> Decision {
        self.core.decide(self.now)
    }

    /// Decides until nothing more happens, without the passing of time. Returns the decision of
    /// each round; see [`trial::settle`].
    pub(crate) fn settle(&mut self) -> Vec<Decision> {
        self.evaluate();
        trial::settle(&mut self.core, &mut self.now, Duration(0), |_, _| {}).rounds
    }

    /// The same, and when nothing is left to do, time advances. `after` is called with each
    /// decision.
    pub(crate) fn settle_in_time(&mut self, mut after: impl FnMut(&Decision)) -> TrialResult {
        let after = |_: &Core, decision: &Decision| after(decision);
        trial::settle(&mut self.core, &mut self.now, trial::QUIET, after)
    }

    /// Decides until a decision does something, or nothing happens for long; with how much
    /// later than now that is.
    pub(crate) fn decide_in_time(&mut self) -> (Duration, Decision) {
        trial::decide_in_time(&mut self.core, &mut self.now)
    }

    /// Adds a pod that does not exist; `number` distinguishes it from others.
    ///
    /// # Errors
    /// Why the webhook would refuse it.
    pub(crate) fn take_pod(&mut self, object: &Value, number: u64) -> Result<AdmittedPod, String> {
        let taken = trial::take_pod(&mut self.world, object, number, self.now, &self.templates)?;
        for event in taken.events.clone() {
            self.apply(event);
        }
        Ok(taken)
    }
}

/// Returns the mistakes that cost a pod its GPU, with its namespace and name.
fn mistakes(pod: &Pod, known: &api::lint::Cluster) -> Option<((String, String), Vec<Finding>)> {
    // A pod with a grant has its GPU, and most other pods do not mention GPUs.
    let annotations = pod.metadata.annotations.iter().flatten();
    let keys = annotations.chain(pod.metadata.labels.iter().flatten());
    let (mut speaks, mut granted) = (false, false);
    for (key, _) in keys {
        speaks |= ["gpu", "kai", "aliquot"]
            .iter()
            .any(|word| key.contains(word));
        granted |= key == proto::names::grant::GRANT;
    }
    if !speaks || granted {
        return None;
    }
    let object = serde_json::to_value(pod).ok()?;
    let mut findings = api::lint::of_pod(&object, known);
    findings.retain(|finding| finding.costs_the_gpu);
    let name = pod.metadata.name.clone()?;
    let namespace = pod.metadata.namespace.clone()?;
    (!findings.is_empty()).then_some(((namespace, name), findings))
}

/// Milliseconds since 1970.
pub(crate) fn clock() -> Time {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    Time(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use scheduler::trial::seconds;
    use scheduler_core::Action;
    use sim_cluster::api_server::{ApiServer, Config as ApiConfig, Fault};
    use std::collections::BTreeSet;
    use std::sync::{Arc, Mutex};
    use tokio_util::sync::CancellationToken;

    #[tokio::test]
    async fn a_kind_that_may_not_be_listed_is_named() {
        let server = ApiServer::bind(ApiConfig::default()).await.unwrap();
        let (handle, stop) = (server.handle(), CancellationToken::new());
        tokio::spawn(server.serve(stop.clone()));
        handle.plan("GET", "/resourceslices", Fault::Forbidden);
        let cluster = Cluster {
            client: handle.config().try_into().unwrap(),
            url: handle.url(),
            namespace: "default".to_owned(),
        };
        let mut unread = BTreeMap::new();
        let slices: Vec<ResourceSlice> = readable(&cluster, &mut unread).await;
        let sentence = &unread["resourceslices"];
        assert!(slices.is_empty());
        assert!(
            sentence.starts_with("the cluster refuses resourceslices: ")
                && sentence.ends_with("the right to get and list them is needed"),
            "{sentence}"
        );
        unread.clear();
        let _: Vec<ResourceSlice> = readable(&cluster, &mut unread).await;
        assert_eq!(unread, BTreeMap::new());
        stop.cancel();
    }

    /// The plural names of the kinds that were listed, each with true if only metadata was listed.
    type Asked = Arc<Mutex<BTreeSet<(String, bool)>>>;

    /// Returns a client of an empty cluster, and the kinds that are listed or watched through it.
    fn asked() -> (kube::Client, Asked) {
        let asked = Arc::new(Mutex::new(BTreeSet::new()));
        let said = Arc::clone(&asked);
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let path = request.uri().path().to_owned();
            let kind = path.rsplit('/').next().unwrap_or_default().to_owned();
            let accept = request.headers().get("accept");
            let accept = accept.and_then(|value| value.to_str().ok());
            let bare = accept.is_some_and(|value| value.contains("as=PartialObjectMetadata"));
            said.lock().unwrap().insert((kind, bare));
            let query = request.uri().query().unwrap_or_default().to_owned();
            async move {
                if query.contains("watch=true") {
                    std::future::pending::<()>().await;
                }
                let list = r#"{"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}"#;
                Ok::<_, std::io::Error>(http::Response::new(kube::client::Body::from(
                    list.as_bytes().to_vec(),
                )))
            }
        });
        (kube::Client::new(service, "default"), asked)
    }

    /// Explanations must rest on the same picture of the cluster as the scheduler's decisions.
    #[tokio::test]
    async fn every_kind_that_the_scheduler_watches_is_listed() {
        let (client, watched) = asked();
        let (facts, mut told) = channel::unbounded();
        let (_relist, relist) = tokio::sync::watch::channel(0);
        let stop = CancellationToken::new();
        let run = scheduler::watch::run(client, facts, |_| {}, None, relist, stop.clone());
        let run = tokio::spawn(run);
        // The scheduler lists pods after the kinds that their requests depend on.
        let pods = |fact: &Fact| matches!(fact, Fact::Pod(Seen::Listed));
        let all = async {
            while !pods(&told.recv().await.unwrap()) {}
            // The other listings have begun by the time this one is sent, and do not depend on pods.
            while let Ok(Some(_)) =
                tokio::time::timeout(std::time::Duration::from_millis(200), told.recv()).await
            {
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(20), all)
            .await
            .unwrap();
        stop.cancel();
        run.await.unwrap();
        let (client, listed) = asked();
        let cluster = Cluster {
            client,
            url: String::new(),
            namespace: "default".to_owned(),
        };
        let objects = Objects::list(&cluster).await.unwrap();
        assert_eq!(objects.unread, BTreeMap::new());
        let mut listed = listed.lock().unwrap().clone();
        // Claims of pods that do not exist yet are made from templates, which the scheduler does
        // not need.
        assert!(listed.remove(&("resourceclaimtemplates".to_owned(), false)));
        assert_eq!(listed, *watched.lock().unwrap());
    }

    /// Returns a waiting pod that names one object of each kind.
    fn needy() -> Pod {
        let volumes = serde_json::json!([
            {"name": "token", "projected": {"sources": [{"configMap": {"name": "kube-root-ca.crt"}}]}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        ]);
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "default", "uid": "p"},
            "spec": {
                "schedulerName": "kai-scheduler",
                "volumes": volumes,
                "resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}],
                "containers": [{"name": "c", "resources": {"claims": [{"name": "gpu"}]}}],
            },
        }))
        .unwrap()
    }

    #[test]
    fn what_a_pod_names_of_a_kind_that_could_not_be_listed_counts_as_there() {
        let says = |unread: &[&str], config_maps: &[&str]| {
            let named = config_maps.iter().map(|name| {
                let mut map = PartialObjectMeta::<ConfigMap>::default();
                map.metadata.name = Some((*name).to_owned());
                map.metadata.namespace = Some("default".to_owned());
                map
            });
            let unread = unread
                .iter()
                .map(|kind| (String::from(*kind), String::new()));
            let objects = Objects {
                pods: vec![needy()],
                config_maps: named.collect(),
                unread: unread.collect(),
                ..Objects::default()
            };
            let config = scheduler_core::Config::verified();
            let shadow = Shadow::of_objects(objects, config, "kai-scheduler", Time(5));
            let text = text::write(&shadow.events());
            [
                "kube-root-ca.crt",
                "persistentvolumeclaim",
                "DynamicResources",
            ]
            .map(|what| text.contains(what))
        };
        assert_eq!(says(&[], &[]), [true, true, true]);
        assert_eq!(says(&[], &["kube-root-ca.crt"]), [false, true, true]);
        let storage = [
            "persistentvolumeclaims",
            "persistentvolumes",
            "storageclasses",
        ];
        for kind in storage {
            assert_eq!(says(&["configmaps", kind], &[]), [false, false, true]);
        }
        for kind in ["resourceclaims", "deviceclasses", "resourceslices"] {
            assert_eq!(says(&[kind], &[]), [true, true, false], "{kind}");
        }
    }

    #[test]
    fn what_agents_wrote_is_read_as_if_they_had_said_it() {
        let mut nodes = crate::inventory::tests::nodes();
        nodes[0].spec.gpus = vec![api::gpu_node::GpuPolicy {
            uuid: "GPU-1".into(),
            cordoned: true,
            ..Default::default()
        }];
        let objects = Objects {
            gpu_nodes: nodes,
            ..Objects::default()
        };
        let config = scheduler_core::Config::verified();
        let shadow = Shadow::of_objects(objects, config, "kai-scheduler", Time(5));
        let text = text::write(&shadow.events());
        for line in [
            "card GPU-0 product=\"NVIDIA L4\" total=23034 reserved=34",
            "card GPU-1 index=1",
            "strangers=512",
            "cordoned",
            "not-offering=\"another device plugin serves nvidia.com/gpu\"",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        let again = Shadow::of_text(&text, scheduler_core::Config::verified(), "kai-scheduler");
        assert_eq!(text::write(&again.unwrap().events()), text);
    }

    /// One card with a pod of a queue without quota, and a pending pod of a queue with quota.
    const OWED: &str = "\
tick 100000
node n1 cpu=64000 memory=274877906944 pods=110 gpus=1
queue rich gpu=1000000000/-1/1000000
queue poor gpu=0/-1/1000000
pod guest queue=poor created=1 gpus.main=1 phase=running on=n1
pod late queue=rich created=2 gpus.main=1
";

    fn owed(more: &str) -> Shadow {
        let text = format!("{OWED}{more}");
        Shadow::of_text(&text, scheduler_core::Config::verified(), "kai-scheduler")
            .unwrap_or_else(|why| panic!("{why}"))
    }

    #[test]
    fn time_goes_on_to_where_a_search_that_rests_goes_on() {
        let mut at_once = owed("");
        let settled = at_once.settle_in_time(|_| {});
        assert_eq!((settled.took, settled.searching), (Duration(0), false));
        assert_eq!(settled.of_time(), Vec::<String>::new());

        let rests = "rest pod:late cause=reclaim until=105000 steps=1\n";
        let still = owed(rests).settle();
        assert!(still.iter().all(|round| round.actions.is_empty()));
        let mut shadow = owed(rests);
        let settled = shadow.settle_in_time(|_| {});
        let bound =
            |action: &Action| matches!(action, Action::Bind(bind) if bind.pod.as_str() == "late");
        let mut actions = settled.rounds.iter().flat_map(|round| &round.actions);
        assert!(actions.any(bound), "{settled:?}");
        assert!(settled.took >= Duration::seconds(5), "{settled:?}");
        assert!(!settled.searching);
        assert_eq!(
            settled.of_time(),
            [format!(
                "The last of it is decided after {}.",
                seconds(settled.took)
            )]
        );
        // A decision without output is not a round.
        assert!(settled.rounds.len() < 6, "{settled:?}");
        let (after, decision) = owed(rests).decide_in_time();
        assert_eq!((after, decision.actions.len()), (settled.took, 1));
    }

    #[test]
    fn time_is_stopped_where_nothing_happens_for_long() {
        for (minutes, evicted) in [(2, true), (4, false)] {
            let more = format!(
                "queue poor gpu=0/-1/1000000 reclaim-min-runtime={}\nlife pod:guest last-start=100000\n",
                minutes * 60_000
            );
            let settled = owed(&more).settle_in_time(|_| {});
            let evicts = |round: &Decision| !round.actions.is_empty();
            assert_eq!(settled.rounds.iter().any(evicts), evicted, "{settled:?}");
            let took = if evicted { minutes * 60 } else { 0 };
            assert_eq!(settled.took, Duration::seconds(took));
        }
    }
}
