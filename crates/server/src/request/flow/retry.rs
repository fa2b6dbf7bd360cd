//! The `Retry-After` of rejections: one second, and up to 32 while a level keeps rejecting.
//!
//! River: rejection → **retry** → response (S7.12). It doubles while at least three requests were
//! rejected for each second of it, and shrinks by one while there is less than one.

use std::collections::VecDeque;

/// The largest value.
const MOST: u64 = 32;

/// The rejections of one level.
#[derive(Debug)]
pub(super) struct RetryAfter {
    seconds: u64,
    raised: Option<u64>,
    /// Rejections of past seconds.
    history: VecDeque<(u64, u64)>,
    current: (u64, u64),
}

impl Default for RetryAfter {
    fn default() -> RetryAfter {
        RetryAfter { seconds: 1, raised: None, history: VecDeque::new(), current: (0, 0) }
    }
}

impl RetryAfter {
    /// Counts a rejection in this second, and returns when its client may retry.
    pub(super) fn reject(&mut self, second: u64) -> u64 {
        if second == self.current.0 {
            self.current.1 += 1;
            return self.seconds;
        }
        self.history.push_back(self.current);
        self.current = (second, 1);
        while self.history.front().is_some_and(|(past, _)| second - past > MOST) {
            self.history.pop_front();
        }
        self.adapt(second);
        self.seconds
    }

    fn adapt(&mut self, second: u64) {
        let recent = self.history.iter().filter(|(past, _)| second - past <= self.seconds);
        let rejected: u64 = recent.map(|(_, count)| count).sum();
        let may_rise = self.raised.is_none_or(|raised| second - raised >= self.seconds);
        if may_rise && rejected >= 3 * self.seconds {
            self.seconds = (self.seconds * 2).min(MOST);
            self.raised = Some(second);
        } else if rejected < self.seconds && self.seconds > 1 {
            self.seconds -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_while_rejections_continue_and_shrinks_again() {
        let mut retry = RetryAfter::default();
        let mut rejected = |second| {
            let values: Vec<u64> = (0..5).map(|_| retry.reject(second)).collect();
            values[4]
        };
        assert_eq!((rejected(100), rejected(100)), (1, 1), "a burst alone changes nothing");
        let later: Vec<u64> = (101..200).map(rejected).collect();
        assert_eq!(later[..4], [2, 2, 4, 4]);
        assert_eq!(later.last(), Some(&32));
        assert!(later.is_sorted());
        let calm: Vec<u64> = (20..60).map(|minute| retry.reject(minute * 60)).collect();
        assert_eq!(calm.last(), Some(&1));
    }
}
