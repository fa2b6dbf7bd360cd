//! The terminal: the only place that prints.
//!
//! Data goes to stdout, all else to stderr. A reader that went away is no error.

use std::io::{self, Write};

/// One line of data.
pub(crate) fn data(line: &str) {
    line_to(&mut io::stdout().lock(), line);
}

/// One line for the person at the terminal.
pub(crate) fn note(line: &str) {
    line_to(&mut io::stderr().lock(), line);
}

fn line_to(target: &mut impl Write, line: &str) {
    // A closed pipe is success; nothing else can be told about a failed terminal either.
    let _ = writeln!(target, "{line}").and_then(|()| target.flush());
}

/// A path as it can be typed into a shell.
pub(crate) fn shell_word(path: &std::path::Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_can_be_pasted_into_a_shell() {
        for (path, word) in [
            ("./.headwater/admin.kubeconfig", "./.headwater/admin.kubeconfig"),
            ("/my data/x", "'/my data/x'"),
            ("it's", r"'it'\''s'"),
        ] {
            assert_eq!(shell_word(std::path::Path::new(path)), word);
        }
    }
}
