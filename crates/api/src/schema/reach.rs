//! Which fields lead to types that somebody cares about: the others need no walk.

use super::{Field, Shape, Type, TypeId, Types};
use crate::json::Text;

/// For each type, the fields below which one of the wanted types can be.
pub(crate) struct Reach {
    fields: Vec<Vec<u32>>,
}

impl Reach {
    /// `wanted` answers for each type whether somebody cares about it.
    pub(crate) fn new(types: &Types, wanted: impl Fn(TypeId) -> bool) -> Reach {
        let mut reaches: Vec<bool> = types.iter().map(|of| wanted(of.id)).collect();
        let leads =
            |reaches: &[bool], shape: &Shape| shape.heart().is_some_and(|id| reaches[id.index()]);
        // Types refer to each other in circles, so this goes on until nothing is new.
        loop {
            let mut news = false;
            for of in types.iter().filter(|of| !reaches[of.id.index()]).collect::<Vec<_>>() {
                if of.fields.iter().any(|field| leads(&reaches, &field.shape)) {
                    reaches[of.id.index()] = true;
                    news = true;
                }
            }
            if !news {
                break;
            }
        }
        let of_type = |of: &Type| {
            let fields = (0..).zip(&of.fields);
            fields.filter(|(_, field)| leads(&reaches, &field.shape)).map(|(at, _)| at).collect()
        };
        Reach { fields: types.iter().map(of_type).collect() }
    }

    /// The members of an object that are worth a look, with their fields. Members come by key, as
    /// fields do, so that one walk over both finds every pair.
    pub(crate) fn members<'r, 'k, V>(
        &'r self,
        of: &'r Type,
        members: impl Iterator<Item = (&'k Text, V)>,
    ) -> impl Iterator<Item = (&'r Field, V)> {
        let wanted = &self.fields[of.id.index()];
        let (mut next, mut at) = (0, 0);
        members.take(if wanted.is_empty() { 0 } else { usize::MAX }).filter_map(
            move |(key, value)| {
                let field = of.next_field(&mut at, key)?;
                while wanted.get(next).is_some_and(|wanted| (*wanted as usize) < at) {
                    next += 1;
                }
                let is_wanted = wanted.get(next).is_some_and(|wanted| *wanted as usize == at);
                is_wanted.then_some((field, value))
            },
        )
    }
}
