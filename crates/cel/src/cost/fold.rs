//! The cost of macros: for each element, the body and the accumulator of Kubernetes' expansion.

use super::{Estimator, Outer};
use crate::estimate::{EntrySize, Estimate, LIST, MAP, ONE, Place, Size, Step, TRAVERSAL, scaled};
use crate::scope::Scope;
use crate::tree::{Expr, Fold, FoldKind};
use crate::typing;

/// The cost of reading the accumulator.
const LOOK: u64 = 1;

impl<'s> Estimator<'_, 's> {
    pub(super) fn fold(&self, fold: &Fold, scope: Outer<'_, 's>) -> Estimate<'s> {
        let range = self.of(&fold.range, scope);
        if fold.kind == FoldKind::SortBy {
            return self.sort_by(fold, range, scope);
        }
        let (filter, body) = self.parts(fold, &range, scope);
        let filtered =
            |cost: u64| filter.map_or(cost, |filter| filter.saturating_add(cost.max(LOOK)));
        // The cost of the start, of each step and of the end.
        let (first, each, last) = match fold.kind {
            // While not strictly false: the accumulator and the body.
            FoldKind::All => (0, body.cost.saturating_add(3), LOOK),
            // The same, turned around twice.
            FoldKind::Exists => (0, body.cost.saturating_add(4), LOOK),
            // A step adds one or nothing; at the end the count must be one.
            FoldKind::ExistsOne => (0, body.cost.saturating_add(2), 2),
            // A step creates a list of one element and appends it.
            FoldKind::Map => (LIST, filtered(body.cost.saturating_add(LIST + 2)), LOOK),
            FoldKind::Filter => (LIST, body.cost.saturating_add(LIST + 3), LOOK),
            FoldKind::TransformMap => (MAP, filtered(body.cost.saturating_add(3)), LOOK),
            FoldKind::TransformMapEntry | FoldKind::SortBy => {
                (MAP, filtered(body.cost.saturating_add(2)), LOOK)
            }
        };
        let count = range.size();
        let cost = each.saturating_mul(count.max).saturating_add(range.cost);
        let ty = typing::folded(fold, &range.ty, body.ty.clone());
        let found = Estimate::of(ty, cost.saturating_add(first + last));
        match fold.kind {
            FoldKind::All | FoldKind::Exists | FoldKind::ExistsOne => found,
            FoldKind::Map | FoldKind::Filter => {
                let value = match fold.kind {
                    FoldKind::Map => body.size(),
                    _ => self.bound(fold, &range).0.size(),
                };
                let value = value.or(Size::NOTHING);
                let entry = Some(EntrySize { is_list: true, key: ONE, value });
                Estimate { entry, ..found.sized(count) }
            }
            _ => found.sized(count),
        }
    }

    /// The cost of the filter, and the body.
    fn parts(
        &self,
        fold: &Fold,
        range: &Estimate<'s>,
        scope: Outer<'_, 's>,
    ) -> (Option<u64>, Estimate<'s>) {
        let (first, second) = self.bound(fold, range);
        let outer = Scope { name: &fold.first, value: first, outer: scope };
        let inner = fold.second.as_deref().zip(second);
        let inner = inner.map(|(name, value)| Scope { name, value, outer: Some(&outer) });
        let scope = Some(inner.as_ref().unwrap_or(&outer));
        let cost = |expr: &Expr| self.of(expr, scope).cost;
        (fold.filter.as_ref().map(cost), self.of(&fold.body, scope))
    }

    /// The estimates of a macro's variables.
    fn bound(&self, fold: &Fold, range: &Estimate<'s>) -> (Estimate<'s>, Option<Estimate<'s>>) {
        let is_pair = fold.second.is_some();
        let (first, second) = range.ty.steps(is_pair);
        let is_list = match range.entry {
            Some(entry) => entry.is_list,
            None => range.ty.name() == "list",
        };
        let step = |step: Step<'_>| range.place.then(&step, self.known.root());
        let named = |ty, size: Option<Size>, place: Place<'s>| {
            let found = Estimate::of(ty, 1);
            Estimate { size: place.size().or(found.size).or(size), place, ..found }
        };
        let key = range.entry.map(|entry| entry.key);
        let value = range.entry.map(|entry| entry.value);
        let first = match (is_list, is_pair) {
            (true, true) => named(first, key, step(Step::Index)),
            (true, false) => named(first, value, step(Step::Value)),
            (false, _) => named(first, key, step(Step::Key)),
        };
        (first, second.map(|ty| named(ty, value, step(Step::Value))))
    }

    /// The cost of `sortBy`: one pass for the keys, then a comparison of all pairs.
    fn sort_by(&self, fold: &Fold, range: Estimate<'s>, scope: Outer<'_, 's>) -> Estimate<'s> {
        let (cost, ty, count) = (range.cost, range.ty.clone(), range.size());
        let input = Estimate { cost: 1, ..range };
        let (_, body) = self.parts(fold, &input, scope);
        let each = body.cost.saturating_add(LIST + 2);
        let keys = each.saturating_mul(count.max).saturating_add(input.cost + LIST + LOOK);
        let is_text = body.ty.may_be("string") || body.ty.may_be("bytes");
        let squared = count.times(count);
        let factor = if is_text { 2.0 + TRAVERSAL } else { 2.0 };
        let sorting = scaled(squared.max, factor).saturating_add(1 + LIST);
        let costs = [cost, LIST, input.cost, keys, sorting];
        let cost = costs.into_iter().fold(0, u64::saturating_add);
        Estimate::of(ty, cost).sized(squared)
    }
}
