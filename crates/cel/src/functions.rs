//! The function table: one row per function, with its signatures, its cost and its evaluation.
//!
//! The functions are those of Kubernetes 1.36. To add one, add a row to the file of its subject. The
//! type check, the cost estimate and the evaluation read nothing else.
//!
//! Promise: work proportional to a size is charged to the budget before it is done.

mod unpack;

/// Declares the rows of a subject: signatures, cost rule, evaluation with the unpacked arguments.
macro_rules! rows {
    ($(
        $($signature:literal)+, $rule:expr,
        |$machine:tt $(, $arg:ident: $kind:ident)*| $value:expr;
    )*) => {
        pub(super) const ROWS: &[$crate::overload::FunctionRow] = &[$($crate::overload::FunctionRow {
            signatures: &[$($signature),+],
            rule: $rule,
            run: $crate::overload::Run::Strict(|$machine, args| {
                let rest = &mut args.iter();
                $(let $arg = super::unpack::$kind(rest.next())?;)*
                let _ = rest;
                Ok($crate::value::Value::from($value))
            }),
        }),*];
    };
}

mod text;
mod list;
mod convert;
mod time;
mod optional;
mod quantity;
mod url;
mod net;
mod semver;
mod named_format;
pub(super) mod authorizer;
mod print;

use std::collections::HashMap;
use std::sync::LazyLock;

use super::overload::{FunctionRow, Overload};

fn rows() -> impl Iterator<Item = &'static FunctionRow> {
    [
        text::ROWS,
        list::ROWS,
        convert::ROWS,
        time::ROWS,
        optional::ROWS,
        optional::LAZY,
        quantity::ROWS,
        url::ROWS,
        net::ROWS,
        semver::ROWS,
        named_format::ROWS,
        authorizer::ROWS,
    ]
    .into_iter()
    .flatten()
}

static TABLE: LazyLock<HashMap<&'static str, Vec<Overload>>> = LazyLock::new(|| {
    let mut table = HashMap::<_, Vec<_>>::new();
    for row in rows() {
        for signature in row.signatures {
            let read = Overload::read(signature, row);
            let (name, overload) = read.expect("the signatures of functions are well-formed");
            table.entry(name).or_default().push(overload);
        }
    }
    table
});

/// The overloads of a function; none if it does not exist.
pub(super) fn named(name: &str) -> &'static [Overload] {
    TABLE.get(name).map_or(&[], Vec::as_slice)
}

/// The signatures of all functions, such as `string.contains(string) -> bool`.
pub fn signatures() -> impl Iterator<Item = String> {
    let shown = rows().flat_map(|row| row.signatures).filter(|text| !text.starts_with('~'));
    shown.flat_map(|text| {
        // An optional argument is the last one.
        let short = text.split_once('?').map(|(before, after)| {
            let start = before.rfind([',', '(']).unwrap_or(0);
            format!("{}{after}", before[..=start].trim_end_matches(','))
        });
        short.into_iter().chain([text.replace('?', "")])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overload::resolve;
    use crate::types::Ty;

    #[test]
    fn every_signature_is_that_of_a_function() {
        assert!(signatures().count() > 180);
        assert!(!named("optional.of").is_empty() && named("string.size").is_empty());
        let all: Vec<String> = signatures().collect();
        for text in ["string.split(string) -> list(string)", "list(string).join() -> string"] {
            assert!(all.iter().any(|known| known == text), "{text}");
        }
    }

    #[test]
    fn the_arguments_determine_the_result_type() {
        let text = Ty::list(Ty::Basic("string"));
        #[rustfmt::skip]
        let rows: [(&str, bool, Vec<Ty<'_>>, Option<&str>); 9] = [
            ("size", true, vec![text.clone()], Some("int")),
            ("first", true, vec![text.clone()], Some("optional_type(string)")),
            ("max", true, vec![text.clone()], Some("string")),
            ("sum", true, vec![text.clone()], None),
            ("indexOf", true, vec![text.clone(), Ty::Basic("int")], None),
            ("indexOf", true, vec![Ty::Dyn, Ty::Dyn], Some("int")),
            ("ip", true, vec![Ty::Basic("net.CIDR")], Some("net.IP")),
            ("max", true, vec![Ty::list(Ty::Dyn)], Some("dyn")),
            ("reverse", true, vec![Ty::Basic("string")], None),
        ];
        for (name, is_method, arguments, expected) in rows {
            let found = resolve(named(name), is_method, &arguments).map(|(_, ty)| ty.show());
            assert_eq!(found.as_deref(), expected, "{name}");
        }
    }
}
