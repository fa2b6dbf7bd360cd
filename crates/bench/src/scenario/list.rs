//! `bench list`: the CPU per object or per request of lists.
//!
//! Promise: in every case the first response is read object by object and must contain each
//! expected pod once and no other.

use std::time::Instant;

use anyhow::{Context, Result};
use headwater_api::object::string_at;

use crate::connect::Connection;
use crate::kubeconfig::Endpoint;
use crate::load::histogram;
use crate::load::object::{NODES, SPREAD, namespace, node};
use crate::load::requests::{make_namespaces, make_pods};
use crate::load::stream::BodyFormat;
use crate::report::Case;
use crate::report::figures::{Figure, Figures};
use crate::session::Session;
use crate::target::TargetServer;
use crate::target::measure::Meter;

mod at_once;
mod stream;

use crate::load::body::{self, Encoding};

const ALL: &str = "/api/v1/pods";
const PAGE: usize = 500;
/// Objects that a case reads in total: small lists are repeated more often than large ones.
const OBJECTS_READ: usize = 100_000;

/// What a list selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ListMode {
    /// All pods in one response
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
    /// All pods as initial events of a watch
    WatchList,
}

/// The state that a list requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListVersion {
    /// resourceVersion unset: the newest.
    Newest,
    /// resourceVersion=0: any.
    Any,
}

/// One case of a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListCase {
    pub(crate) objects: usize,
    pub(crate) mode: ListMode,
    pub(crate) encoding: Encoding,
    pub(crate) version: ListVersion,
    /// Repetitions; `None` chooses a number by size.
    pub(crate) rounds: Option<usize>,
}

/// Creates pods until there are `objects`; there are `made` already.
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

/// All cases of these modes for a number of pods.
pub(crate) fn cases(
    objects: usize,
    modes: &[ListMode],
    rounds: Option<usize>,
    format: BodyFormat,
) -> Vec<ListCase> {
    let mut cases = Vec::new();
    let encodings: &[Encoding] = match format {
        BodyFormat::Json => &[Encoding::Plain, Encoding::Gzip],
        BodyFormat::Protobuf => &[Encoding::Protobuf],
    };
    for &mode in modes {
        for &encoding in encodings {
            for version in [ListVersion::Newest, ListVersion::Any] {
                let case = ListCase { objects, mode, encoding, version, rounds };
                cases.push(case);
            }
        }
    }
    cases.retain(|case| {
        let is_only_plain = matches!(case.mode, ListMode::AtOnce | ListMode::WatchList);
        let is_paged = case.mode == ListMode::Pages && case.encoding == Encoding::Protobuf;
        !is_paged && (!is_only_plain || case.is_plain())
    });
    cases
}

impl ListCase {
    pub(crate) fn new(objects: usize, mode: ListMode) -> ListCase {
        let (encoding, version) = (Encoding::Plain, ListVersion::Newest);
        ListCase { objects, mode, encoding, version, rounds: None }
    }

    pub(crate) fn gzip(self) -> ListCase {
        ListCase { encoding: Encoding::Gzip, ..self }
    }

    pub(crate) async fn run(self, session: &mut Session) -> Result<()> {
        let case = self.case();
        match self.mode {
            ListMode::AtOnce => {
                session
                    .measure(case, async |target, _| at_once::once(target, self.objects).await)
                    .await
            }
            ListMode::WatchList => {
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
            ListMode::Full => "full",
            ListMode::Pages => "pages",
            ListMode::Label => "label",
            ListMode::Field => "field",
            ListMode::Namespace => "namespace",
            ListMode::AtOnce => "at once",
            ListMode::WatchList => "watch-list",
        }
        .to_owned();
        if self.encoding == Encoding::Gzip {
            mode.push_str(", gzip");
        }
        if self.encoding == Encoding::Protobuf {
            mode.push_str(", protobuf");
        }
        if self.version == ListVersion::Any {
            mode.push_str(", RV 0");
        }
        match self.is_complete() {
            true => Case::new("list", &mode, "objects").sized("objects", self.objects),
            false => {
                Case::new("list", &mode, "requests").sized("objects", self.objects).grows_straight()
            }
        }
    }

    /// Whether it is uncompressed and requests the newest state.
    pub(crate) fn is_plain(self) -> bool {
        self.encoding == Encoding::Plain && self.version == ListVersion::Newest
    }

    fn is_complete(self) -> bool {
        !matches!(self.mode, ListMode::Label | ListMode::Field | ListMode::Namespace)
    }

    fn rounds(self) -> usize {
        let useful = match self.is_complete() {
            true => (OBJECTS_READ / self.objects.max(1)).clamp(3, 50),
            false => (20 * OBJECTS_READ / self.objects.max(1)).clamp(50, 200),
        };
        self.rounds.unwrap_or(useful)
    }

    /// Whether the response contains the `index`-th pod.
    fn selects(self, index: usize) -> bool {
        match self.mode {
            ListMode::Label => (index / SPREAD) % SPREAD == 7,
            ListMode::Field => index % NODES == 7,
            ListMode::Namespace => index % SPREAD == 7,
            ListMode::Full | ListMode::Pages | ListMode::AtOnce | ListMode::WatchList => true,
        }
    }

    fn path(self) -> String {
        let path = match self.mode {
            ListMode::Full | ListMode::AtOnce | ListMode::WatchList => format!("{ALL}?"),
            ListMode::Pages => format!("{ALL}?limit={PAGE}&"),
            ListMode::Label => format!("{ALL}?labelSelector=shard%3Ds7&"),
            ListMode::Field => format!("{ALL}?fieldSelector=spec.nodeName%3D{}&", node(7)),
            ListMode::Namespace => format!("/api/v1/namespaces/{}/pods?", namespace(7)),
        };
        match self.version {
            ListVersion::Newest => path,
            ListVersion::Any => format!("{path}resourceVersion=0"),
        }
    }

    async fn once(self, target: &TargetServer) -> Result<Figures> {
        let mut connection = Connection::open(&target.endpoint).await?;
        // The first response warms the server up and is checked.
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
        let units = if self.is_complete() { self.objects } else { 1 };
        let figures = Figures::per_unit(units * rounds, used).latency(&micros);
        Ok(figures.with(Figure::Wire, bytes as f64))
    }
}

/// The newest resourceVersion of pods.
pub(crate) async fn newest(endpoint: &Endpoint) -> Result<u64> {
    let mut connection = Connection::open(endpoint).await?;
    let body = body::get(&mut connection, &format!("{ALL}?limit=1"), Encoding::Plain).await?;
    let body = body::read_all(body).await?;
    let version = string_at(&body, &["metadata", "resourceVersion"]);
    Ok(version.context("a list without a resourceVersion")?.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_is_1_percent_and_a_node_0_1_percent() {
        let count = |mode| {
            let list = ListCase::new(10_000, mode);
            (0..10_000).filter(|index| list.selects(*index)).count()
        };
        assert_eq!(count(ListMode::Label), 100);
        assert_eq!(count(ListMode::Namespace), 100);
        assert_eq!(count(ListMode::Field), 10);
        assert_eq!(count(ListMode::Full), 10_000);
    }

    #[test]
    fn every_mode_runs_plain_and_compressed_for_the_newest_state_and_for_any() {
        let cases = cases(
            10,
            &[ListMode::Full, ListMode::Label, ListMode::AtOnce, ListMode::WatchList],
            None,
            BodyFormat::Json,
        );
        assert_eq!(cases.len(), 4 + 4 + 1 + 1);
        let keys: std::collections::BTreeSet<String> =
            cases.iter().map(|case| case.case().key).collect();
        assert_eq!(keys.len(), cases.len());
    }
}
