//! Applying any object, and applying it again.

use headwater_api::json::Value;
use headwater_api::managed::{self, Builtin, Write};
use headwater_api::{Kind, decode, defaults};
use jiff::Timestamp;
use proptest::prelude::*;

use crate::any::{self, Dice};
use crate::formats::kinds;

/// What would be stored after an apply at some second.
fn applied(
    kind: &Kind,
    live: Option<&Value>,
    config: &Value,
    second: i64,
) -> Result<Value, String> {
    let write = Write {
        manager: "m",
        subresource: "",
        api_version: &kind.api_version(),
        now: Timestamp::from_second(second).unwrap(),
        ignored: &["status"],
    };
    let structure = Builtin::of(kind).unwrap();
    let object = managed::apply(live, config, &write, false, kind, structure);
    let object = object.map_err(|error| error.to_string())?;
    let mut object = decode::refit(kind, object).map_err(|error| error.to_string())?.value;
    defaults::apply(kind, &mut object);
    if let Some(live) = live {
        managed::keep_times(live, &mut object);
    }
    Ok(object)
}

proptest! {
    #[test]
    fn what_is_applied_again_changes_nothing(seed: u64) {
        let kinds = kinds();
        let (kind, of) = kinds[seed as usize % kinds.len()];
        let mut config = any::object(&mut Dice::new(seed), of);
        config["apiVersion"] = kind.api_version().into();
        config["kind"] = kind.kind.to_string().into();
        // The server keeps it apart.
        config.as_object_mut().unwrap().remove("status");
        // Any object may have two elements with one key, which an apply refuses.
        if let Ok(stored) = applied(kind, None, &config, 1) {
            let again = applied(kind, Some(&stored), &config, 2);
            prop_assert_eq!(again.as_ref(), Ok(&stored), "{}", config);
        }
    }
}
