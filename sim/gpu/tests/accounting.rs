//! The driver's accounting, played without a process: pure calls on the state.
// Clippy takes helpers outside a test for no test.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use sim_gpu::cuda::CudaError;
use sim_gpu::driver::state::{CgroupLimits, ComputeMode, ConnId, State};
use sim_gpu::hardware::{Hardware, Preset};

const CARD: usize = 0;

fn machine(preset: Preset, count: u32) -> State {
    let mut hardware = Hardware::of(preset, count);
    hardware.seed = "test".into();
    let cards = hardware.cards().unwrap();
    State::new(hardware, cards)
}

/// A process with every node open; its pid is its connection's number.
fn process(state: &mut State, conn: ConnId) -> ConnId {
    state.connect(
        conn,
        i32::try_from(conn).unwrap(),
        1000,
        "test".into(),
        String::new(),
    );
    let process = state.processes.get_mut(&conn).unwrap();
    process.control = true;
    process.uvm = true;
    process.opened = (0..state.cards.len()).collect();
    conn
}

fn server(state: &mut State, conn: ConnId) -> ConnId {
    process(state, conn);
    for card in 0..state.cards.len() {
        state.make_server_context(conn, card).unwrap();
    }
    state.server_ready(conn).unwrap();
    conn
}

fn client(
    state: &mut State,
    server: ConnId,
    conn: ConnId,
    limit: Option<u64>,
) -> Result<ConnId, CudaError> {
    let limits: BTreeMap<usize, u64> = limit.map(|mib| (CARD, mib)).into_iter().collect();
    let ticket = state.attach(server, limits, 100).map_err(|r| r.0)?;
    process(state, conn);
    state
        .make_context(conn, CARD, Some(&ticket))
        .map_err(|r| r.0)?;
    Ok(conn)
}

#[test]
fn a_client_is_refused_one_mib_past_its_limit_and_its_neighbour_does_not_notice() {
    let mut state = machine(Preset::Rtx6000Ada, 1);
    let server = server(&mut state, 1);
    let neighbour = client(&mut state, server, 2, Some(8000)).unwrap();
    state.allocate(neighbour, CARD, 5000).unwrap();
    let (_, before) = state.memory_info(neighbour, CARD).unwrap();

    let tenant = client(&mut state, server, 3, Some(2000)).unwrap();
    let context = state.cards[CARD].spec.context_mib;
    assert_eq!(
        state.memory_info(tenant, CARD).unwrap(),
        (48640, 2000 - context)
    );
    state.allocate(tenant, CARD, 2000 - context).unwrap();
    assert_eq!(state.memory_info(tenant, CARD).unwrap().1, 0);
    assert_eq!(
        state.allocate(tenant, CARD, 1).unwrap_err().0,
        CudaError::OutOfMemory
    );
    assert_eq!(
        state.allocate(tenant, CARD, u64::MAX).unwrap_err().0,
        CudaError::OutOfMemory
    );
    // Refused, not broken.
    assert_eq!(state.memory_info(tenant, CARD).unwrap().1, 0);

    assert_eq!(state.memory_info(neighbour, CARD).unwrap().1, before);
    state.allocate(neighbour, CARD, 1).unwrap();
}

#[test]
fn the_context_counts_against_the_limit() {
    let mut state = machine(Preset::H100x80, 1);
    let server = server(&mut state, 1);
    assert_eq!(
        client(&mut state, server, 2, Some(497)),
        Err(CudaError::OutOfMemory)
    );
    assert!(client(&mut state, server, 3, Some(498)).is_ok());
}

#[test]
fn a_limit_is_per_process_however_many_handles_it_opens() {
    let mut state = machine(Preset::Rtx6000Ada, 1);
    let server = server(&mut state, 1);
    let first = client(&mut state, server, 2, Some(2000)).unwrap();
    state.allocate(first, CARD, 1000).unwrap();
    let second = client(&mut state, server, 3, Some(2000)).unwrap();
    assert!(
        state.allocate(second, CARD, 1500).is_ok(),
        "another process has its own limit"
    );
    state.disconnect(second, true);
    let ticket = state
        .attach(server, BTreeMap::from([(CARD, 2000)]), 100)
        .unwrap();
    process(&mut state, 4);
    state.processes.get_mut(&4).unwrap().pid = 2;
    state.make_context(4, CARD, Some(&ticket)).unwrap();
    assert_eq!(
        state.allocate(4, CARD, 1000).unwrap_err().0,
        CudaError::OutOfMemory
    );
}

#[test]
fn a_closed_connection_gives_everything_back() {
    let mut state = machine(Preset::T4, 1);
    let all = state.free(CARD);
    let one = process(&mut state, 1);
    state.make_context(one, CARD, None).unwrap();
    let id = state.allocate(one, CARD, 1000).unwrap();
    state.allocate(one, CARD, 500).unwrap();
    assert_eq!(state.release_memory(one, CARD, id).unwrap(), 1000);
    assert_eq!(
        state.release_memory(one, CARD, id).unwrap_err().0,
        CudaError::InvalidValue
    );
    assert_eq!(state.used(CARD), 104 + 500);
    state.disconnect(one, false);
    assert_eq!(state.free(CARD), all);
}

#[test]
fn compute_mode_decides_who_may_hold_a_context() {
    // mode, holder of one already, whether a direct process gets one
    let cases = [
        (ComputeMode::Default, "nobody", true),
        (ComputeMode::Default, "direct", true),
        (ComputeMode::Default, "server", true),
        (ComputeMode::ExclusiveProcess, "nobody", true),
        (ComputeMode::ExclusiveProcess, "direct", false),
        (ComputeMode::ExclusiveProcess, "server", false),
        (ComputeMode::Prohibited, "nobody", false),
    ];
    for (mode, holder, expected) in cases {
        let mut state = machine(Preset::T4, 1);
        state.cards[CARD].mode = mode;
        match holder {
            "direct" => {
                let first = process(&mut state, 1);
                state.make_context(first, CARD, None).unwrap();
            }
            "server" => drop(server(&mut state, 1)),
            _ => {}
        }
        let second = process(&mut state, 2);
        let outcome = state.make_context(second, CARD, None);
        assert_eq!(outcome.is_ok(), expected, "{mode:?} with {holder}");
        if let Err((error, _)) = outcome {
            assert_eq!(error, CudaError::DeviceUnavailable);
        }
        state.disconnect(1, true);
        let third = process(&mut state, 3);
        assert_eq!(
            state.make_context(third, CARD, None).is_ok(),
            mode == ComputeMode::Default || (mode == ComputeMode::ExclusiveProcess && !expected),
            "{mode:?} with {holder}, after the holder left"
        );
    }
}

#[test]
fn an_exclusive_card_takes_clients_through_its_server_and_no_second_server() {
    let mut state = machine(Preset::T4, 1);
    state.cards[CARD].mode = ComputeMode::ExclusiveProcess;
    let first = server(&mut state, 1);
    assert!(client(&mut state, first, 2, None).is_ok());
    process(&mut state, 3);
    assert_eq!(
        state.make_server_context(3, CARD).unwrap_err().0,
        CudaError::DeviceUnavailable
    );
}

#[test]
fn a_mode_set_later_leaves_those_who_are_there_alone() {
    let mut state = machine(Preset::T4, 1);
    let stranger = process(&mut state, 1);
    state.make_context(stranger, CARD, None).unwrap();
    state.cards[CARD].mode = ComputeMode::ExclusiveProcess;
    assert!(state.allocate(stranger, CARD, 10).is_ok());
    process(&mut state, 2);
    assert_eq!(
        state.make_server_context(2, CARD).unwrap_err().0,
        CudaError::DeviceUnavailable
    );
}

#[test]
fn the_forty_ninth_client_is_refused_and_the_sixty_first_from_r590() {
    for (version, most) in [("570.172.08", 48), ("590.44.01", 60)] {
        let mut state = machine(Preset::H100x80, 1);
        state.hardware.driver_version = version.into();
        let server = server(&mut state, 1);
        for n in 0..most {
            client(&mut state, server, 100 + n, Some(600)).unwrap();
        }
        assert_eq!(
            client(&mut state, server, 500, Some(600)),
            Err(CudaError::MpsMaxClientsReached)
        );
        state.disconnect(100, true);
        assert!(client(&mut state, server, 501, Some(600)).is_ok());
    }
}

#[test]
fn a_fault_takes_every_client_down_and_the_server_waits_until_they_are_gone() {
    let mut state = machine(Preset::T4, 1);
    let server = server(&mut state, 1);
    let bad = client(&mut state, server, 2, None).unwrap();
    let good = client(&mut state, server, 3, None).unwrap();
    let outsider = process(&mut state, 4);
    state.make_context(outsider, CARD, None).unwrap();
    state.fault(bad).unwrap();
    assert_eq!(state.events.back().unwrap().data, 31);
    for conn in [bad, good] {
        assert_eq!(
            state.allocate(conn, CARD, 1).unwrap_err().0,
            CudaError::IllegalAddress
        );
    }
    assert!(
        state.allocate(outsider, CARD, 1).is_ok(),
        "a context of its own is not hit"
    );
    assert_eq!(
        client(&mut state, server, 5, None),
        Err(CudaError::MpsServerNotReady)
    );
    state.disconnect(bad, true);
    assert_eq!(
        client(&mut state, server, 6, None),
        Err(CudaError::MpsServerNotReady)
    );
    state.disconnect(good, true);
    assert!(client(&mut state, server, 7, None).is_ok());
}

#[test]
fn a_killed_client_faults_its_server_only_where_that_is_switched_on() {
    for (switch, terminated, expected) in [
        (false, false, true),
        (true, false, false),
        (true, true, true),
    ] {
        let mut state = machine(Preset::T4, 1);
        state.hardware.mps.sigkill_faults_server = switch;
        let server = server(&mut state, 1);
        let victim = client(&mut state, server, 2, None).unwrap();
        let neighbour = client(&mut state, server, 3, None).unwrap();
        if terminated {
            let ticket = state.processes[&victim].ticket.clone().unwrap();
            state.terminate(server, &ticket).unwrap();
            assert_eq!(
                state.allocate(victim, CARD, 1).unwrap_err().0,
                CudaError::MpsClientTerminated
            );
        }
        state.disconnect(victim, false);
        let survived = state.allocate(neighbour, CARD, 1).is_ok();
        assert_eq!(
            survived, expected,
            "switch {switch}, terminated {terminated}"
        );
    }
}

#[test]
fn clients_of_a_dead_server_are_broken_but_keep_their_memory_until_they_end() {
    let mut state = machine(Preset::T4, 1);
    let server = server(&mut state, 1);
    let tenant = client(&mut state, server, 2, None).unwrap();
    state.allocate(tenant, CARD, 1000).unwrap();
    state.disconnect(server, false);
    assert_eq!(
        state.allocate(tenant, CARD, 1).unwrap_err().0,
        CudaError::MpsRpcFailure
    );
    assert_eq!(state.used(CARD), 104 + 1000);
    state.disconnect(tenant, false);
    assert_eq!(state.used(CARD), 0);
}

#[test]
fn a_card_is_reached_only_by_its_node_and_with_uvm() {
    let mut state = machine(Preset::T4, 2);
    let conn = process(&mut state, 1);
    state.processes.get_mut(&conn).unwrap().opened = vec![1];
    assert_eq!(
        state.make_context(conn, 0, None).unwrap_err().0,
        CudaError::NoDevice
    );
    assert!(state.make_context(conn, 1, None).is_ok());
    let conn = process(&mut state, 2);
    state.processes.get_mut(&conn).unwrap().uvm = false;
    assert_eq!(
        state.make_context(conn, 0, None).unwrap_err().0,
        CudaError::Unknown
    );
    state.processes.get_mut(&conn).unwrap().control = false;
    assert_eq!(
        state.make_context(conn, 0, None).unwrap_err().0,
        CudaError::NoDevice
    );
}

#[test]
fn thread_percentage_bounds_the_work() {
    let mut state = machine(Preset::T4, 1);
    let server = server(&mut state, 1);
    let ticket = state.attach(server, BTreeMap::new(), 25).unwrap();
    let conn = process(&mut state, 2);
    state.make_context(conn, CARD, Some(&ticket)).unwrap();
    assert_eq!(state.work(conn, CARD, 90).unwrap(), 25);
    let thief = process(&mut state, 3);
    assert_eq!(
        state
            .make_context(thief, CARD, Some(&ticket))
            .unwrap_err()
            .0,
        CudaError::MpsConnectionFailed
    );
}

#[test]
fn a_cgroups_limit_counts_all_its_processes_with_and_without_mps_and_is_the_total_they_see() {
    let mut state = machine(Preset::Rtx6000Ada, 1);
    let (total, context) = {
        let spec = &state.cards[CARD].spec;
        (spec.total_mib - spec.reserved_mib, spec.context_mib)
    };
    server(&mut state, 100);
    let mut inside = |conn: ConnId, cgroup: &str| {
        process(&mut state, conn);
        state.processes.get_mut(&conn).unwrap().cgroup = cgroup.into();
    };
    inside(1, "4:memory:/elsewhere;0::/kubepods/pod1/ab");
    inside(2, "0::/kubepods/pod1/ab/below");
    inside(3, "0::/kubepods/pod1/abc");
    let ticket = state.attach(100, BTreeMap::new(), 100).unwrap();
    state.make_context(1, CARD, Some(&ticket)).unwrap();
    for conn in [2, 3] {
        state.make_context(conn, CARD, None).unwrap();
    }
    let limit = 4000;
    let limits = CgroupLimits {
        soft: 0,
        hard: limit,
        enforced: true,
        dmem: false,
    };
    state.cards[CARD]
        .cgroup_limits
        .insert("/kubepods/pod1/ab".into(), limits);
    let left = limit - 2 * context;
    assert_eq!(state.memory_info(1, CARD), Ok((limit, left)));
    assert_eq!(state.memory_info(3, CARD).unwrap().0, total);
    state.allocate(1, CARD, left - 100).unwrap();
    assert_eq!(state.memory_info(2, CARD), Ok((limit, 100)));
    assert_eq!(
        state.allocate(2, CARD, 101).unwrap_err().0,
        CudaError::OutOfMemory
    );
    state.allocate(2, CARD, 100).unwrap();
    state.allocate(3, CARD, 10_000).unwrap();
}
