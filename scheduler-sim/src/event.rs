//! What happens next: an entry of the agenda of a run.

use crate::store::Key;

/// An entry of the agenda.
#[derive(Debug)]
pub enum WorldEvent {
    /// A request comes to the API server.
    Arrive(u64),
    /// The answer to a request comes to its replica.
    Answer(u64),
    /// A connection breaks.
    Break(u64),
    /// A watch has something to say.
    Feed(u64),
    /// A kubelet continues with a pod.
    Kubelet(usize, Key, String, Task),
    /// An agent updates its report.
    Agent(usize),
    /// An agent has something new to say, on all streams.
    Tell(usize),
    /// An agent opens streams to replicas that have none.
    Connect(usize),
    /// A replica's process begins.
    Start(usize),
    /// A replica's kubelet kills a process whose grace period is over.
    Kill(usize, u64),
    /// A Job makes its pods.
    Job(Key),
    /// Controllers of volumes run.
    Volumes,
    /// Pods of removed machines are collected.
    Collect,
    /// The autoscaler runs.
    Autoscale,
    /// What the autoscaler decided about a machine is carried out.
    Machine(usize, Turn),
}

/// The next step of a kubelet with a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// The kubelet asks the agent for the pod's grant.
    Admit,
    /// The pod runs.
    Start,
    /// The pod is done.
    Finish,
    /// The pod was deleted and has ended.
    Stop,
}

/// The next step of the autoscaler with a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The object of the machine is created.
    Come,
    /// The agent of the machine reports.
    Speak,
    /// Pods that are on it now were bound before the taint.
    Heard,
    /// The machine ends.
    End,
}
