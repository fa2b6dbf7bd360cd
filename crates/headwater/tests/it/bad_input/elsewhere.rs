//! The numbers that are no row here: where they are tested instead, or why nowhere.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The last number of the list.
const LAST: u16 = 289;

/// Where a number is looked after.
enum Where {
    /// By the tests with these names, in whichever crate.
    Tests(&'static [&'static str]),
    /// By none, for this reason.
    Reason(&'static str),
    /// The list has no such number.
    Unused,
}

use Where::{Reason, Tests, Unused};

const NO_RBAC: &str = "needs roles, and there are none yet: whoever is no administrator is refused \
                       everything (row 68)";
const NO_RELAY: &str = "there is no relay yet";

const ELSEWHERE: &[(u16, u16, Where)] = &[
    (1, 1, Tests(&["a_connection_without_a_handshake_is_closed_and_counted"])),
    (2, 3, Tests(&["silent_slow_and_idle_connections_are_closed"])),
    (4, 5, Tests(&["a_body_that_does_not_come_is_a_timeout"])),
    (
        6,
        6,
        Tests(&[
            "silent_slow_and_idle_connections_are_closed",
            "an_idle_http2_connection_is_ended",
        ]),
    ),
    (
        30,
        30,
        Tests(&[
            "an_address_has_its_limit_and_others_are_served",
            "a_connection_over_the_limit_is_closed_and_others_are_served",
        ]),
    ),
    (31, 39, Unused),
    (53, 59, Unused),
    (69, 69, Reason(NO_RBAC)),
    (72, 72, Tests(&["a_forged_token_is_nobody", "a_token_for_others_is_theirs_alone"])),
    (73, 73, Reason(NO_RBAC)),
    (76, 79, Unused),
    (89, 89, Tests(&["a_generated_name_that_is_always_taken_is_given_up"])),
    (92, 99, Unused),
    (137, 139, Unused),
    (155, 159, Unused),
    (177, 179, Unused),
    (202, 209, Unused),
    (215, 215, Tests(&["a_rule_that_would_cost_too_much_is_refused_with_its_definition"])),
    (216, 216, Tests(&["an_evaluation_ends"])),
    (217, 217, Tests(&["a_rule_that_cannot_work_is_refused_with_its_definition"])),
    (219, 219, Tests(&["a_large_definition_is_accepted_and_used"])),
    (
        223,
        223,
        Tests(&[
            "deleting_a_definition_deletes_its_objects_and_ends_their_watches",
            "no_object_outlives_its_definition_however_writers_race",
        ]),
    ),
    (225, 225, Tests(&["many_definitions_are_served_side_by_side"])),
    (226, 229, Unused),
    (236, 239, Unused),
    (240, 240, Tests(&["a_stream_that_cannot_be_read_ends_with_an_error_after_its_good_events"])),
    (241, 241, Tests(&["large_frames_arrive_and_endless_ones_end_the_stream"])),
    (
        242,
        242,
        Tests(&[
            "an_undecodable_object_is_removed_and_added_again_once_it_decodes",
            "an_object_without_a_name_is_left_out_and_the_others_are_applied",
        ]),
    ),
    (243, 244, Tests(&["versions_that_go_backwards_are_applied_counted_and_start_an_epoch"])),
    (245, 245, Tests(&["an_event_of_a_known_key_is_an_update_and_of_an_unknown_one_an_add"])),
    (246, 246, Tests(&["the_pages_of_a_list_are_one_replacement_at_the_first_pages_version"])),
    (247, 247, Tests(&["an_informer_survives_every_fault_and_ends_converged"])),
    (248, 248, Tests(&["retry_after_is_between_zero_and_a_minute_whatever_it_says"])),
    (249, 249, Tests(&["the_status_is_checked_before_the_body_and_nothing_is_retried"])),
    (250, 250, Tests(&["a_response_that_is_not_a_list_of_objects_gives_no_objects"])),
    (251, 251, Reason("the client asks for no compression")),
    (252, 252, Reason("certificates are the business of kube's client and of rustls")),
    (253, 253, Tests(&["short_cycles_do_not_pile_up_timers"])),
    (
        254,
        254,
        Tests(&[
            "a_watch_list_without_marker_is_logged_every_ten_seconds_and_given_up_after_sixty",
        ]),
    ),
    (255, 259, Unused),
    (
        260,
        260,
        Tests(&[
            "a_token_file_others_may_read_is_refused_with_the_fix",
            "a_data_directory_others_may_read_is_refused_with_the_fix",
            "a_key_others_may_read_stops_the_start",
        ]),
    ),
    (261, 261, Tests(&["what_is_missing_is_named"])),
    (262, 262, Tests(&["the_kubeconfig_is_for_its_owner_and_names_the_port_that_was_taken"])),
    (
        263,
        263,
        Tests(&[
            "a_newer_format_is_refused_and_not_touched",
            "a_data_file_of_another_store_is_refused",
            "a_file_that_is_cut_or_missing_is_refused_or_does_not_matter",
        ]),
    ),
    (264, 264, Tests(&["a_data_directory_in_use_is_refused_with_the_way_out"])),
    (265, 265, Tests(&["whichever_operation_fails_nothing_acknowledged_is_lost"])),
    (266, 266, Tests(&["a_clock_before_1970_or_in_2200_still_starts"])),
    (267, 267, Tests(&["a_damaged_backup_is_refused_before_anything_is_written"])),
    (268, 268, Tests(&["values_of_kubernetes_are_known_by_their_first_bytes"])),
    (269, 269, Tests(&["what_one_replica_writes_the_others_read_and_watch"])),
    (
        270,
        270,
        Tests(&["another_cluster_in_the_same_place_is_noticed_and_its_revisions_are_not_mixed"]),
    ),
    (
        271,
        271,
        Tests(&[
            "certificates_are_checked_by_both_sides",
            "a_login_that_etcd_forgot_is_made_again",
        ]),
    ),
    (272, 279, Unused),
    (280, 280, Tests(&["a_user_with_too_many_watches_is_told_to_wait"])),
    (281, 281, Tests(&["lists_that_are_too_much_together_are_told_to_wait"])),
    (282, 282, Tests(&["a_thousand_watchers_are_told_exactly_what_happened"])),
    (284, 284, Tests(&["pages_of_one_list_are_of_one_state"])),
    (286, 287, Reason(NO_RELAY)),
    (288, 288, Reason("there is no delta watch yet")),
    (289, 289, Reason(NO_RELAY)),
];

/// Every number is a row or in the table above, and none is in both.
pub(crate) fn every_number_is_somewhere(rows: &BTreeSet<u16>) {
    let is_elsewhere =
        |number: u16| ELSEWHERE.iter().any(|(first, last, _)| (*first..=*last).contains(&number));
    for number in 1..=LAST {
        assert!(rows.contains(&number) != is_elsewhere(number), "B{number:03}");
    }
}

#[test]
fn what_is_said_to_be_tested_elsewhere_is() {
    let mut sources = String::new();
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &mut sources);
    for (number, _, place) in ELSEWHERE {
        match place {
            Tests(names) => names.iter().for_each(|name| {
                assert!(sources.contains(&format!("fn {name}(")), "B{number:03}: no {name}");
            }),
            Reason(why) => assert!(!why.is_empty(), "B{number:03}"),
            Unused => {}
        }
    }
}

fn collect(directory: &Path, sources: &mut String) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}
