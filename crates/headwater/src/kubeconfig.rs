//! `headwater kubeconfig`: gives somebody a credential.
//!
//! Promise: the kubeconfig goes to stdout and nowhere else; the certificate authority only reads files.

use std::path::Path;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use headwater_api::{Clock, SystemClock};
use headwater_bench::connect::{Connection, successful};
use headwater_bench::kubeconfig::{self as kubeconfig_file, Endpoint};
use headwater_server::certificates::CertificateAuthority;
use headwater_server::pki::kubeconfig::{self, UserCredential};
use headwater_server::pki::private_file::OthersMayRead;
use headwater_server::pki::{self, Secret};
use http::Request;
use http::header::CONTENT_TYPE;
use http_body_util::{BodyExt, Full, Limited};

use crate::controllers::root_ca;
use crate::flags::KubeconfigFlags;
use crate::print;

/// The maximum size of the server's answer: a token and what was asked for.
const ANSWER_MAX: usize = 1 << 20;

/// Writes a kubeconfig to stdout.
pub(crate) async fn run(flags: &KubeconfigFlags) -> Result<()> {
    let text = match (&flags.user, &flags.service_account) {
        (Some(user), _) => of_user(flags, user)?,
        (None, Some(account)) => of_service_account(flags, account).await?,
        (None, None) => bail!("either --user or --service-account is needed"),
    };
    print::data(text.trim_end());
    Ok(())
}

/// A client certificate of the authority in the data directory.
fn of_user(flags: &KubeconfigFlags, user: &str) -> Result<String> {
    if user.is_empty() || flags.group.iter().any(String::is_empty) {
        bail!("the name of a user or group is empty");
    }
    let directory = flags.pki_dir.clone().unwrap_or_else(|| flags.data_dir.join("pki"));
    let others = OthersMayRead::from_flag(flags.allow_loose_permissions);
    let (pair, ca) = pki::signing_authority(&directory, others)?;
    let authority = CertificateAuthority::new(&pair)?;
    let made = authority.client(user, &flags.group, flags.duration, SystemClock.now())?;
    let url = match &flags.server {
        Some(url) => url.clone(),
        None => server_of(&flags.data_dir.join("admin.kubeconfig"))?,
    };
    Ok(kubeconfig::user(&ca, &url, user, UserCredential::Certificate(&made)))
}

/// The address of the server in a kubeconfig.
fn server_of(path: &Path) -> Result<String> {
    let read = kubeconfig_file::read(path, "pass --server URL")?;
    let server = read.clusters.into_iter().find_map(|cluster| cluster.cluster?.server);
    server.with_context(|| format!("{} names no server; pass --server URL", path.display()))
}

/// A token that the server issues.
async fn of_service_account(flags: &KubeconfigFlags, account: &str) -> Result<String> {
    let (namespace, name) = account
        .split_once('/')
        .filter(|(namespace, name)| is_segment(namespace) && is_segment(name))
        .with_context(|| format!("{account:?} is not NAMESPACE/NAME"))?;
    let path = &flags.remote.kubeconfig;
    let config = kubeconfig_file::config(path).await?;
    let asked =
        headwater_json::json!({ "spec": { "expirationSeconds": flags.duration.as_secs() } });
    let request =
        Request::post(format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"))
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(asked.to_string())))?;
    let mut connection = Connection::open(&Endpoint::read(path).await?).await?;
    let response = successful(connection.send(request).await?)
        .await
        .with_context(|| format!("the server issued no token for {account}"))?;
    let body = Limited::new(response.into_body(), ANSWER_MAX).collect().await;
    let body = body.map_err(|error| anyhow::anyhow!("cannot read the token: {error}"))?.to_bytes();
    let made = headwater_json::parse(&body).context("the answer is not JSON")?.value;
    let token = made["status"]["token"].as_str().context("the answer has no token")?;
    let url = flags
        .server
        .clone()
        .unwrap_or_else(|| config.cluster_url.to_string().trim_end_matches('/').to_owned());
    let ca = root_ca(&config).unwrap_or_default();
    let token = Secret::new(token.to_owned());
    Ok(kubeconfig::user(&ca, &url, name, UserCredential::Token(&token)))
}

/// Whether a text can be one segment of a path.
fn is_segment(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
    !text.is_empty() && text != "." && text != ".." && text.bytes().all(is_allowed)
}
