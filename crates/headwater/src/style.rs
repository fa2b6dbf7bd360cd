//! Colour on the terminal: only if stdout is one, and neither `NO_COLOR` nor `TERM=dumb` is set.

use std::io::IsTerminal;

/// How text is emphasised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    is_on: bool,
}

/// A colour or weight of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Emphasis {
    Added,
    Removed,
    Changed,
    Strong,
    Faint,
}

impl Paint {
    /// What suits stdout.
    pub(crate) fn of_stdout() -> Paint {
        let has = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        Paint { is_on: std::io::stdout().is_terminal() && !has("NO_COLOR") && !is_dumb }
    }

    #[cfg(test)]
    pub(crate) fn with(is_on: bool) -> Paint {
        Paint { is_on }
    }

    /// The text with its emphasis.
    pub(crate) fn text(self, emphasis: Emphasis, text: &str) -> String {
        let code = match emphasis {
            Emphasis::Added => "32",
            Emphasis::Removed => "31",
            Emphasis::Changed => "33",
            Emphasis::Strong => "1",
            Emphasis::Faint => "2",
        };
        match self.is_on {
            true => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
            false => text.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emphasis_needs_a_terminal() {
        assert_eq!(Paint::with(false).text(Emphasis::Added, "x"), "x");
        assert_eq!(Paint::with(true).text(Emphasis::Added, "x"), "\u{1b}[32mx\u{1b}[0m");
    }
}
