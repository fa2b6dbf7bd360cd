//! A change of the key that signs service-account tokens, in two steps that an operator takes.
//!
//! [`begin`] creates another key; tokens of the former one stay valid. When the clients have new tokens,
//! or at once if the key was stolen, [`finish`] ends that: the former tokens are rejected.
//!
//! Promise: both steps are complete or have no effect. No key is overwritten without a copy.

use std::fs;
use std::path::{Path, PathBuf};

use super::certificate::{key_pair, new_key};
use super::private_file::{self, OthersMayRead, PRIVATE, PUBLIC};
use super::{Error, open_locked};

const KEY: &str = "sa.key";
/// The public keys whose tokens are still accepted.
const FORMER: &str = "sa-former.pub";

/// Creates another key. Tokens of the former one are accepted until [`finish`].
pub fn begin(directory: &Path, others: OthersMayRead) -> Result<(), Error> {
    let _lock = open_locked(directory, others)?;
    let (path, former) = (directory.join(KEY), directory.join(FORMER));
    let Some(old) = private_file::read_existing(&path, others)? else {
        return Err(Error::NoServiceAccountKey(path));
    };
    if former.exists() {
        return Err(Error::KeyChangeBegun(former));
    }
    private_file::replace(&directory.join("sa.key.old"), &old, PRIVATE)?;
    // First the public key: with it alone, nothing changes.
    private_file::replace(&former, &key_pair(&old)?.public_key_pem(), PUBLIC)?;
    private_file::replace(&path, new_key()?.reveal(), PRIVATE)?;
    Ok(())
}

/// Ends the validity of the former key's tokens. Returns the file that keeps the former key.
pub fn finish(directory: &Path, others: OthersMayRead) -> Result<PathBuf, Error> {
    let _lock = open_locked(directory, others)?;
    let former = directory.join(FORMER);
    let Some(public) = private_file::read_public(&former)? else {
        return Err(Error::NoKeyChange(former));
    };
    let path = directory.join(KEY);
    let key = key_pair(&private_file::read(&path, others)?)?;
    if key.public_key_pem() == public {
        // An interrupted [`begin`]: the key is still to be replaced.
        private_file::replace(&path, new_key()?.reveal(), PRIVATE)?;
    }
    private_file::replace(&directory.join("sa-former.pub.old"), &public, PUBLIC)?;
    fs::remove_file(&former).map_err(|source| {
        Error::File(private_file::Error::Io { action: "remove", path: former.clone(), source })
    })?;
    Ok(directory.join("sa.key.old"))
}

/// The public keys whose tokens are still accepted, as PEM.
pub(super) fn former(directory: &Path) -> Result<String, Error> {
    Ok(private_file::read_public(&directory.join(FORMER))?.unwrap_or_default())
}
