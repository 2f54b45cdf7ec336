//! The MPS supervisor over its socket, against the simulated control daemon, driver and
//! tenants. Nothing here needs a GPU; without root, servers take one user's clients only.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(clippy::print_stdout, reason = "it is its own test runner")]

mod cards;
mod control;
mod mps_node;
mod shared;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::process::ExitCode;

type Test = fn() -> Pin<Box<dyn Future<Output = ()>>>;

macro_rules! tests {
    ($($module:ident :: $name:ident),* $(,)?) => {
        const TESTS: &[(&str, Test)] = &[$((stringify!($name), || Box::pin($module::$name()))),*];
    };
}

tests![
    shared::a_planned_card_gets_a_ready_server_and_holds_its_tenant_to_the_limit,
    shared::a_larger_limit_reaches_the_next_client_without_a_restart,
    shared::a_limit_that_is_raised_within_a_gib_is_reported_to_the_mib,
    shared::a_card_out_of_the_plan_keeps_its_server_until_its_clients_end,
    shared::a_daemon_that_died_is_seen_within_a_second_and_comes_back_after_its_clients,
    shared::a_supervisor_that_returns_adopts_what_runs,
    shared::a_hung_daemon_is_reported_and_does_not_hold_up_another_card,
    shared::a_limit_that_the_daemon_refuses_is_not_called_ready,
    shared::a_terminated_client_loses_its_work_and_its_neighbour_does_not,
    shared::a_drained_client_loses_its_work_and_lives_on_until_the_kubelet_kills_it,
    shared::a_fault_is_reported_until_its_clients_are_gone,
    shared::an_impossible_plan_is_refused_whole,
    shared::only_one_supervisor_runs,
    shared::a_missing_program_is_a_reason_and_not_an_end,
    cards::isolated_servers_share_a_card_and_each_holds_its_own_tenant,
    cards::a_card_without_a_server_gets_its_mode_and_its_slice_and_gives_it_back,
    cards::a_limit_that_another_client_sets_is_reported_and_set_right,
    cards::a_killed_server_is_seen_at_once_and_comes_back,
    control::the_simulated_daemon_answers_as_nvidias_do,
    control::a_driver_without_a_server_for_several_users_is_refused_by_name,
    control::the_daemon_of_535_is_told_everything_and_read_back,
    control::the_daemon_of_550_is_told_everything_and_read_back,
    control::the_daemon_of_555_is_told_everything_and_read_back,
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if sim_gpu::is_multicall(&arguments) {
        return sim_gpu::multicall(arguments);
    }
    let filter = arguments
        .iter()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    if arguments.iter().any(|argument| argument == "--list") {
        for (name, _) in TESTS {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    let (mut passed, mut failed, mut ignored) = (0, 0, 0);
    for (name, test) in TESTS {
        if filter.is_some_and(|filter| !name.contains(filter.as_str())) {
            continue;
        }
        if let Some(missing) = control::lacks(name) {
            ignored += 1;
            println!("test {name} ... ignored, {missing}");
            continue;
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(test())));
        if outcome.is_ok() {
            passed += 1;
            println!("test {name} ... ok");
        } else {
            failed += 1;
            println!("test {name} ... FAILED");
        }
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {word}. {passed} passed; {failed} failed; {ignored} ignored\n");
    ExitCode::from(u8::from(failed > 0))
}
