//! The static token file: `token,user,uid,"group1,group2"`, one user per line.
//!
//! River: file → **tokens** → identity. Promise: only digests are kept in memory and they are
//! compared in constant time; the file is reloaded when it changes, and an invalid new file leaves
//! the old tokens in effect.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::front::compare::{SecretDigest, is_same, sha256};
use crate::front::identity::Identity;
use crate::front::pki::private_file::{self, OthersMayRead};

/// How often the file is checked for changes.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The current tokens. Cheap to clone; all clones see a reload.
#[derive(Clone, Debug, Default)]
pub struct Tokens(Arc<ArcSwap<Table>>);

/// Why a token file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read, or its mode allows others to read it.
    #[error(transparent)]
    File(#[from] private_file::Error),
    /// A line is invalid.
    #[error("line {line} of the token file: {why}")]
    Line {
        /// The line number, from one.
        line: usize,
        /// The reason, without the content of the line, which is secret.
        why: &'static str,
    },
}

impl Tokens {
    /// Reads tokens from text.
    pub fn parse(text: &str) -> Result<Tokens, Error> {
        Ok(Tokens(Arc::new(ArcSwap::from_pointee(Table::parse(text)?))))
    }

    /// The user of a token.
    pub(crate) fn find(&self, token: &[u8]) -> Option<Arc<Identity>> {
        self.0.load().find(token)
    }
}

#[derive(Debug, Default)]
struct Table(Vec<Row>);

#[derive(Debug)]
struct Row {
    digest: SecretDigest,
    identity: Arc<Identity>,
}

impl Table {
    fn parse(text: &str) -> Result<Table, Error> {
        let mut rows = Vec::new();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |why| Error::Line { line: index + 1, why };
            let columns = columns(line).ok_or_else(|| wrong("a quote is not closed"))?;
            rows.push(Row::new(&columns).map_err(wrong)?);
        }
        Ok(Table(rows))
    }

    /// Compares every row, so that timing does not reveal which one matched.
    fn find(&self, token: &[u8]) -> Option<Arc<Identity>> {
        if self.0.is_empty() {
            return None;
        }
        let wanted = sha256(token);
        let mut found = None;
        for row in &self.0 {
            if is_same(&row.digest, &wanted) {
                found = Some(&row.identity);
            }
        }
        found.cloned()
    }
}

impl Row {
    fn new(columns: &[String]) -> Result<Row, &'static str> {
        let [token, user, uid, groups @ ..] = columns else {
            return Err("a line needs at least a token, a user and a uid");
        };
        if token.is_empty() || user.is_empty() {
            return Err("the token and the user must not be empty");
        }
        let groups = groups.first().map(String::as_str).unwrap_or_default();
        let groups = groups.split(',').map(str::trim).filter(|group| !group.is_empty());
        let mut identity = Identity::authenticated(user, groups.map(str::to_owned).collect());
        identity.uid = uid.clone();
        Ok(Row { digest: sha256(token.as_bytes()), identity: Arc::new(identity) })
    }
}

/// The columns of one line of CSV; `None` if a quote is not closed.
fn columns(line: &str) -> Option<Vec<String>> {
    let mut columns = vec![String::new()];
    let mut quoted = false;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        let column = columns.last_mut()?;
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                column.push('"');
            }
            '"' if quoted => quoted = false,
            '"' if column.trim().is_empty() => {
                column.clear();
                quoted = true;
            }
            ',' if !quoted => columns.push(String::new()),
            c => column.push(c),
        }
    }
    let trimmed = columns.iter().map(|column| column.trim().to_owned()).collect();
    (!quoted).then_some(trimmed)
}

/// A token file that keeps its [`Tokens`] up to date.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    others: OthersMayRead,
    tokens: Tokens,
    seen: Option<FileStamp>,
}

/// Metadata that changes when a file is written or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileStamp {
    modified: Timestamp,
    length: u64,
    inode: u64,
}

impl TokenFile {
    /// Reads the file once.
    pub fn open(path: &Path, others: OthersMayRead) -> Result<TokenFile, Error> {
        let seen = stamp(path);
        let tokens = Tokens::parse(&private_file::read(path, others)?)?;
        Ok(TokenFile { path: path.to_owned(), others, tokens, seen })
    }

    /// The tokens, now and after every reload.
    pub fn tokens(&self) -> Tokens {
        self.tokens.clone()
    }

    /// Reads the file again whenever it changes, until stopped.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = ticks.tick() => self.look(),
            }
        }
    }

    fn look(&mut self) {
        let now = stamp(&self.path);
        if now == self.seen {
            return;
        }
        self.seen = now;
        match self.reload() {
            Ok(count) => tracing::info!(path = %self.path.display(), count, "token file reloaded"),
            Err(error) => {
                tracing::error!(%error, "the token file is invalid; the previous tokens stay in effect");
            }
        }
    }

    fn reload(&self) -> Result<usize, Error> {
        let table = Table::parse(&private_file::read(&self.path, self.others)?)?;
        let count = table.0.len();
        self.tokens.0.store(Arc::new(table));
        Ok(count)
    }
}

/// The state of a file; `None` if there is none.
pub(crate) fn stamp(path: &Path) -> Option<FileStamp> {
    use std::os::unix::fs::MetadataExt;
    let metadata = fs::metadata(path).ok()?;
    let modified = Timestamp::try_from(metadata.modified().ok()?).ok()?;
    Some(FileStamp { modified, length: metadata.len(), inode: metadata.ino() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(text: &str, token: &str) -> Option<(String, String, Vec<String>)> {
        let found = Tokens::parse(text).unwrap().find(token.as_bytes())?;
        Some((found.user.clone(), found.uid.clone(), found.groups.clone()))
    }

    #[track_caller]
    fn check(text: &str, token: &str, user: &str, uid: &str, groups: &[&str]) {
        let (found, id, held) = find(text, token).expect("the token is known");
        assert_eq!((found.as_str(), id.as_str()), (user, uid));
        assert_eq!(held, groups);
    }

    /// S8.2
    #[test]
    fn lines_are_csv() {
        const ALL: &str = "system:authenticated";
        check("t,u,1", "t", "u", "1", &[ALL]);
        check("t,u,1,g", "t", "u", "1", &["g", ALL]);
        check("t,u,1,\"g,h\"", "t", "u", "1", &["g", "h", ALL]);
        check("t, u ,1, \"g, h\" ", "t", "u", "1", &["g", "h", ALL]);
        check("# note\n\nt,\"a \"\"b\"\"\",\r\n", "t", "a \"b\"", "", &[ALL]);
        check("s,x,1\nt,u,2", "t", "u", "2", &[ALL]);
    }

    #[test]
    fn a_token_must_match_completely() {
        for wrong in ["", "toke", "tokens", "TOKEN", "user"] {
            assert_eq!(find("token,user,1", wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn an_error_names_the_line_but_does_not_show_it() {
        for (text, line) in [("secret,u,1\nsecret", 2), ("secret,\"u,1", 1), (",u,1", 1)] {
            let error = Tokens::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("line {line} ")), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn tokens_are_not_kept_in_memory() {
        let tokens = Tokens::parse("secret,user,1").unwrap();
        assert!(!format!("{tokens:?}").contains("secret"));
    }

    #[test]
    fn a_changed_file_is_reloaded_and_an_invalid_one_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.csv");
        let write = |text| private_file::replace(&path, text, private_file::PRIVATE).unwrap();
        write("first,u,1\n");
        let mut file = TokenFile::open(&path, OthersMayRead::Refuse).unwrap();
        let tokens = file.tokens();
        write("second,u,1\n");
        file.look();
        assert!(tokens.find(b"first").is_none() && tokens.find(b"second").is_some());
        write("broken\n");
        file.look();
        assert!(tokens.find(b"second").is_some());
    }

    #[test]
    fn a_token_file_that_others_may_read_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.csv");
        private_file::replace(&path, "t,u,1\n", 0o644).unwrap();
        let error = TokenFile::open(&path, OthersMayRead::Refuse).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
    }
}
