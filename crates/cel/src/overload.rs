//! An overload of a function: its signature, its estimated cost and its evaluation.
//!
//! The signature says everything about types: which calls the type check accepts, with which result,
//! and which overload evaluates arguments whose types are known only then.

use super::budget::{Error, Machine};
use super::estimate::rule::CostRule;
use super::types::{ORDERED, SUMMABLE, TYPES, Ty};
use super::value::Value;

/// One row of the function table.
pub(super) struct FunctionRow {
    /// `receiver.name(argument,argument?) -> result`, one or several.
    ///
    /// `T`, `K`, `V` stand for any type, `O` for one that can be ordered, `N` for one that can be
    /// summed. An argument with a question mark may be omitted. The type check does not see a
    /// signature with a tilde; only values of unknown type reach it.
    pub(super) signatures: &'static [&'static str],
    pub(super) rule: CostRule,
    pub(super) run: Run,
}

/// The evaluation of a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Run {
    /// From its arguments, the receiver first.
    Strict(for<'a> fn(&mut Machine<'a, '_>, &[Value<'a>]) -> Result<Value<'a>, Error>),
    /// From the receiver alone, if that is enough; otherwise the argument is the result.
    Lazy(for<'a> fn(&Value<'a>) -> Result<Option<Value<'a>>, Error>),
}

/// An overload of a function.
#[derive(Debug)]
pub(super) struct Overload {
    is_method: bool,
    is_hidden: bool,
    arguments: Vec<Ty<'static>>,
    /// How many of the arguments must be given.
    required: usize,
    result: Ty<'static>,
    pub(super) rule: CostRule,
    pub(super) run: Run,
}

/// The overloads that accept these types, and the type of the result.
pub(super) fn resolve<'s>(
    overloads: &'static [Overload],
    is_method: bool,
    types: &[Ty<'s>],
) -> Option<(Vec<&'static Overload>, Ty<'s>)> {
    let mut found: Option<(Vec<_>, Ty<'s>)> = None;
    for overload in overloads.iter().filter(|known| known.is_method == is_method) {
        let Some(ty) = overload.result(types) else { continue };
        match &mut found {
            Some((all, known)) => {
                all.push(overload);
                if known.show() != ty.show() {
                    *known = Ty::Dyn;
                }
            }
            None => found = Some((vec![overload], ty)),
        }
    }
    found
}

/// The same for a cost estimate, whose types may fit no overload where those of the type check do:
/// then the last one counts.
pub(super) fn resolve_or_last<'s>(
    overloads: &'static [Overload],
    is_method: bool,
    types: &[Ty<'s>],
) -> (Vec<&'static Overload>, Ty<'s>) {
    resolve(overloads, is_method, types).unwrap_or_else(|| {
        let is_like = |known: &&Overload| known.is_method == is_method && !known.is_hidden;
        (overloads.iter().rfind(is_like).into_iter().collect(), Ty::Dyn)
    })
}

impl Overload {
    /// The name and the overload of a signature.
    pub(super) fn read(
        signature: &'static str,
        row: &FunctionRow,
    ) -> Option<(&'static str, Overload)> {
        let plain = signature.trim_start_matches('~');
        let (call, result) = plain.split_once(" -> ")?;
        let call = call.strip_suffix(')')?;
        let open = matching(call)?;
        let (head, arguments) = (&call[..open], &call[open + 1..]);
        let (receiver, name) = match head.rsplit_once('.') {
            Some((space, _)) if NAMESPACES.contains(&space) => (None, head),
            Some((receiver, name)) => (Some(receiver), name),
            None => (None, head),
        };
        let all = receiver.into_iter().chain(split(arguments));
        let arguments = all.map(|ty| read(ty.trim_end_matches('?'))).collect::<Option<Vec<_>>>()?;
        let overload = Overload {
            is_method: receiver.is_some(),
            is_hidden: signature.starts_with('~'),
            required: arguments.len() - call.matches('?').count(),
            arguments,
            result: read(result)?,
            rule: row.rule,
            run: row.run,
        };
        Some((name, overload))
    }

    fn takes_count(&self, count: usize) -> bool {
        (self.required..=self.arguments.len()).contains(&count)
    }

    /// The type of the result for arguments of these types, if it accepts them.
    fn result<'s>(&self, types: &[Ty<'s>]) -> Option<Ty<'s>> {
        let mut bound = Bound::default();
        let mut pairs = self.arguments.iter().zip(types);
        let fits = !self.is_hidden
            && self.takes_count(types.len())
            && pairs.all(|(pattern, ty)| bound.takes(pattern, ty));
        fits.then(|| bound.fill(&self.result))
    }

    /// Whether it evaluates a call with these arguments.
    pub(super) fn accepts(&self, is_method: bool, values: &[Value<'_>]) -> bool {
        self.is_method == is_method
            && self.takes_count(values.len())
            && self.arguments.iter().zip(values).all(|(ty, value)| ty.may_be(value.type_name()))
    }
}

/// The bindings of type parameters in one call.
#[derive(Default)]
struct Bound<'s>(Vec<(char, Ty<'s>)>);

impl<'s> Bound<'s> {
    /// Whether a signature's type accepts a type.
    fn takes(&mut self, pattern: &Ty<'static>, ty: &Ty<'s>) -> bool {
        match (pattern, ty) {
            (Ty::Parameter(letter), ty) => self.bind(*letter, ty),
            (Ty::Dyn, _) | (_, Ty::Dyn) => true,
            (Ty::Basic(name), ty) => ty.name() == *name,
            (Ty::Optional(inner), Ty::Optional(ty)) => self.takes(inner, ty),
            (Ty::List(inner), ty) => ty.name() == "list" && self.takes(inner, &ty.values()),
            (Ty::Map(parts), ty) => {
                ty.name() == "map"
                    && !ty.is_object()
                    && self.takes(&parts[0], &ty.keys())
                    && self.takes(&parts[1], &ty.values())
            }
            _ => false,
        }
    }

    /// A signature's type with the bound parameters.
    fn fill(&self, pattern: &Ty<'static>) -> Ty<'s> {
        match pattern {
            Ty::List(inner) => Ty::list(self.fill(inner)),
            Ty::Map(parts) => Ty::map(self.fill(&parts[0]), self.fill(&parts[1])),
            Ty::Optional(inner) => Ty::optional(self.fill(inner)),
            Ty::Parameter(letter) => {
                let found = self.0.iter().find(|(known, _)| known == letter);
                found.map_or(Ty::Dyn, |(_, ty)| ty.clone())
            }
            other => other.clone(),
        }
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

/// The namespaces of functions, which are not receivers.
const NAMESPACES: [&str; 7] = ["optional", "lists", "sets", "strings", "ip", "format", "jsonpatch"];

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

/// The type that a signature writes.
fn read(text: &str) -> Option<Ty<'static>> {
    let inside = |name: &str| text.strip_prefix(name)?.strip_prefix('(')?.strip_suffix(')');
    if let Some(inner) = inside("list") {
        return read(inner).map(Ty::list);
    }
    if let Some(inner) = inside("optional") {
        return read(inner).map(Ty::optional);
    }
    if let Some(inner) = inside("map") {
        let mut parts = split(inner).map(read);
        return Some(Ty::map(parts.next()??, parts.next()??));
    }
    Some(match text {
        "dyn" => Ty::Dyn,
        "T" | "K" | "V" | "O" | "N" => Ty::Parameter(text.chars().next()?),
        name => {
            // Without its namespace; `timestamp` and `duration` are written in lower case.
            let last = |known: &str| known.rsplit('.').next().map(str::to_lowercase);
            let is = |known: &&str| last(known) == Some(name.to_lowercase());
            Ty::Basic(TYPES.into_iter().find(is)?)
        }
    })
}
