//! The compiled patterns of the process: equal patterns are compiled once, and all of them together
//! have a size limit.
//!
//! Promise: a pattern that is not in the cache is compiled again, so the limit bounds memory and never
//! what can be matched.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use regex::{Regex, RegexBuilder};

/// The maximum size of all compiled patterns. The newest one is kept in any case.
const KEPT_MAX: usize = 128 << 20;

/// The cache of this process.
static CACHE: LazyLock<Mutex<PatternCache>> =
    LazyLock::new(|| Mutex::new(PatternCache::new(KEPT_MAX)));

/// A compiled pattern.
pub(super) struct CompiledPattern {
    /// In the syntax of the `regex` crate.
    text: Arc<str>,
    pub(super) regex: Regex,
    /// The size limit that it needed.
    pub(super) size: usize,
    /// Whether it was used since the cache was last searched for something to drop.
    used: AtomicBool,
}

impl CompiledPattern {
    /// The compiled form, for a match.
    pub(super) fn regex(&self) -> &Regex {
        if !self.used.load(Relaxed) {
            self.used.store(true, Relaxed);
        }
        &self.regex
    }
}

/// Finds a pattern, or compiles it with the smallest of these size limits that suffices.
pub(super) fn find(text: &str, sizes: &[usize]) -> Result<Arc<CompiledPattern>, String> {
    if let Some(known) = cache().find(text) {
        return match sizes.last().is_some_and(|most| known.size <= *most) {
            true => Ok(known),
            false => Err(TOO_LARGE.to_owned()),
        };
    }
    let compiled = Arc::new(compile(text, sizes)?);
    cache().keep(Arc::clone(&compiled));
    Ok(compiled)
}

const TOO_LARGE: &str = "it is too large";

fn compile(text: &str, sizes: &[usize]) -> Result<CompiledPattern, String> {
    for &size in sizes {
        match RegexBuilder::new(text).size_limit(size).dfa_size_limit(size.min(DFA_MAX)).build() {
            Ok(regex) => {
                return Ok(CompiledPattern {
                    text: text.into(),
                    regex,
                    size,
                    used: AtomicBool::new(true),
                });
            }
            Err(regex::Error::CompiledTooBig(_)) => {}
            Err(other) => return Err(short(&other.to_string())),
        }
    }
    Err(TOO_LARGE.to_owned())
}

/// The memory in which a match builds its automaton, for each thread.
const DFA_MAX: usize = 2 << 20;

/// The last line of an error message; earlier lines show the pattern.
fn short(message: &str) -> String {
    message.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

fn cache() -> MutexGuard<'static, PatternCache> {
    CACHE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Patterns by their text, in the order in which they are considered for removal.
struct PatternCache {
    limit: usize,
    bytes: usize,
    by_text: HashMap<Arc<str>, Arc<CompiledPattern>>,
    order: VecDeque<Arc<str>>,
}

impl PatternCache {
    fn new(limit: usize) -> PatternCache {
        PatternCache { limit, bytes: 0, by_text: HashMap::new(), order: VecDeque::new() }
    }

    fn find(&self, text: &str) -> Option<Arc<CompiledPattern>> {
        self.by_text.get(text).map(Arc::clone)
    }

    fn keep(&mut self, compiled: Arc<CompiledPattern>) {
        let text = Arc::clone(&compiled.text);
        if self.by_text.contains_key(&text) {
            return;
        }
        self.bytes += compiled.size;
        self.by_text.insert(Arc::clone(&text), compiled);
        self.make_room();
        self.order.push_back(text);
    }

    /// Drops the oldest unused patterns. Each used one gets one more turn.
    fn make_room(&mut self) {
        let mut spared = 0;
        while self.bytes > self.limit {
            let Some(text) = self.order.pop_front() else { return };
            let Some(oldest) = self.by_text.get(&text) else { continue };
            if spared < self.order.len() && oldest.used.swap(false, Relaxed) {
                spared += 1;
                self.order.push_back(text);
                continue;
            }
            self.bytes -= oldest.size;
            self.by_text.remove(&text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 16 << 10;

    fn pattern(text: &str) -> Arc<CompiledPattern> {
        Arc::new(compile(text, &[SIZE]).unwrap())
    }

    #[test]
    fn all_patterns_together_have_a_size_limit_and_used_ones_stay() {
        let mut cache = PatternCache::new(4 * SIZE);
        for at in 0..100 {
            cache.keep(pattern(&format!("a{at}")));
            assert!(cache.bytes <= 4 * SIZE, "{}", cache.bytes);
            assert_eq!(
                (cache.order.len(), cache.bytes),
                (cache.by_text.len(), cache.by_text.len() * SIZE)
            );
            if let Some(known) = cache.find("a0") {
                known.regex();
            }
        }
        assert!(cache.find("a0").is_some(), "it was used all the time");
        assert!(cache.find("a99").is_some() && cache.find("a1").is_none());
    }

    #[test]
    fn a_pattern_larger_than_the_cache_is_the_only_one() {
        let mut cache = PatternCache::new(SIZE / 2);
        cache.keep(pattern("a"));
        cache.keep(pattern("b"));
        assert!(cache.find("a").is_none() && cache.find("b").is_some());
        assert_eq!(cache.bytes, SIZE);
    }

    #[test]
    fn equal_patterns_are_compiled_once() {
        let [one, two] = [(); 2].map(|()| find("^equal[0-9]$", &[SIZE]).unwrap());
        assert!(Arc::ptr_eq(&one, &two));
    }
}
