//! Claims on devices: what is written before a binding, and how it is taken back.

mod stand_in;

use super::*;
use crate::convert::{ClaimTerms, Stray};
use k8s_openapi::api::resource::v1::ResourceClaim;
use scheduler_core::DeviceBinding;
use scheduler_core::ids::PoolName;
use scheduler_core::model::{AllocatedDevice, NodeTerm, Operator, Requirement};
use scheduler_core::units::Quantity;
use serde_json::Value;

impl Site {
    fn claims(&self) -> Api<ResourceClaim> {
        Api::namespaced(self.client.clone(), NS)
    }

    /// A claim, and what a decision gives it.
    async fn claim(&self, name: &str) -> DeviceBinding {
        let claim = json!({"metadata": {"name": name}, "spec": {"devices": {
            "requests": [{"name": "r", "exactly": {"deviceClassName": "c", "tolerations":
                [{"key": "bad", "operator": "Exists"}]}}],
            "config": [{"requests": ["r"], "opaque": {"driver": "d", "parameters": {"own": 1}}}]}}});
        let claim = serde_json::from_value(claim).unwrap();
        let made = self.claims().create(&PostParams::default(), &claim).await;
        let only = Requirement {
            key: "metadata.name".into(),
            operator: Operator::In(vec!["n1".into()]),
        };
        DeviceBinding {
            uid: made.unwrap().metadata.uid.unwrap().as_str().into(),
            name: format!("{NS}/{name}").into(),
            devices: [AllocatedDevice {
                request: "r".into(),
                device: PoolName::new("d", "n1").device("gpu-0"),
                admin: false,
                consumed: Some([("memory".into(), Quantity::whole(2000 << 20))].into()),
            }]
            .into(),
            nodes: Some(
                [NodeTerm {
                    name: vec![only],
                    ..NodeTerm::default()
                }]
                .into(),
            ),
        }
    }

    fn bind_with(&mut self, pod: &Pod, claims: &[&DeviceBinding], terms: &[ClaimTerms]) {
        let decision = self.decision();
        let mut bind = binding(decision, pod, "n1");
        bind.devices = claims.iter().copied().cloned().collect();
        let work = Work::Bind(Box::new(bind), terms.to_vec());
        self.work.send(work).unwrap();
    }

    async fn status(&self, claim: &str) -> Value {
        json!(self.claims().get(claim).await.unwrap().status)
    }

    /// Pods that the claim is reserved for, once it has devices.
    async fn consumers(&self, claim: &str) -> Option<usize> {
        let status = self.status(claim).await;
        let reserved = status["reservedFor"].as_array().map_or(0, Vec::len);
        status["allocation"].is_object().then_some(reserved)
    }

    async fn is_bound(&self, pod: &str) -> bool {
        let pod = self.pods().get(pod).await.unwrap();
        pod.spec.unwrap().node_name.is_some()
    }

    /// What drivers say of the claim's device.
    async fn say(&self, claim: &str, condition: &str) {
        let has = self.status(claim).await["allocation"]["devices"]["results"][0].clone();
        let condition = json!({"type": condition, "status": "True", "reason": "r", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let status = json!({"status": {"devices": [{"driver": has["driver"], "pool": has["pool"],
            "device": has["device"], "shareID": has["shareID"], "conditions": [condition]}]}});
        let patch = kube::api::Patch::Merge(status);
        let params = kube::api::PatchParams::default();
        let told = self.claims().patch_status(claim, &params, &patch).await;
        told.unwrap();
    }
}

fn why(outcome: &Outcome) -> &str {
    match &outcome.result {
        OutcomeResult::Refused { reason, .. } => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_claim_has_its_devices_and_the_pod_before_the_pod_is_bound() {
    let mut site = Site::start().await;
    let pod = site.pod("p", false).await;
    let claim = site.claim("c").await;
    let terms = ClaimTerms {
        devices: vec![crate::convert::Terms {
            skips: vec!["*".into()],
            ..Default::default()
        }],
        config: [(
            "c".to_owned(),
            vec![
                serde_json::from_value(
                    json!({"opaque": {"driver": "d", "parameters": {"class": 1}}}),
                )
                .unwrap(),
            ],
        )]
        .into(),
        stand_in: None,
    };
    // Neither an answer that is lost nor a server that is busy makes it twice.
    site.server.plan("PUT", "/c/status", Fault::LoseAnswer);
    site.server
        .plan("PUT", "/resourceclaims/c", Fault::TooManyRequests);
    site.bind_with(&pod, &[&claim], &[terms]);
    assert!(confirmed(&site.outcome().await));
    assert!(site.is_bound("p").await);
    let mut status = site.status("c").await;
    let share = status["allocation"]["devices"]["results"][0]["shareID"].take();
    let share = share.as_str().unwrap();
    assert_eq!(
        (share.len(), &share[14..15], &share[19..20]),
        (36, "8", "8")
    );
    assert!(
        status["allocation"]["allocationTimestamp"]
            .take()
            .is_string()
    );
    assert_eq!(
        status,
        json!({
            "allocation": {
                "allocationTimestamp": null,
                "devices": {
                    "config": [
                        {"source": "FromClass", "requests": ["r"],
                            "opaque": {"driver": "d", "parameters": {"class": 1}}},
                        {"source": "FromClaim", "requests": ["r"],
                            "opaque": {"driver": "d", "parameters": {"own": 1}}},
                    ],
                    "results": [{"request": "r", "driver": "d", "pool": "n1", "device": "gpu-0",
                        "shareID": null, "consumedCapacity": {"memory": "2000Mi"},
                        "tolerations": [{"key": "bad", "operator": "Exists"}],
                        "skipNodeOperations": ["*"]}],
                },
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields":
                    [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]},
            },
            "reservedFor": [{"resource": "pods", "name": "p", "uid": pod.metadata.uid}],
        })
    );
    let meta = site.claims().get("c").await.unwrap().metadata;
    assert_eq!(
        meta.finalizers.unwrap(),
        ["resource.kubernetes.io/delete-protection"]
    );
    site.nothing_more().await;
}

#[tokio::test]
async fn a_refused_binding_takes_back_what_came_before_it_and_nothing_of_others() {
    let mut site = Site::start().await;
    let (a, b) = (site.pod("a", false).await, site.pod("b", false).await);
    let (shared, own) = (site.claim("shared").await, site.claim("own").await);
    site.bind_with(&a, &[&shared], &[]);
    assert!(confirmed(&site.outcome().await));
    site.server.plan("POST", "/b/binding", Fault::Forbidden);
    site.bind_with(&b, &[&shared, &own], &[]);
    assert!(!confirmed(&site.outcome().await));
    assert!(!site.is_bound("b").await);
    assert_eq!(site.consumers("own").await, None);
    assert_eq!(site.consumers("shared").await, Some(1));
    // Where the second claim is refused, the first is taken back, too.
    let mut other = shared.clone();
    other.devices = [AllocatedDevice {
        device: PoolName::new("d", "n1").device("gpu-1"),
        ..shared.devices[0].clone()
    }]
    .into();
    site.bind_with(&b, &[&own, &other], &[]);
    let outcome = site.outcome().await;
    assert_eq!(
        why(&outcome),
        "resource claim default/shared was allocated other devices meanwhile"
    );
    assert_eq!(site.consumers("own").await, None);
    assert_eq!(site.consumers("shared").await, Some(1));
    site.claims()
        .delete("own", &DeleteParams::default())
        .await
        .unwrap();
    site.bind_with(&b, &[&own], &[]);
    let outcome = site.outcome().await;
    assert_eq!(why(&outcome), "resource claim default/own is being deleted");
    site.nothing_more().await;
}

#[tokio::test]
async fn pods_that_are_bound_at_once_share_a_claim() {
    // The number exceeds that of the bindings that are sent at once.
    const PODS: usize = 60;
    let mut site = Site::start().await;
    let claim = site.claim("c").await;
    let mut pods = Vec::new();
    for at in 0..PODS {
        pods.push(site.pod(&format!("p-{at}"), false).await);
    }
    let before = site.puts.load(Ordering::Relaxed);
    for pod in &pods {
        site.bind_with(pod, &[&claim], &[]);
    }
    for _ in 0..PODS {
        assert!(confirmed(&site.outcome().await));
    }
    // Each pod costs one PUT, and the claim's finalizer one. If bindings wrote the claim at the
    // same time, all but one would be refused, pause and begin again.
    assert_eq!(site.puts.load(Ordering::Relaxed) - before, PODS + 1);
    assert_eq!(site.consumers("c").await, Some(PODS));
    site.nothing_more().await;
}

#[tokio::test]
async fn a_pod_is_bound_once_the_driver_has_its_device_ready_and_never_if_it_cannot() {
    for (condition, bound) in [("ready", true), ("broken", false)] {
        let mut site = Site::start().await;
        let pod = site.pod("p", false).await;
        let claim = site.claim("c").await;
        let terms = ClaimTerms {
            devices: vec![crate::convert::Terms {
                binding: vec!["ready".into()],
                failure: vec!["broken".into()],
                ..Default::default()
            }],
            ..ClaimTerms::default()
        };
        site.bind_with(&pod, &[&claim], &[terms]);
        let reserved = async {
            while site.consumers("c").await != Some(1) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), reserved)
            .await
            .expect("reserved");
        // As long as a binding is about it, a claim keeps its devices.
        let stray = Stray {
            namespace: NS.into(),
            name: "c".into(),
            uid: claim.uid.clone(),
            pods: vec![pod.metadata.uid.clone().unwrap()],
        };
        site.work.send(Work::Free(stray)).unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(site.consumers("c").await, Some(1));
        assert!(!site.is_bound("p").await);
        site.say("c", condition).await;
        let outcome = site.outcome().await;
        assert_eq!(
            (confirmed(&outcome), site.is_bound("p").await),
            (bound, bound)
        );
        assert_eq!(site.consumers("c").await, bound.then_some(1));
        if !bound {
            assert_eq!(
                why(&outcome),
                "resource claim default/c: binding failure condition broken"
            );
        }
        site.nothing_more().await;
    }
}

#[tokio::test]
async fn what_an_earlier_process_left_is_gone_on_with_or_taken_back() {
    let mut site = Site::start().await;
    let pod = site.pod("p", false).await;
    let claim = site.claim("c").await;
    let uid = pod.metadata.uid.clone().unwrap();
    // The process ends after the claim's write: its binding is refused, and nothing undoes it.
    let status = json!({"status": {
        "allocation": {"devices": {"results": [{"request": "r", "driver": "d", "pool": "n1",
            "device": "gpu-0", "shareID": "x", "consumedCapacity": {"memory": "2000Mi"}}]}},
        "reservedFor": [{"resource": "pods", "name": "p", "uid": uid}]}});
    let patch = kube::api::Patch::Merge(status);
    let params = kube::api::PatchParams::default();
    site.claims()
        .patch_status("c", &params, &patch)
        .await
        .unwrap();
    let stray = |pods: &[&str]| Stray {
        namespace: NS.into(),
        name: "c".into(),
        uid: claim.uid.clone(),
        pods: pods.iter().map(ToString::to_string).collect(),
    };
    // Not one for which another pod has a reservation.
    site.work.send(Work::Free(stray(&["other"]))).unwrap();
    site.bind_with(&pod, &[&claim], &[]);
    assert!(confirmed(&site.outcome().await));
    assert_eq!(site.consumers("c").await, Some(1));
    site.work.send(Work::Free(stray(&[&uid]))).unwrap();
    let freed = async {
        while site.consumers("c").await.is_some() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), freed)
        .await
        .expect("freed");
    site.nothing_more().await;
}
