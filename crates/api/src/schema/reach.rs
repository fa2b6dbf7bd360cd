//! Which fields lead to types that somebody cares about: the others need no walk.

use super::{Shape, Type, TypeId, Types};

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

    /// The fields of a type that are worth a look.
    pub(crate) fn fields<'t>(&self, of: &'t Type) -> impl Iterator<Item = &'t super::Field> {
        self.fields[of.id.index()].iter().map(|at| &of.fields[*at as usize])
    }
}
