//! A real one-node Kubernetes for tests: kube-apiserver, etcd, kubelet, containerd
//! and runc, in network, mount and process namespaces of their own, with Aliquot's
//! programs running beside them as processes.
//!
//! In the order in which a run goes through it:
//!
//! - [`namespace`]: outside. Makes the work folder, enters the namespaces, cleans up.
//! - [`machine`]: inside, first. Mounts, network, cgroup root: the node's hardware.
//! - [`daemon`]: one process with its log; how everything below is started and killed.
//! - [`control_plane`]: etcd, the API server, the controller manager.
//! - [`registry`] and [`image`]: where images come from, under their public names.
//! - [`node`]: containerd and the kubelet.
//! - [`virtual_machine`]: the same node in a machine of its own, with systemd and cgroup v2.
//! - [`token`]: kubeconfigs, and tokens of service accounts as a pod would have them.
//! - [`gpu`], [`scheduler`], [`observer`]: the programs under test, and the simulated driver.
//! - [`programs`]: where the programs are, and [`ports`] at which they are reached.
//! - [`adapt`]: what is installed, fitted to this cluster.
//! - [`cluster`]: all of it as one value; [`manifest`] and [`pod`]: what a claim does with it;
//!   `clean`: what is removed after the claim.
//! - [`forms`]: every form in which KAI asks for a share, and what becomes of it.
//! - [`gang`]: the pods of one workload, and when each was bound.
//! - [`burst`]: many pods at once, made, bound and judged.
//! - [`share`]: pods that ask for GPU memory, and what they and the cluster say of it.
//! - [`operator`]: the operators of users' workloads, as pods; [`fleet`]: simulated nodes;
//!   [`simulated_agents`]: many nodes with agents, which this process simulates; [`karpenter`]: an
//!   autoscaler.
//! - [`proxy`]: between a scheduler and the API server, to do it harm; [`prometheus`]: a real
//!   one, that reads our pages.
//! - [`stand_in`]: what runs in place of the images that users' manifests name.
//! - [`two_sockets`]: the node as a machine with two NUMA zones; [`unpinned`]: the runtime of its pods.
//! - [`kubectl`], [`http`]: what only kubectl says (`describe`, `exec`), and metrics pages.
//! - [`random`]: random numbers by a seed.
//! - [`verdict`]: what the API server says to a write, without the write taking place.
//! - [`wait`]: polling a condition until a deadline; [`wall_clock`]: a wall clock that steps.
//! - [`workloads`]: the clusters on which the core is measured, as events.
//! - [`suite`]: runs claims one after the other and reports.
#![forbid(unsafe_code)]

pub mod adapt;
pub mod burst;
mod clean;
pub mod cluster;
pub mod collector;
pub mod control_plane;
pub mod daemon;
pub mod fleet;
pub mod forms;
pub mod gang;
pub mod gpu;
pub mod http;
pub mod image;
pub mod karpenter;
pub mod kubectl;
pub mod machine;
pub mod manifest;
pub mod memory;
pub mod namespace;
pub mod node;
pub mod observer;
pub mod operator;
pub mod pod;
pub mod ports;
pub mod programs;
pub mod progress;
pub mod prometheus;
pub mod proxy;
pub mod random;
pub mod random_cluster;
pub mod random_devices;
pub mod random_selectors;
pub mod registry;
pub mod scheduler;
pub mod share;
pub mod simulated_agents;
pub mod stand_in;
pub mod suite;
pub mod token;
pub mod two_sockets;
pub mod unpinned;
pub mod verdict;
pub mod virtual_machine;
pub mod wait;
pub mod wall_clock;
pub mod workloads;
