//! The environment of an expression: variables and types.

use super::types::{STRING, Ty, type_named};
use super::{DeclType, Uncompilable, check, parse};

/// The variables and types that an expression may use.
#[derive(Clone, Debug, Default)]
pub struct Environment<'s> {
    names: Vec<(&'s str, &'s DeclType, bool)>,
    /// The types that may be constructed as `Name{...}`.
    pub(super) types: &'s [&'s str],
    /// The members of `variables` with their types; `None` if they are unknown.
    variables: Option<Vec<(&'s str, Ty<'s>)>>,
}

impl<'s> Environment<'s> {
    /// Adds a variable.
    #[must_use]
    pub fn with(mut self, name: &'s str, shape: &'s DeclType) -> Environment<'s> {
        self.names.push((name, shape, false));
        self
    }

    /// Adds an optional variable.
    #[must_use]
    pub fn with_optional(mut self, name: &'s str, shape: &'s DeclType) -> Environment<'s> {
        self.names.push((name, shape, true));
        self
    }

    /// Adds types that may be constructed, including their parts.
    #[must_use]
    pub fn with_types(mut self, types: &'s [&'s str]) -> Environment<'s> {
        self.types = types;
        self
    }

    /// Adds an empty `variables`.
    #[must_use]
    pub fn with_variables(mut self) -> Environment<'s> {
        self.variables = Some(Vec::new());
        self
    }

    /// Adds a member of `variables` with the type of this expression; any type if it does not compile.
    pub fn add_variable(&mut self, name: &'s str, text: &str) -> Result<(), Uncompilable> {
        let found = parse::parse(text).and_then(|root| check::ty(&root, self));
        let found = found.map_err(|fault| Uncompilable(fault.show(text)));
        let (ty, found) = match found {
            Ok(ty) => (ty, Ok(())),
            Err(error) => (Ty::Dyn, Err(error)),
        };
        self.variables.get_or_insert_default().push((name, ty));
        found
    }

    /// The type of one of `variables`.
    pub(super) fn variable(&self, name: &str) -> Option<Result<Ty<'s>, String>> {
        let variables = self.variables.as_ref()?;
        let found = variables.iter().rfind(|(known, _)| *known == name);
        Some(match found {
            Some((_, ty)) => Ok(ty.clone()),
            None => Err(format!("undefined field '{name}'")),
        })
    }

    /// The type from which sizes are derived: that of the first variable.
    pub(super) fn root(&self) -> &'s DeclType {
        self.names.first().map_or(&super::decl_type::DYN, |(_, shape, _)| shape)
    }

    /// The type of a name, or of a type's name.
    pub(super) fn ty(&self, name: &str) -> Option<Ty<'s>> {
        if name == "variables" && self.variables.is_some() {
            return Some(Ty::map(STRING, Ty::Dyn));
        }
        let Some((_, shape, optional)) = self.names.iter().rfind(|(known, _, _)| *known == name)
        else {
            return type_named(name).map(|_| Ty::Basic("type"));
        };
        let ty = Ty::of(shape);
        Some(if *optional { Ty::optional(ty) } else { ty })
    }
}
