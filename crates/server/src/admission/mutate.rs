//! Mutation: mutating policies, then mutating webhooks, then reinvocation.
//!
//! River: defaults → **mutate** → validation. A policy or webhook with `reinvocationPolicy: IfNeeded` is
//! called a second time if another one changed the object after it, and never a third time.

use std::collections::BTreeSet;

use headwater_api::Status;

use super::Attempt;
use super::extensions::Compiled;
use super::observed::Observed;
use super::request::AdmissionRequest;
use crate::backend::Backend;

/// Tracks which policies and webhooks must be reinvoked.
#[derive(Default)]
struct Again {
    /// Those that were called and want to see later changes, in order.
    asked: Vec<usize>,
    wanted: BTreeSet<usize>,
}

impl Again {
    /// Records that number `at` was called.
    fn note(&mut self, at: usize, changed: bool, wants: bool) {
        if changed {
            self.wanted.extend(self.asked.iter().copied());
        }
        if wants {
            self.asked.push(at);
        }
    }

    /// Reinvokes all from number `first` on that want it.
    fn want_all(&mut self, first: usize) {
        self.wanted.extend(self.asked.iter().copied().filter(|at| *at >= first));
    }
}

/// Runs all mutating policies and webhooks.
pub(super) async fn mutate(
    extensions: &Compiled,
    backend: &Backend,
    asked: &AdmissionRequest<'_>,
    attempt: &mut Attempt<'_>,
    warnings: &mut Vec<String>,
) -> Result<(), Status> {
    let mut round =
        Round { extensions, backend, asked, attempt, warnings, again: Again::default() };
    let (policies, hooks) = (extensions.mutating_policies.len(), extensions.mutating.len());
    let observed = Observed::new(backend.metrics(), "admit", asked.operation);
    observed.controller("MutatingAdmissionPolicy", policies, round.policies(0..policies)).await?;
    let all = policies..policies + hooks;
    observed.controller("MutatingAdmissionWebhook", hooks, round.webhooks(all)).await?;
    let wanted = std::mem::take(&mut round.again.wanted);
    let again: Vec<usize> = wanted.range(..policies).copied().collect();
    if round.policies(again).await? {
        round.again.want_all(policies);
    }
    let later = wanted.range(policies..).chain(round.again.wanted.range(policies..));
    let later: BTreeSet<usize> = later.copied().collect();
    round.webhooks(later).await?;
    Ok(())
}

/// Policies are numbered from 0, webhooks after them.
struct Round<'a, 'b> {
    extensions: &'a Compiled,
    backend: &'a Backend,
    asked: &'a AdmissionRequest<'a>,
    attempt: &'a mut Attempt<'b>,
    warnings: &'a mut Vec<String>,
    again: Again,
}

impl Round<'_, '_> {
    /// Runs these policies; returns whether one changed the object.
    async fn policies(&mut self, which: impl IntoIterator<Item = usize>) -> Result<bool, Status> {
        let mut any = false;
        for at in which {
            let policy = &self.extensions.mutating_policies[at];
            if let Some(changed) = policy.mutate(self.backend, self.asked, self.attempt).await? {
                self.again.note(at, changed, policy.looks_again());
                any |= changed;
            }
        }
        Ok(any)
    }

    /// Calls these webhooks.
    async fn webhooks(&mut self, which: impl IntoIterator<Item = usize>) -> Result<(), Status> {
        let first = self.extensions.mutating_policies.len();
        for at in which {
            let hook = &self.extensions.mutating[at - first];
            let asked = hook.mutate(self.backend, self.asked, self.attempt, self.warnings).await?;
            if let Some(changed) = asked {
                self.again.note(at, changed, hook.looks_again());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_is_reinvoked_after_a_later_change() {
        let mut again = Again::default();
        again.note(0, false, true);
        again.note(1, true, true);
        again.note(2, false, true);
        again.note(3, true, false);
        assert_eq!(again.wanted, BTreeSet::from([0, 1, 2]));
        // Its own change does not count.
        let mut alone = Again::default();
        alone.note(0, true, true);
        assert!(alone.wanted.is_empty());
        alone.want_all(0);
        assert_eq!(alone.wanted, BTreeSet::from([0]));
    }
}
