//! The budget of an evaluation, and why an evaluation has no result.

/// What evaluations may still cost.
#[derive(Debug)]
pub struct Budget {
    left: u64,
    spent: u64,
}

impl Budget {
    /// So much.
    pub fn new(limit: u64) -> Budget {
        Budget { left: limit, spent: 0 }
    }

    /// Spends on something that may not cost more than `limit` by itself.
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

    /// What was spent so far.
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

/// Why an evaluation has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A field or key that is not there.
    #[error("no such key: {0}")]
    NoSuchKey(String),
    /// Types that do not go together.
    #[error("no such overload")]
    NoSuchOverload,
    /// It would take too long.
    #[error("operation cancelled: actual cost limit exceeded")]
    CostExceeded,
    /// Anything else, in the words of the reference.
    #[error("{0}")]
    Other(String),
}

impl Error {
    pub(super) fn other(why: impl Into<String>) -> Error {
        Error::Other(why.into())
    }
}
