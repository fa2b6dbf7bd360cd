//! Files that only their owner may read.
//!
//! Promise: files are replaced atomically; a file has its mode from its creation; symbolic links are
//! replaced, not followed.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

/// For keys, tokens, kubeconfigs.
pub const PRIVATE: u32 = 0o600;
/// For certificates.
pub const PUBLIC: u32 = 0o644;

/// What to do about a secret that other users of the machine can read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OthersMayRead {
    /// Reject it, with an error that names the fix.
    #[default]
    Refuse,
    /// Accept it, at the operator's own risk.
    Allow,
}

impl OthersMayRead {
    /// The value of `--allow-loose-permissions`.
    pub fn from_flag(allow: bool) -> OthersMayRead {
        if allow { OthersMayRead::Allow } else { OthersMayRead::Refuse }
    }
}

/// Why a private file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system returned an error.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// It belongs to another user, who may read and replace it.
    #[error("{} belongs to another user (uid {owner}); run \"chown {user} {}\" or pass --allow-loose-permissions", path.display(), path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// Other users may read it.
    #[error("{} can be read by other users (mode {mode:04o}); run \"chmod {wanted:o} {}\" or pass --allow-loose-permissions", path.display(), path.display())]
    Loose {
        /// The file or directory.
        path: PathBuf,
        /// Its mode.
        mode: u32,
        /// The mode it should have.
        wanted: u32,
    },
}

impl Error {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::Io { action, path, source }
    }
}

/// Creates a directory that only its owner may enter; if it exists, checks its mode.
pub fn directory(path: &Path, others: OthersMayRead) -> Result<(), Error> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(Error::io("create the directory", path))?;
    check(path, 0o700, others)
}

/// Creates a directory for temporary files that only its owner may enter. Other users of the machine
/// cannot guess its name, and so cannot create it first.
pub fn temporary_directory() -> Result<PathBuf, Error> {
    let name = format!("headwater-{}", uuid::Uuid::new_v4().simple());
    let path = std::env::temp_dir().join(name);
    let created = DirBuilder::new().mode(0o700).create(&path);
    created.map_err(Error::io("create the directory", &path))?;
    Ok(path)
}

/// Reads a file that only its owner may read. The memory of the content is overwritten when it is
/// dropped.
pub fn read(path: &Path, others: OthersMayRead) -> Result<Zeroizing<String>, Error> {
    check(path, PRIVATE, others)?;
    fs::read_to_string(path).map(Zeroizing::new).map_err(Error::io("read", path))
}

/// Reads a file that only its owner may read; `None` if there is none. Only absence is `None`: a file
/// that cannot be read must not look as if it could be created.
pub fn read_existing(
    path: &Path,
    others: OthersMayRead,
) -> Result<Option<Zeroizing<String>>, Error> {
    if is_absent(path)? {
        return Ok(None);
    }
    check(path, PRIVATE, others)?;
    Ok(read_public(path)?.map(Zeroizing::new))
}

/// Reads a file that everybody may read; `None` if there is none. Invalid UTF-8 is replaced.
pub fn read_public(path: &Path) -> Result<Option<String>, Error> {
    if is_absent(path)? {
        return Ok(None);
    }
    let content = fs::read(path).map_err(Error::io("read", path))?;
    Ok(Some(
        String::from_utf8(content)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()),
    ))
}

/// Whether a path has no entry. A symbolic link without a target is an entry.
fn is_absent(path: &Path) -> Result<bool, Error> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(Error::io("read", path)(error)),
    }
}

/// Renames a file or directory, durably.
pub fn rename(from: &Path, to: &Path) -> Result<(), Error> {
    fs::rename(from, to)
        .and_then(|()| File::open(parent(to))?.sync_all())
        .map_err(Error::io("write", to))
}

fn parent(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Replaces a file atomically, with this mode.
pub fn replace(path: &Path, content: &str, mode: u32) -> Result<(), Error> {
    let directory = parent(path);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = directory.join(format!(".{name}.{}", uuid::Uuid::new_v4().simple()));
    let done = write_new(&beside, content, mode)
        .and_then(|()| fs::rename(&beside, path))
        .and_then(|()| File::open(directory)?.sync_all());
    if done.is_err() {
        // A leftover temporary file is harmless.
        let _ = fs::remove_file(&beside);
    }
    done.map_err(Error::io("write", path))
}

fn write_new(path: &Path, content: &str, mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    // The umask narrows the mode above, which may make a certificate unreadable for others.
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(content.as_bytes())?;
    file.sync_all()
}

/// Locks a file, on this machine or on a network file system that supports locks. The lock is
/// released when the returned file is dropped and when the process ends.
pub fn lock(path: &Path) -> Result<File, Error> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(PRIVATE).open(path);
    let file = file.map_err(Error::io("open", path))?;
    file.lock().map_err(Error::io("lock", path))?;
    Ok(file)
}

/// Rejects a file that others may read or write, or that belongs to another user. Root may own it. A
/// foreign directory is only a warning: it is common for a mounted volume.
pub fn check(path: &Path, wanted: u32, others: OthersMayRead) -> Result<(), Error> {
    if others == OthersMayRead::Allow {
        return Ok(());
    }
    let metadata = fs::metadata(path).map_err(Error::io("read", path))?;
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(Error::Loose { path: path.to_owned(), mode, wanted });
    }
    let (owner, user) = (metadata.uid(), rustix::process::geteuid().as_raw());
    match owner == user || owner == 0 {
        true => Ok(()),
        false if metadata.is_dir() => {
            tracing::warn!(path = %path.display(), owner, "the directory belongs to another user");
            Ok(())
        }
        false => Err(Error::Foreign { path: path.to_owned(), owner, user }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_directory_is_private_and_has_a_name_of_its_own() {
        let (one, other) = (temporary_directory().unwrap(), temporary_directory().unwrap());
        assert_ne!(one, other);
        for path in [one, other] {
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
            fs::remove_dir(path).unwrap();
        }
    }

    #[test]
    fn a_file_others_may_read_is_refused_with_the_way_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.key");
        replace(&path, "secret", PUBLIC).unwrap();
        let error = read(&path, OthersMayRead::Refuse).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
        assert!(error.contains("--allow-loose-permissions"), "{error}");
        assert_eq!(read(&path, OthersMayRead::Allow).unwrap().as_str(), "secret");
    }

    #[test]
    fn a_file_of_another_user_is_refused_with_the_way_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        replace(&path, "secret", PRIVATE).unwrap();
        // Only root can give files away.
        if std::os::unix::fs::chown(&path, Some(12_345), None).is_err() {
            return;
        }
        let error = read(&path, OthersMayRead::Refuse).unwrap_err().to_string();
        assert!(error.contains("uid 12345") && error.contains("chown"), "{error}");
        assert!(error.contains("--allow-loose-permissions"), "{error}");
        assert_eq!(read(&path, OthersMayRead::Allow).unwrap().as_str(), "secret");
    }

    #[test]
    fn a_replaced_file_has_its_mode_and_leaves_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.kubeconfig");
        replace(&path, "old", PRIVATE).unwrap();
        replace(&path, "new", PRIVATE).unwrap();
        assert_eq!(read(&path, OthersMayRead::Refuse).unwrap().as_str(), "new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, PRIVATE);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_link_is_replaced_and_its_target_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        fs::write(&target, "untouched").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        replace(&link, "new", PRIVATE).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "untouched");
        assert_eq!(fs::read_to_string(&link).unwrap(), "new");
    }
}
