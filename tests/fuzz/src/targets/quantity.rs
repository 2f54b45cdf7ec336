//! Kubernetes quantities: of a pod they are never made smaller, of a node never larger.

use super::world::SCHEDULER;
use crate::{Shape, Target};
use k8s_openapi::api::core::v1::{Container, Node, NodeStatus, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::ObjectMeta;
use scheduler::convert::World;
use scheduler::watch::{Fact, Seen};
use scheduler_core::Event;
use std::collections::BTreeMap;

pub(super) const TARGET: Target = Target {
    name: "quantity",
    shape: Shape::Text,
    words: &[
        "n",
        "u",
        "m",
        "k",
        "M",
        "G",
        "T",
        "P",
        "E",
        "Ki",
        "Mi",
        "Gi",
        "Ti",
        "Pi",
        "Ei",
        "e",
        "e3",
        "E-3",
        "e-30",
        "e30",
        ".",
        "-",
        "+",
        "0",
        "000000000000000000001",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551615",
        "1.000000000000000000001",
    ],
    seeds,
    large: crate::target::none,
    heap: 64,
    run,
};

fn seeds() -> Vec<Vec<u8>> {
    let texts = [
        "1",
        "500m",
        "1.5",
        ".5",
        "2k",
        "1Ki",
        "1.5Gi",
        "1e3",
        "15e-1",
        "100n",
        "+2",
        "-1",
        "9E",
        "20Pi",
        "8Ei",
        "0.000000001",
        "123456789012345678901234567890",
        "12Mi",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Larger whole numbers are not distinguished
const MOST: f64 = 9_223_372_036_854_775_807.0;

fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let quantity = Quantity(text.to_owned());
    let all = || -> BTreeMap<String, Quantity> {
        ["cpu", "memory", "example.com/x"]
            .map(|name| (name.to_owned(), quantity.clone()))
            .into()
    };
    let mut world = World::new(SCHEDULER);
    let resources = ResourceRequirements {
        requests: Some(all()),
        ..ResourceRequirements::default()
    };
    let pod = Pod {
        metadata: meta(),
        spec: Some(PodSpec {
            scheduler_name: Some(SCHEDULER.to_owned()),
            node_name: Some("n".to_owned()),
            containers: vec![Container {
                name: "main".to_owned(),
                resources: Some(resources),
                ..Container::default()
            }],
            ..PodSpec::default()
        }),
        ..Pod::default()
    };
    let node = Node {
        metadata: meta(),
        status: Some(NodeStatus {
            allocatable: Some(all()),
            ..NodeStatus::default()
        }),
        ..Node::default()
    };
    let mut asked = [0; 3];
    for event in world.take(Fact::Pod(Seen::There(Box::new(pod)))) {
        if let Event::Pod(pod) = event {
            let extended = pod.extended.values().next().copied().unwrap_or(0);
            asked = [pod.cpu.0, pod.memory.0, extended];
        }
    }
    let mut offered = [0; 3];
    for event in world.take(Fact::Node(Seen::There(Box::new(node)))) {
        if let Event::Node(node) = event {
            let extended = node.extended.values().next().copied().unwrap_or(0);
            offered = [node.cpu.0, node.memory.0, extended];
        }
    }
    let value = value(text).filter(|value| *value >= 0.0);
    let units = [1000.0, 1.0, 1.0];
    for (at, unit) in units.into_iter().enumerate() {
        #[allow(clippy::cast_precision_loss)] // A float has 53 bits.
        let (asked, offered) = (asked[at] as f64, offered[at] as f64);
        let exact = value.map_or(0.0, |value| value * unit);
        let least = exact.min(MOST) * (1.0 - 1e-9);
        assert!(
            asked >= least,
            "{text:?} counts as {asked} of a pod, not {exact}"
        );
        if value.is_some() {
            let most = exact * (1.0 + 1e-9);
            assert!(
                offered <= most,
                "{text:?} counts as {offered} of a node, not {exact}"
            );
            assert!(
                asked <= most.ceil() + 1.0,
                "{text:?} counts as {asked} of a pod, not {exact}"
            );
        }
    }
}

fn meta() -> ObjectMeta {
    ObjectMeta {
        name: Some("n".to_owned()),
        uid: Some("u".to_owned()),
        ..ObjectMeta::default()
    }
}

/// What Kubernetes takes it for, as near as a float can say; `None`: no quantity.
pub(super) fn value(text: &str) -> Option<f64> {
    let (sign, rest) = match text.as_bytes().first()? {
        b'+' => (1.0, &text[1..]),
        b'-' => (-1.0, &text[1..]),
        _ => (1.0, text),
    };
    let end = rest
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    if !number.bytes().any(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: f64 = number.parse().ok()?;
    let scale: f64 = match suffix {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 2_f64.powi(10),
        "Mi" => 2_f64.powi(20),
        "Gi" => 2_f64.powi(30),
        "Ti" => 2_f64.powi(40),
        "Pi" => 2_f64.powi(50),
        "Ei" => 2_f64.powi(60),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            10_f64.powi(exponent)
        }
    };
    Some(sign * number * scale)
}
