//! Commands about stored data: compact, back up, restore, verify.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;

use crate::connect::{Connection, successful};
use crate::flags::{Backup, Compact, Remote};
use crate::kubeconfig::Endpoint;
use crate::print;

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
    let written = match write(&beside, body).await {
        Ok(bytes) => fs::hard_link(&beside, file).map(|()| bytes).map_err(Into::into),
        Err(error) => Err(error),
    };
    // Complete or not, only the name that was asked for stays.
    let _ = fs::remove_file(&beside);
    let bytes = written.with_context(|| format!("cannot write {}", file.display()))?;
    print::note(&format!("{bytes} bytes in {}", file.display()));
    Ok(())
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

async fn write(path: &Path, mut body: Incoming) -> Result<u64> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let mut bytes = 0;
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.context("the backup broke off")?.into_data() {
            file.write_all(&data)?;
            bytes += data.len() as u64;
        }
    }
    file.sync_all()?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(bytes)
}
