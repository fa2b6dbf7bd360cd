//! Output: the only module that prints.
//!
//! Data goes to stdout, everything else to stderr. A closed pipe is not an error.

use std::io::{self, Write};

/// Prints a line to stdout.
pub(crate) fn data(line: &str) {
    line_to(&mut io::stdout().lock(), line);
}

/// Prints a line to stderr.
pub(crate) fn note(line: &str) {
    line_to(&mut io::stderr().lock(), line);
}

/// Writes codes for a terminal to stdout.
pub(crate) fn screen(codes: &str) {
    let mut out = io::stdout().lock();
    // As above.
    let _ = out.write_all(codes.as_bytes()).and_then(|()| out.flush());
}

fn line_to(target: &mut impl Write, line: &str) {
    // A closed pipe is not an error, and no other failure could be reported.
    let _ = writeln!(target, "{line}").and_then(|()| target.flush());
}

/// A path, quoted for a shell if necessary.
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
    fn paths_are_quoted_for_a_shell() {
        for (path, word) in [
            ("./.headwater/admin.kubeconfig", "./.headwater/admin.kubeconfig"),
            ("/my data/x", "'/my data/x'"),
            ("it's", r"'it'\''s'"),
        ] {
            assert_eq!(shell_word(std::path::Path::new(path)), word);
        }
    }
}
