//! The language, as tables.

use headwater_json::json;

use super::*;

#[track_caller]
fn run(text: &str) -> Result<String, String> {
    let object = json!({
        "name": "web", "count": 3, "ratio": 1.5, "tags": ["a", "b", "c"], "on": true,
        "labels": {"app": "web", "tier": "front"}, "empty": [], "nothing": null,
        "ports": [{"name": "http", "port": 80}, {"name": "dns", "port": 53}],
        "namespace": "ns", "a-b": 1,
    });
    let shape = DeclType::Dyn;
    let known = Environment::default().with("self", &shape);
    let program = Program::compile(text, &known).map_err(|error| error.to_string())?;
    let variables = Variables::default().with("self", Value::json(&object));
    let value = program.run(&variables, &mut Budget::new(EXPRESSION_COST_MAX));
    let value = value.map_err(|error| error.to_string())?;
    Ok(match value.to_json() {
        Some(json) => json.to_string(),
        None => format!("{value:?}"),
    })
}

#[track_caller]
fn is(text: &str, expected: &str) {
    assert_eq!(run(text).as_deref(), Ok(expected), "{text}");
}

#[track_caller]
fn fails(text: &str, expected: &str) {
    let error = run(text).expect_err(text);
    assert!(error.contains(expected), "{text}: {error}");
}

#[test]
fn operators_have_their_precedence() {
    is("1 + 2 * 3", "7");
    is("(1 + 2) * 3", "9");
    is("-3 + 5", "2");
    is("-9223372036854775808", "-9223372036854775808");
    is("7 / 2", "3");
    is("-7 % 3", "-1");
    is("1.5 + 2.0", "3.5");
    is("2u + 3u", "5");
    is("0x1F", "31");
    is("1 < 2 && 2 < 3 || false", "true");
    is("!(1 == 2)", "true");
    is("true ? 'a' : 'b'", "\"a\"");
    is("false ? 1 : true ? 2 : 3", "2");
    is("'a' + \"b\"", "\"ab\"");
    is("[1] + [2, 3]", "[1,2,3]");
    is("1 in [1, 2]", "true");
    is("'app' in self.labels", "true");
    is("dyn(1) == 1.0", "true");
    fails("1 == 1.0", "found no matching overload");
    is("self.count >= 3 // a comment", "true");
}

#[test]
fn string_literals_have_many_forms() {
    is(r"'a\'b'", "\"a'b\"");
    is(r#"r'a\b'"#, "\"a\\\\b\"");
    is(r"'\x41\u00e9\101'", "\"AéA\"");
    is("'''a\nb'''", "\"a\\nb\"");
    is(r"b'\xff' == b'\xff'", "true");
    is(r"size(b'ab')", "2");
    fails(r"'\q'", "invalid escape");
    fails("'abc", "unterminated");
}

#[test]
fn missing_fields_and_elements_are_errors() {
    is("self.name", "\"web\"");
    is("self['name']", "\"web\"");
    is("self.ports[1].port", "53");
    is("has(self.name) && !has(self.other)", "true");
    is("self.labels.app", "\"web\"");
    is("self.__namespace__", "\"ns\"");
    is("self.a__dash__b", "1");
    is("self.`a-b`", "1");
    fails("self.other", "no such key: other");
    fails("self.tags[7]", "index out of bounds: 7");
    fails("self.name.x", "no such overload");
    fails("1 / 0", "division by zero");
    fails("1 % 0", "modulus by zero");
    fails("9223372036854775807 + 1", "integer overflow");
    fails("unknown", "undeclared reference to 'unknown' (in container '')");
    fails("self.name.nothing()", "undeclared reference to 'nothing'");
}

#[test]
fn a_deciding_term_hides_errors_of_others() {
    is("true || self.other", "true");
    is("self.other || true", "true");
    is("self.other && false", "false");
    fails("self.other && true", "no such key");
    is("self.tags.exists(t, t == 'b' || self.other)", "true");
}

#[test]
fn macros_walk_lists_and_maps() {
    is("self.tags.all(t, t.size() == 1)", "true");
    is("self.tags.exists(t, t == 'c')", "true");
    is("self.ports.exists_one(p, p.port == 80)", "true");
    is("self.tags.map(t, t + '!')", r#"["a!","b!","c!"]"#);
    is("self.ports.map(p, p.port > 60, p.name)", r#"["http"]"#);
    is("self.tags.filter(t, t > 'a')", r#"["b","c"]"#);
    is("self.labels.all(k, self.labels[k] != '')", "true");
    is("self.labels.all(k, v, v != '')", "true");
    is("self.tags.all(i, t, i < 3 && t != '')", "true");
    is("self.tags.transformList(i, t, string(i) + t)", r#"["0a","1b","2c"]"#);
    is("self.labels.transformMap(k, v, v + '!')", r#"{"app":"web!","tier":"front!"}"#);
    fails("cel.bind(n, self.count + 1, n * n)", "undeclared reference to 'cel'");
    is("self.ports.sortBy(p, p.port)[0].name", "\"dns\"");
    is("self.tags.transformMapEntry(i, t, {t: i})", r#"{"a":0,"b":1,"c":2}"#);
    is("[self.labels].transformMapEntry(i, m, m)", r#"{"app":"web","tier":"front"}"#);
    fails("[1, 2].transformMapEntry(i, x, {'k': x})", "insert failed: key k already exists");
    is("self.labels.existsOne(k, v, v == 'web') && !self.tags.exists(i, t, i == 5)", "true");
    is("self.tags.transformList(i, t, i > 0, t)", r#"["b","c"]"#);
    is("self.labels.transformMap(k, v, k == 'app', v)", r#"{"app":"web"}"#);
    fails("self.tags.all(x, x, true)", "duplicate variable name: x");
    is("self.empty.all(x, false)", "true");
    is("[[1, 2], [3]].map(l, l.map(x, x * 2))", "[[2,4],[6]]");
}

#[test]
fn optional_fields_yield_optionals() {
    is("self.?other.orValue('x')", "\"x\"");
    is("self.?name.orValue('x')", "\"web\"");
    is("self.?other.?deep.hasValue()", "false");
    is("self.?labels.app.value()", "\"web\"");
    is("self.labels[?'app'].or(optional.of('y')).value()", "\"web\"");
    is("optional.none().or(optional.of(1)).value()", "1");
    is("optional.of(2).optMap(x, x + 1).value()", "3");
    is("[1, ?self.?other, 2]", "[1,2]");
    is("{'a': 1, ?'b': self.?other}", r#"{"a":1}"#);
    is("optional.ofNonZeroValue(0).hasValue()", "false");
    fails("optional.none().value()", "dereference");
}

#[test]
fn standard_functions_return_their_values() {
    is("'hello'.substring(1, 3)", "\"el\"");
    is("'hello'.charAt(1)", "\"e\"");
    is("'a,b,c'.split(',')", r#"["a","b","c"]"#);
    is("'a,b,c'.split(',', 2)", r#"["a","b,c"]"#);
    is("['a', 'b'].join('-')", "\"a-b\"");
    is("'hello'.replace('l', 'L', 1)", "\"heLlo\"");
    is("'héllo'.indexOf('l')", "2");
    is("'hello'.lastIndexOf('l')", "3");
    is("'AbC'.lowerAscii() + 'x'.upperAscii()", "\"abcX\"");
    is("'  x '.trim()", "\"x\"");
    is("'abc'.matches('^[a-c]+$')", "true");
    is("'abc123'.find('[0-9]+')", "\"123\"");
    is("'a1b22'.findAll('[0-9]+')", r#"["1","22"]"#);
    is("'%s has %d of %.2f'.format(['x', 3, 1.5])", "\"x has 3 of 1.50\"");
    is("int('7') + int(2.9)", "9");
    is("string(1.0) + string(true)", "\"1true\"");
    is("type(1) == int && type('') == string", "true");
    is("[3, 1, 2].isSorted()", "false");
    is("[3, 1, 2].sum() + [3, 1].min() + [3, 1].max()", "10");
    is("[1, 2, 1].distinct()", "[1,2]");
    is("[[1], [2, 3]].flatten()", "[1,2,3]");
    is("[[[1], [2]], [[3]]].flatten(2)", "[1,2,3]");
    is("[1, 2, 3].slice(1, 3)", "[2,3]");
    is("lists.range(3)", "[0,1,2]");
    is("sets.contains([1, 2, 3], [2])", "true");
    is("sets.equivalent([1, 2], [2, 1, 1])", "true");
    is("sets.intersects([1], [2])", "false");
    is("duration('1h').getMinutes()", "60");
    is("timestamp('2026-01-02T03:04:05Z').getFullYear()", "2026");
    is("timestamp('2026-01-02T03:04:05Z').getHours('+02:00')", "5");
    is("string(timestamp('2026-01-02T03:04:05Z') + duration('1s'))", "\"2026-01-02T03:04:06Z\"");
    is("timestamp('2026-01-02T00:00:00Z') > timestamp('2026-01-01T00:00:00Z')", "true");
}

#[test]
fn functions_of_kubernetes_return_their_values() {
    is("quantity('1Gi').isGreaterThan(quantity('1G'))", "true");
    is("quantity('500m').add(quantity('1')).compareTo(quantity('1.5'))", "0");
    is("isQuantity('1x') || quantity('2k').asInteger() == 2000", "true");
    is("url('https://h:8080/p?a=1&a=2').getPort()", "\"8080\"");
    is("url('https://h:8080/p?a=1&a=2').getQuery()['a']", r#"["1","2"]"#);
    is("isURL('/path') && !isURL('x y')", "true");
    is("ip('127.0.0.1').isLoopback() && ip('::1').family() == 6", "true");
    is("isIP('1.2.3') || isCIDR('10.0.0.0/33')", "false");
    is("cidr('10.0.0.0/8').containsIP('10.1.2.3')", "true");
    is("cidr('10.0.0.0/8').containsCIDR(cidr('10.1.0.0/16'))", "true");
    is("string(cidr('10.1.2.3/8').masked())", "\"10.0.0.0/8\"");
    is("semver('1.2.3').isLessThan(semver('1.10.0'))", "true");
    is("semver('1.0.0-rc.1').compareTo(semver('1.0.0'))", "-1");
    is("isSemver('v1.0') || isSemver('v1.0', true)", "true");
    is("!format.dns1123Label().validate('a-b').hasValue()", "true");
    is("format.dns1123Label().validate('A').hasValue()", "true");
}

#[test]
fn type_errors_are_found_at_compile_time() {
    let schema = json!({"type": "object", "properties": {
        "count": {"type": "integer"}, "name": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "when": {"type": "string", "format": "date-time"},
        "either": {"x-kubernetes-int-or-string": true},
    }});
    let shape = DeclType::of(&schema, false);
    let check = |text: &str, expected: &str| {
        let known = Environment::default().with("self", &shape);
        match Program::compile(text, &known) {
            Ok(program) => assert_eq!(program.result(), expected, "{text}"),
            Err(error) => assert_eq!(error.to_string(), expected, "{text}"),
        }
    };
    check("self.count > 1", "bool");
    check("self.either == 1 || self.either == 'x'", "bool");
    check("self.when < timestamp('2026-01-01T00:00:00Z')", "bool");
    check(
        "self.other > 1",
        "ERROR: <input>:1:5: undefined field 'other'\n | self.other > 1\n | ....^",
    );
    check(
        "self.count == 'x'",
        "ERROR: <input>:1:12: found no matching overload for '_==_' applied to '(int, string)'\n | self.count == 'x'\n | ...........^",
    );
    check(
        "self.count.startsWith('x')",
        "ERROR: <input>:1:11: found no matching overload for 'startsWith' applied to 'int.(string)'\n | self.count.startsWith('x')\n | ..........^",
    );
    check(
        "self.tags.all(t, t > 1)",
        "ERROR: <input>:1:20: found no matching overload for '_>_' applied to '(string, int)'\n | self.tags.all(t, t > 1)\n | ...................^",
    );
    check(
        "self.name.all(t, true)",
        "ERROR: <input>:1:5: expression of type 'string' cannot be range of a comprehension (must be list, map, or dynamic)\n | self.name.all(t, true)\n | ....^",
    );
}

/// B216
#[test]
fn an_evaluation_ends() {
    let nested = "[0,1,2,3,4,5,6,7,8,9]";
    let mut text = "true".to_owned();
    for name in ["a", "b", "c", "d", "e", "f", "g", "h", "i"] {
        text = format!("{nested}.all({name}, {text})");
    }
    fails(&text, "actual cost limit exceeded");
    // Repeated doubling of a string.
    let first = "['aaaaaaaaaa'].map(x0, BODY)".to_owned();
    let doubling = (1..50).fold(first, |text, level| {
        let inner = format!("[x{0} + x{0}].map(x{level}, BODY)", level - 1);
        text.replace("BODY", &inner)
    });
    fails(&doubling.replace("BODY", "x49.size() > 0"), "actual cost limit exceeded");
    fails("lists.range(100000000).size() > 0", "actual cost limit exceeded");
    fails(&format!("{}1{}", "(".repeat(500), ")".repeat(500)), "recursion limit");
    fails(&format!("1{}", " + 1".repeat(500)), "recursion limit");
    // Deeper than the stack allows: rejected before a tree exists that would be walked or dropped.
    fails(&format!("self{}", ".a".repeat(40_000)), "recursion limit");
    fails(&format!("1{}", "+1".repeat(40_000)), "recursion limit");
    let steps = (0..100).fold("self".to_owned(), |text, _| format!("({text}{})", ".a".repeat(100)));
    fails(&steps, "recursion limit");
    is(&format!("true{}", " && true".repeat(5000)), "true");
    fails(&"a".repeat(200_000), "exceeds limit");
    // The maximum depth, on the stack of a test, which has the size of a worker's.
    is(&format!("{}true", "!".repeat(110)), "true");
    let deep = (0..50).fold("true".to_owned(), |text, _| format!("[1].all(x, {text})"));
    is(&deep, "true");
}

#[test]
fn the_patterns_of_several_expressions_share_a_budget() {
    let known = Environment::default();
    let mut budget = pattern::Budget::of_expression();
    let compile = |number: usize| {
        // Each needs almost one of four megabytes.
        let text = format!("'x'.matches('^[^{number}]{{900}}$')");
        Program::compile_within(&text, &known, &mut budget).map_err(|error| error.to_string())
    };
    let failed: Vec<String> = (0..6).map(compile).filter_map(Result::err).collect();
    assert!(!failed.is_empty() && failed.len() < 6, "{failed:?}");
    assert!(failed[0].contains("too large together"), "{failed:?}");
}

#[test]
fn numbers_of_different_types_compare_but_do_not_mix() {
    is("1 < 1.5 && 2u > 1 && 1.0 <= 1u", "true");
    is("dyn(9007199254740993) > 9007199254740992", "true");
    is("dyn(18446744073709551615u) > 9223372036854775807", "true");
    is("dyn(1) == 1u && dyn(1u) == 1.0 && 1 in [1, 2] && dyn(1.0) in [1]", "true");
    is("dyn('1') == 1 || dyn(null) == 0 || dyn(true) == 1", "false");
    fails("1 + 1.0", "found no matching overload for '_+_' applied to '(int, double)'");
    fails("1 == 1u", "found no matching overload for '_==_' applied to '(int, uint)'");
    fails("dyn(1) + 1.0", "no such overload");
    fails("'a' == null", "found no matching overload for '_==_' applied to '(string, null)'");
    fails("[1, 'a'].size() == 2", "expected type 'int' but found 'string'");
    fails("{'a': 1, 2: 3}.size() == 2", "expected type 'string' but found 'int'");
    fails("1 && true", "expected type 'bool' but found 'int'");
}

#[test]
fn overflow_is_an_error() {
    fails("9223372036854775807 + 1", "integer overflow");
    fails("-9223372036854775807 - 2", "integer overflow");
    fails("9223372036854775807 * 2", "integer overflow");
    fails("-(-9223372036854775807 - 1)", "integer overflow");
    fails("(-9223372036854775807 - 1) / -1", "integer overflow");
    fails("0u - 1u", "unsigned integer overflow");
    fails("18446744073709551615u + 1u", "unsigned integer overflow");
    fails("int(1e19)", "integer overflow");
    fails("uint(-1)", "unsigned integer overflow");
    fails("int('x')", "type conversion error from 'string' to 'int'");
    fails("bool('yes')", "type conversion error from 'string' to 'bool'");
    fails("timestamp('9999-12-30T00:00:00Z') + duration('48h')", "timestamp overflow");
    fails("duration(9223372036854775807) + duration('1s')", "duration overflow");
    fails("timestamp('9999-12-30T00:00:00Z') - timestamp('0001-01-01T00:00:00Z')", "duration");
    fails("timestamp('x')", "invalid timestamp argument");
    fails("duration('1')", "invalid duration argument");
    is("int(duration('1s')) == 1000000000 && duration(1000000000) == duration('1s')", "true");
    is("1.0 / 0.0 > 1.0 && bool('T') && !bool('F')", "true");
}

#[test]
fn times_have_parts_in_every_zone() {
    let at = "timestamp('2024-02-29T23:30:05.25Z')";
    for (call, expected) in [
        ("getFullYear()", "2024"),
        ("getMonth()", "1"),
        ("getDate()", "29"),
        ("getDayOfMonth()", "28"),
        ("getDayOfWeek()", "4"),
        ("getDayOfYear()", "59"),
        ("getHours()", "23"),
        ("getMinutes()", "30"),
        ("getSeconds()", "5"),
        ("getMilliseconds()", "250"),
        ("getHours('+02:30')", "2"),
        ("getDate('+02:30')", "1"),
        ("getMonth('+02:30')", "2"),
        ("getMinutes('-00:45')", "45"),
        ("getHours('UTC')", "23"),
    ] {
        is(&format!("{at}.{call}"), expected);
    }
    fails(&format!("{at}.getHours('Nowhere/Land')"), "unknown time zone Nowhere/Land");
    is("duration('90m').getHours() + duration('90m').getMinutes()", "91");
    is("string(duration('1h30m1.5s'))", "\"5401.5s\"");
}

#[test]
fn values_are_printed_as_kubernetes_prints_them() {
    is("'%s|%s|%s'.format(['a', [1, 2], {'k': 'v'}])", r#""a|[1, 2]|{\"k\":\"v\"}""#);
    is(
        "'%s'.format([['a', 1.5, b'x', duration('1s')]])",
        r#""[\"a\", 1.500000, b\"x\", duration(\"1s\")]""#,
    );
    is("'%d %x %X %o %b %b'.format([10, 255, 'hi', 8, 5, true])", "\"10 ff 6869 10 101 1\"");
    is("'%.2f %f %e'.format([1234.5, 1.0, 3.14])", "\"1,234.50 1.000000 3.140000×10⁰⁰\"");
    is("'%x'.format([-255])", "\"-ff\"");
    is("strings.quote('a\"b')", r#""\"a\\\"b\"""#);
    fails("'%d'.format(['a'])", "decimal clause can only be used on integers, was given string");
    fails("'%s'.format([])", "index 0 out of range");
    fails("'%y'.format([1])", "unrecognized formatting clause");
}

#[test]
fn only_functions_of_kubernetes_exist() {
    for text in
        ["math.abs(-1)", "base64.encode(b'x')", "cel.bind(x, 1, x)", "uuid()", "'a'.title()"]
    {
        fails(text, "undeclared reference to");
    }
    fails("'abc'.reverse()", "found no matching overload for 'reverse' applied to 'string.()'");
    fails("jsonpatch.escapeKey('a/b')", "undeclared reference to 'jsonpatch.escapeKey'");
    is(
        "optional.unwrap([optional.of(1), optional.none()]) + [optional.of(2)].unwrapOpt()",
        "[1,2]",
    );
    is("[1, 2].first().value() + [1, 2].last().value()", "3");
    is("type(ip('::1')) == net.IP && type(duration('1s')) == google.protobuf.Duration", "true");
}

#[derive(Debug)]
struct Everyone;

impl Authority for Everyone {
    fn decide(&self, account: Option<(&str, &str)>, access: &Access) -> Decision {
        let allowed = account.is_none();
        let error = allowed.then(String::new).xor(Some("nobody knows".to_owned()));
        Decision { allowed, reason: format!("{access:?}"), error }
    }
}

#[test]
fn an_expression_can_check_authorization() {
    let request = AccessedResource {
        group: "apps".into(),
        resource: "deployments".into(),
        ..AccessedResource::default()
    };
    let ask = |text: &str| {
        let shape = DeclType::Environment("kubernetes.authorization.Authorizer");
        let known = Environment::default().with("authorizer", &shape);
        let program = Program::compile(text, &known).map_err(|error| error.to_string())?;
        let authorizer = Value::authorizer(Arc::new(Everyone), request.clone());
        let variables = Variables::default().with("authorizer", authorizer);
        let found = program.run(&variables, &mut Budget::new(EXPRESSION_COST_MAX));
        let found = found.map_err(|error| error.to_string())?;
        Ok::<String, String>(found.to_json().map(|json| json.to_string()).unwrap_or_default())
    };
    let is = |text: &str, expected: &str| assert_eq!(ask(text).as_deref(), Ok(expected), "{text}");
    is("authorizer.path('/healthz').check('get').allowed()", "true");
    is("authorizer.path('/healthz').check('get').reason().contains('\"/healthz\"')", "true");
    is("authorizer.requestResource.check('create').reason().contains('\"deployments\"')", "true");
    is(
        "authorizer.group('g').resource('r').subresource('s').namespace('n').name('o').fieldSelector('f').labelSelector('l').check('v').reason()",
        "\"Resource { resource: AccessedResource { group: \\\"g\\\", resource: \\\"r\\\", subresource: \\\"s\\\", namespace: \\\"n\\\", name: \\\"o\\\", field_selector: \\\"f\\\", label_selector: \\\"l\\\" }, verb: \\\"v\\\" }\"",
    );
    let other = "authorizer.serviceAccount('ns', 'web').group('').resource('pods').check('get')";
    is(&format!("{other}.allowed() || !{other}.errored()"), "false");
    is(&format!("{other}.error()"), "\"nobody knows\"");
    let fails = |text: &str, expected: &str| {
        let why = ask(text).unwrap_err();
        assert!(why.contains(expected), "{text}: {why}");
    };
    fails("authorizer.path(' ').check('get').allowed()", "path must not be empty");
    fails("authorizer.group('').resource('').check('get').allowed()", "resource must not be empty");
    fails(
        "authorizer.serviceAccount('a', 'B_').path('/').check('get').allowed()",
        "Invalid service account name",
    );
    // An expression may make two checks; a third exceeds the budget.
    let one = "authorizer.path('/a').check('get').allowed()";
    is(&format!("{one} && {one}"), "true");
    fails(&format!("{one} && {one} && {one}"), "actual cost limit exceeded");
}
