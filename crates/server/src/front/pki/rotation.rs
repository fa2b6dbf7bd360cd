//! Rotation of the certificate authority, in two steps that an operator takes.
//!
//! [`begin`] creates a second authority in `next/`. From then on both are trusted, new client
//! certificates come from the next one, and the serving certificate from the old one. When every
//! client has the new bundle and certificate, [`finish`] makes the next authority the only one and
//! keeps the old one in `retired-DIGEST/`.
//!
//! Promise: both steps are complete or have no effect; an interrupted [`finish`] can be repeated. No
//! file of an authority is overwritten without a copy.

use std::fs;
use std::path::{Path, PathBuf};

use headwater_api::Clock;
use zeroize::Zeroizing;

use super::authority::SigningAuthority;
use super::certificate::{belongs_to, fingerprint, key_pair};
use super::private_file::{self, OthersMayRead, PRIVATE, PUBLIC};
use super::{Error, open_locked};

/// The directory of the next authority.
pub(super) const NEXT: &str = "next";

/// Creates the next authority.
pub fn begin(directory: &Path, others: OthersMayRead, clock: &dyn Clock) -> Result<(), Error> {
    let _lock = open_locked(directory, others)?;
    let next = directory.join(NEXT);
    if next.exists() {
        return Err(Error::RotationBegun(next));
    }
    if SigningAuthority::load(directory, others)?.is_none() {
        return Err(Error::NoAuthority(directory.to_owned()));
    }
    let (authority, key) = SigningAuthority::create(clock.now())?;
    // The directory gets its name when it is complete.
    let unnamed = directory.join(format!(".next-{}", uuid::Uuid::new_v4().simple()));
    private_file::directory(&unnamed, others)?;
    private_file::replace(&unnamed.join("ca.key"), &key, PRIVATE)?;
    private_file::replace(&unnamed.join("ca.crt"), &authority.certificate, PUBLIC)?;
    private_file::rename(&unnamed, &next)?;
    Ok(())
}

/// Makes the next authority the only one. Returns the directory that keeps the old one.
pub fn finish(directory: &Path, others: OthersMayRead) -> Result<PathBuf, Error> {
    let _lock = open_locked(directory, others)?;
    let next = directory.join(NEXT);
    let (certificate, key) = (directory.join("ca.crt"), directory.join("ca.key"));
    let promoted = private_file::read_public(&next.join("ca.crt"))?;
    let Some(promoted) = promoted else { return Err(Error::NoRotation(next)) };
    let old = private_file::read_public(&certificate)?;
    let old = old.ok_or_else(|| Error::CertificateMissing(certificate.clone()))?;
    let digest = fingerprint(&old).ok_or_else(|| Error::NotACertificate(certificate.clone()))?;
    let retired = directory.join(format!("retired-{}", &digest[..16]));
    // The key is moved first, so its absence means that an earlier call was interrupted after that.
    if SigningAuthority::load(&next, others).is_ok_and(|next| next.is_some()) {
        private_file::directory(&retired, others)?;
        for name in ["ca.crt", "ca.key"] {
            keep_copy(&directory.join(name), &retired.join(name), others)?;
        }
        private_file::rename(&next.join("ca.key"), &key)?;
    } else {
        let moved = key_pair(&private_file::read(&key, others)?)?;
        if !belongs_to(&moved, &promoted) {
            return Err(Error::KeyMissing(next.join("ca.crt")));
        }
    }
    private_file::rename(&next.join("ca.crt"), &certificate)?;
    // Something else may be in it; without certificate it is ignored.
    let _ = fs::remove_dir(&next);
    Ok(retired)
}

fn keep_copy(from: &Path, to: &Path, others: OthersMayRead) -> Result<(), Error> {
    let content = match from.extension() {
        Some(extension) if extension == "key" => private_file::read_existing(from, others)?,
        _ => private_file::read_public(from)?.map(Zeroizing::new),
    };
    // A key that is already lost cannot be kept.
    let Some(content) = content else { return Ok(()) };
    private_file::replace(to, &content, PRIVATE)?;
    Ok(())
}
