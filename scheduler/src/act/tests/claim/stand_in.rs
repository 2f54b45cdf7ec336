//! A claim that stands in for GPUs in a pod's resources: made, named in the pod, and taken away.

use super::*;
use crate::convert::{StandIn, stand_in};
use kube::api::ListParams;
use scheduler_core::model::Front;

impl Site {
    /// A pod with a GPU in its resources, and the claim that a decision gives a device.
    async fn asks(&self, name: &str) -> (Pod, DeviceBinding, ClaimTerms) {
        let gpu = json!({"nvidia.com/gpu": "1"});
        let pod = json!({"metadata": {"name": name}, "spec": {"schedulerName": "kai-scheduler",
            "containers": [{"name": "c", "image": "i",
                "resources": {"limits": gpu, "requests": gpu}}]}});
        let pod = serde_json::from_value(pod).unwrap();
        let pod: Pod = self
            .pods()
            .create(&PostParams::default(), &pod)
            .await
            .unwrap();
        let claim = stand_in::name(name, pod.metadata.uid.as_deref().unwrap());
        let binding = DeviceBinding {
            uid: stand_in::uid(NS, &claim),
            name: format!("{NS}/{claim}").into(),
            devices: [AllocatedDevice {
                request: "container-0-request-0".into(),
                device: PoolName::new("d", "n1").device("gpu-0"),
                admin: false,
                consumed: None,
            }]
            .into(),
            nodes: None,
        };
        let requests = json!([{"name": "container-0-request-0", "exactly":
            {"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1}}]);
        let mappings = json!([{"containerName": "c", "resourceName": "nvidia.com/gpu",
            "requestName": "container-0-request-0"}]);
        let made = StandIn {
            spec: serde_json::from_value(json!({"devices": {"requests": requests}})).unwrap(),
            mappings: serde_json::from_value(mappings).unwrap(),
        };
        let terms = ClaimTerms {
            stand_in: Some(made),
            ..ClaimTerms::default()
        };
        (pod, binding, terms)
    }

    fn bind_by_claim(&mut self, (pod, claim, terms): &(Pod, DeviceBinding, ClaimTerms)) {
        let decision = self.decision();
        let mut bind = binding(decision, pod, "n1");
        bind.grants.clear();
        bind.received = Received::Nothing;
        bind.front = Front::Claim;
        bind.devices = vec![claim.clone()];
        let work = Work::Bind(Box::new(bind), vec![terms.clone()]);
        self.work.send(work).unwrap();
    }

    async fn claim_in_status(&self, pod: &str) -> Value {
        let status = self.pods().get(pod).await.unwrap().status;
        json!(status.and_then(|status| status.extended_resource_claim_status))
    }

    async fn is_there(&self, claim: &str) -> bool {
        self.claims().get_opt(claim).await.unwrap().is_some()
    }

    fn refuse(&self, method: &str, path: &str) {
        self.server.plan(method, path, Fault::Forbidden);
    }
}

fn name(claim: &DeviceBinding) -> &str {
    claim.name.split_once('/').unwrap().1
}

#[tokio::test]
async fn the_claim_is_made_gets_its_devices_and_is_named_in_the_pod_before_the_binding() {
    let mut site = Site::start().await;
    let asks = site.asks("p").await;
    let claim = name(&asks.1).to_owned();
    // No answer that is lost makes a second one.
    for (method, path) in [
        ("POST", "/resourceclaims"),
        ("PUT", "/status"),
        ("PATCH", "/pods/p/status"),
        ("POST", "/binding"),
    ] {
        site.server.plan(method, path, Fault::LoseAnswer);
    }
    site.bind_by_claim(&asks);
    assert!(confirmed(&site.outcome().await));
    assert!(site.is_bound("p").await);
    let all = site.claims().list(&ListParams::default()).await.unwrap();
    let [made] = all.items.as_slice() else {
        panic!("{all:?}");
    };
    let made = json!(made);
    assert_eq!(made["metadata"]["name"], *claim);
    assert_eq!(
        made["metadata"]["annotations"],
        json!({"resource.kubernetes.io/extended-resource-claim": "true"})
    );
    assert_eq!(
        made["metadata"]["ownerReferences"],
        json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": asks.0.metadata.uid,
            "controller": true}])
    );
    assert_eq!(made["spec"], json!(asks.2.stand_in.as_ref().unwrap().spec));
    assert_eq!(
        made["status"]["allocation"]["devices"]["results"],
        json!([{"request": "container-0-request-0", "driver": "d", "pool": "n1", "device": "gpu-0"}])
    );
    assert_eq!(site.consumers(&claim).await, Some(1));
    assert_eq!(
        site.claim_in_status("p").await,
        json!({"resourceClaimName": claim, "requestMappings": [{"containerName": "c",
            "resourceName": "nvidia.com/gpu", "requestName": "container-0-request-0"}]})
    );
    site.nothing_more().await;
}

#[tokio::test]
async fn a_refusal_at_any_write_leaves_nothing() {
    let writes = [
        ("POST", "/resourceclaims"),
        ("PUT", "/status"),
        ("PATCH", "/pods/p/status"),
        ("POST", "/binding"),
    ];
    for (method, path) in writes {
        let mut site = Site::start().await;
        let asks = site.asks("p").await;
        site.refuse(method, path);
        site.bind_by_claim(&asks);
        assert!(!confirmed(&site.outcome().await), "{path}");
        assert!(!site.is_bound("p").await, "{path}");
        assert!(!site.is_there(name(&asks.1)).await, "{path}");
        assert_eq!(site.claim_in_status("p").await, Value::Null, "{path}");
        // And the next try makes it.
        site.bind_by_claim(&asks);
        assert!(confirmed(&site.outcome().await), "{path}");
        assert_eq!(site.consumers(name(&asks.1)).await, Some(1), "{path}");
        site.nothing_more().await;
    }
}

/// After that write of the process that ended: what follows is refused, and so is what takes it
/// back.
#[derive(Clone, Copy, Debug)]
enum End {
    Made,
    Allocated,
    Named,
    /// While it is taken back.
    Unnamed,
}

#[tokio::test]
async fn what_an_earlier_process_left_of_it_is_gone_on_with_or_deleted() {
    for end in [End::Made, End::Allocated, End::Named, End::Unnamed] {
        for goes_on in [true, false] {
            let mut site = Site::start().await;
            let asks = site.asks("p").await;
            let claim = name(&asks.1);
            match end {
                End::Made => {
                    site.refuse("PUT", "/status");
                    site.refuse("PATCH", "/pods/p/status");
                }
                End::Allocated | End::Named => {
                    site.refuse("PATCH", "/pods/p/status");
                    site.refuse("PATCH", "/pods/p/status");
                }
                End::Unnamed => {
                    site.refuse("POST", "/binding");
                    // Its devices are written by one of these, the end of them by the other.
                    let claim = format!("/resourceclaims/{claim}");
                    site.server.plan("PUT", &claim, Fault::LoseAnswer);
                    site.refuse("PUT", &claim);
                }
            }
            site.bind_by_claim(&asks);
            assert!(!confirmed(&site.outcome().await), "{end:?}");
            if let End::Named = end {
                let made = asks.2.stand_in.as_ref().unwrap();
                let status = json!({"status": {"extendedResourceClaimStatus":
                    {"resourceClaimName": claim, "requestMappings": made.mappings}}});
                let patch = kube::api::Patch::Merge(status);
                let params = kube::api::PatchParams::default();
                site.pods()
                    .patch_status("p", &params, &patch)
                    .await
                    .unwrap();
            }
            assert!(site.is_there(claim).await, "{end:?}");
            if goes_on {
                site.bind_by_claim(&asks);
                assert!(confirmed(&site.outcome().await), "{end:?}");
                assert_eq!(site.consumers(claim).await, Some(1), "{end:?}");
                let named = site.claim_in_status("p").await;
                assert_eq!(named["resourceClaimName"], *claim, "{end:?}");
            } else {
                let uid = asks.0.metadata.uid.clone().unwrap();
                site.work
                    .send(Work::Free(Stray {
                        namespace: NS.into(),
                        name: claim.into(),
                        uid: asks.1.uid.clone(),
                        pods: vec![uid],
                    }))
                    .unwrap();
                let gone = async {
                    while site.is_there(claim).await {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                };
                tokio::time::timeout(Duration::from_secs(10), gone)
                    .await
                    .expect("deleted");
                assert_eq!(site.claim_in_status("p").await, Value::Null, "{end:?}");
            }
            site.nothing_more().await;
        }
    }
}

#[tokio::test]
async fn a_claim_that_only_looks_like_it_is_left_alone() {
    let mut site = Site::start().await;
    let asks = site.asks("p").await;
    let claim = json!({"metadata": {"name": name(&asks.1)}, "spec": {"devices": {"requests": []}}});
    let claim = serde_json::from_value(claim).unwrap();
    site.claims()
        .create(&PostParams::default(), &claim)
        .await
        .unwrap();
    site.bind_by_claim(&asks);
    let outcome = site.outcome().await;
    assert!(why(&outcome).ends_with("was created again"), "{outcome:?}");
    assert!(site.is_there(name(&asks.1)).await);
    assert_eq!(site.claim_in_status("p").await, Value::Null);
    site.nothing_more().await;
}
