//! This file has the tables of nodes, their cards and their NUMA zones.

use super::field::{
    All, Below, Else, Field, Flag, Map, Name, Object, Present, Taints, always, always_or, fields,
    flag, key, needed, not, or, same_as_name,
};
use super::line::{Line, Read};
use crate::model::{
    Card, Mode, Node, NodeCards, NumaUse, NumaZone, TopologyManager, TopologyScope,
};
use crate::units::Mib;

fields!(Node {
    name: Name,
    uid: same_as_name("uid"),
    cpu: key("cpu"),
    memory: key("memory"),
    pods: key("pods"),
    gpus: key("gpus"),
    managed: flag("managed"),
    aligns: flag("aligns"),
    removable: flag("removable"),
    unschedulable: flag("unschedulable"),
    not_ready: All("not-ready"),
    labels: Map("label"),
    taints: Taints("taint"),
    extended: Map("extended"),
});

fields!(NodeCards {
    node: Name,
    default_mode: always_or("default", Mode::Mps),
    not_offering: key("not-offering"),
    topology_manager: Present(&["topology-policy"]),
    cards: Below("card"),
});

fields!(Card {
    uuid: Name,
    index: key("index"),
    product: key("product"),
    total: always("total"),
    reserved: key("reserved"),
    grantable: Else("grantable", |line| {
        let total: Mib = always("total").read(line)?;
        Ok(total.less(key("reserved").read(line)?))
    }),
    strangers: key("strangers"),
    mode: key("mode"),
    switchable: or("switchable", Mode::ALL.to_vec()),
    ready: not("not-ready"),
    unhealthy: key("unhealthy"),
    cordoned: flag("cordoned"),
    mig: flag("mig"),
    slice: flag("slice"),
    client_slots: or("slots", 48),
    numa: key("numa"),
    nvlink_peers: key("peers"),
    nvswitch: flag("nvswitch"),
    allowance: key("allowance"),
    pool: key("pool"),
    minimum_fence: key("minimum-fence"),
    driver_limits: flag("driver-limits"),
});

fields!(TopologyManager {
    policy: needed("topology-policy"),
    scope: Flag("pod-scope", TopologyScope::Pod, TopologyScope::Container),
    cpu_manager: flag("cpu-manager"),
    memory_manager: flag("memory-manager"),
    zones: Below("zone"),
    used: Below("used"),
});

fields!(NumaZone {
    id: Name,
    cpus: key("cpus"),
    allocatable_cpus: Else("allocatable", |line| key("cpus").read(line)),
    memory: key("memory"),
});

fields!(NumaUse {
    pod: Name,
    zone: key("zone"),
    cpus: key("cpus"),
    memory: key("memory"),
});
