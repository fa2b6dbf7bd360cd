//! The commands `compact`, `backup`, `restore` and `verify`.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use headwater_store::embedded::{self, Manifest};
use http::Request;
use http::header::CONTENT_TYPE;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;

use crate::flags::{BackupFlags, CompactFlags, RemoteFlags, RestoreFlags, VerifyFlags};
use crate::print;
use headwater_bench::connect::{Connection, successful};
use headwater_bench::kubeconfig::Endpoint;

/// Asks a running server to forget history before a revision.
pub(crate) async fn compact(flags: &CompactFlags) -> Result<()> {
    let target = format!("/debug/headwater/compact?revision={}", flags.revision);
    let request =
        Request::post(target).header(CONTENT_TYPE, "application/json").body(Full::default())?;
    let (_connection, _) = call(&flags.remote, request).await?;
    print::note(&format!("deleted the history before revision {}", flags.revision));
    Ok(())
}

/// Backs up a running server to a file. The file appears only when it is complete.
pub(crate) async fn backup(flags: &BackupFlags) -> Result<()> {
    let file = &flags.file;
    if file.exists() {
        bail!("{} exists; choose another file name or delete it", file.display());
    }
    let request = Request::get("/debug/headwater/backup").body(Full::default())?;
    let (_connection, body) = call(&flags.remote, request).await?;
    let temporary = temporary(file);
    let taken = take(body, &temporary, file).await;
    // On success the backup also has its final name.
    let _ = fs::remove_file(&temporary);
    let manifest = taken.with_context(|| format!("cannot back up to {}", file.display()))?;
    print::note(&format!("backed up {} to {}", contents(&manifest), file.display()));
    Ok(())
}

/// Writes a backup to a temporary file, checks it, and links it to its final name.
async fn take(body: Incoming, temporary: &Path, file: &Path) -> Result<Manifest> {
    write(temporary, body).await?;
    let manifest = embedded::verify_backup(temporary)?;
    // Unlike a rename, a link does not replace a file that was created in the meantime.
    fs::hard_link(temporary, file)?;
    sync_directory(file)?;
    Ok(manifest)
}

/// Creates a data directory from a backup.
pub(crate) fn restore(flags: &RestoreFlags) -> Result<()> {
    let (file, data) = (flags.file.display(), flags.data_dir.display());
    fs::metadata(&flags.file).with_context(|| format!("cannot read {file}"))?;
    embedded::restore(&flags.file, &flags.data_dir)
        .with_context(|| format!("cannot restore {file}"))?;
    print::note(&format!("restored {file}; to serve it: headwater serve --data-dir {data}"));
    Ok(())
}

/// Checks a backup, or the data directory of a stopped server.
pub(crate) fn verify(flags: &VerifyFlags) -> Result<()> {
    let path = &flags.path;
    let kind = fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
    let found = if kind.is_dir() {
        let found = embedded::verify_dir(path);
        found.map(|found| format!("{} objects at revision {}", found.objects, found.revision))
    } else {
        embedded::verify_backup(path).map(|manifest| contents(&manifest))
    };
    let found = found.with_context(|| format!("verification of {} failed", path.display()))?;
    print::note(&format!("{} is intact: {found}", path.display()));
    Ok(())
}

fn contents(manifest: &Manifest) -> String {
    format!("{} objects at revision {}", manifest.objects, manifest.revision)
}

async fn call(
    remote: &RemoteFlags,
    request: Request<Full<Bytes>>,
) -> Result<(Connection, Incoming)> {
    let mut connection = Connection::open(&Endpoint::read(&remote.kubeconfig).await?).await?;
    let response = successful(connection.send(request).await?).await?;
    Ok((connection, response.into_body()))
}

fn temporary(file: &Path) -> PathBuf {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    file.with_file_name(format!(".{name}.{}", std::process::id()))
}

async fn write(path: &Path, mut body: Incoming) -> Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.context("the connection failed during the backup")?.into_data() {
            file.write_all(&data)?;
        }
    }
    Ok(file.sync_all()?)
}

fn sync_directory(file: &Path) -> Result<()> {
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok(File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?)
}
