//! The rule against the kubelet's own way: hints of each manager, every combination of them, the
//! best one (`pkg/kubelet/cm/topologymanager/policy.go`).

use super::*;
use proptest::prelude::*;

/// A hint: zones, and whether it is of the least number.
type Hint = (Mask, bool);

fn masks(zones: &[Zone]) -> impl Iterator<Item = Mask> + use<> {
    (1..1_u16 << zones.len()).map(|mask| Mask::try_from(mask).unwrap())
}

fn sum(zones: &[Zone], mask: Mask, of: impl Fn(&Zone) -> u64) -> u64 {
    let all = zones.iter().enumerate();
    all.filter(|(at, _)| mask & (1 << at) != 0)
        .map(|(_, zone)| of(zone))
        .sum()
}

/// What one manager says. `None`: nothing is requested of it.
fn hints(zones: &[Zone], at: usize, need: &Need) -> Option<Vec<Hint>> {
    if need[at] == 0 {
        return None;
    }
    let could = |mask: &Mask| sum(zones, *mask, |zone| zone.total[at]) >= need[at];
    let least = masks(zones).filter(could).map(Mask::count_ones).min();
    let can = masks(zones).filter(|mask| {
        let apart = zones.iter().enumerate().all(|(place, zone)| {
            at != MEMORY || mask & (1 << place) == 0 || zone.group == 0 || zone.group == *mask
        });
        apart && sum(zones, *mask, |zone| zone.free[at]) >= need[at]
    });
    Some(
        can.map(|mask| (mask, Some(mask.count_ones()) == least))
            .collect(),
    )
}

/// The zones of the best merged hint, if the policy admits the pod with it.
fn kubelet(zones: &[Zone], policy: TopologyPolicy, need: &Need) -> Option<Mask> {
    let all = masks(zones).last().unwrap();
    let mut merged: Vec<(Vec<Mask>, bool)> = vec![(Vec::new(), true)];
    for at in 0..need.len() {
        let Some(mut hints) = hints(zones, at, need) else {
            continue;
        };
        if policy == TopologyPolicy::SingleNumaNode {
            hints.retain(|(mask, preferred)| mask.is_power_of_two() && *preferred);
        }
        merged = merged
            .iter()
            .flat_map(|(of, preferred)| {
                hints.iter().map(move |(mask, best)| {
                    ([of.clone(), vec![*mask]].concat(), *preferred && *best)
                })
            })
            .collect();
    }
    let merged = merged.into_iter().filter_map(|(of, preferred)| {
        let mask = of.iter().fold(all, |sum, mask| sum & mask);
        let alike = of.iter().all(|mask| *mask == of[0]);
        (mask != 0).then_some((mask, preferred && alike))
    });
    let best = merged.min_by_key(|(mask, preferred)| (!preferred, mask.count_ones(), *mask));
    best.filter(|(_, preferred)| *preferred)
        .map(|(mask, _)| mask)
}

fn zones() -> impl Strategy<Value = Vec<Zone>> {
    let amounts = || proptest::array::uniform4(0_u64..6);
    let zone = (amounts(), amounts()).prop_map(|(total, used)| Zone {
        total,
        free: std::array::from_fn(|at| total[at].saturating_sub(used[at])),
        group: 0,
    });
    let zones = proptest::collection::vec(zone, 1..5);
    (zones, proptest::option::of((0_usize..4, 0_usize..4))).prop_map(|(mut zones, group)| {
        if let Some((one, other)) = group.filter(|(one, other)| one.max(other) < &zones.len()) {
            for at in [one, other] {
                zones[at].group = 1 << one | 1 << other;
            }
        }
        zones
    })
}

fn policy() -> impl Strategy<Value = TopologyPolicy> {
    prop_oneof![
        Just(TopologyPolicy::Restricted),
        Just(TopologyPolicy::SingleNumaNode)
    ]
}

/// Requests: mostly of some resources only.
fn need() -> impl Strategy<Value = Need> {
    proptest::array::uniform4(prop_oneof![Just(0), 0_u64..8])
        .prop_filter("nothing", |need| *need != [0; 4])
}

/// Every order of a few.
fn orders(all: &[Need]) -> Vec<Vec<Need>> {
    if all.is_empty() {
        return vec![Vec::new()];
    }
    let with = |at: usize| {
        let mut rest = all.to_vec();
        let first = rest.remove(at);
        let of_rest = orders(&rest).into_iter();
        of_rest.map(move |rest| [vec![first], rest].concat())
    };
    (0..all.len()).flat_map(with).collect()
}

fn admitted_in(mut zones: Vec<Zone>, policy: TopologyPolicy, order: &[Need]) -> bool {
    order.iter().all(|need| {
        let mask = kubelet(&zones, policy, need);
        take(&mut zones, mask.unwrap_or(0), need);
        mask.is_some()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_rule_for_one_container_is_the_kubelets(
        zones in zones(),
        policy in policy(),
        need in need(),
    ) {
        prop_assert_eq!(merge(&zones, policy, &need), kubelet(&zones, policy, &need));
    }

    #[test]
    fn a_pod_that_fits_beside_unreported_ones_is_admitted_in_every_order(
        zones in zones(),
        policy in policy(),
        sizes in proptest::collection::vec(need(), 1..3),
        which in proptest::collection::vec(0_usize..2, 1..5),
    ) {
        let pods: Vec<Need> = which.iter().map(|at| sizes[at % sizes.len()]).collect();
        let unreported = pods[1..].iter().map(|need| {
            let items = Items { apps: vec![*need], inits: Vec::new() };
            (items, Vec::new())
        });
        let node = Node { zones: zones.clone(), unreported: unreported.collect() };
        let own = Items { apps: vec![pods[0]], inits: Vec::new() };
        if node.takes(policy, &own) {
            for order in orders(&pods) {
                prop_assert!(admitted_in(zones.clone(), policy, &order), "{:?}", order);
            }
        }
    }

    /// So a gang of equal pods, which is bound at once, uses a node up to its last CPU.
    #[test]
    fn equal_pods_are_refused_only_where_the_kubelet_refuses_one(
        zones in zones(),
        policy in policy(),
        need in need(),
        count in 0_usize..6,
    ) {
        let unreported = vec![(Items { apps: vec![need], inits: Vec::new() }, Vec::new()); count];
        let node = Node { zones: zones.clone(), unreported };
        let fits = node.takes(policy, &Items { apps: vec![need], inits: Vec::new() });
        prop_assert_eq!(fits, admitted_in(zones, policy, &vec![need; count + 1]));
    }
}

/// A request for CPUs of two zones and a GPU of one: no hint of both is preferred.
#[test]
fn resources_of_different_numbers_of_zones_are_refused() {
    let zone = Zone {
        total: [4, 0, 4, 0],
        free: [4, 0, 4, 0],
        group: 0,
    };
    for (need, zones) in [([6, 0, 1, 0], None), ([6, 0, 5, 0], Some(0b11))] {
        let policy = TopologyPolicy::Restricted;
        assert_eq!(merge(&[zone; 2], policy, &need), zones);
        assert_eq!(kubelet(&[zone; 2], policy, &need), zones);
    }
}
