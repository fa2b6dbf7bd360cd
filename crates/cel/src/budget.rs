//! The budget and the errors of an evaluation.

use std::collections::HashMap;
use std::sync::Arc;

use super::pattern::Pattern;

/// The remaining cost of evaluations.
#[derive(Debug)]
pub struct Budget {
    left: u64,
    spent: u64,
}

impl Budget {
    /// A budget of this cost.
    pub fn new(limit: u64) -> Budget {
        Budget { left: limit, spent: 0 }
    }

    /// Charges a step that may cost at most `limit` by itself.
    pub fn part<T>(
        &mut self,
        limit: u64,
        run: impl FnOnce(&mut Budget) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut part = Budget::new(limit.min(self.left));
        let found = run(&mut part);
        self.spend(part.spent.min(self.left))?;
        found
    }

    /// The cost so far.
    pub fn spent(&self) -> u64 {
        self.spent
    }

    pub(super) fn spend(&mut self, cost: u64) -> Result<(), Error> {
        self.spent = self.spent.saturating_add(cost);
        match self.left.checked_sub(cost) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => {
                self.left = 0;
                Err(Error::CostExceeded)
            }
        }
    }
}

/// The cost of traversing a string: a tenth of its length.
pub(super) fn text_cost(len: usize) -> u64 {
    len as u64 / 10 + 1
}

/// What the functions of an evaluation work with.
pub(super) struct Machine<'a, 'm> {
    pub(super) budget: &'m mut Budget,
    /// The compiled literal patterns of the program.
    pub(super) patterns: &'a HashMap<Arc<str>, Pattern>,
}

impl Machine<'_, '_> {
    pub(super) fn spend(&mut self, cost: u64) -> Result<(), Error> {
        self.budget.spend(cost)
    }
}

/// Why an evaluation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A field or key does not exist.
    #[error("no such key: {0}")]
    NoSuchKey(String),
    /// No overload accepts these types.
    #[error("no such overload")]
    NoSuchOverload,
    /// The budget is exhausted.
    #[error("operation cancelled: actual cost limit exceeded")]
    CostExceeded,
    /// Any other error, with Kubernetes' text.
    #[error("{0}")]
    Other(String),
}

impl Error {
    pub(super) fn other(why: impl Into<String>) -> Error {
        Error::Other(why.into())
    }
}
