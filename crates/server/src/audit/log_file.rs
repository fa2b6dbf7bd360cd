//! The audit log file: lines, and rotation by size.
//!
//! A full file is renamed to `NAME-TIME.EXT` and a new one is created. Old files beyond the wanted
//! number or age are removed. Only the owner may read them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;

/// Where the log is written, and what is kept of it.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// The file; `-` is standard output.
    pub path: PathBuf,
    /// The size at which a file is rotated, in bytes.
    pub bytes_max: u64,
    /// How many rotated files are kept; 0 keeps all.
    pub files_max: usize,
    /// How long rotated files are kept; zero keeps them.
    pub age_max: Duration,
}

/// The open log.
pub(super) struct LogFile {
    options: LogOptions,
    output: Output,
}

enum Output {
    Standard(io::Stdout),
    /// The file and its size.
    File(File, u64),
    /// A rotation failed; the next write opens the file again.
    Closed,
}

impl LogFile {
    /// Opens the file, or creates it.
    pub(super) fn open(options: LogOptions) -> io::Result<LogFile> {
        let mut log = LogFile { options, output: Output::Closed };
        log.reopen()?;
        Ok(log)
    }

    fn reopen(&mut self) -> io::Result<()> {
        if self.options.path == Path::new("-") {
            self.output = Output::Standard(io::stdout());
            return Ok(());
        }
        let mut open = OpenOptions::new();
        let mut file =
            open.create(true).read(true).append(true).mode(0o600).open(&self.options.path)?;
        let mut size = file.metadata()?.len();
        if size > 0 && !ends_with_newline(&mut file)? {
            // A write was cut by a crash or a full disk; the next line must not be appended to it.
            file.write_all(b"\n")?;
            size += 1;
        }
        self.output = Output::File(file, size);
        Ok(())
    }

    /// Writes complete lines with one system call. `now` names a rotated file.
    pub(super) fn write(&mut self, lines: &[u8], now: Timestamp) -> io::Result<()> {
        if matches!(self.output, Output::Closed) {
            self.reopen()?;
        }
        let is_full = match &self.output {
            Output::File(_, size) => {
                *size > 0 && size.saturating_add(lines.len() as u64) > self.options.bytes_max
            }
            _ => false,
        };
        if is_full {
            self.rotate(now)?;
        }
        match &mut self.output {
            Output::Standard(out) => {
                out.write_all(lines)?;
                out.flush()
            }
            Output::File(file, size) => {
                let written = file.write_all(lines);
                *size += lines.len() as u64;
                if written.is_err() {
                    self.output = Output::Closed;
                }
                written
            }
            Output::Closed => Err(io::Error::other("the audit log is closed")),
        }
    }

    fn rotate(&mut self, now: Timestamp) -> io::Result<()> {
        self.output = Output::Closed;
        let (stem, extension) = self.parts();
        // The names sort by age. After two rotations in one millisecond the next one is used.
        let mut at = now;
        let target = loop {
            let time = at.strftime("%Y-%m-%dT%H-%M-%S%.3f");
            let target = self.options.path.with_file_name(format!("{stem}-{time}{extension}"));
            if !target.exists() {
                break target;
            }
            at = at.checked_add(Duration::from_millis(1)).map_err(io::Error::other)?;
        };
        fs::rename(&self.options.path, target)?;
        self.reopen()?;
        self.remove_old(now);
        Ok(())
    }

    /// The name without its extension, and the extension with its dot.
    fn parts(&self) -> (String, String) {
        let path = &self.options.path;
        let text = |part: Option<&std::ffi::OsStr>| {
            part.map(|part| part.to_string_lossy().into_owned()).unwrap_or_default()
        };
        let extension = match path.extension() {
            Some(_) => format!(".{}", text(path.extension())),
            None => String::new(),
        };
        (text(path.file_stem()), extension)
    }

    /// Removes rotated files that are too many or too old. A file that cannot be removed stays.
    fn remove_old(&self, now: Timestamp) {
        let mut old = self.rotated().unwrap_or_default();
        old.sort();
        let surplus = match self.options.files_max {
            0 => 0,
            kept => old.len().saturating_sub(kept),
        };
        let too_old = |path: &PathBuf| {
            let modified = path.metadata().and_then(|data| data.modified());
            let age = modified
                .ok()
                .and_then(|modified| SystemTime::from(now).duration_since(modified).ok());
            !self.options.age_max.is_zero() && age.is_some_and(|age| age > self.options.age_max)
        };
        for (index, path) in old.iter().enumerate() {
            if (index < surplus || too_old(path))
                && let Err(error) = fs::remove_file(path)
            {
                tracing::warn!(%error, path = %path.display(), "cannot remove an old audit log");
            }
        }
    }

    fn rotated(&self) -> io::Result<Vec<PathBuf>> {
        let (stem, extension) = self.parts();
        let directory = match self.options.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let prefix = format!("{stem}-");
        let mut found = Vec::new();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            let is_ours = name.is_some_and(|name| {
                let middle =
                    name.strip_prefix(&prefix).and_then(|name| name.strip_suffix(&extension));
                middle.is_some_and(|time| time.starts_with(|c: char| c.is_ascii_digit()))
            });
            if is_ours {
                found.push(path);
            }
        }
        Ok(found)
    }
}

fn ends_with_newline(file: &mut File) -> io::Result<bool> {
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_full_file_is_rotated_and_the_oldest_files_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        std::fs::write(dir.path().join("audit-notes.log"), "mine").unwrap();
        let (bytes_max, files_max, age_max) = (20, 2, Duration::ZERO);
        let options = LogOptions { path: path.clone(), bytes_max, files_max, age_max };
        let mut log = LogFile::open(options.clone()).unwrap();
        for second in 0..6 {
            let now = Timestamp::from_second(1_800_000_000 + second / 2).unwrap();
            log.write(format!("line {second} 45678\n").as_bytes(), now).unwrap();
        }
        let mut old = log.rotated().unwrap();
        old.sort();
        let read = |path: &PathBuf| std::fs::read_to_string(path).unwrap();
        let kept: Vec<String> = old.iter().chain([&path]).map(read).collect();
        assert_eq!(kept, ["line 3 45678\n", "line 4 45678\n", "line 5 45678\n"]);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(read(&dir.path().join("audit-notes.log")), "mine");

        // After a restart the file is continued, on a new line.
        std::fs::write(&path, "cut").unwrap();
        let mut log = LogFile::open(options).unwrap();
        log.write(b"more\n", Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(read(&path), "cut\nmore\n");
    }
}
