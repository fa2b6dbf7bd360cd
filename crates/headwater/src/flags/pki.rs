//! The flags of `headwater pki`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(crate) struct PkiFlags {
    #[command(subcommand)]
    pub(crate) command: PkiCommand,

    /// Data directory of the server
    #[arg(long, global = true, value_name = "DIR", default_value = "./.headwater")]
    pub(crate) data_dir: PathBuf,

    /// Directory of the certificates, as for "headwater serve" [default: DIR/pki]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) pki_dir: Option<PathBuf>,

    /// Continue even if other users can read keys
    #[arg(long, global = true)]
    pub(crate) allow_loose_permissions: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PkiCommand {
    /// Add a certificate authority next to the current one; both are trusted until --finish
    Rotate {
        /// Make the added authority the only one, and keep the old one in a directory
        #[arg(long)]
        finish: bool,
    },
    /// Add a service-account key; tokens of the former one stay valid until --finish
    RotateServiceAccountKey {
        /// Reject the tokens of the former key
        #[arg(long)]
        finish: bool,
    },
    /// Revoke a client certificate; a running server ends its connections within seconds
    Revoke {
        /// Certificate (PEM) or kubeconfig
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}
