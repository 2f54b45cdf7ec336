//! Events as text: snapshots and bug reports.

use super::world::returns;
use crate::{Shape, Target};
use scheduler_core::units::Time;
use scheduler_core::{Config, Core, text};

pub(super) const TARGET: Target = Target {
    name: "snapshot",
    shape: Shape::Text,
    words: &[
        "node",
        "cards",
        "card",
        "queue",
        "group",
        "pod",
        "pod-gone",
        "node-gone",
        "agent-lost",
        "tick",
        "sequence",
        "topology",
        "outcome",
        "refusal",
        "refused",
        "evict-request",
        "evicting",
        "assumed",
        "backoff",
        "card-pause",
        "swap",
        "rest",
        "life",
        "config",
        "gpu=spread",
        "without=minruntime",
        "staleness-grace=none",
        "grant",
        "set",
        "sub-group",
        "cpu=",
        "memory=",
        "gpu-memory.main=",
        "gpu-fraction.main=",
        "gpus.main=",
        "devices.main=",
        "on=n1",
        "phase=",
        "running",
        "bound",
        "confirmed",
        "refused",
        "timed-out",
        "1-1",
        "GPU-1",
        "mode=mps",
        "-1/-1/1",
        "quota/limit/weight",
        "term=",
        "key in a,b",
        "tolerates=*",
        "taint.a=b:NoSchedule",
        "\"",
        "\\",
        "=",
    ],
    seeds,
    large: crate::target::none,
    heap: 512,
    run,
};

fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    match text::read(text) {
        Ok(events) => {
            returns(&events);
            // A text of a few events is a cluster, whatever it says.
            if events.len() <= 64 {
                let mut core = Core::new(Config::verified());
                for event in events {
                    core.apply(event);
                }
                core.decide(Time(1_000));
                core.queues();
                core.groups();
                returns(&core.snapshot());
            }
        }
        Err(error) => {
            assert!(error.line <= text.lines().count() + 1, "{error}");
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let objects = "\
node n1 cpu=64000 memory=274877906944 pods=110 managed label.zone=a taint.gpu=yes:NoSchedule extended.x/y=3
cards n1 default=mps
  card GPU-1 product=\"RTX 6000 Ada\" total=46068 reserved=568 grantable=45500 slots=48 peers=GPU-2 numa=0 pool=whole
  card GPU-2 index=1 total=46068 mode=mps-isolated switchable=mps,exclusive unhealthy=\"XID 79\" cordoned
queue default-queue
queue a parent=default-queue gpu=500000000/-1/2000000 cpu=1000/-1/1000000/5 memory=-1/-1/1 preempt-min-runtime=90000
topology t levels=zone,rack
group ns/g queue=a priority=50 min-children=1 topology=t required=rack
  sub-group root min-children=1
    set a min=1
    set b min=2 topology=t preferred=zone
pod p1 queue=a gpu-memory.main=2000 cpu=500 memory=1073741824 group=ns/g set=a term=\"zone in a,b; @name in n1\" tolerates=gpu=yes:NoSchedule
pod p2 gpu-fraction.main=500000000 devices.main=2 compute.main=50 mode.main=time-slicing selector.zone=a
pod p3 gpus.main=1 on=n1 decision=1-2 phase=running
  grant main cards=GPU-1 memory=2000 compute=100 mode=exclusive note=\"the rest\"
";
    let happenings = "\
tick 1000
sequence 7
config gpu=spread cards=binpack without=podaffinity actions=allocate,preempt consolidation-jobs=none staleness-grace=5 base.T=16000 budget=9
outcome 1-2 confirmed
outcome 1-3 refused reason=\"no such node\" retryable
refusal p1 node=n1 decision=1-2 reason=\"no room\" last-word
evict-request p3 node=n1 reason=\"broke its fence\"
evicting 1-4 pod=p3 cause=reclaim settled
assumed 1-5 pod=p1 node=n1 received=fraction
  grant main cards=GPU-1 memory=2000 compute=100 mode=mps
backoff p1 refusals=2 until=5000 reason=no avoid=n1
card-pause GPU-1 node=n1 refusals=1 until=9000
evicted ns/g active=3 times=1 until=1000
rest ns/g cause=preempt until=5 steps=2
life ns/g last-start=5 stale-since=6 untold
pod-gone p3
node-gone n1
agent-lost n1
";
    let lines = objects.lines().chain(happenings.lines());
    let single = lines
        .filter(|line| !line.starts_with(' '))
        .map(|line| line.as_bytes().to_vec());
    single.chain([objects.into(), happenings.into()]).collect()
}
