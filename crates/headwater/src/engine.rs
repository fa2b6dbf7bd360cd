//! The storage engine that the flags select. No other module of the program names one.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use headwater_api::Clock;
use headwater_server::backup::Backup;
use headwater_store::embedded::Retention;
use headwater_store::embedded::disk::Directory;
use headwater_store::{Embedded, EmbeddedOptions, Memory, Store};
use headwater_store_etcd::{EtcdStore, Login, Options as EtcdOptions, Tls};

use crate::flags::{self, ServeFlags, StoreKind};

/// An open storage engine.
pub(crate) enum Engine {
    Memory(Arc<Memory>),
    Embedded(Arc<Embedded>, PathBuf),
    Etcd(Arc<EtcdStore>, String),
}

impl Engine {
    /// Opens the engine that the flags select; without a data directory, one in memory.
    pub(crate) async fn open(
        flags: &ServeFlags,
        data: Option<&Path>,
        clock: Arc<dyn Clock>,
    ) -> Result<Engine> {
        match (flags.store, data) {
            (StoreKind::Etcd, _) => connect(&flags.etcd).await,
            (StoreKind::Embedded, None) => Ok(Engine::Memory(Arc::default())),
            (StoreKind::Embedded, Some(data)) => open(flags, data, clock).await,
        }
    }

    /// The store.
    pub(crate) fn store(&self) -> Arc<dyn Store> {
        match self {
            Engine::Memory(memory) => memory.clone(),
            Engine::Embedded(embedded, _) => embedded.clone(),
            Engine::Etcd(etcd, _) => etcd.clone(),
        }
    }

    /// A description for the user.
    pub(crate) fn description(&self) -> String {
        match self {
            Engine::Memory(_) => "memory only; it is lost when the server stops".to_owned(),
            Engine::Embedded(_, data) => data.display().to_string(),
            Engine::Etcd(_, description) => description.clone(),
        }
    }

    /// How the server makes backups. With etcd it refuses, because etcd has its own.
    pub(crate) fn backup(&self) -> Backup {
        match self {
            Engine::Memory(_) => Backup::default(),
            Engine::Etcd(..) => {
                Backup::refused("the data is in etcd; back it up with \"etcdctl snapshot save\"")
            }
            Engine::Embedded(embedded, _) => {
                let embedded = embedded.clone();
                Backup::new(move || embedded.backup_stream())
            }
        }
    }

    /// Closes the engine after the last write is on disk.
    pub(crate) async fn close(self) -> Result<()> {
        match self {
            Engine::Memory(_) | Engine::Etcd(..) => Ok(()),
            Engine::Embedded(store, _) => {
                Ok(tokio::task::spawn_blocking(move || store.close()).await?)
            }
        }
    }
}

async fn open(flags: &ServeFlags, data: &Path, clock: Arc<dyn Clock>) -> Result<Engine> {
    let directory = Directory::lock(data).map_err(|error| match error.kind() {
        io::ErrorKind::ResourceBusy => {
            anyhow!("{error}; stop that process, or choose another directory with --data-dir")
        }
        _ => anyhow!(error),
    })?;
    let retention = Retention { age: flags.history_age, bytes: flags.history_bytes.0 };
    let salvage = flags.salvage;
    let options = EmbeddedOptions { retention, salvage, clock, ..EmbeddedOptions::default() };
    let opened = move || Embedded::open_on(Arc::new(directory), options);
    let store = tokio::task::spawn_blocking(opened).await?;
    Ok(Engine::Embedded(
        Arc::new(store.with_context(|| format!("cannot open the data in {}", data.display()))?),
        data.to_owned(),
    ))
}

async fn connect(flags: &flags::EtcdFlags) -> Result<Engine> {
    flags.check().map_err(|why| anyhow!(why))?;
    let login = flags.etcd_user.clone();
    let interval = flags.etcd_compaction_interval;
    let options = EtcdOptions {
        endpoints: flags.etcd_endpoints.clone(),
        prefix: flags.etcd_prefix.clone(),
        tls: tls(flags)?,
        login: login.map(|user| Login { name: user.name, password: user.password }),
        compaction: (!interval.is_zero()).then_some(interval),
        deadline: flags.etcd_timeout,
        ..EtcdOptions::default()
    };
    let description = format!("etcd at {}, under {}", options.endpoints.join(","), options.prefix);
    let etcd = EtcdStore::connect(options).await.context("cannot connect to etcd")?;
    Ok(Engine::Etcd(Arc::new(etcd), description))
}

fn tls(flags: &flags::EtcdFlags) -> Result<Option<Tls>> {
    let read = |path: &PathBuf| {
        std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
    };
    let Some(ca) = &flags.etcd_cacert else { return Ok(None) };
    let identity = match (&flags.etcd_cert, &flags.etcd_key) {
        (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
        _ => None,
    };
    Ok(Some(Tls { ca: read(ca)?, identity }))
}
