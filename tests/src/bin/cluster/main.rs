//! The program behind `tests/cluster/run`, `up` and `bench`.
//!
//! Started outside, it enters the cluster's namespaces and runs itself again there.

mod accounts;
mod admission;
mod attacks;
mod bench;
mod burst;
mod burst_clock;
mod bursts;
mod claims;
mod dashboards;
mod disk;
mod edges;
mod eviction;
mod explain;
mod extended;
mod faults;
mod fence;
mod forms;
mod grouper;
mod guard;
mod helm;
mod hostile;
mod identity;
mod idle;
mod install;
mod jobs;
mod karpenter;
mod kubelet;
mod large;
mod load;
mod manifests;
mod meter;
mod mig;
mod modes;
mod native;
mod new_node;
mod numa;
mod observing;
mod page;
mod parts;
mod placement;
mod products;
mod random;
mod rate;
mod reclaim;
mod recovery;
mod resize;
mod rollout;
mod runtime;
mod scale;
mod scale_down;
mod scale_setup;
mod scale_up;
mod seed;
mod seed_000;
mod seed_001;
mod seed_002;
mod seed_003;
mod seed_ray;
mod seed_sets;
mod selftest;
mod shard;
mod strangers;
mod traces;
mod types;
mod up;
mod usage;
mod volume;
mod walls;

use std::path::PathBuf;
use std::process::ExitCode;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::namespace::{self, Work};
use aliquot_tests::programs::Programs;
use aliquot_tests::suite::Failure;
use aliquot_tests::{claims, suite};
use anyhow::Result;
use clap::{Args, Parser, Subcommand};

/// A real one-node Kubernetes in namespaces of its own.
#[derive(Debug, Parser)]
struct Options {
    /// The work folder; set when the program runs itself inside the namespaces.
    #[arg(long, hide = true)]
    inside: Option<PathBuf>,
    #[command(flatten)]
    folders: Folders,
    #[command(subcommand)]
    action: Action,
}

/// Where the programs are.
#[derive(Debug, Args)]
struct Folders {
    /// Folder of kube-apiserver, kubelet, containerd and so on.
    #[arg(long)]
    daemons: PathBuf,
    /// Folder of this workspace's programs.
    #[arg(long)]
    programs: PathBuf,
    /// Folder of this workspace's statically linked programs.
    #[arg(long)]
    static_programs: PathBuf,
    /// Folder of the workload operators and kwok; claims that need one fail without.
    #[arg(long)]
    operators: Option<PathBuf>,
    /// Folder of the operators that only some claims need; these are left out without.
    #[arg(long)]
    extended: Option<PathBuf>,
    /// Layout of the image of `deploy/image`; claims that need it fail without.
    #[arg(long)]
    image: Option<PathBuf>,
    /// Helm; claims that need it fail without.
    #[arg(long)]
    helm: Option<PathBuf>,
    /// Root of the source tree.
    #[arg(long)]
    tree: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Runs the claims whose name contains the filter; all of them on several clusters.
    Test {
        filter: Option<String>,
        /// One part of all claims.
        #[arg(long, hide = true, requires = "tickets")]
        part: Option<u8>,
        /// File in which parts say what they have taken.
        #[arg(long, hide = true)]
        tickets: Option<PathBuf>,
    },
    /// Measures the agent, or what is named.
    Bench {
        /// Pairs of a share pod and the same pod without a GPU.
        #[arg(long, default_value_t = 30)]
        pairs: usize,
        #[command(subcommand)]
        of: Option<Measured>,
    },
    /// Leaves a person in a shell on a cluster with Aliquot on it.
    Up {
        /// Runs this instead of a shell, and leaves.
        #[arg(long)]
        command: Option<String>,
        /// Kubernetes alone, without scheduler, agent and GPUs.
        #[arg(long)]
        bare: bool,
        /// Which cards the node has: T4, L4, RTX-6000-Ada, A100-40, A100-80, H100-80.
        #[arg(long, default_value = "RTX-6000-Ada")]
        gpu: String,
        /// How many.
        #[arg(long, default_value_t = 1)]
        gpus: u32,
    },
}

#[derive(Debug, Subcommand)]
enum Measured {
    /// The scheduler, on simulated nodes.
    Scheduler(scale_setup::Sizes),
}

#[expect(
    clippy::print_stdout,
    reason = "how long the start took is worth a line"
)]
fn say_started(cluster: &Cluster) {
    println!(
        "API server ready after {:.1}s, node Ready after {:.1}s",
        cluster.started.0.as_secs_f32(),
        cluster.started.1.as_secs_f32()
    );
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error:#}");
            if let Some(root) = Options::parse().inside {
                eprintln!("logs are kept in {}", Work::at(root).logs().display());
            }
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<ExitCode> {
    let options = Options::parse();
    let Some(root) = options.inside else {
        return match options.action {
            Action::Test {
                filter: None,
                part: None,
                ..
            } => parts::run().await,
            _ => namespace::enter().await,
        };
    };
    let programs = Programs {
        daemons: options.folders.daemons,
        ours: options.folders.programs,
        ours_static: options.folders.static_programs,
        operators: options.folders.operators,
        extended: options.folders.extended,
        image: options.folders.image,
        helm: options.folders.helm,
        tree: options.folders.tree,
    };
    let work = Work::at(root);
    match options.action {
        Action::Test {
            filter,
            part,
            tickets,
        } => {
            let part = part.zip(tickets.map(parts::Tickets));
            test(programs, work, filter.as_deref(), part).await
        }
        Action::Bench { pairs, of: None } => bench::bench(programs, work, pairs).await,
        Action::Bench {
            of: Some(Measured::Scheduler(sizes)),
            ..
        } => scale::scheduler(programs, work, sizes).await,
        Action::Up {
            command,
            bare,
            gpu,
            gpus,
        } => {
            let hardware = (!bare).then(|| Hardware::preset(&gpu, gpus));
            up::up(programs, work, hardware.as_ref(), command).await
        }
    }
}

async fn test(
    programs: Programs,
    work: Work,
    filter: Option<&str>,
    part: Option<(u8, parts::Tickets)>,
) -> Result<ExitCode> {
    let all = [
        claims![
            selftest::a_pod_runs_and_its_log_is_read,
            selftest::an_image_is_pulled_under_its_public_name,
            selftest::a_killed_kubelet_comes_back_and_leaves_pods_running,
            selftest::a_command_runs_in_a_container,
            selftest::the_simulated_driver_is_seen_by_nvidia_smi_and_ends,
            selftest::a_token_bound_to_the_node_names_it_to_its_audience_alone,
            guard::every_policy_type_checks_and_is_bound,
            guard::visible_devices_and_mps_are_set_by_nobody,
            guard::folders_of_ours_and_devices_are_mounted_by_nobody,
            guard::devices_are_named_to_the_runtime_by_nobody,
            guard::a_share_is_asked_for_by_annotation_alone,
            guard::a_share_has_no_way_around_its_containers_walls,
            guard::a_policy_in_warn_mode_lets_through_and_says_so,
            accounts::a_grant_is_written_by_the_scheduler_alone,
            accounts::the_scheduler_writes_a_pods_group_and_its_own_conditions_alone,
            accounts::the_scheduler_gives_a_claim_a_node_or_a_free_volume_alone,
            accounts::the_scheduler_creates_and_deletes_claims_of_extended_resources_alone,
            accounts::the_scheduler_chooses_among_a_cards_mig_layouts_alone,
            accounts::an_agent_writes_two_amounts_of_its_own_node_alone,
            accounts::an_agent_makes_and_reports_its_own_gpu_node_alone,
            accounts::each_account_may_do_what_its_program_does_and_no_more,
            install::what_is_built_runs_a_users_pod_as_pods_of_its_own,
            install::a_crashed_mps_supervisor_ends_nobody,
            helm::an_upgrade_leaves_what_runs_alone_and_an_uninstall_says_what_it_leaves_behind,
            seed::seed_004_pod_gets_exactly_2000_mib,
            seed::seed_004_the_fraction_instead_is_a_fifth_of_the_gpu,
            seed::seed_004_a_queues_limit_is_the_most_that_it_can_consume,
            seed::seed_004_the_queue_of_higher_priority_is_served_first,
            seed_003::seed_003_a_pod_with_a_whole_gpu_sees_that_one,
            seed_003::seed_003_two_vllm_servers_share_one_gpu,
            seed_000::seed_000_build_preempts_train_in_a_queue_of_one_gpu,
            seed_000::seed_000_half_a_gpu_shows_on_the_node_and_its_memory_holds,
            seed_000::seed_000_a_training_job_is_bound_whole_or_not_at_all,
            seed_001::seed_001_a_raycluster_is_a_gang_in_its_queue,
            seed_001::seed_001_a_missing_queue_label_is_told_by_the_operator,
            seed_001::seed_001_a_label_gives_the_cluster_its_priority,
            seed_001::seed_001_two_workers_share_one_gpu,
            seed_ray::seed_ray_the_cluster_of_a_ray_service_is_a_gang,
            seed_sets::seed_sets_a_job_set_is_one_group_with_a_part_for_each_replica,
            extended::extended_the_cluster_of_a_ray_job_is_a_gang_without_who_submits_it,
            extended::extended_no_panel_of_kais_dashboards_is_empty_on_a_real_prometheus,
            extended::extended_a_real_prometheus_knows_who_used_much,
            extended::extended_each_pod_of_a_workflow_has_its_share_and_its_own_group,
            extended::extended_karpenter_brings_the_nodes_that_shares_need_and_no_more,
            extended::extended_a_train_job_is_the_group_of_its_job_set,
            extended::extended_devices_of_the_example_driver_are_allocated_beside_ours,
            extended::extended_kueue_lets_in_as_many_claims_as_its_quota_has,
            extended::extended_a_hundred_pods_at_once_each_get_their_own_card,
            extended::extended_64_claims_at_once_each_start_with_what_they_were_allocated,
            extended::extended_an_agent_costs_little_with_64_shares_and_knows_them_after_a_kill,
            extended::extended_both_fronts_race_a_hundred_times_for_one_idle_card,
            extended::extended_a_hundred_random_clusters_have_room_for_a_pod_where_kube_scheduler_finds_it,
            seed_sets::seed_sets_each_group_of_a_leader_worker_set_is_a_gang,
            seed_002::seed_002_as_written_every_job_has_room_without_a_move,
            seed_002::seed_002_with_a_node_kept_empty_jobs_are_moved_together,
            observing::an_observer_that_can_only_read_says_where_it_would_differ,
            volume::a_volume_is_made_where_its_first_consumer_goes_and_the_pod_follows,
            volume::a_pod_goes_where_a_disk_made_by_hand_fits_its_claim_and_waits_for_one,
            volume::a_drivers_limits_and_free_storage_and_claims_of_one_pod_are_kept,
            volume::a_gang_that_lacks_one_disk_takes_none_and_waits_whole,
            manifests::replicas_that_avoid_each_other_stand_on_different_nodes,
            manifests::pods_are_spread_over_zones_and_the_one_too_many_waits,
            manifests::a_pod_goes_where_the_one_is_that_it_wants_to_be_near,
            manifests::two_pods_with_one_host_port_are_never_on_one_node,
            manifests::a_pod_waits_for_its_config_map_and_runs_when_it_is_there,
            fence::a_workload_is_refused_at_2000_mib_and_its_neighbour_does_not_notice,
            fence::a_share_in_a_user_namespace_holds_as_any_other,
            fence::the_sm_time_of_a_share_is_its_own,
            shard::a_changed_shard_acts_within_five_seconds_and_says_what_of_it_does_not,
            scale_up::who_waits_for_room_brings_the_nodes_it_needs_and_no_more,
            scale_down::a_share_on_an_underused_node_moves_to_one_in_use_and_breaks_no_budget,
            new_node::a_pod_waits_for_a_booting_driver_and_is_bound_within_five_seconds_of_its_cards,
            numa::what_a_topology_manager_would_refuse_waits_and_none_of_many_pods_is_refused,
            products::a_queue_has_at_most_its_limit_of_a_product_and_what_is_over_goes_to_another,
            idle::idle_notebooks_give_way_after_a_warning_and_come_back_last,
            reclaim::a_queue_takes_back_its_quota_with_one_eviction_and_then_all_is_at_rest,
            usage::a_queue_that_used_much_waits_behind_the_one_that_used_little,
            placement::two_halves_fit_one_card,
            placement::seven_tenths_and_two_tenths_fit_one_card,
            identity::an_init_container_and_its_app_container_get_their_own_grants,
            identity::an_init_container_and_its_app_container_count_as_the_larger,
            recovery::a_restarted_agent_has_the_ledger_it_had,
            recovery::a_second_agent_refuses_and_the_first_does_not_notice,
            eviction::an_evicted_pods_memory_is_free_before_anybody_else_is_bound_to_it,
            eviction::where_a_budget_protects_one_of_two_pods_neither_goes_and_who_waits_is_told,
            recovery::killed_during_prestart_and_with_the_kubelet_restarted_nothing_is_lost,
            recovery::killed_during_allocate_an_owned_pod_comes_back_and_others_do_not_notice,
            placement::a_second_share_lands_on_the_same_card,
            placement::a_share_that_no_card_holds_waits_with_a_line_per_card_and_starts_when_one_does,
            grouper::a_pod_alone_runs_and_has_its_group,
            grouper::a_pod_names_its_group_from_its_binding_on,
            grouper::a_pod_that_waits_names_its_group_with_its_reason,
            grouper::a_gang_goes_on_without_members_that_have_succeeded,
            grouper::pods_of_a_deployment_share_a_group_that_goes_with_it,
            grouper::a_job_that_is_a_gang_starts_whole_or_not_at_all,
            grouper::pods_of_a_job_or_a_cron_job_are_grouped_as_kai_does,
            grouper::a_stateful_sets_group_keeps_what_a_person_edits,
            grouper::pods_in_a_group_made_by_hand_start_together_and_the_group_is_left_alone,
            identity::two_pods_of_one_shape_bound_in_reverse_order_get_their_own_card,
            placement::limits_never_sum_to_more_than_a_card_can_grant,
            admission::wrong_values_are_refused_at_admission_with_one_sentence,
            admission::a_value_that_is_merely_too_large_waits_with_a_reason,
            admission::a_queue_or_group_that_nobody_can_mean_is_refused_with_one_sentence,
            admission::a_group_or_a_tree_of_queues_of_absurd_size_is_refused_with_its_limit,
            admission::a_group_that_cannot_be_read_holds_up_no_other_workload,
            admission::while_admission_does_not_answer_a_share_is_refused_and_every_other_pod_is_made,
            admission::shares_are_made_while_the_scheduler_stands_still_or_is_gone_and_run_once_it_is_back,
            resize::a_pod_that_is_resized_counts_with_the_most_that_it_asks_for_or_has,
            resize::a_resize_that_its_node_can_never_give_is_said_and_does_not_count,
            resize::a_resize_beyond_its_queues_limit_is_refused_with_one_sentence,
            resize::of_two_resizes_at_once_that_the_queue_cannot_both_have_one_is_refused,
            native::a_pod_group_of_kubernetes_is_a_gang_of_its_count,
            types::a_type_of_workload_has_the_class_that_a_config_map_gives_it,
            forms::each_form_of_kais_shares_is_taken_or_refused_in_one_sentence,
            forms::shares_of_containers_run_with_what_their_annotations_say,
            forms::a_share_bursts_into_what_is_kept_for_nobody_and_gives_it_back,
            forms::a_container_starts_once_its_memory_was_given_back,
            identity::a_pod_bound_without_a_grant_gets_no_gpu,
            identity::a_grant_copied_from_another_pod_gives_no_gpu,
            identity::an_altered_grant_gives_no_gpu,
            identity::a_grant_replayed_after_its_pod_was_recreated_gives_no_gpu,
            identity::nobody_but_the_scheduler_writes_a_grant,
            identity::a_pod_with_our_cdi_name_in_its_annotations_gets_no_gpu,
            identity::a_token_asked_for_by_hand_gives_no_gpu,
            modes::each_isolated_share_is_held_by_a_server_of_its_own,
            modes::a_share_of_several_cards_has_one_server_over_them,
            modes::a_pod_that_asks_for_time_slices_gets_them_with_hints_and_no_server,
            modes::a_card_goes_from_every_mode_to_every_other,
            modes::a_fence_that_the_admin_finds_too_weak_is_not_offered,
            mig::a_pod_gets_exactly_one_slice_under_either_scheduler_beside_shares_of_other_cards,
            mig::in_strategy_single_a_slice_is_a_gpu,
            mig::an_idle_card_is_given_the_slices_that_are_wanted,
            page::a_reader_sees_what_his_token_may_list_and_nothing_else,
            faults::a_fault_costs_the_sharers_of_its_card_alone_and_the_server_comes_back,
            faults::a_killed_server_costs_its_sharers_alone_and_comes_back,
            faults::a_lost_card_takes_its_own_shares_along_and_is_probed_before_it_returns,
            faults::an_xid_is_judged_by_its_class,
            faults::a_cordoned_card_keeps_what_it_has_and_gets_nothing_new,
            kubelet::pod_resources_answers_from_inside_prestart,
            kubelet::a_container_that_starts_again_without_the_agent_keeps_its_card,
            kubelet::pods_at_once_each_get_their_own_card,
            kubelet::a_pod_that_the_kubelet_refuses_after_allocate_frees_its_card,
            kubelet::foreign_and_broken_files_beside_ours_change_nothing,
            kubelet::a_node_that_lost_all_that_a_reboot_loses_comes_back,
            kubelet::a_static_pod_gets_its_whole_gpu_and_no_share_joins_it,
            kubelet::a_corrupt_checkpoint_takes_nothing_from_anybody,
            rollout::an_agent_started_beside_the_old_one_waits_and_takes_over_without_a_gap,
            rollout::a_share_starts_at_every_moment_of_a_rolling_update,
            rollout::ten_thousand_tokens_register_and_allocate,
            disk::a_full_disk_holds_a_share_up_and_loses_none,
            disk::a_read_only_disk_holds_a_share_up_and_loses_none,
            runtime::a_runtime_with_cdi_off_starts_no_share_and_starts_it_when_cdi_is_on,
            burst::an_api_server_restarted_in_mid_burst_loses_nothing,
            burst::answers_lost_writes_refused_and_watches_expired_bind_every_pod_once,
            burst::of_two_replicas_the_second_is_in_charge_15_s_after_the_first_was_killed,
            burst::pods_deleted_while_they_are_bound_free_what_they_were_given,
            burst::nodes_removed_under_pods_take_nobody_elses_place,
            burst::a_queue_deleted_with_pods_in_it_lets_them_wait_with_a_reason,
            bursts::shares_that_come_moments_apart_join_the_card_that_is_starting,
            bursts::a_pod_that_nothing_creates_again_is_not_moved_for_a_whole_gpu,
            edges::a_replica_that_stood_still_longer_than_its_lease_sends_nothing_afterwards,
            edges::a_binding_of_which_nobody_knows_anything_is_asked_for_until_there_is_a_word,
            explain::an_ordinary_pod_is_explained_as_its_condition_says,
            burst_clock::a_wall_clock_that_steps_by_an_hour_in_mid_burst_changes_nothing,
            load::an_agent_costs_little_and_knows_its_shares_after_a_kill,
            hostile::the_table_in_the_docs_is_the_one_that_is_run,
            hostile::under_mps_beside_a_smaller_share_a_hostile_tenant_gets_what_the_table_says,
            hostile::under_mps_beside_a_larger_share_a_hostile_tenant_gets_what_the_table_says,
            hostile::under_mps_isolated_a_hostile_tenant_gets_what_the_table_says,
            hostile::under_time_slicing_a_hostile_tenant_gets_what_the_table_says,
            hostile::the_watchdog_acts_within_a_quarter_of_a_second,
            claims::two_claims_under_the_default_scheduler_are_each_held_at_their_mib,
            claims::an_agent_killed_while_claims_run_has_the_ledger_it_had,
            claims::a_card_has_one_front_at_a_time,
            claims::the_admin_closes_a_card_to_one_front_and_what_runs_stays,
            claims::a_claim_that_cannot_be_honoured_is_refused_with_one_sentence,
            claims::a_claims_device_status_says_what_its_pods_condition_says,
            claims::a_claims_device_status_is_written_by_the_agent_of_its_node_alone,
            claims::the_containers_of_a_claim_are_held_to_its_limit_together,
            claims::a_pod_that_comes_to_a_claim_later_has_its_share_also_while_no_agent_runs,
            claims::containers_that_take_requests_of_their_own_have_shares_of_their_own,
            claims::two_cards_of_one_claim_are_each_held_at_its_mib,
            claims::a_whole_card_by_claim_is_one_pods_alone,
            claims::a_pod_that_asks_for_a_gpu_gets_it_by_the_claim_that_the_scheduler_makes,
            claims::under_our_scheduler_a_gpu_comes_by_the_claim_that_kubernetes_would_make,
            claims::a_claim_is_configured_or_told_why_not,
            claims::a_claim_is_stricter_than_a_class_that_reports,
            claims::a_monitoring_pod_sees_a_card_that_is_full_and_counts_nothing,
            claims::an_agent_killed_in_every_phase_of_a_prepare_leaves_nothing_half_done,
            claims::a_claim_that_runs_comes_back_after_a_reboot,
            claims::a_claim_deleted_by_force_gives_nothing_away_while_its_container_lives,
            claims::a_claim_is_prepared_at_every_moment_of_a_rolling_update,
            claims::both_fronts_race_for_one_idle_card,
            claims::cards_that_both_fronts_give_away_at_once_are_different_ones,
            claims::under_mps_a_hostile_tenant_with_a_claim_gets_what_the_table_says,
            claims::under_mps_isolated_a_hostile_tenant_with_a_claim_gets_what_the_table_says,
            claims::under_time_slicing_a_hostile_tenant_with_a_claim_gets_what_the_table_says,
            claims::a_lost_card_ends_what_is_claimed_of_it,
            claims::a_pods_status_says_that_its_card_is_lost,
            claims::an_agent_writes_slices_of_its_own_node_alone,
            claims::a_slice_is_written_once_at_the_start_and_once_for_a_change,
            claims::under_our_scheduler_claims_are_allocated_counted_and_held,
            claims::pods_of_one_claim_wait_while_its_device_is_held,
            claims::a_claim_gives_way_to_one_of_higher_priority_and_a_gang_has_all_of_its_own,
            claims::a_pod_is_bound_once_the_driver_has_made_its_device_ready,
            claims::the_page_of_claims_is_done_as_it_stands,
            claims::from_annotations_to_claims_and_back_nothing_that_runs_is_touched,
            claims::claims_at_once_each_start_with_what_they_were_allocated,
            traces::a_pods_way_through_scheduler_and_agent_is_one_trace_with_its_uid,
            walls::no_body_without_a_token_ends_admission,
            walls::a_selector_that_grows_ends_no_scheduler_and_holds_up_nobody,
            walls::the_largest_pods_of_a_namespace_end_no_scheduler_that_starts_or_shows_them,
            strangers::a_pod_that_breaks_its_share_is_evicted_where_the_admin_says_so,
            strangers::a_pod_that_uses_a_card_without_a_grant_is_reported_evicted_or_killed,
        ],
        attacks::claims(),
    ];
    let mut claims = suite::select(all.concat(), filter);
    let extended = programs.extended.is_some();
    claims.retain(|claim| extended || !claim.name.starts_with("extended::"));
    let mut cluster = Cluster::start(programs, work).await?;
    say_started(&cluster);
    // A named claim reports each of its failures.
    let failure = match filter {
        Some(_) => Failure::Final,
        None => Failure::Retried,
    };
    let count = claims.len();
    let held = match part {
        // One of them says how many there are in all.
        Some((part, tickets)) => {
            let count = (part == 0).then_some(count);
            let claims = parts::share(&claims, tickets);
            suite::run(&mut cluster, count, claims, failure).await
        }
        None => suite::run(&mut cluster, Some(count), claims.into_iter(), failure).await,
    };
    Ok(if held {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
