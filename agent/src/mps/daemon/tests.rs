use super::super::machine::{Limits, ReadBack};
use super::*;
use crate::mps::machine::ServerStatus;
use driver_root::DriverRoot;
use proto::mps::ServerPhase;
use std::path::Path;

/// Of a node without a driver.
pub(in crate::mps) fn tools(base: &Path) -> Tools {
    let program = |name: &str| {
        let root = DriverRoot::at(Path::new("/"));
        Program::new(root, name.into(), std::iter::empty(), &[], base.to_owned())
    };
    Tools {
        cgroups: DaemonCgroups::default(),
        control: program("/nowhere/nvidia-cuda-mps-control"),
        smi: Smi::new(program("/nowhere/nvidia-smi")),
        processes: Processes::new("/proc"),
        base: base.to_owned(),
        mounting: Mounting {
            on: false,
            shm: Mib(16),
        },
    }
}

const LIMITS: Limits = Limits {
    memory: Mib(2000),
    thread_percent: 50,
};

fn order(desired: Desired, mode_faults: u32) -> Order {
    Order {
        generation: 1,
        spec: None,
        desired,
        mode_faults,
    }
}

/// A daemon that is up, as far as its machine knows.
fn ready(base: &Path) -> Daemon {
    let spec = Spec {
        gpu_uuids: vec!["GPU-0".into()],
        multiuser: true,
        exclusive: true,
    };
    let place = Place::new(base, "GPU-0").unwrap();
    let mut daemon = Daemon::absent("GPU-0", spec, place, Arc::new(tools(base)));
    daemon.take(order(Desired::Wanted(LIMITS), 0));
    let active = ProbeResult {
        servers: vec![(70, ServerStatus::Active)],
        clients: Vec::new(),
    };
    for event in [
        Event::Done,
        Event::Done,
        Event::Done,
        Event::Done,
        Event::Configured(LIMITS, ReadBack::default()),
        Event::Done,
        Event::Seen(active),
    ] {
        daemon.machine.on(Time::ZERO, event);
    }
    assert_eq!(daemon.machine.view().phase, ServerPhase::Ready);
    daemon
}

#[test]
fn a_lost_compute_mode_is_set_again_in_every_case() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = ready(folder.path());
    // The agent counts, and starts again; an order that wants nothing has no count.
    for (desired, faults, sets) in [
        (Desired::Wanted(LIMITS), 0, false),
        (Desired::Wanted(LIMITS), 3, true),
        (Desired::Wanted(LIMITS), 3, false),
        (Desired::Unwanted, 0, false),
        (Desired::Wanted(LIMITS), 3, false),
        (Desired::Wanted(LIMITS), 1, true),
    ] {
        daemon.take(order(desired, faults));
        let next = daemon.machine.next(Time::ZERO);
        assert_eq!(next == Action::SetMode, sets, "{desired:?} {faults}");
        if sets {
            daemon.machine.on(Time::ZERO, Event::Done);
        }
    }
}
