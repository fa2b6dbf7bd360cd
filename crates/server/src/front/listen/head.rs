//! Detection of HTTP/1 requests that give the length of their body in two ways at once.
//!
//! hyper follows `Transfer-Encoding`, ignores `Content-Length` and closes the connection afterwards.
//! A proxy in front of the server may have decided otherwise, so such a request is rejected (B015).

/// Scans a request head incrementally, however its bytes are split.
#[derive(Default)]
pub(super) struct Head {
    /// The beginning of the current line, lower case.
    line: [u8; LONGEST.len()],
    line_length: usize,
    has_length: bool,
    has_encoding: bool,
    is_complete: bool,
}

const LENGTH: &[u8] = b"content-length:";
const LONGEST: &[u8] = b"transfer-encoding:";

impl Head {
    /// Scans more bytes; ignores everything after the empty line.
    pub(super) fn read(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if self.is_complete {
                return;
            }
            match byte {
                b'\n' => self.end_line(),
                b'\r' => {}
                byte => {
                    if let Some(slot) = self.line.get_mut(self.line_length) {
                        *slot = byte.to_ascii_lowercase();
                    }
                    self.line_length += 1;
                }
            }
        }
    }

    pub(super) fn is_ambiguous(&self) -> bool {
        self.has_length && self.has_encoding
    }

    fn end_line(&mut self) {
        let line = &self.line[..self.line_length.min(self.line.len())];
        self.has_length |= line.starts_with(LENGTH);
        self.has_encoding |= line == LONGEST;
        self.is_complete = line.is_empty() && (self.has_length || self.has_encoding);
        self.line_length = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(lines: &[&str], expected: bool) {
        let text = format!("POST / HTTP/1.1\r\n{}\r\n\r\nbody", lines.join("\r\n"));
        for size in [1, 7, text.len()] {
            let mut head = Head::default();
            for piece in text.as_bytes().chunks(size) {
                head.read(piece);
            }
            assert_eq!(head.is_ambiguous(), expected, "in pieces of {size}");
        }
    }

    #[test]
    fn two_lengths_are_ambiguous_in_any_order_and_case() {
        check(&["Content-Length: 3", "Transfer-Encoding: chunked"], true);
        check(&["transfer-encoding:chunked", "Host: x", "CONTENT-LENGTH:3"], true);
        check(&["Content-Length: 3", "Host: x"], false);
        check(&["Transfer-Encoding: chunked"], false);
        check(&["X-Content-Length: 3", "Transfer-Encoding: chunked"], false);
        check(&["X: Content-Length: 3", "Transfer-Encoding: chunked"], false);
        check(&["Content-Length: 3", "", "Transfer-Encoding: chunked"], false);
    }
}
