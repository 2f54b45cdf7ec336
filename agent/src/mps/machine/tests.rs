use super::*;
use api::Mib;
use proptest::prelude::*;
use proto::mps::Client;

const LIMITS: Limits = Limits {
    memory: Mib(2000),
    thread_percent: 50,
};
const MORE: Limits = Limits {
    memory: Mib(9000),
    thread_percent: 100,
};
const WANTED: Event = Event::Desired(Desired::Wanted(LIMITS));
const UNWANTED: Event = Event::Desired(Desired::Unwanted);
const LEAVE: Event = Event::Desired(Desired::Leave);

fn at(millis: u64) -> Time {
    Duration::from_millis(millis)
}

fn client(pid: u32) -> Client {
    Client {
        pid,
        server_pid: 70,
    }
}

fn sight(status: ServerStatus, clients: &[u32]) -> Event {
    Event::Seen(ProbeResult {
        servers: vec![(70, status)],
        clients: clients.iter().copied().map(client).collect(),
    })
}

fn configured(limits: Limits) -> Event {
    Event::Configured(
        limits,
        ReadBack {
            memory: limits.memory,
            thread_percent: limits.thread_percent,
        },
    )
}

fn failed(reason: &str) -> Event {
    Event::Failed(reason.to_owned())
}

/// Walks through pairs of the action that must come next and what then happens.
fn walk(machine: &mut Machine, now: u64, steps: Vec<(Action, Event)>) {
    for (action, event) in steps {
        assert_eq!(machine.next(at(now)), action);
        machine.on(at(now), event);
    }
}

fn ready(clients: &[u32]) -> Machine {
    let mut machine = Machine::absent();
    machine.on(at(0), WANTED);
    walk(
        &mut machine,
        0,
        vec![
            (Action::Prepare, Event::Done),
            (Action::SetMode, Event::Done),
            (Action::Spawn, Event::Done),
            (Action::Reach, failed("no socket")),
        ],
    );
    walk(
        &mut machine,
        30,
        vec![
            (Action::Reach, Event::Done),
            (Action::Configure(LIMITS, vec![]), configured(LIMITS)),
            (Action::StartServer, Event::Done),
            (Action::Look, sight(ServerStatus::Initializing, &[])),
        ],
    );
    assert_eq!(machine.view().phase, ServerPhase::Starting);
    walk(
        &mut machine,
        60,
        vec![(Action::Look, sight(ServerStatus::Active, clients))],
    );
    machine
}

fn phase(machine: &Machine) -> ServerPhase {
    machine.view().phase
}

#[test]
fn a_wanted_daemon_becomes_ready_step_by_step() {
    let machine = ready(&[]);
    let view = machine.view();
    assert_eq!((view.phase, view.restarts), (ServerPhase::Ready, 0));
    assert_eq!(view.observed.memory, Mib(2000));
    assert!(matches!(machine.next(at(61)), Action::Wait(_)));
    assert_eq!(machine.next(at(1061)), Action::Look);
}

#[test]
fn an_unwanted_daemon_waits_for_its_clients_then_quits_and_leaves_nothing() {
    let mut machine = ready(&[42]);
    machine.on(at(70), UNWANTED);
    assert_eq!(phase(&machine), ServerPhase::Draining);
    assert_eq!(machine.view().reason, "waits for 1 clients to end");
    assert!(matches!(machine.next(at(70)), Action::Wait(_)));
    walk(
        &mut machine,
        1100,
        vec![
            (Action::Look, sight(ServerStatus::Active, &[])),
            (Action::Quit, Event::Done),
        ],
    );
    machine.on(at(1150), Event::Exited("exit 0".into()));
    walk(
        &mut machine,
        1150,
        vec![
            (Action::CleanUp, Event::Done),
            (Action::Finish, Event::Done),
        ],
    );
    assert_eq!(phase(&machine), ServerPhase::Absent);
}

#[test]
fn a_daemon_wanted_again_before_it_quit_stays() {
    let mut machine = ready(&[42]);
    machine.on(at(70), UNWANTED);
    machine.on(at(80), WANTED);
    assert_eq!(phase(&machine), ServerPhase::Ready);
    assert!(matches!(machine.next(at(80)), Action::Wait(_)));
}

#[test]
fn a_daemon_that_does_not_end_after_quit_is_killed() {
    let mut machine = ready(&[]);
    machine.on(at(70), UNWANTED);
    walk(&mut machine, 70, vec![(Action::Quit, Event::Done)]);
    assert!(matches!(machine.next(at(71)), Action::Wait(_)));
    walk(&mut machine, 5100, vec![(Action::Kill, Event::Done)]);
    machine.on(at(5200), Event::Exited("signal 9".into()));
    assert_eq!(machine.next(at(5200)), Action::CleanUp);
}

#[test]
fn new_limits_are_set_on_the_running_server_and_not_ready_until_then() {
    let mut machine = ready(&[42]);
    machine.on(at(70), Event::Desired(Desired::Wanted(MORE)));
    assert_eq!(phase(&machine), ServerPhase::Starting);
    walk(
        &mut machine,
        70,
        vec![(Action::Configure(MORE, vec![70]), configured(MORE))],
    );
    assert_eq!(phase(&machine), ServerPhase::Ready);
    assert_eq!(machine.view().observed.memory, Mib(9000));
}

#[test]
fn limits_that_do_not_read_back_are_tried_again_with_pauses() {
    let mut machine = ready(&[42]);
    machine.on(at(70), Event::Desired(Desired::Wanted(MORE)));
    machine.on(at(70), failed("limit reads back 2000 MiB"));
    assert_eq!(phase(&machine), ServerPhase::Starting);
    assert_eq!(machine.view().reason, "limit reads back 2000 MiB");
    assert!(matches!(machine.next(at(71)), Action::Wait(_)));
    assert!(matches!(machine.next(at(400)), Action::Configure(..)));
}

#[test]
fn a_dead_daemon_starts_again_when_its_clients_and_server_are_gone() {
    let mut machine = ready(&[42]);
    machine.on(at(100), Event::Exited("signal 9".into()));
    assert_eq!(phase(&machine), ServerPhase::Dead);
    let find =
        |pids: &[u32]| Action::FindLeftovers(Some(pids.iter().copied().map(client).collect()));
    walk(
        &mut machine,
        100,
        vec![(find(&[42]), Event::Leftovers(vec![client(42)], vec![70]))],
    );
    assert_eq!(machine.view().reason, "signal 9; waits for 1 clients of it");
    assert!(matches!(machine.next(at(101)), Action::Wait(_)));
    walk(
        &mut machine,
        400,
        vec![
            (find(&[42]), Event::Leftovers(vec![], vec![70])),
            (Action::KillServers(vec![70]), Event::Done),
            (find(&[]), Event::Leftovers(vec![], vec![])),
            (Action::Prepare, Event::Done),
            (Action::SetMode, Event::Done),
            (Action::Spawn, Event::Done),
        ],
    );
    assert_eq!(machine.view().restarts, 1);
}

#[test]
fn what_others_did_to_a_daemon_is_reported_while_it_lives_and_not_of_the_next_one() {
    let mut machine = ready(&[]);
    machine.on(at(70), Event::Driven("quit".into(), false));
    assert_eq!(machine.view().tampered, "quit");
    machine.on(at(100), Event::Exited("exit 0".into()));
    let nobody = Event::Leftovers(vec![], vec![]);
    walk(
        &mut machine,
        400,
        vec![
            (Action::FindLeftovers(Some(vec![])), nobody),
            (Action::Prepare, Event::Done),
            (Action::SetMode, Event::Done),
        ],
    );
    assert_eq!(machine.view().tampered, "quit");
    walk(&mut machine, 400, vec![(Action::Spawn, Event::Done)]);
    assert_eq!(machine.view().tampered, "");
}

#[test]
fn failures_in_a_row_are_spaced_out_up_to_a_minute() {
    let mut machine = Machine::absent();
    machine.on(at(0), WANTED);
    machine.on(at(0), failed("no such file"));
    let mut now = at(0);
    let mut pauses = Vec::new();
    for _ in 0..12 {
        let since = now;
        loop {
            match machine.next(now) {
                Action::Wait(pause) => now += pause,
                Action::FindLeftovers(_) => machine.on(now, Event::Leftovers(vec![], vec![])),
                Action::Prepare => break,
                other => panic!("{other:?}"),
            }
        }
        pauses.push(now.saturating_sub(since).as_millis());
        machine.on(now, failed("no such file"));
    }
    assert_eq!(pauses[..4], [250, 500, 1000, 2000]);
    assert_eq!(pauses[11], 60_000);
    assert_eq!(machine.view().reason, "no such file");
}

#[test]
fn a_fault_is_reported_until_the_server_is_active_again() {
    let mut machine = ready(&[42]);
    machine.on(at(1100), sight(ServerStatus::Fault, &[42, 43]));
    assert_eq!(phase(&machine), ServerPhase::ServerFault);
    assert_eq!(
        machine.view().reason,
        "the server faulted; waits for 2 clients to end"
    );
    machine.on(at(2200), sight(ServerStatus::Active, &[]));
    assert_eq!(
        (phase(&machine), machine.view().reason.as_str()),
        (ServerPhase::Ready, "")
    );
}

#[test]
fn a_server_that_ended_is_started_at_once() {
    let mut machine = ready(&[]);
    machine.on(at(1100), Event::Seen(ProbeResult::default()));
    assert_eq!(phase(&machine), ServerPhase::Starting);
    assert_eq!(machine.next(at(1100)), Action::StartServer);
}

#[test]
fn a_server_that_does_not_start_is_asked_for_again_and_said() {
    let mut machine = ready(&[]);
    machine.on(at(1100), Event::Seen(ProbeResult::default()));
    machine.on(at(1100), Event::Done);
    machine.on(at(11_200), Event::Seen(ProbeResult::default()));
    assert_eq!(machine.view().reason, "the MPS server does not start");
    assert_eq!(machine.next(at(11_200)), Action::StartServer);
}

#[test]
fn an_adopted_daemon_is_left_alone_until_a_plan_names_it() {
    let mut machine = Machine::adopted(at(0));
    walk(
        &mut machine,
        0,
        vec![
            (Action::Reach, Event::Done),
            (Action::Look, sight(ServerStatus::Active, &[42])),
        ],
    );
    assert_eq!(phase(&machine), ServerPhase::Ready);
    machine.on(at(10), WANTED);
    walk(
        &mut machine,
        10,
        vec![
            (Action::SetMode, Event::Done),
            (Action::Configure(LIMITS, vec![70]), configured(LIMITS)),
            (Action::Look, sight(ServerStatus::Active, &[42])),
        ],
    );
    let view = machine.view();
    assert_eq!((view.phase, view.restarts), (ServerPhase::Ready, 0));
    assert_eq!(view.clients, [client(42)]);
}

#[test]
fn an_adopted_daemon_that_never_answered_is_killed_once_nobody_could_be_its_client() {
    let mut machine = Machine::adopted(at(0));
    machine.on(at(0), WANTED);
    let mut asked = 0;
    for second in 0..100 {
        let now = at(second * 1000);
        match machine.next(now) {
            Action::Reach => machine.on(now, failed("no answer in 2 s")),
            Action::FindLeftovers(None) => {
                asked += 1;
                machine.on(now, Event::Leftovers(vec![client(7)], vec![]));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(asked > 5, "{asked}");
    assert_eq!(phase(&machine), ServerPhase::Starting);
    assert_eq!(machine.view().reason, "no answer in 2 s");
    for second in 100..120 {
        let now = at(second * 1000);
        match machine.next(now) {
            Action::Reach => machine.on(now, failed("no answer in 2 s")),
            Action::FindLeftovers(None) => machine.on(now, Event::Leftovers(vec![], vec![])),
            other => {
                assert_eq!(other, Action::Kill);
                return;
            }
        }
    }
    panic!("it lives");
}

#[test]
fn a_hung_daemon_is_killed_only_when_it_has_no_clients() {
    // The last: it came after the daemon's last answer.
    for (clients, tenants) in [(&[42][..], &[42][..]), (&[], &[]), (&[], &[43])] {
        let mut machine = ready(clients);
        for look in 1..=10 {
            assert_ne!(machine.next(at(1000 * look)), Action::Kill);
            machine.on(at(1000 * look), failed("no answer in 2 s"));
            assert_eq!(
                phase(&machine) == ServerPhase::ServerFault,
                look >= 3,
                "{look}"
            );
        }
        if clients.is_empty() {
            assert_eq!(machine.next(at(10_001)), Action::FindLeftovers(None));
            let found = tenants.iter().copied().map(client).collect();
            machine.on(at(10_001), Event::Leftovers(found, vec![70]));
        }
        let kills = machine.next(at(10_002)) == Action::Kill;
        assert_eq!(kills, clients.is_empty() && tenants.is_empty());
        // Two minutes later, no client can start on it and no client is known.
        let mut look = 11;
        while clients.is_empty() && !tenants.is_empty() && look <= 40 {
            assert_ne!(machine.next(at(1000 * look)), Action::Kill, "{look}");
            machine.on(at(1000 * look), failed("no answer in 2 s"));
            if machine.next(at(1000 * look)) == Action::FindLeftovers(None) {
                let found = tenants.iter().copied().map(client).collect();
                machine.on(at(1000 * look), Event::Leftovers(found, vec![70]));
            }
            look += 1;
        }
        let kills = machine.next(at(1000 * look)) == Action::Kill;
        assert_eq!(kills, clients.is_empty());
    }
}

#[test]
fn leaving_ends_idle_daemons_and_spares_the_others() {
    let mut idle = ready(&[]);
    idle.on(at(70), LEAVE);
    assert_eq!(idle.next(at(70)), Action::Quit);
    let mut busy = ready(&[42]);
    busy.on(at(70), LEAVE);
    // It may be ending at this very moment.
    assert!(matches!(busy.next(at(70)), Action::Wait(_)));
    assert_eq!(busy.next(at(100)), Action::Look);
    assert_eq!(busy.next(at(1070)), Action::Finish);
    let mut absent = Machine::absent();
    absent.on(at(0), LEAVE);
    assert_eq!(absent.next(at(0)), Action::Finish);
}

#[test]
fn what_a_daemon_left_behind_is_removed_once_no_plan_wants_it() {
    let mut machine = Machine::leftover();
    walk(
        &mut machine,
        0,
        vec![(
            Action::FindLeftovers(None),
            Event::Leftovers(vec![client(42)], vec![70]),
        )],
    );
    assert!(matches!(machine.next(at(1)), Action::Wait(_)));
    machine.on(at(2), UNWANTED);
    walk(
        &mut machine,
        300,
        vec![
            (
                Action::FindLeftovers(None),
                Event::Leftovers(vec![], vec![70]),
            ),
            (Action::KillServers(vec![70]), Event::Done),
            (
                Action::FindLeftovers(None),
                Event::Leftovers(vec![], vec![]),
            ),
            (Action::CleanUp, Event::Done),
            (Action::Finish, Event::Done),
        ],
    );
}

fn any_event() -> impl Strategy<Value = Event> {
    let pids = proptest::collection::vec(1_u32..4, 0..3);
    let status = prop_oneof![
        Just(ServerStatus::Initializing),
        Just(ServerStatus::Active),
        Just(ServerStatus::Fault)
    ];
    prop_oneof![
        Just(WANTED),
        Just(Event::Desired(Desired::Wanted(MORE))),
        Just(UNWANTED),
        Just(Event::Exited("gone".into())),
        (pids, status).prop_map(|(pids, status)| sight(status, &pids)),
    ]
}

proptest! {
    /// Whatever comes from outside, the world then behaves: it always ends where the plan
    /// says, and no end is ever asked of a daemon whose clients were seen.
    #[test]
    fn it_always_ends_where_the_plan_says(
        events in proptest::collection::vec((any_event(), 0_u64..3000), 0..30),
        finally_wanted: bool,
    ) {
        let mut machine = Machine::absent();
        let mut now = at(0);
        for (event, pause) in events {
            machine.on(now, event);
            now += at(pause);
            let clients = machine.view().clients;
            let action = machine.next(now);
            if !clients.is_empty() {
                prop_assert!(
                    !matches!(action, Action::Quit | Action::KillServers(_) | Action::CleanUp),
                    "{action:?} with {clients:?}"
                );
            }
        }
        machine.on(now, if finally_wanted { WANTED } else { UNWANTED });
        let mut running = !matches!(phase(&machine), ServerPhase::Absent | ServerPhase::Dead);
        let mut done = false;
        for _ in 0..500 {
            let action = machine.next(now);
            let event = match action {
                Action::Wait(pause) => { now += pause; continue; }
                Action::Finish => { done = true; break; }
                Action::Spawn => { running = true; Event::Done }
                Action::Configure(limits, _) => configured(limits),
                Action::Look => sight(ServerStatus::Active, &[]),
                Action::FindLeftovers(_) => Event::Leftovers(vec![], vec![]),
                Action::Quit | Action::Kill => {
                    machine.on(now, Event::Done);
                    running = false;
                    Event::Exited("ended".into())
                }
                _ => Event::Done,
            };
            machine.on(now, event);
            if phase(&machine) == ServerPhase::Ready { done = true; }
        }
        prop_assert!(done, "{machine:?}");
        let end = if finally_wanted { ServerPhase::Ready } else { ServerPhase::Absent };
        prop_assert_eq!(phase(&machine), end);
        prop_assert!(running == finally_wanted);
    }
}

#[test]
fn work_is_lost_by_a_fault_or_a_server_that_ended_and_by_nothing_that_is_only_slow() {
    let mut slow = ready(&[42]);
    for n in 0..10 {
        slow.on(at(1100 + 2000 * n), failed("no answer within 2 s"));
    }
    assert_eq!(slow.view().losses, 0);
    // A daemon that ended while its server keeps running affects no client yet.
    let mut orphan = ready(&[42]);
    orphan.on(at(1100), Event::Exited("killed".into()));
    orphan.on(at(1100), Event::Leftovers(vec![client(42)], vec![70]));
    assert_eq!(orphan.view().losses, 0);
    let mut dead = ready(&[42]);
    dead.on(at(1100), Event::Exited("killed".into()));
    dead.on(at(1100), Event::Leftovers(vec![client(42)], vec![]));
    assert_eq!(dead.view().losses, 1);
    let mut faulted = ready(&[42]);
    for n in 0..5 {
        faulted.on(at(1100 + n), sight(ServerStatus::Fault, &[42]));
    }
    assert_eq!((faulted.view().losses, faulted.view().blamed), (1, 42));
    // Of several it is the one that the server named, before its state or after it.
    for named_at in [1000, 1200] {
        let mut faulted = ready(&[42, 43]);
        let mut events = [
            (1100, sight(ServerStatus::Fault, &[42, 43])),
            (named_at, Event::ClientFaulted(43)),
        ];
        events.sort_by_key(|(time, _)| *time);
        for (time, event) in events {
            faulted.on(at(time), event);
        }
        assert_eq!(faulted.view().blamed, 43);
        faulted.on(at(1300), sight(ServerStatus::Fault, &[42, 43]));
        assert_eq!(faulted.view().blamed, 43);
    }
    let mut ended = ready(&[42]);
    for n in 0..5 {
        ended.on(at(1100 + n), Event::Seen(ProbeResult::default()));
    }
    assert_eq!(ended.view().losses, 1);
}
