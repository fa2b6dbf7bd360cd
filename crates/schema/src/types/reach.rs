//! Reachability of types, so that a walk skips fields without wanted types below them.

use std::cmp::Ordering;

use super::{Field, Type, TypeId, Types, ValueType};
use headwater_json::MemberKey;

/// For each type, the fields below which one of the wanted types can be.
pub(crate) struct Reach {
    fields: Vec<Vec<u32>>,
}

impl Reach {
    /// `wanted` tells for each type whether it is wanted.
    pub(crate) fn new(types: &Types, wanted: impl Fn(TypeId) -> bool) -> Reach {
        let mut reaches: Vec<bool> = types.iter().map(|of| wanted(of.id)).collect();
        let leads = |reaches: &[bool], shape: &ValueType| {
            shape.heart().is_some_and(|id| reaches[id.index()])
        };
        // Types are recursive, so this repeats until nothing changes.
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

    /// The members of an object of that type that may contain a wanted type. Fields and members are
    /// both sorted, and most objects lack most fields.
    pub(crate) fn members<'t, V>(
        &self,
        of: &'t Type,
        members: impl Iterator<Item = (&'t MemberKey, V)>,
    ) -> impl Iterator<Item = (&'t Field, V)> {
        let mut fields = self.fields[of.id.index()].as_slice();
        let mut members = members.peekable();
        std::iter::from_fn(move || {
            loop {
                let (at, others) = fields.split_first()?;
                let (key, _) = members.peek()?;
                let field = &of.fields[*at as usize];
                match key.order(of.begins[*at as usize], field.name) {
                    Ordering::Less => drop(members.next()),
                    Ordering::Greater => fields = others,
                    Ordering::Equal => {
                        fields = others;
                        return members.next().map(|(_, value)| (field, value));
                    }
                }
            }
        })
    }
}
