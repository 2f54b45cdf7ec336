//! The signed grant: what only the scheduler may say.

use crate::{Shape, Target};
use api::Mode;
use api::grant::{ContainerGrant, Grant, GrantError, NodeIdentity, PodIdentity, Signer, Verifier};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::LazyLock;

pub(super) const TARGET: Target = Target {
    name: "grant",
    shape: Shape::Text,
    words: &[
        ".",
        "v",
        "key",
        "cluster",
        "pod",
        "uid",
        "namespace",
        "name",
        "node",
        "containers",
        "gpus",
        "memoryMib",
        "computePercent",
        "mode",
        "note",
        "decision",
        "exclusive",
        "mps",
        "mps-isolated",
        "time-slicing",
        "null",
        "{}",
        "[]",
        "GPU-1",
        "u1",
        "u2",
        "n1",
        "nu1",
        "\\u0031",
        "=",
        "-",
        "_",
        "9000",
        "2000",
        "2e3",
        "100",
    ],
    seeds,
    large,
    heap: 64,
    run,
};

/// Keys of tests alone, PKCS#8, so that an input means the same in every run.
const KEY: &str = "3051020101300506032b657004220420302ba2a182b19f0b400e2728a6f3873aafd0cd7e86ef5a1d7100b84966aad2fd812100a280c0a643c38d16840c807852fd51fc189828c29eb45a3c2ffd1aa41a699172";
/// Of another cluster.
const OTHER: &str = "3051020101300506032b657004220420d0cdc5f0569d19ab05e4abbed8d6d70a7fb8ed569ec2a18855f745306af13b0281210038da0b630e37e43477d273701d65f357f3546ea5d4939642d4401a2bb1ffe330";

struct Site {
    signer: Signer,
    verifier: Verifier,
    /// Signed by `signer`.
    texts: Vec<String>,
    /// Signed by the key of another cluster.
    foreign: String,
}

static SITE: LazyLock<Site> = LazyLock::new(|| {
    let (signer, other) = (signer(KEY), signer(OTHER));
    let keys = BTreeMap::from([(signer.key_id().to_owned(), signer.public_key())]);
    let mut whole = grant();
    whole.containers[0].mode = Mode::Exclusive;
    whole.containers[0].note = Some("the rest of the card".to_owned());
    Site {
        texts: vec![signer.sign(grant()), signer.sign(whole)],
        foreign: other.sign(grant()),
        verifier: Verifier::new("c", keys),
        signer,
    }
});

fn signer(hex: &str) -> Signer {
    let der: Vec<u8> = (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal"))
        .collect();
    Signer::from_pkcs8(&der).expect("a key")
}

fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let site = &*SITE;
    let verified = site.verifier.verify(text, &pod(), &node());
    assert_eq!(
        verified.is_ok(),
        site.texts.iter().any(|signed| signed == text),
        "what was not signed is taken, or what was signed is not: {verified:?}"
    );
    // What is read for display is what was signed.
    let Ok(grant) = Grant::peek(text) else {
        assert!(verified.is_err());
        return;
    };
    if let Ok(verified) = &verified {
        assert_eq!(*verified, grant);
    }
    // Signed by ourselves it is taken for its own pod and node alone, and says the same.
    let signed = site.signer.sign(grant.clone());
    let own = Verifier::new(
        grant.cluster.clone(),
        BTreeMap::from([(site.signer.key_id().to_owned(), site.signer.public_key())]),
    );
    let read = own
        .verify(&signed, &grant.pod, &grant.node)
        .expect("it was signed for them");
    assert_eq!(
        read.containers, grant.containers,
        "other limits than were signed"
    );
    assert_eq!(read.decision, grant.decision);
    let mut elsewhere = grant.pod.clone();
    elsewhere.uid.push('x');
    let replayed = own.verify(&signed, &elsewhere, &grant.node);
    assert!(
        matches!(replayed, Err(GrantError::NotForThis { .. })),
        "{replayed:?}"
    );
    let mut elsewhere = grant.node.clone();
    elsewhere.uid.push('x');
    let copied = own.verify(&signed, &grant.pod, &elsewhere);
    assert!(
        matches!(copied, Err(GrantError::NotForThis { .. })),
        "{copied:?}"
    );
}

fn pod() -> PodIdentity {
    grant().pod
}

fn node() -> NodeIdentity {
    grant().node
}

fn grant() -> Grant {
    let value = json!({"v": 1, "key": "", "cluster": "c", "decision": "7-1",
        "pod": {"uid": "u1", "namespace": "ns", "name": "p"}, "node": {"name": "n1", "uid": "nu1"},
        "containers": [{"name": "main", "gpus": ["GPU-1"], "memoryMib": 2000, "computePercent": 100, "mode": "mps"}]});
    serde_json::from_value(value).expect("a grant")
}

fn seeds() -> Vec<Vec<u8>> {
    let site = &*SITE;
    let mut texts = site.texts.clone();
    // Of a key that is not known here.
    texts.push(site.foreign.clone());
    // The signature of one under the payload of another.
    let (signature, _) = site.texts[0].split_once('.').expect("signed");
    let (_, payload) = site.texts[1].split_once('.').expect("signed");
    texts.push(format!("{signature}.{payload}"));
    texts.into_iter().map(String::into_bytes).collect()
}

fn large(size: usize) -> Vec<Vec<u8>> {
    let site = &*SITE;
    let mut many = grant();
    let one = many.containers[0].clone();
    many.containers = (0..size / 120)
        .map(|at| ContainerGrant {
            name: format!("c{at}"),
            ..one.clone()
        })
        .collect();
    let mut cards = grant();
    cards.containers[0].gpus = (0..size / 12).map(|at| format!("GPU-{at}")).collect();
    // Not among those that are taken: of another pod.
    many.pod.uid = "u2".into();
    cards.pod.uid = "u2".into();
    vec![
        site.signer.sign(many).into_bytes(),
        site.signer.sign(cards).into_bytes(),
    ]
}
