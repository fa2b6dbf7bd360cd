//! `headwater pki`: changes the keys and certificates of a server.
//!
//! Promise: the server may be running or stopped; each command is complete or has no effect.

use anyhow::{Context, Result};
use headwater_api::SystemClock;
use headwater_server::pki::private_file::OthersMayRead;
use headwater_server::pki::rotation;

use crate::flags::{PkiCommand, PkiFlags};
use crate::print;

/// Runs one of its commands.
pub(crate) fn run(flags: &PkiFlags) -> Result<()> {
    let directory = flags.pki_dir.clone().unwrap_or_else(|| flags.data_dir.join("pki"));
    let others = OthersMayRead::from_flag(flags.allow_loose_permissions);
    match flags.command {
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
    }
    Ok(())
}
