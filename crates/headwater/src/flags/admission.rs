//! Flags of admission: plugins, and the ranges of Services.

use anyhow::{Context, Result};
use clap::Args;
use headwater_server::{AdmissionSettings, ServiceRanges};

#[derive(Debug, Args)]
#[command(next_help_heading = "Admission")]
pub(crate) struct AdmissionFlags {
    /// Admission plugins to switch on; all are on by default. ServiceAccount also refuses pods of
    /// accounts that do not exist, which is the default where the controllers run
    #[arg(long, value_name = "NAMES", value_delimiter = ',', hide_short_help = true)]
    pub(crate) enable_admission_plugins: Vec<String>,

    /// Admission plugins to switch off
    #[arg(long, value_name = "NAMES", value_delimiter = ',', hide_short_help = true)]
    pub(crate) disable_admission_plugins: Vec<String>,

    /// Addresses of Services: one range, or one of each family, the primary one first
    #[arg(long, value_name = "CIDRS", default_value = "10.96.0.0/12", hide_short_help = true)]
    pub(crate) service_cluster_ip_range: String,

    /// Ports of Services on nodes
    #[arg(long, value_name = "RANGE", default_value = "30000-32767", hide_short_help = true)]
    pub(crate) service_node_port_range: String,
}

impl AdmissionFlags {
    /// The settings; `makes_accounts` tells whether controllers of this process create service accounts.
    pub(crate) fn settings(&self, makes_accounts: bool) -> Result<AdmissionSettings> {
        let services =
            ServiceRanges::new(&self.service_cluster_ip_range, &self.service_node_port_range)
                .context("--service-cluster-ip-range, --service-node-port-range")?;
        let mut settings = AdmissionSettings::new(makes_accounts, services);
        settings
            .switch(&self.enable_admission_plugins, &self.disable_admission_plugins)
            .context("--enable-admission-plugins, --disable-admission-plugins")?;
        Ok(settings)
    }
}
