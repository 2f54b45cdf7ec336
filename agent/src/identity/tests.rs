use super::pod_resources::{by_list, contradicts};
use super::*;
use crate::pods::ContainerKind;
use api::Signer;
use api::grant::{Grant, NodeIdentity, PodIdentity};
use proto::podresources::{ContainerDevices, ContainerResources, PodResources};
use std::collections::BTreeMap;

fn ids(list: &[&str]) -> BTreeSet<String> {
    list.iter().map(|id| (*id).to_owned()).collect()
}

fn node() -> NodeIdentity {
    NodeIdentity {
        name: "n1".into(),
        uid: "nu1".into(),
    }
}

fn container(name: &str, kind: ContainerKind) -> ContainerView {
    ContainerView {
        name: name.into(),
        kind,
        tokens: 1,
        whole: 0,
        claims: Vec::new(),
        running: None,
    }
}

fn pod(uid: &str, grant: Option<String>) -> PodView {
    PodView {
        identity: PodIdentity {
            uid: uid.into(),
            namespace: "ns".into(),
            name: "p".into(),
        },
        mirror_uid: None,
        grant,
        admitted: true,
        finished: false,
        deleting: false,
        grace: std::time::Duration::ZERO,
        runtime_class: None,
        way_around: None,
        containers: vec![
            container("init", ContainerKind::Init),
            container("main", ContainerKind::App),
        ],
    }
}

struct Cluster {
    signer: Signer,
    verifier: Verifier,
}

impl Cluster {
    fn new() -> Self {
        let signer = Signer::from_pkcs8(&Signer::generate().unwrap()).unwrap();
        let keys = BTreeMap::from([(signer.key_id().to_owned(), signer.public_key())]);
        Self {
            signer,
            verifier: Verifier::new("c", keys),
        }
    }

    fn grant(&self, uid: &str, containers: &[(&str, Mode, &[&str], u64)]) -> String {
        self.signer.sign(Grant {
            v: 0,
            key: String::new(),
            cluster: "c".into(),
            pod: pod(uid, None).identity,
            node: node(),
            containers: containers
                .iter()
                .map(|(name, mode, gpus, mib)| ContainerGrant {
                    name: (*name).into(),
                    gpus: gpus.iter().map(|gpu| (*gpu).to_owned()).collect(),
                    memory_mib: Mib(*mib),
                    request_mib: None,
                    compute_percent: 50,
                    mode: *mode,
                    note: None,
                    asked: None,
                })
                .collect(),
            decision: "d1".into(),
            queue: None,
            group: None,
        })
    }

    fn claim(&self, pod: &PodView, container: &str) -> Result<Claim, IdentityError> {
        claim(
            pod,
            container,
            Resource::Share,
            &ids(&["G::0"]),
            Some(&self.verifier),
            &node(),
        )
    }
}

fn entry(uid: &str, container: &str, ids_: &[&str], alloc: u128) -> Entry {
    Entry {
        pod_uid: uid.into(),
        container: container.into(),
        resource: Resource::Share.name().into(),
        ids: ids(ids_),
        alloc: Some(AllocId::new(alloc)),
    }
}

#[test]
fn every_allocation_of_one_id_set_is_found_and_no_other() {
    let checkpoint = Checkpoint {
        entries: vec![
            entry("u1", "main", &["G::0"], 2),
            entry("u1", "init", &["G::0"], 1),
            entry("u2", "main", &["G::1"], 3),
            entry("u3", "main", &["G::0", "G::1"], 4),
            Entry {
                resource: Resource::Whole.name().into(),
                ..entry("u4", "main", &["G::0"], 5)
            },
            Entry {
                alloc: None,
                ..entry("u5", "main", &["G::0"], 6)
            },
        ],
        ..Checkpoint::default()
    };
    let found: Vec<_> = holders(&checkpoint, Resource::Share, &ids(&["G::0"]))
        .into_iter()
        .map(|holder| (holder.container, holder.alloc))
        .collect();
    assert_eq!(
        found,
        [
            ("init".to_owned(), AllocId::new(1)),
            ("main".to_owned(), AllocId::new(2))
        ]
    );
}

#[test]
fn each_container_gets_its_own_part_of_the_grant() {
    let cluster = Cluster::new();
    let grant = cluster.grant(
        "u1",
        &[
            ("init", Mode::Mps, &["GPU-0"], 100),
            ("main", Mode::Mps, &["GPU-1"], 2000),
        ],
    );
    let pod = pod("u1", Some(grant));
    let (init, main) = (
        cluster.claim(&pod, "init").unwrap(),
        cluster.claim(&pod, "main").unwrap(),
    );
    assert_eq!((init.memory, main.memory), (Mib(100), Mib(2000)));
    assert_eq!(main.gpus, [GpuUuid::from("GPU-1")]);
    assert_eq!((main.compute_percent, main.decision.as_str()), (50, "d1"));
}

#[test]
fn a_pod_without_a_true_grant_gets_one_line() {
    let cluster = Cluster::new();
    let grant = cluster.grant("u1", &[("main", Mode::Mps, &["GPU-0"], 100)]);
    for (pod, container, text) in [
        (
            pod("u1", None),
            "main",
            "pod ns/p was not placed by Aliquot's scheduler: it has no grant",
        ),
        (
            pod(
                "u1",
                Some(grant.replace("\"memoryMib\":100", "\"memoryMib\":900")),
            ),
            "main",
            "pod ns/p: grant's signature does not match: it was altered",
        ),
        (
            pod("u2", Some(grant.clone())),
            "main",
            "pod ns/p: grant is for pod UID u1, not u2",
        ),
        (
            pod("u1", Some(grant.clone())),
            "init",
            "the grant of pod ns/p has nothing for container init",
        ),
        (
            pod("u1", Some("nonsense".into())),
            "main",
            "pod ns/p: grant is not readable: no signature",
        ),
    ] {
        let error = cluster.claim(&pod, container).unwrap_err();
        assert_eq!(error.to_string(), text);
        assert!(error.is_final() && !error.may_pass());
    }
}

#[test]
fn a_grant_of_another_node_is_refused() {
    let cluster = Cluster::new();
    let pod = pod(
        "u1",
        Some(cluster.grant("u1", &[("main", Mode::Mps, &["GPU-0"], 1)])),
    );
    let remade = NodeIdentity {
        uid: "nu2".into(),
        ..node()
    };
    let error = claim(
        &pod,
        "main",
        Resource::Share,
        &ids(&["G::0"]),
        Some(&cluster.verifier),
        &remade,
    )
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "pod ns/p: grant is for node UID nu1, not nu2"
    );
}

#[test]
fn what_is_late_is_not_refused_for_good() {
    let cluster = Cluster::new();
    let pod = pod(
        "u1",
        Some(cluster.grant("u1", &[("main", Mode::Mps, &["GPU-0"], 1)])),
    );
    let unknown_key = Verifier::new("c", BTreeMap::new());
    for (verifier, node) in [
        (None, node()),
        (Some(&cluster.verifier), NodeIdentity::default()),
        (Some(&unknown_key), node()),
    ] {
        let late = claim(
            &pod,
            "main",
            Resource::Share,
            &ids(&["G::0"]),
            verifier,
            &node,
        );
        assert!(late.unwrap_err().may_pass());
    }
}

#[test]
fn the_resource_must_be_the_one_that_the_grant_is_about() {
    let cluster = Cluster::new();
    let grant = cluster.grant("u1", &[("main", Mode::Exclusive, &["GPU-0", "GPU-1"], 1)]);
    let pod = pod("u1", Some(grant));
    let error = cluster.claim(&pod, "main").unwrap_err();
    assert_eq!(
        error.to_string(),
        "the grant of pod ns/p gives container main 2 of nvidia.com/gpu, but it holds 1 of aliquot.dev/gpu-share"
    );
    let whole = |list: &[&str]| {
        let (verifier, node) = (Some(&cluster.verifier), node());
        claim(&pod, "main", Resource::Whole, &ids(list), verifier, &node)
    };
    assert!(whole(&["GPU-0", "GPU-7"]).is_ok());
    assert!(whole(&["GPU-0"]).is_err());
}

fn listed(container: &str, list: &[&str]) -> PodResources {
    PodResources {
        name: "p".into(),
        namespace: "ns".into(),
        containers: vec![ContainerResources {
            name: container.into(),
            devices: list
                .iter()
                .map(|id| ContainerDevices {
                    resource_name: Resource::Share.name().into(),
                    device_ids: vec![(*id).to_owned()],
                    ..ContainerDevices::default()
                })
                .collect(),
            ..ContainerResources::default()
        }],
    }
}

#[test]
fn the_second_witness_must_agree_but_knows_nothing_of_init_containers() {
    let (pod, want) = (pod("u1", None), ids(&["G::0"]));
    let ask = |container: &str, listed: Option<&PodResources>| {
        contradicts(&pod, container, Resource::Share, &want, listed).is_ok()
    };
    assert!(ask("main", Some(&listed("main", &["G::0"]))));
    assert!(!ask("main", Some(&listed("main", &["G::1"]))));
    assert!(!ask("main", Some(&listed("other", &["G::0"]))));
    assert!(!ask("main", None));
    // It lists the app container for the init container's IDs.
    assert!(ask("init", Some(&listed("main", &["G::0"]))));
}

#[test]
fn without_a_checkpoint_only_what_cannot_be_confused_is_identified() {
    let plain = PodView {
        containers: vec![container("main", ContainerKind::App)],
        ..pod("u1", None)
    };
    let with_init = pod("u1", None);
    let want = ids(&["G::0"]);
    let one = [listed("main", &["G::0"])];
    let alloc = [AllocId::new(7)];
    let ask = |pod: &PodView, listed: &[PodResources], minted: &[AllocId]| {
        by_list(&[pod], listed, Resource::Share, &want, |_| {
            minted.first().copied()
        })
    };
    let ambiguous = |pod: &PodView| IdentityError::Ambiguous {
        pod: "ns/p".into(),
        uid: pod.identity.uid.clone(),
    };
    assert_eq!(ask(&plain, &one, &alloc).unwrap().alloc, AllocId::new(7));
    assert_eq!(ask(&with_init, &one, &alloc), Err(ambiguous(&with_init)));
    assert_eq!(ask(&plain, &one, &[]), Err(ambiguous(&plain)));
    let two = [listed("main", &["G::0"]), listed("main", &["G::0"])];
    assert_eq!(ask(&plain, &two, &alloc), Err(ambiguous(&plain)));
    assert_eq!(ask(&plain, &[], &alloc), Err(IdentityError::NotRecorded));
}
