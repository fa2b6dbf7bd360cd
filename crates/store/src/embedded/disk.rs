//! The file operations of the engine, behind a trait for fault injection.
//!
//! River: commit → **disk**.
//! Promise: every write of the engine goes through this trait, so that a test can record it, lose
//! unsynced data, tear a write or fail a sync. The real implementation is [`Directory`].

use std::fmt::Debug;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::num::NonZero;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::Advice;

/// An open file.
pub trait DiskFile: Debug + Send + Sync + 'static {
    /// Its length.
    fn len(&self) -> io::Result<u64>;

    /// Whether it is empty.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills `out`, or fails.
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// Writes all of `data`.
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Changes the length; added bytes are zero.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Makes everything written so far durable.
    fn sync_data(&self) -> io::Result<()>;

    /// Asks the operating system to forget its copy, so that the next read reaches the disk.
    fn drop_cache(&self, offset: u64, len: u64);
}

/// A set of named files.
pub trait Disk: Debug + Send + Sync + 'static {
    /// Opens a file, or creates it.
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;

    /// Whether a file exists.
    fn exists(&self, name: &str) -> io::Result<bool>;

    /// The names of all files.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Renames a file; replaces an existing one.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes the names durable: new files, renames and removals.
    fn sync(&self) -> io::Result<()>;

    /// The free space.
    fn space(&self) -> io::Result<Space>;

    /// Creates or resizes a file and allocates its space.
    fn allocate(&self, name: &str, bytes: u64) -> io::Result<()>;

    /// The location, for messages.
    fn place(&self) -> String;
}

/// The space of a disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Available bytes.
    pub free: u64,
    /// The size of the disk.
    pub total: u64,
}

/// The name of the file that is locked.
const LOCK: &str = "LOCK";

/// A directory that is locked against a second process until it is dropped.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// A copy of a directory that is only read may have no such file.
    _lock: Option<File>,
    read_only: bool,
}

impl Directory {
    /// Locks the directory, or creates it, readable by its owner only.
    pub fn lock(path: &Path) -> io::Result<Directory> {
        let made = make(path);
        made.map_err(|error| named("cannot create", path, &error))?;
        let lock = owned().open(path.join(LOCK)).map_err(|e| named("cannot open", path, &e))?;
        take(&lock, path)?;
        Ok(Directory { path: path.to_owned(), _lock: Some(lock), read_only: false })
    }

    /// Locks a directory that is only read.
    pub(super) fn read_only(path: &Path) -> io::Result<Directory> {
        let lock = match File::open(path.join(LOCK)) {
            Ok(lock) => Some(lock),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(named("cannot open", path, &error)),
        };
        lock.as_ref().map_or(Ok(()), |lock| take(lock, path))?;
        Ok(Directory { path: path.to_owned(), _lock: lock, read_only: true })
    }

    /// The path of a file that is about to be changed.
    fn to_change(&self, name: &str) -> io::Result<PathBuf> {
        match self.read_only {
            true => Err(io::ErrorKind::ReadOnlyFilesystem.into()),
            false => Ok(self.path.join(name)),
        }
    }
}

/// Creates a directory and its parents durably. Returns the directories whose content it synced.
fn make(path: &Path) -> io::Result<Vec<PathBuf>> {
    if fs::exists(path)? {
        return Ok(Vec::new());
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let mut synced = make(parent)?;
    DirBuilder::new().mode(0o700).create(path)?;
    File::open(parent)?.sync_all()?;
    synced.push(parent.to_owned());
    Ok(synced)
}

fn take(lock: &File, path: &Path) -> io::Result<()> {
    match lock.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            format!("{} is in use by another process", path.display()),
        )),
        Err(TryLockError::Error(error)) => Err(named("cannot lock", path, &error)),
    }
}

impl Disk for Directory {
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let file = match self.read_only {
            true => File::open(self.path.join(name))?,
            false => owned().open(self.path.join(name))?,
        };
        Ok(Box::new(PlainFile(file)))
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        fs::exists(self.path.join(name))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
        fs::read_dir(&self.path)?.map(|entry| entry.map(name)).collect()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.to_change(from)?, self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.to_change(name)?)
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    fn space(&self) -> io::Result<Space> {
        let found = rustix::fs::statvfs(&self.path)?;
        let size = found.f_frsize;
        Ok(Space { free: found.f_bavail * size, total: found.f_blocks * size })
    }

    fn allocate(&self, name: &str, bytes: u64) -> io::Result<()> {
        let file = owned().open(self.to_change(name)?)?;
        file.set_len(bytes)?;
        // Even if the length is right: the file may be sparse.
        Ok(rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)?)
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }
}

/// The options of opening: files are readable by their owner only.
fn owned() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options
}

fn named(what: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what} {}: {error}", path.display()))
}

/// A file without its own lock: the directory has one.
#[derive(Debug)]
struct PlainFile(File);

impl DiskFile for PlainFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }

    fn drop_cache(&self, offset: u64, len: u64) {
        // Only advice: a read from memory is still correct.
        let _ = rustix::fs::fadvise(&self.0, offset, NonZero::new(len), Advice::DontNeed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C13
    #[test]
    fn every_directory_that_gets_a_new_one_is_synced() {
        let dir = tempfile::tempdir().unwrap();
        let synced = make(&dir.path().join("a/b/c")).unwrap();
        let parents = ["", "a", "a/b"].map(|parent| dir.path().join(parent));
        assert!(synced.iter().eq(&parents), "{synced:?}");
        assert!(make(dir.path()).unwrap().is_empty());
    }
}
