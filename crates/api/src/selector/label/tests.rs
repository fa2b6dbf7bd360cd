use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[track_caller]
fn check(selector: &str, labels: &[(&str, &str)], expected: bool) {
    let selector = LabelSelector::parse(selector).unwrap();
    let labels: BTreeMap<_, _> = labels.iter().copied().collect();
    assert_eq!(selector.matches(|key| labels.get(key).copied()), expected, "{selector}");
}

#[test]
fn selectors_match() {
    check("", &[], true);
    check("  ", &[("a", "b")], true);
    check("a=b", &[("a", "b")], true);
    check("a==b", &[("a", "c")], false);
    check("a=b", &[], false);
    check("a!=b", &[("a", "b")], false);
    check("a!=b", &[("a", "c")], true);
    check("a!=b", &[], true);
    check("a", &[("a", "")], true);
    check("a", &[], false);
    check("!a", &[], true);
    check(" ! a ", &[("a", "")], false);
    check("a=", &[("a", "")], true);
    check("a=", &[], false);
    check("a in (b,c)", &[("a", "c")], true);
    check("a in (b,c)", &[("a", "d")], false);
    check("a notin (b,c)", &[("a", "c")], false);
    check("a notin (b,c)", &[], true);
    check("a in ()", &[("a", "")], true);
    check("a in (,b)", &[("a", "")], true);
    check("a in (b,)", &[("a", "")], true);
    check("a in (b,,c)", &[("a", "")], true);
    check("a>5", &[("a", "6")], true);
    check("a>5", &[("a", "5")], false);
    check("a>5", &[("a", "x")], false);
    check("a>5", &[], false);
    check("a<5", &[("a", "-4")], true);
    check("a=b,c=d", &[("a", "b")], false);
    check("a=b,a=c", &[("a", "b")], false);
    check("in in (in,notin)", &[("in", "notin")], true);
    check("notin=in", &[("notin", "in")], true);
    check("x.io/a\t=\nb", &[("x.io/a", "b")], true);
}

#[track_caller]
fn check_error(selector: &str, message: &str) {
    let status = LabelSelector::parse(selector).unwrap_err();
    assert_eq!((status.code, status.reason.as_str()), (400, "BadRequest"));
    assert_eq!(status.message, message, "{selector}");
}

#[test]
fn errors_have_the_messages_of_kubernetes() {
    check_error("env=prod=x", "found '=', expected: ',' or 'end of string'");
    check_error("env in prod", "unable to parse requirement: found 'prod' expected: '('");
    check_error("=x", "found '=', expected: !, identifier, or 'end of string'");
    check_error(
        "a b",
        "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt",
    );
    check_error(
        "env>x",
        "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, \
         the value must be an integer",
    );
    check_error(",", "found ',', expected: !, identifier, or 'end of string'");
    check_error("a,", "found '', expected: identifier after ','");
    check_error("a,,b", "found ',', expected: identifier after ','");
    check_error("(a)", "found '(', expected: !, identifier, or 'end of string'");
    check_error("!!a", "unable to parse requirement: found '!', expected: identifier");
    check_error("!a=b", "found '=', expected: ',' or 'end of string'");
    check_error(
        "a!b",
        "unable to parse requirement: found '!', expected: in, notin, =, ==, !=, gt, lt",
    );
    check_error("a>=5", "unable to parse requirement: found '=', expected: identifier");
    check_error("env in (a", "unable to parse requirement: found '', expected: ',' or ')'");
    check_error(
        "a in (",
        "unable to parse requirement: found '', expected: ',', ')' or identifier",
    );
    check_error(
        "a in (a,=)",
        "unable to parse requirement: found '=', expected: ',', or identifier",
    );
    check_error(
        "-bad=1",
        "unable to parse requirement: <nil>: Invalid value: \"-bad\": name part must consist of \
         alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric \
         character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
         '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
    );
    let long = "x".repeat(64);
    check_error(
        &format!("a={long}"),
        &format!(
            "unable to parse requirement: values[0][a]: Invalid value: \"{long}\": must be no \
             more than 63 bytes"
        ),
    );
}

#[test]
fn malformed_keys_and_values_are_rejected() {
    let long = "x".repeat(64);
    let prefix = "x".repeat(254);
    for bad in [
        "a>99999999999999999999".to_owned(),
        "a>-5".to_owned(),
        "é=1".to_owned(),
        "a=é".to_owned(),
        "a/b/c=1".to_owned(),
        "/a=1".to_owned(),
        "a/=1".to_owned(),
        "A.b/c=1".to_owned(),
        "a..b/c=1".to_owned(),
        format!("{long}=1"),
        format!("{prefix}/a=1"),
        "a=b\0".to_owned(),
    ] {
        assert_eq!(LabelSelector::parse(&bad).unwrap_err().code, 400, "{bad}");
    }
}

#[test]
fn equal_selections_are_equal_selectors() {
    for (one, other) in [
        ("a=b", " a == b "),
        ("a=b", "a in (b)"),
        ("a!=b", "a notin (b,b)"),
        ("a in (c,b)", "a in (b,c)"),
        ("a,b", "b,a,a"),
        ("a>05", "a>5"),
    ] {
        assert_eq!(LabelSelector::parse(one).unwrap(), LabelSelector::parse(other).unwrap());
    }
    assert_ne!(LabelSelector::parse("a").unwrap(), LabelSelector::parse("!a").unwrap());
}

#[test]
fn equalities_are_available_to_indexes() {
    let selector = LabelSelector::parse("a=b,c in (e,d),f,!g,h!=i").unwrap();
    let found: Vec<(&str, Vec<&str>)> = selector
        .equalities()
        .map(|(key, values)| (key, values.iter().map(|value| &**value).collect()))
        .collect();
    assert_eq!(found, [("a", vec!["b"]), ("c", vec!["d", "e"])]);
}

#[test]
fn large_selectors_are_parsed_and_huge_ones_rejected() {
    let values: Vec<String> = (0..9_000).map(|n| format!("v{n}")).collect();
    let selector = LabelSelector::parse(&format!("a in ({})", values.join(","))).unwrap();
    assert!(selector.matches(|_| Some("v8999")));
    assert!(!selector.matches(|_| Some("v9000")));
    let terms: Vec<String> = (0..5_000).map(|n| format!("k{n}")).collect();
    LabelSelector::parse(&terms.join(",")).unwrap();
    assert_eq!(LabelSelector::parse(&"a".repeat(65 * 1024)).unwrap_err().code, 414);
    let terms = vec!["a"; 10_001].join(",");
    assert_eq!(LabelSelector::parse(&terms).unwrap_err().code, 400);
    let values: Vec<String> = (0..8_000).map(|n| format!("-{n}")).collect();
    let bad = format!("a in ({})", values.join(","));
    assert!(LabelSelector::parse(&bad).unwrap_err().message.len() < 20_000);
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![Just("in".to_owned()), Just("notin".to_owned()), "[a-c]", "x\\.io/[a-b]"]
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), Just("in".to_owned()), "[a-c]", "[0-9]"]
}

/// A requirement as text, and its meaning by a direct reading of the grammar.
type Meaning = Box<dyn Fn(Option<&str>) -> bool>;

fn requirement() -> impl Strategy<Value = (String, String, u8, Vec<String>)> {
    (key(), 0u8..8, prop::collection::vec(value(), 1..4), 0i64..10).prop_map(
        |(key, form, values, number)| {
            let first = values[0].clone();
            let set = values.join(" , ");
            let text = match form {
                0 => key.clone(),
                1 => format!("!{key}"),
                2 => format!("{key}={first}"),
                3 => format!("{key} != {first}"),
                4 => format!("{key} in ({set})"),
                5 => format!("{key} notin ({set})"),
                6 => format!("{key}>{number}"),
                _ => format!("{key}<{number}"),
            };
            let values = if form >= 6 { vec![number.to_string()] } else { values };
            (text, key, form, values)
        },
    )
}

fn meaning(form: u8, values: Vec<String>) -> Meaning {
    Box::new(move |label| {
        let set = |label: &str| values.iter().any(|value| value == label);
        let compare = |label: &str| {
            label.parse::<i64>().ok().map(|label| label.cmp(&values[0].parse::<i64>().unwrap()))
        };
        match form {
            0 => label.is_some(),
            1 => label.is_none(),
            2 => label == Some(&values[0]),
            3 => label != Some(&values[0]),
            4 => label.is_some_and(set),
            5 => !label.is_some_and(set),
            6 => label.and_then(compare) == Some(std::cmp::Ordering::Greater),
            _ => label.and_then(compare) == Some(std::cmp::Ordering::Less),
        }
    })
}

proptest! {
    #[test]
    fn parsing_undoes_printing_and_matching_agrees_with_a_direct_reading(
        requirements in prop::collection::vec(requirement(), 0..5),
        labels in prop::collection::btree_map(key(), value(), 0..4),
    ) {
        let texts: Vec<String> = requirements.iter().map(|(text, ..)| text.clone()).collect();
        let selector = LabelSelector::parse(&texts.join(" , ")).unwrap();
        prop_assert_eq!(&LabelSelector::parse(&selector.to_string()).unwrap(), &selector);
        let expected = requirements.iter().all(|(_, key, form, values)| {
            meaning(*form, values.clone())(labels.get(key).map(String::as_str))
        });
        let found = selector.matches(|key| labels.get(key).map(String::as_str));
        prop_assert_eq!(found, expected, "{}", selector);
    }

    #[test]
    fn any_text_is_parsed_or_rejected(text in "[a-b!=<>(), \\-inot]{0,40}|\\PC{0,20}") {
        if let Ok(selector) = LabelSelector::parse(&text) {
            prop_assert_eq!(&LabelSelector::parse(&selector.to_string()).unwrap(), &selector);
        }
    }
}
