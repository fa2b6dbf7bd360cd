//! The descriptions of types and fields, as `kubectl explain` shows them.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

/// Descriptions of types and fields, such as `core.v1.PodSpec` and `core.v1.PodSpec.containers`.
/// Read on first use.
#[derive(Clone, Debug, Default)]
pub struct Descriptions {
    text: &'static str,
    entries: Arc<OnceLock<HashMap<&'static str, String>>>,
}

impl Descriptions {
    /// Lines of a name, a tab and a text in which line ends are written `\n`.
    pub fn new(text: &'static str) -> Descriptions {
        Descriptions { text, entries: Arc::default() }
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.entries.get_or_init(|| self.read()).get(name).map(String::as_str)
    }

    fn read(&self) -> HashMap<&'static str, String> {
        let lines = self.text.lines().filter_map(|line| line.split_once('\t'));
        lines.map(|(name, text)| (name, text.replace("\\n", "\n"))).collect()
    }
}
