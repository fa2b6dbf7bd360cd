//! `headwater pki`: changes the keys and certificates of a server.
//!
//! Promise: the server may be running or stopped; each command is complete or has no effect.

use std::path::Path;

use anyhow::{Context, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use headwater_api::SystemClock;
use headwater_server::pki::private_file::OthersMayRead;
use headwater_server::pki::{revoked, rotation, service_account_keys};
use kube::config::Kubeconfig;

use crate::flags::{PkiCommand, PkiFlags};
use crate::print;

/// Runs one of its commands.
pub(crate) fn run(flags: &PkiFlags) -> Result<()> {
    let directory = flags.pki_dir.clone().unwrap_or_else(|| flags.data_dir.join("pki"));
    let others = OthersMayRead::from_flag(flags.allow_loose_permissions);
    match &flags.command {
        PkiCommand::Rotate { finish: false } => {
            rotation::begin(&directory, others, &SystemClock)
                .context("cannot rotate the certificate authority")?;
            print::note(
                "added a certificate authority. Next: restart the server (all of them, if several \
                 share the directory), give clients the new admin.kubeconfig or certificates, then \
                 run \"headwater pki rotate --finish\"",
            );
        }
        PkiCommand::Rotate { finish: true } => {
            let retired = rotation::finish(&directory, others)
                .context("cannot finish the rotation of the certificate authority")?;
            print::note(&format!(
                "the new certificate authority is the only one; the old one is kept in {}. Next: \
                 restart the server",
                retired.display()
            ));
        }
        PkiCommand::RotateServiceAccountKey { finish: false } => {
            service_account_keys::begin(&directory, others)
                .context("cannot add a service-account key")?;
            print::note(
                "added a service-account key. Next: restart the server (all of them, if several share \
                 the directory), wait until clients have new tokens, then run \
                 \"headwater pki rotate-service-account-key --finish\"",
            );
        }
        PkiCommand::RotateServiceAccountKey { finish: true } => {
            let kept = service_account_keys::finish(&directory, others)
                .context("cannot withdraw the former service-account key")?;
            print::note(&format!(
                "tokens of the former service-account key are not accepted any more; the key is kept \
                 in {}. Next: restart the server",
                kept.display()
            ));
        }
        PkiCommand::Revoke { file } => {
            let digest = revoked::revoke(&directory, &certificate(file)?, others)
                .with_context(|| format!("cannot revoke {}", file.display()))?;
            print::note(&format!(
                "revoked the certificate with the SHA-256 digest {digest}; a running server ends its \
                 connections within seconds"
            ));
        }
    }
    Ok(())
}

/// The client certificate in a PEM file or a kubeconfig, as PEM.
fn certificate(file: &Path) -> Result<String> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    if text.contains("-----BEGIN CERTIFICATE-----") {
        return Ok(text);
    }
    let kubeconfig = Kubeconfig::from_yaml(&text)
        .with_context(|| format!("{} is neither a certificate nor a kubeconfig", file.display()))?;
    let mut data = kubeconfig
        .auth_infos
        .into_iter()
        .filter_map(|user| user.auth_info?.client_certificate_data);
    let (Some(one), None) = (data.next(), data.next()) else {
        bail!("{} must contain one user with client-certificate-data", file.display());
    };
    let pem = STANDARD.decode(one).context("client-certificate-data is not base64")?;
    String::from_utf8(pem).context("client-certificate-data is not PEM")
}
