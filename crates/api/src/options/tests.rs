use headwater_json::json;

use super::*;

fn config_maps() -> Kind {
    Kind {
        group: "".into(),
        version: "v1".into(),
        kind: "ConfigMap".into(),
        list_kind: "ConfigMapList".into(),
        plural: "configmaps".into(),
        singular: "configmap".into(),
        namespaced: true,
        ..Kind::default()
    }
}

fn list(raw: &str) -> Result<ListOptions, Status> {
    ListOptions::parse(&Query::parse(raw).unwrap(), &config_maps(), &config_maps())
}

fn watch(raw: &str) -> Result<WatchOptions, Status> {
    WatchOptions::parse(&Query::parse(raw).unwrap(), &config_maps(), &config_maps())
}

#[track_caller]
fn check_list(raw: &str, at: ReadAt, limit: Option<usize>) {
    let options = list(raw).unwrap();
    assert_eq!((options.at, options.limit), (at, limit), "{raw}");
}

#[test]
fn the_list_matrix() {
    let fresh = ReadAt::Fresh;
    let not_older = |n| ReadAt::Fresh(Freshness::NotOlderThan(Revision(n)));
    let exact = |n| ReadAt::Exact(Revision(n));
    check_list("", fresh(Freshness::Latest), None);
    check_list("limit=2", fresh(Freshness::Latest), Some(2));
    check_list("limit=0", fresh(Freshness::Latest), None);
    check_list("limit=-1", fresh(Freshness::Latest), None);
    check_list("resourceVersion=", fresh(Freshness::Latest), None);
    check_list("resourceVersion=0", fresh(Freshness::Any), None);
    check_list("resourceVersion=0&limit=2", fresh(Freshness::Any), None);
    check_list("resourceVersion=0&resourceVersionMatch=NotOlderThan", fresh(Freshness::Any), None);
    check_list("resourceVersion=5", not_older(5), None);
    check_list("resourceVersion=05", not_older(5), None);
    check_list("resourceVersion=5&limit=2", exact(5), Some(2));
    check_list("resourceVersion=5&resourceVersionMatch=NotOlderThan", not_older(5), None);
    check_list(
        "resourceVersion=5&resourceVersionMatch=NotOlderThan&limit=2",
        not_older(5),
        Some(2),
    );
    check_list("resourceVersion=5&resourceVersionMatch=Exact", exact(5), None);
    check_list("resourceVersion=5&resourceVersionMatch=Exact&limit=2", exact(5), Some(2));
    check_list("resourceVersion=18446744073709551615", not_older(u64::MAX), None);
}

#[test]
fn a_list_continues_at_its_token() {
    let token = Token::after("a", Revision(7));
    let encoded = token.encode();
    check_list(&format!("continue={encoded}&limit=1"), ReadAt::Continue(token.clone()), Some(1));
    check_list(&format!("continue={encoded}"), ReadAt::Continue(token.clone()), None);
    check_list(
        &format!("continue={encoded}&limit=1&resourceVersion=0"),
        ReadAt::Continue(token),
        None,
    );
    check_list_error(
        &format!("continue={encoded}&resourceVersion=7"),
        400,
        "specifying resource version is not allowed when using continue",
    );
    check_list_error(
        &format!("continue={encoded}&resourceVersion=7&resourceVersionMatch=Exact"),
        422,
        "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: \
         resourceVersionMatch is forbidden when continue is provided",
    );
    check_list_error(
        "continue=notatoken",
        400,
        "invalid continue token: continue key is not valid: illegal base64 data at input byte 8",
    );
}

#[track_caller]
fn check_list_error(raw: &str, code: u16, message: &str) {
    check_error(&list(raw).unwrap_err(), code, message);
}

#[track_caller]
fn check_error(status: &Status, code: u16, message: &str) {
    assert_eq!(status.message, message);
    let reason = if code == 422 { "Invalid" } else { "BadRequest" };
    assert_eq!((status.code, status.reason.as_str()), (code, reason));
}

#[test]
fn invalid_lists_are_rejected_as_in_kubernetes() {
    check_list_error(
        "resourceVersionMatch=Bogus",
        422,
        "ListOptions.meta.k8s.io \"\" is invalid: [resourceVersionMatch: Forbidden: \
         resourceVersionMatch is forbidden unless resourceVersion is provided, \
         resourceVersionMatch: Unsupported value: \"Bogus\": supported values: \"Exact\", \
         \"NotOlderThan\", \"\"]",
    );
    check_list_error(
        "resourceVersion=0&resourceVersionMatch=Exact",
        422,
        "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: \
         resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
    );
    check_list_error(
        "sendInitialEvents=true",
        422,
        "ListOptions.meta.k8s.io \"\" is invalid: sendInitialEvents: Forbidden: \
         sendInitialEvents is forbidden for list",
    );
    check_list_error(
        "resourceVersion=abc&limit=2",
        400,
        "invalid resource version: resourceVersion: Invalid value: \"abc\": strconv.ParseUint: \
         parsing \"abc\": invalid syntax",
    );
    check_list_error(
        "resourceVersion=18446744073709551616",
        400,
        "invalid resource version: resourceVersion: Invalid value: \"18446744073709551616\": \
         strconv.ParseUint: parsing \"18446744073709551616\": value out of range",
    );
    check_list_error("timeoutSeconds=x", 400, "strconv.ParseInt: parsing \"x\": invalid syntax");
    check_list_error("limit=abc", 400, "strconv.ParseInt: parsing \"abc\": invalid syntax");
    check_list_error(
        "labelSelector=%2C&resourceVersionMatch=Bogus",
        400,
        "found ',', expected: !, identifier, or 'end of string'",
    );
    let details = list("sendInitialEvents=true").unwrap_err().details.unwrap();
    assert_eq!((details.group.as_str(), details.kind.as_str()), ("meta.k8s.io", "ListOptions"));
}

#[track_caller]
fn check_watch(raw: &str, start: Start) {
    assert_eq!(watch(raw).unwrap().start, start, "{raw}");
}

#[test]
fn the_watch_matrix() {
    let initial = |at, mark| Start::Initial { at, mark };
    let at = |n| Freshness::NotOlderThan(Revision(n));
    let not_older = "resourceVersionMatch=NotOlderThan";
    check_watch("", initial(Freshness::Latest, false));
    check_watch("allowWatchBookmarks=true", initial(Freshness::Latest, true));
    check_watch("resourceVersion=0", initial(Freshness::Any, false));
    check_watch("resourceVersion=0&allowWatchBookmarks=1", initial(Freshness::Any, true));
    check_watch("resourceVersion=5", Start::After(Revision(5)));
    check_watch("resourceVersion=5&allowWatchBookmarks=1", Start::After(Revision(5)));
    for (version, fresh) in [("", Freshness::Latest), ("0", Freshness::Any), ("5", at(5))] {
        let raw = format!("resourceVersion={version}&{not_older}");
        check_watch(&format!("{raw}&sendInitialEvents=true"), initial(fresh, false));
        check_watch(
            &format!("{raw}&sendInitialEvents=true&allowWatchBookmarks=true"),
            initial(fresh, true),
        );
    }
    check_watch(&format!("{not_older}&sendInitialEvents=false"), Start::FromLatest);
    check_watch(&format!("resourceVersion=0&{not_older}&sendInitialEvents=0"), Start::FromAny);
    check_watch(
        &format!("resourceVersion=5&{not_older}&sendInitialEvents=false"),
        Start::After(Revision(5)),
    );
    check_watch("resourceVersion=5&limit=1&continue=x", Start::After(Revision(5)));
}

#[track_caller]
fn check_watch_error(raw: &str, code: u16, message: &str) {
    check_error(&watch(raw).unwrap_err(), code, message);
}

#[test]
fn invalid_watches_are_rejected_as_in_kubernetes() {
    let needs = "resourceVersionMatch: Forbidden: sendInitialEvents requires setting \
                 resourceVersionMatch to NotOlderThan";
    for initial in ["true", "false"] {
        check_watch_error(
            &format!("sendInitialEvents={initial}"),
            422,
            &format!("ListOptions.meta.k8s.io \"\" is invalid: {needs}"),
        );
    }
    check_watch_error(
        "sendInitialEvents=true&resourceVersionMatch=Exact",
        422,
        &format!(
            "ListOptions.meta.k8s.io \"\" is invalid: [{needs}, resourceVersionMatch: Unsupported \
             value: \"Exact\": supported values: \"NotOlderThan\"]"
        ),
    );
    check_watch_error(
        "resourceVersionMatch=NotOlderThan",
        422,
        "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: \
         resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
    );
    check_watch_error(
        "resourceVersion=abc",
        400,
        "resourceVersion: Invalid value: \"abc\": strconv.ParseUint: parsing \"abc\": invalid \
         syntax",
    );
}

#[test]
fn a_watch_has_the_timeout_of_its_query() {
    for (raw, timeout) in [
        ("", None),
        ("timeoutSeconds=0", None),
        ("timeoutSeconds=5", Some(Duration::from_secs(5))),
        ("timeoutSeconds=-5", Some(Duration::ZERO)),
        ("timeoutSeconds=9223372036854775807", Some(Duration::from_secs(365 * 24 * 3600))),
    ] {
        assert_eq!(watch(raw).unwrap().timeout, timeout, "{raw}");
    }
}

#[test]
fn options_include_the_selectors() {
    let options = list("labelSelector=a%3Db&fieldSelector=metadata.name%3Dx").unwrap();
    assert_eq!(options.labels.to_string(), "a=b");
    assert_eq!(options.fields.name(), Some("x"));
    check_list_error(
        "fieldSelector=spec.x%3D1",
        400,
        "\"spec.x\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
    );
}

#[test]
fn a_get_reads_only_the_version() {
    let get = |raw| GetOptions::parse(&Query::parse(raw).unwrap());
    assert_eq!(get("").unwrap().at, Freshness::Latest);
    assert_eq!(get("resourceVersion=0&watch=true").unwrap().at, Freshness::Any);
    assert_eq!(get("resourceVersion=9").unwrap().at, Freshness::NotOlderThan(Revision(9)));
    check_error(
        &get("resourceVersion=-1").unwrap_err(),
        400,
        "resourceVersion: Invalid value: \"-1\": strconv.ParseUint: parsing \"-1\": invalid syntax",
    );
}

#[test]
fn write_options_are_parsed_and_validated() {
    let query = |raw: &str| Query::parse(raw).unwrap();
    let options =
        WriteOptions::apply(&query("dryRun=All&fieldManager=m&fieldValidation=Strict&force=true"));
    let expected = WriteOptions {
        dry_run: true,
        field_manager: "m".into(),
        field_validation: FieldValidation::Strict,
        force: true,
    };
    assert_eq!(options.unwrap(), expected);
    assert_eq!(WriteOptions::create(&query("")).unwrap(), WriteOptions::default());
    check_error(
        &WriteOptions::create(&query("dryRun=Nope")).unwrap_err(),
        422,
        "CreateOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: [\"Nope\"]: \
         supported values: \"All\"",
    );
    check_error(
        &WriteOptions::update(&query("fieldValidation=x")).unwrap_err(),
        422,
        "UpdateOptions.meta.k8s.io \"\" is invalid: fieldValidation: Unsupported value: \"x\": \
         supported values: \"\", \"Ignore\", \"Strict\", \"Warn\"",
    );
    check_error(
        &WriteOptions::apply(&query("")).unwrap_err(),
        422,
        "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for \
         apply patch",
    );
    check_error(
        &WriteOptions::patch(&query("force=true")).unwrap_err(),
        422,
        "PatchOptions.meta.k8s.io \"\" is invalid: force: Forbidden: may not be specified for \
         non-apply patch",
    );
    check_error(
        &WriteOptions::update(&query(&format!("fieldManager={}", "m".repeat(129)))).unwrap_err(),
        422,
        "UpdateOptions.meta.k8s.io \"\" is invalid: fieldManager: Too long: may not be more than \
         128 bytes",
    );
    let status = WriteOptions::update(&query("fieldManager=a%07")).unwrap_err();
    assert!(status.message.ends_with("invalid character U+0007 (at position 1)"), "{status}");
}

/// S2.26
#[test]
fn the_manager_is_named_or_derived_from_the_user_agent() {
    assert_eq!(manager_name("m", "kubectl/1.36"), "m");
    assert_eq!(manager_name("", "kubectl/1.36 (linux)"), "kubectl");
    assert_eq!(manager_name("", "a\u{7}b"), "ab");
    assert_eq!(manager_name("", &"é".repeat(100)).len(), 128);
    assert_eq!(manager_name("", ""), "");
}

#[test]
fn delete_options_come_from_query_or_body() {
    let query = |raw: &str| DeleteOptions::from_query(&Query::parse(raw).unwrap());
    let expected = DeleteOptions {
        grace_period_seconds: Some(5),
        propagation: Some(Propagation::Orphan),
        dry_run: true,
        ..DeleteOptions::default()
    };
    assert_eq!(
        query("gracePeriodSeconds=5&propagationPolicy=Orphan&dryRun=All").unwrap(),
        expected
    );
    let body = json!({
        "kind": "DeleteOptions", "apiVersion": "apps/v1", "gracePeriodSeconds": 5,
        "propagationPolicy": "Orphan", "dryRun": ["All"],
    });
    assert_eq!(DeleteOptions::from_body(&body, "apps/v1").unwrap(), expected);
    let body = json!({"preconditions": {"uid": "u", "resourceVersion": "1"}});
    let found = DeleteOptions::from_body(&body, "v1").unwrap().preconditions;
    let expected = Preconditions { uid: Some("u".into()), resource_version: Some("1".into()) };
    assert_eq!(found, expected);
    assert_eq!(DeleteOptions::from_body(&json!({}), "v1").unwrap(), DeleteOptions::default());
}

#[test]
fn invalid_delete_options_are_rejected() {
    let body = json!({"orphanDependents": true, "propagationPolicy": "Orphan"});
    check_error(
        &DeleteOptions::from_body(&body, "v1").unwrap_err(),
        422,
        "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Invalid value: \"Orphan\": \
         orphanDependents and deletionPropagation cannot be both set",
    );
    let query = Query::parse("propagationPolicy=Nope").unwrap();
    check_error(
        &DeleteOptions::from_query(&query).unwrap_err(),
        422,
        "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: \
         \"Nope\": supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\"",
    );
    for bad in [
        json!([]),
        json!({"kind": "Pod"}),
        json!({"apiVersion": "v9"}),
        json!({"gracePeriodSeconds": "5"}),
        json!({"gracePeriodSeconds": 1.5}),
        json!({"dryRun": "All"}),
        json!({"preconditions": []}),
        json!({"propagationPolicy": 1}),
    ] {
        assert_eq!(DeleteOptions::from_body(&bad, "v1").unwrap_err().code, 400, "{bad}");
    }
}
