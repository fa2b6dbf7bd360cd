use proptest::prelude::*;

use super::*;
use crate::frame::EventType;
use crate::kind::Field;
use crate::revision::Revision;

fn kind(group: &'static str, kind: &'static str, fields: Vec<Field>) -> Kind {
    Kind {
        group: group.into(),
        version: "v1".into(),
        kind: kind.into(),
        list_kind: format!("{kind}List").into(),
        plural: format!("{}s", kind.to_lowercase()).into(),
        singular: kind.to_lowercase().into(),
        namespaced: true,
        fields,
        ..Kind::default()
    }
}

fn pods() -> Kind {
    kind(
        "",
        "Pod",
        vec![
            Field::new("spec.nodeName", &["spec", "nodeName"], ""),
            Field::new("spec.host", &["spec", "nodeName"], ""),
            Field::new("spec.hostNetwork", &["spec", "hostNetwork"], "false"),
        ],
    )
}

fn object(kind: &Kind, json: &str) -> Object {
    Object::decode(json.as_bytes(), Revision(1), EventType::Added, &kind.fields).unwrap()
}

#[track_caller]
fn check(selector: &str, expected: bool) {
    let kind = pods();
    let pod =
        object(&kind, r#"{"metadata":{"name":"a","namespace":"n"},"spec":{"nodeName":"n1"}}"#);
    let selector = FieldSelector::parse(selector, &kind).unwrap();
    assert_eq!(selector.matches(&pod), expected, "{selector}");
}

#[test]
fn selectors_match() {
    check("", true);
    check(",", true);
    check("metadata.name=a", true);
    check("metadata.name==a", true);
    check("metadata.name!=a", false);
    check("metadata.name=a,metadata.name=b", false);
    check("metadata.namespace=n", true);
    check("metadata.namespace=m", false);
    check("spec.nodeName=n1", true);
    check("spec.host=n1", true);
    check("spec.nodeName=", false);
    check("spec.nodeName!=n1", false);
    check("spec.hostNetwork=false", true);
    check("spec.hostNetwork=", false);
    check("spec.nodeName!=a\\,b", true);
}

#[track_caller]
fn check_error(kind: &Kind, selector: &str, message: &str) {
    let status = FieldSelector::parse(selector, kind).unwrap_err();
    assert_eq!((status.code, status.reason.as_str()), (400, "BadRequest"));
    assert_eq!(status.message, message);
}

#[test]
fn errors_have_the_messages_of_kubernetes() {
    let plain = kind("", "ConfigMap", vec![]);
    check_error(
        &plain,
        "metadata.name",
        "invalid selector: 'metadata.name'; can't understand 'metadata.name'",
    );
    check_error(
        &plain,
        "data.x=1",
        "\"data.x\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
    );
    check_error(&pods(), "spec.containers=x", "field label not supported: spec.containers");
    let job = kind("batch", "Job", vec![Field::new("status.successful", &["status"], "0")]);
    check_error(&job, "spec.x=1", "field label \"spec.x\" not supported for Job");
    check_error(&plain, "a=b=c", "invalid field selector: unescaped character in value: 61");
    check_error(&plain, "a=b\\c", "invalid field selector: invalid escape sequence: \\c");
    check_error(&plain, "a=b\\", "invalid field selector: invalid escape sequence: \\");
}

#[test]
fn only_some_cluster_scoped_kinds_have_a_namespace_field() {
    let cluster = |fields, custom| Kind { namespaced: false, custom, ..kind("", "Node", fields) };
    let extra = || vec![Field::new("spec.unschedulable", &["spec", "unschedulable"], "false")];
    let selector = "metadata.namespace=x";
    assert!(FieldSelector::parse(selector, &cluster(vec![], false)).is_ok());
    check_error(
        &cluster(extra(), false),
        selector,
        "field label not supported: metadata.namespace",
    );
    check_error(&cluster(vec![], true), selector, "field label not supported: metadata.namespace");
}

#[test]
fn required_values_are_available_to_indexes() {
    let selector =
        FieldSelector::parse("metadata.name=a,spec.host=n1,spec.hostNetwork!=true", &pods())
            .unwrap();
    assert_eq!(selector.name(), Some("a"));
    assert_eq!(selector.namespace(), None);
    assert_eq!(selector.field(0), Some("n1"));
    assert_eq!(selector.field(2), None);
    assert_eq!(selector.equalities().collect::<Vec<_>>(), [(0, "n1")]);
}

#[test]
fn equal_selections_are_equal_selectors() {
    let parse = |text| FieldSelector::parse(text, &pods()).unwrap();
    assert_eq!(parse("spec.host=a,metadata.name==b"), parse("metadata.name=b,,spec.nodeName=a"));
    assert_eq!(parse("metadata.name=b"), FieldSelector::named("b"));
}

#[test]
fn a_selector_must_name_the_object_of_the_path() {
    let parse = |text| FieldSelector::parse(text, &pods()).unwrap();
    assert_eq!(parse("").and_named("a").unwrap(), FieldSelector::named("a"));
    assert_eq!(parse("metadata.name=a").and_named("a").unwrap(), FieldSelector::named("a"));
    let status = parse("metadata.name=b").and_named("a").unwrap_err();
    assert_eq!(status.message, "fieldSelector metadata.name doesn't match requested name");
}

proptest! {
    #[test]
    fn parsing_undoes_printing(values in prop::collection::vec((0usize..3, any::<bool>(), "[a,=\\\\é]{0,6}"), 0..5)) {
        let labels = ["metadata.name", "spec.nodeName", "metadata.namespace"];
        let texts: Vec<String> = values
            .iter()
            .map(|(label, equal, value)| {
                format!("{}{}{}", labels[*label], if *equal { "=" } else { "!=" }, escape(value))
            })
            .collect();
        let selector = FieldSelector::parse(&texts.join(","), &pods()).unwrap();
        prop_assert_eq!(&FieldSelector::parse(&selector.to_string(), &pods()).unwrap(), &selector);
        for (label, equal, value) in &values {
            if *label == 0 && *equal {
                prop_assert!(selector.name().is_some());
                let object = object(&pods(), &format!(r#"{{"metadata":{{"name":{}}}}}"#, headwater_json::json!(value)));
                prop_assert_eq!(FieldSelector::named(value).matches(&object), true);
            }
        }
    }

    #[test]
    fn any_text_is_parsed_or_rejected(text in "[a.=!,\\\\]{0,20}|\\PC{0,20}") {
        let _ = FieldSelector::parse(&text, &pods());
    }
}
