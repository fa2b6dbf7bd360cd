//! The function table and overload resolution.
//!
//! The table is `functions.txt`. A call with arguments of unknown type may match several overloads; the
//! evaluation then selects one.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::types::{DURATION, ORDERED, SUMMABLE, TIMESTAMP, Ty};

/// An overload of a function.
struct Overload {
    is_method: bool,
    arguments: Vec<Pattern>,
    answer: Pattern,
}

/// A type with type parameters.
enum Pattern {
    Dyn,
    Basic(&'static str),
    List(Box<Pattern>),
    Map(Box<[Pattern; 2]>),
    Optional(Box<Pattern>),
    /// A type parameter.
    Any(char),
}

type Table = HashMap<&'static str, Vec<Overload>>;

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let mut table = Table::new();
    for line in include_str!("functions.txt").lines() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, overload) = read(line).expect("the table of functions is well-formed");
        table.entry(name).or_default().push(overload);
    }
    table
});

/// The namespaces of functions, which are not receivers.
const NAMESPACES: [&str; 7] = ["optional", "lists", "sets", "strings", "ip", "format", "jsonpatch"];

/// Whether a dotted name is a function.
pub(super) fn is_qualified(name: &str) -> bool {
    name.contains('.') && TABLE.contains_key(name)
}

/// The type that a name denotes.
pub(super) fn type_named(name: &str) -> Option<&'static str> {
    #[rustfmt::skip]
    const TYPES: [&str; 24] = [
        "int", "uint", "double", "bool", "string", "bytes", "list", "map", "null_type", "type",
        "optional_type", TIMESTAMP, DURATION, "net.IP", "net.CIDR", "kubernetes.Quantity",
        "kubernetes.URL", "kubernetes.Semver", "kubernetes.NamedFormat",
        "kubernetes.authorization.Authorizer", "kubernetes.authorization.PathCheck",
        "kubernetes.authorization.GroupCheck", "kubernetes.authorization.ResourceCheck",
        "kubernetes.authorization.Decision",
    ];
    TYPES.into_iter().find(|known| *known == name)
}

/// Why a call cannot be resolved.
pub(super) enum Meaningless {
    NoSuchFunction,
    NoSuchOverload,
}

/// The result type of a call.
pub(super) fn answer<'s>(
    name: &str,
    is_method: bool,
    arguments: &[Ty<'s>],
) -> Result<Ty<'s>, Meaningless> {
    let overloads = TABLE.get(name).ok_or(Meaningless::NoSuchFunction)?;
    let mut found: Option<Ty<'s>> = None;
    for overload in overloads {
        if overload.is_method != is_method || overload.arguments.len() != arguments.len() {
            continue;
        }
        let mut bound = Bound::default();
        let mut pairs = overload.arguments.iter().zip(arguments);
        if !pairs.all(|(pattern, ty)| pattern.takes(ty, &mut bound)) {
            continue;
        }
        let answer = overload.answer.filled(&bound);
        found = Some(match found {
            Some(known) if known.show() != answer.show() => Ty::Dyn,
            Some(known) => known,
            None => answer,
        });
    }
    found.ok_or(Meaningless::NoSuchOverload)
}

/// The bindings of type parameters in one call.
#[derive(Default)]
struct Bound<'s>(Vec<(char, Ty<'s>)>);

impl<'s> Bound<'s> {
    fn get(&self, letter: char) -> Option<&Ty<'s>> {
        self.0.iter().find(|(known, _)| *known == letter).map(|(_, ty)| ty)
    }

    fn bind(&mut self, letter: char, ty: &Ty<'s>) -> bool {
        let is_allowed = match letter {
            'O' => ty.is_dyn() || ORDERED.contains(&ty.name()),
            'N' => ty.is_dyn() || SUMMABLE.contains(&ty.name()),
            _ => true,
        };
        match self.0.iter_mut().find(|(known, _)| *known == letter) {
            Some((_, known)) => {
                let fits = known.goes_with(ty);
                if ty.is_dyn() {
                    *known = Ty::Dyn;
                }
                fits
            }
            None => {
                self.0.push((letter, ty.clone()));
                is_allowed
            }
        }
    }
}

impl Pattern {
    fn takes<'s>(&self, ty: &Ty<'s>, bound: &mut Bound<'s>) -> bool {
        match (self, ty) {
            (Pattern::Any(letter), ty) => bound.bind(*letter, ty),
            (Pattern::Dyn, _) | (_, Ty::Dyn) => true,
            (Pattern::Basic(name), ty) => ty.name() == *name,
            (Pattern::Optional(inner), Ty::Optional(ty)) => inner.takes(ty, bound),
            (Pattern::Optional(_), _) => false,
            (Pattern::List(inner), ty) => ty.name() == "list" && inner.takes(&ty.values(), bound),
            (Pattern::Map(parts), ty) => {
                ty.name() == "map"
                    && !ty.is_object()
                    && parts[0].takes(&ty.keys(), bound)
                    && parts[1].takes(&ty.values(), bound)
            }
        }
    }

    fn filled<'s>(&self, bound: &Bound<'s>) -> Ty<'s> {
        match self {
            Pattern::Dyn => Ty::Dyn,
            Pattern::Basic(name) => Ty::Basic(name),
            Pattern::List(inner) => Ty::list(inner.filled(bound)),
            Pattern::Map(parts) => Ty::map(parts[0].filled(bound), parts[1].filled(bound)),
            Pattern::Optional(inner) => Ty::optional(inner.filled(bound)),
            Pattern::Any(letter) => bound.get(*letter).cloned().unwrap_or(Ty::Dyn),
        }
    }
}

/// `receiver.name(argument,argument) -> answer`.
fn read(line: &'static str) -> Option<(&'static str, Overload)> {
    let (call, answer) = line.split_once(" -> ")?;
    let call = call.strip_suffix(')')?;
    let open = matching(call)?;
    let (head, arguments) = (&call[..open], &call[open + 1..]);
    let (receiver, name) = match head.rsplit_once('.') {
        Some((space, _)) if NAMESPACES.contains(&space) => (None, head),
        Some((receiver, name)) => (Some(receiver), name),
        None => (None, head),
    };
    let all = receiver.into_iter().chain(split(arguments));
    let arguments = all.map(pattern).collect::<Option<Vec<_>>>()?;
    Some((name, Overload { is_method: receiver.is_some(), arguments, answer: pattern(answer)? }))
}

/// The position of the parenthesis that the last character closes.
fn matching(text: &str) -> Option<usize> {
    let mut depth = 1;
    text.char_indices().rev().find_map(|(at, c)| {
        match c {
            ')' => depth += 1,
            '(' => depth -= 1,
            _ => {}
        }
        (depth == 0).then_some(at)
    })
}

/// Splits at commas outside of parentheses.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    let parts = text.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    });
    parts.filter(|part| !part.is_empty())
}

fn pattern(text: &'static str) -> Option<Pattern> {
    let inside = |name: &str| text.strip_prefix(name)?.strip_prefix('(')?.strip_suffix(')');
    if let Some(inner) = inside("list") {
        return Some(Pattern::List(Box::new(pattern(inner)?)));
    }
    if let Some(inner) = inside("optional") {
        return Some(Pattern::Optional(Box::new(pattern(inner)?)));
    }
    if let Some(inner) = inside("map") {
        let mut parts = split(inner).map(pattern);
        return Some(Pattern::Map(Box::new([parts.next()??, parts.next()??])));
    }
    Some(match text {
        "dyn" => Pattern::Dyn,
        "T" | "K" | "V" | "O" | "N" => Pattern::Any(text.chars().next()?),
        "timestamp" => Pattern::Basic(TIMESTAMP),
        "duration" => Pattern::Basic(DURATION),
        "IP" => Pattern::Basic("net.IP"),
        "CIDR" => Pattern::Basic("net.CIDR"),
        "Format" => Pattern::Basic("kubernetes.NamedFormat"),
        name if name.starts_with(char::is_uppercase) => {
            let named = |space: &str| type_named(&format!("{space}.{name}"));
            let name = named("kubernetes").or_else(|| named("kubernetes.authorization"));
            Pattern::Basic(name?)
        }
        name => Pattern::Basic(type_named(name)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_is_a_function() {
        assert!(TABLE.values().map(Vec::len).sum::<usize>() > 180);
        assert!(is_qualified("optional.of") && !is_qualified("string.size"));
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
            let found = answer(name, is_method, &arguments).ok().map(|ty| ty.show());
            assert_eq!(found.as_deref(), expected, "{name}");
        }
    }
}
