//! Lists: what an object in a list costs the server, however it is asked for.
//!
//! Promise: of every way to ask, the first answer is read object by object: each pod that should be
//! there once and no other.

use std::time::Instant;

use anyhow::{Context, Result};
use headwater_api::object::string_at;

use crate::connect::Connection;
use crate::kubeconfig::Endpoint;
use crate::load::histogram;
use crate::load::object::{NODES, SPREAD, namespace, node};
use crate::load::requests::{make_namespaces, make_pods};
use crate::report::Case;
use crate::report::figures::{Figure, Figures};
use crate::session::Session;
use crate::target::Target;
use crate::target::measure::Meter;

mod at_once;
mod stream;

use crate::load::body::{self, Encoding};

const ALL: &str = "/api/v1/pods";
const PAGE: usize = 500;
/// Objects a case reads in all, so that small lists are repeated more often than large ones.
const OBJECTS_READ: usize = 100_000;

/// What is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Mode {
    /// All pods in one answer
    Full,
    /// All pods, in pages of 500
    Pages,
    /// 1 % of them, by a label
    Label,
    /// 0.1 % of them, by spec.nodeName
    Field,
    /// 1 % of them, one namespace
    Namespace,
    /// 16 lists of all pods at the same time, for the memory they need
    AtOnce,
    /// All pods as events of a watch
    WatchList,
}

/// Which state is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// resourceVersion unset: the newest.
    Newest,
    /// resourceVersion=0: any.
    Any,
}

/// One way to list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    pub(crate) objects: usize,
    pub(crate) mode: Mode,
    pub(crate) encoding: Encoding,
    pub(crate) version: Version,
    /// How often; as often as is useful unless given.
    pub(crate) rounds: Option<usize>,
}

/// Makes pods so that there are `objects`, of which there are `made`.
pub(crate) async fn prepare(session: &Session, made: usize, objects: usize) -> Result<()> {
    session
        .each(async |target| {
            if made == 0 {
                make_namespaces(target).await?;
            }
            make_pods(target, made, objects).await
        })
        .await
}

/// All ways to list so many pods by these modes.
pub(crate) fn ways(objects: usize, modes: &[Mode], rounds: Option<usize>) -> Vec<List> {
    let mut ways = Vec::new();
    for &mode in modes {
        for encoding in [Encoding::Plain, Encoding::Gzip] {
            for version in [Version::Newest, Version::Any] {
                let way = List { objects, mode, encoding, version, rounds };
                ways.push(way);
            }
        }
    }
    ways.retain(|way| {
        let has_one_way = matches!(way.mode, Mode::AtOnce | Mode::WatchList);
        !has_one_way || way.is_plain()
    });
    ways
}

impl List {
    pub(crate) fn new(objects: usize, mode: Mode) -> List {
        let (encoding, version) = (Encoding::Plain, Version::Newest);
        List { objects, mode, encoding, version, rounds: None }
    }

    pub(crate) fn gzip(self) -> List {
        List { encoding: Encoding::Gzip, ..self }
    }

    pub(crate) async fn run(self, session: &mut Session) -> Result<()> {
        let case = self.case();
        match self.mode {
            Mode::AtOnce => {
                session
                    .measure(case, async |target, _| at_once::once(target, self.objects).await)
                    .await
            }
            Mode::WatchList => {
                let rounds = self.rounds();
                session
                    .measure(case, async |target, _| {
                        stream::once(target, self.objects, rounds).await
                    })
                    .await
            }
            _ => session.measure(case, async |target, _| self.once(target).await).await,
        }
    }

    fn case(self) -> Case {
        let mut mode = match self.mode {
            Mode::Full => "full",
            Mode::Pages => "pages",
            Mode::Label => "label",
            Mode::Field => "field",
            Mode::Namespace => "namespace",
            Mode::AtOnce => "at once",
            Mode::WatchList => "watch-list",
        }
        .to_owned();
        if self.encoding == Encoding::Gzip {
            mode.push_str(", gzip");
        }
        if self.version == Version::Any {
            mode.push_str(", RV 0");
        }
        match self.is_whole() {
            true => Case::new("list", &mode, "objects").sized("objects", self.objects),
            false => {
                Case::new("list", &mode, "requests").sized("objects", self.objects).grows_straight()
            }
        }
    }

    /// Not compressed, and the newest state.
    pub(crate) fn is_plain(self) -> bool {
        self.encoding == Encoding::Plain && self.version == Version::Newest
    }

    fn is_whole(self) -> bool {
        !matches!(self.mode, Mode::Label | Mode::Field | Mode::Namespace)
    }

    fn rounds(self) -> usize {
        let useful = match self.is_whole() {
            true => (OBJECTS_READ / self.objects.max(1)).clamp(3, 50),
            false => (20 * OBJECTS_READ / self.objects.max(1)).clamp(50, 200),
        };
        self.rounds.unwrap_or(useful)
    }

    /// Whether the `index`-th pod belongs to the answer.
    fn selects(self, index: usize) -> bool {
        match self.mode {
            Mode::Label => (index / SPREAD) % SPREAD == 7,
            Mode::Field => index % NODES == 7,
            Mode::Namespace => index % SPREAD == 7,
            Mode::Full | Mode::Pages | Mode::AtOnce | Mode::WatchList => true,
        }
    }

    fn path(self) -> String {
        let path = match self.mode {
            Mode::Full | Mode::AtOnce | Mode::WatchList => format!("{ALL}?"),
            Mode::Pages => format!("{ALL}?limit={PAGE}&"),
            Mode::Label => format!("{ALL}?labelSelector=shard%3Ds7&"),
            Mode::Field => format!("{ALL}?fieldSelector=spec.nodeName%3D{}&", node(7)),
            Mode::Namespace => format!("/api/v1/namespaces/{}/pods?", namespace(7)),
        };
        match self.version {
            Version::Newest => path,
            Version::Any => format!("{path}resourceVersion=0"),
        }
    }

    async fn once(self, target: &Target) -> Result<Figures> {
        let mut connection = Connection::open(&target.endpoint).await?;
        // The first is for the server to get warm, and for us to check.
        let expected: Vec<usize> = (0..self.objects).filter(|index| self.selects(*index)).collect();
        let bytes = body::check(&mut connection, &self.path(), self.encoding, &expected).await?;
        let mut micros = histogram()?;
        let rounds = self.rounds();
        let meter = Meter::start(target).await;
        for _ in 0..rounds {
            let began = Instant::now();
            let read = body::read(&mut connection, &self.path(), self.encoding).await?;
            micros.saturating_record(began.elapsed().as_micros() as u64);
            read.expect(self.encoding, expected.len())?;
        }
        let used = meter.stop().await;
        let units = if self.is_whole() { self.objects } else { 1 };
        let figures = Figures::used(units * rounds, used).latency(&micros);
        Ok(figures.with(Figure::Wire, bytes as f64))
    }
}

/// The newest resourceVersion of pods.
pub(crate) async fn newest(endpoint: &Endpoint) -> Result<u64> {
    let mut connection = Connection::open(endpoint).await?;
    let body = body::get(&mut connection, &format!("{ALL}?limit=1"), Encoding::Plain).await?;
    let body = body::whole(body).await?;
    let version = string_at(&body, &["metadata", "resourceVersion"]);
    Ok(version.context("a list without a resourceVersion")?.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selections_are_the_share_they_are_said_to_be() {
        let count = |mode| {
            let list = List::new(10_000, mode);
            (0..10_000).filter(|index| list.selects(*index)).count()
        };
        assert_eq!(count(Mode::Label), 100);
        assert_eq!(count(Mode::Namespace), 100);
        assert_eq!(count(Mode::Field), 10);
        assert_eq!(count(Mode::Full), 10_000);
    }

    #[test]
    fn every_mode_is_asked_plain_and_compressed_for_the_newest_state_and_for_any() {
        let ways = ways(10, &[Mode::Full, Mode::Label, Mode::AtOnce, Mode::WatchList], None);
        assert_eq!(ways.len(), 4 + 4 + 1 + 1);
        let keys: std::collections::BTreeSet<String> =
            ways.iter().map(|way| way.case().key).collect();
        assert_eq!(keys.len(), ways.len());
    }
}
