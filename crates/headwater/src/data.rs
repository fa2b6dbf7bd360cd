//! Commands about stored data: compact, back up, restore, verify.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use headwater_store::embedded::{self, Manifest};
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;

use crate::flags::{Backup, Compact, Remote, Restore, Verify};
use crate::print;
use headwater_bench::connect::{Connection, successful};
use headwater_bench::kubeconfig::Endpoint;

/// Asks a running server to forget history before a revision.
pub(crate) async fn compact(flags: &Compact) -> Result<()> {
    let target = format!("/debug/headwater/compact?revision={}", flags.revision);
    let request = Request::post(target).body(Full::default())?;
    let (_connection, _) = ask(&flags.remote, request).await?;
    print::note(&format!("history before revision {} is gone", flags.revision));
    Ok(())
}

/// Copies what a running server holds into a file. The file appears when it is complete.
pub(crate) async fn backup(flags: &Backup) -> Result<()> {
    let file = &flags.file;
    if file.exists() {
        bail!("{} exists; choose another name or remove it", file.display());
    }
    let request = Request::get("/debug/headwater/backup").body(Full::default())?;
    let (_connection, body) = ask(&flags.remote, request).await?;
    let beside = beside(file);
    let taken = take(body, &beside, file).await;
    // Complete or not, only the name that was asked for stays.
    let _ = fs::remove_file(&beside);
    let manifest = taken.with_context(|| format!("no backup in {}", file.display()))?;
    print::note(&format!("{} in {}", contents(&manifest), file.display()));
    Ok(())
}

/// Writes a backup beside its place, checks it from end to end, and puts it there.
async fn take(body: Incoming, beside: &Path, file: &Path) -> Result<Manifest> {
    write(beside, body).await?;
    let manifest = embedded::verify_backup(beside)?;
    // A link, unlike a rename, does not replace what came there meanwhile.
    fs::hard_link(beside, file)?;
    sync_directory(file)?;
    Ok(manifest)
}

/// Fills a new directory from a backup.
pub(crate) fn restore(flags: &Restore) -> Result<()> {
    let (file, data) = (flags.file.display(), flags.data_dir.display());
    embedded::restore(&flags.file, &flags.data_dir)
        .with_context(|| format!("{file} was not restored"))?;
    print::note(&format!("{file} is restored; try: headwater serve --data-dir {data}"));
    Ok(())
}

/// Checks a backup, or a data directory that nobody has open.
pub(crate) fn verify(flags: &Verify) -> Result<()> {
    let path = &flags.path;
    let found = if path.is_dir() {
        let found = embedded::verify_dir(path, flags.deep);
        found.map(|found| format!("{} objects at revision {}", found.objects, found.revision))
    } else {
        embedded::verify_backup(path).map(|manifest| contents(&manifest))
    };
    let found = found.with_context(|| format!("{} is not good", path.display()))?;
    print::note(&format!("{} is good: {found}", path.display()));
    Ok(())
}

fn contents(manifest: &Manifest) -> String {
    format!("{} objects at revision {}", manifest.objects, manifest.revision)
}

async fn ask(remote: &Remote, request: Request<Full<Bytes>>) -> Result<(Connection, Incoming)> {
    let mut connection = Connection::open(&Endpoint::read(&remote.kubeconfig)?).await?;
    let response = successful(connection.send(request).await?).await?;
    Ok((connection, response.into_body()))
}

fn beside(file: &Path) -> PathBuf {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    file.with_file_name(format!(".{name}.{}", std::process::id()))
}

async fn write(path: &Path, mut body: Incoming) -> Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.context("the backup broke off")?.into_data() {
            file.write_all(&data)?;
        }
    }
    Ok(file.sync_all()?)
}

fn sync_directory(file: &Path) -> Result<()> {
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok(File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?)
}
