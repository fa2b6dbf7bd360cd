//! A check on stored text: whether a configuration is already contained in it.
//!
//! Most applies change little; unchanged members need not be parsed to find that out.

use headwater_json::scan::{Malformed, Scanner};
use headwater_json::{Value, printed_at};

use super::structure::{Form, Structure};

/// Whether merging a configuration, which fits its type, leaves the stored value unchanged. It may
/// return a false negative.
pub(super) fn is_within<S: Structure>(wanted: &Value, stored: &str, structure: S) -> bool {
    within(&mut Scanner::new(stored.as_bytes()), wanted, structure).is_ok()
}

/// The stored value lacks something.
struct Differs;

impl From<Malformed> for Differs {
    fn from(_: Malformed) -> Differs {
        Differs
    }
}

/// Skips the value that starts here, if it contains the wanted one.
fn within<S: Structure>(at: &mut Scanner<'_>, wanted: &Value, structure: S) -> Result<(), Differs> {
    match (structure.form(), wanted) {
        (Form::Map | Form::Deduced, Value::Object(wanted)) => {
            let mut wanted = wanted.iter().peekable();
            at.members(|at| {
                let Some((key, value)) = wanted.next_if(|(key, _)| at.skip_key(key)) else {
                    at.string()?;
                    at.expect(b':')?;
                    return Ok(at.value().map(drop)?);
                };
                match structure.field(key).or_else(|| structure.element()) {
                    Some(inner) => within(at, value, inner),
                    None => same(at, value),
                }
            })?;
            all_found(wanted)
        }
        (Form::KeyedList, Value::Array(wanted)) => {
            let inner = structure.element().ok_or(Differs)?;
            let (keys, mut wanted) = (structure.keys(), wanted.iter());
            at.array(|at| {
                let element = wanted.next().ok_or(Differs)?;
                for key in keys.iter().filter(|key| element.get(key.as_str()).is_none()) {
                    unless_default(*at, key, inner.key_default(key).as_ref())?;
                }
                within(at, element, inner)
            })?;
            all_found(wanted)
        }
        _ => same(at, wanted),
    }
}

fn all_found(mut wanted: impl Iterator) -> Result<(), Differs> {
    wanted.next().map_or(Ok(()), |_| Err(Differs))
}

/// Skips the value that starts here, if it equals this one.
fn same(at: &mut Scanner<'_>, wanted: &Value) -> Result<(), Differs> {
    at.skip(printed_at(at.rest(), wanted).ok_or(Differs)?);
    Ok(())
}

/// Checks that a key absent from the wanted element has its default in the stored one: otherwise it is
/// another element.
fn unless_default(mut at: Scanner<'_>, key: &str, default: Option<&Value>) -> Result<(), Differs> {
    at.object(|name, at| match at.is(name, key) {
        true => same(at, default.ok_or(Differs)?),
        false => Ok(at.value().map(drop)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::managed::Builtin;
    use headwater_api::kind::builtin;
    use headwater_json::json;

    const STORED: &str = r#"{"containers":[{"image":"a\u003cb","name":"app","ports":[{"containerPort":1,"protocol":"TCP"},{"containerPort":2,"protocol":"UDP"}]},{"name":"proxy"}],"overhead":{"a":"b","c":"d"},"priority":7,"tolerations":[{"key":"x"}]}"#;

    #[track_caller]
    fn check(wanted: &Value, expected: bool) {
        let pods = builtin().into_iter().find(|kind| kind.kind == "Pod").unwrap();
        let spec = Builtin::of(&pods).unwrap().field("spec").unwrap();
        assert_eq!(is_within(wanted, STORED, spec), expected, "{wanted}");
    }

    #[test]
    fn a_part_of_the_stored_value_is_contained() {
        check(&json!({}), true);
        check(&json!({"priority": 7}), true);
        check(&json!({"overhead": {"c": "d"}, "priority": 7}), true);
        check(&json!({"containers": [{"name": "app", "image": "a<b"}, {"name": "proxy"}]}), true);
        check(&json!({"tolerations": [{"key": "x"}]}), true);
    }

    #[test]
    fn new_or_different_values_are_not_contained() {
        check(&json!({"priority": 8}), false);
        check(&json!({"priority": null}), false);
        check(&json!({"hostname": "h"}), false);
        check(&json!({"zone": "z", "priority": 7}), false);
        check(&json!({"overhead": {"c": "e"}}), false);
        check(&json!({"overhead": {"c": "d", "e": "f"}}), false);
        check(&json!({"tolerations": [{}]}), false);
        check(&json!({"tolerations": [{"key": "x"}, {"key": "y"}]}), false);
        check(&json!({"containers": [{"name": "app"}, {"name": "proxy", "image": "i"}]}), false);
    }

    #[test]
    fn lists_are_the_same_elements_in_the_same_order() {
        check(&json!({"containers": [{"name": "app"}, {"name": "proxy"}]}), true);
        check(&json!({"containers": [{"name": "proxy"}, {"name": "app"}]}), false);
        check(&json!({"containers": [{"name": "app"}]}), false);
        check(&json!({"containers": [{"name": "app"}, {"name": "proxy"}, {"name": "c"}]}), false);
    }

    #[test]
    fn an_absent_key_has_its_default() {
        let with = |ports: Value| json!({"containers": [{"name": "app", "ports": ports}, {"name": "proxy"}]});
        check(&with(json!([{"containerPort": 1}, {"containerPort": 2, "protocol": "UDP"}])), true);
        check(&with(json!([{"containerPort": 1}, {"containerPort": 2}])), false);
    }
}
