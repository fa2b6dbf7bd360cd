//! Applies: applying a configuration again changes nothing.

use headwater_api::Kind;
use headwater_json::{Value, json};
use headwater_schema::managed::{self, Write};
use headwater_schema::structural::{Schema, SchemaLocation, check};
use jiff::Timestamp;

use super::schema::schema;
use super::{anything, each};

#[test]
fn custom_objects_are_applied_and_applied_again() {
    let kind = Kind {
        group: "example.com".into(),
        version: "v1".into(),
        kind: "Any".into(),
        plural: "anys".into(),
        custom: true,
        ..Kind::default()
    };
    each(9_000, |dice, size| {
        let schema = schema(dice, size);
        let place = SchemaLocation { path: "schema", has_status: false };
        if !check(&schema, place).is_empty() {
            return;
        }
        let compiled = Schema::compile(&schema).unwrap();
        let apply = |live: Option<&Value>, config: &Value, second: i64| {
            let write = Write {
                manager: "m",
                subresource: "",
                api_version: "example.com/v1",
                now: Timestamp::from_second(second).unwrap(),
                ignored: &[],
            };
            managed::apply(live, config, &write, false, &kind, compiled.structure())
        };
        let mut config = anything(dice, 0);
        if !config.is_object() {
            return;
        }
        config["apiVersion"] = "example.com/v1".into();
        config["kind"] = "Any".into();
        config["metadata"] = json!({"name": "x"});
        let Ok(stored) = apply(None, &config, 1) else { return };
        let Ok(mut again) = apply(Some(&stored), &config, 2) else {
            panic!("refused the second time: {config}")
        };
        managed::keep_times(&stored, &mut again);
        assert_eq!(again, stored, "{config} under {schema}");
    });
}
