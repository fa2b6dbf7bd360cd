//! A ledger: a subscriber that checks every change and records those it should not have received.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use headwater_client::informer::{Buffer, Handler, Informer, Subscribe};
use headwater_client::{Cached, Change};
use k8s_openapi::api::core::v1::ConfigMap;
use tokio::sync::watch;

use crate::support::PATIENCE;
use crate::world::Written;

pub struct Ledger {
    book: Arc<watch::Sender<Book>>,
    _handler: Handler<ConfigMap>,
}

/// The received changes and the resulting state.
#[derive(Clone, Default)]
pub struct Book {
    /// Every object that should exist, with UID and version.
    present: BTreeMap<String, (String, String)>,
    journal: Vec<Journal>,
    pub mistakes: Vec<String>,
}

#[derive(Clone)]
struct Journal {
    what: &'static str,
    name: String,
    version: Option<String>,
}

impl Ledger {
    pub fn of(informer: &Informer<ConfigMap>, name: &str) -> Ledger {
        let book = Arc::new(watch::Sender::new(Book::default()));
        let writer = Arc::clone(&book);
        // Unchanged objects of a relist may repeat; any other repetition is a mistake.
        let subscribe = Subscribe::named(name).buffer(Buffer::Lossless).suppress_unchanged(true);
        let note = move |change| writer.send_modify(|book| book.note(&change));
        Ledger { book, _handler: informer.for_each(subscribe, note).unwrap() }
    }

    pub async fn until(&self, condition: impl FnMut(&Book) -> bool) {
        let mut book = self.book.subscribe();
        let reached = tokio::time::timeout(PATIENCE, book.wait_for(condition)).await.is_ok();
        let book = self.book.borrow();
        assert!(
            reached,
            "still {:?} after {:?}",
            book.present,
            book.journal.last().map(|t| t.what)
        );
    }

    pub fn book(&self) -> Book {
        self.book.borrow().clone()
    }
}

impl Book {
    fn note(&mut self, change: &Change<ConfigMap>) {
        match change {
            Change::Added { object, initial } => {
                let what = if *initial { "initial" } else { "added" };
                let (name, state) = row(object);
                self.tell(what, &name, Some(&state.1));
                if self.present.insert(name.clone(), state).is_some() {
                    self.mistakes.push(format!("{name} was added twice"));
                }
            }
            Change::Updated { old, new } => {
                let (name, state) = row(new);
                let recreated = old.uid() != new.uid();
                let what = if recreated { "recreated" } else { "updated" };
                self.tell(what, &name, Some(&state.1));
                let known = self.present.insert(name.clone(), state);
                if known != Some(row(old).1) {
                    self.mistakes.push(format!("{name} was not in the state it changed from"));
                }
                if number(new) <= number(old) {
                    self.mistakes.push(format!("{name} did not get newer"));
                }
            }
            Change::Deleted(gone) => {
                let what = if gone.observed() { "gone" } else { "gone unseen" };
                let name = gone.key().name().to_owned();
                self.tell(what, &name, None);
                if self.present.remove(&name).is_none() {
                    self.mistakes.push(format!("{name} was deleted twice"));
                }
            }
            Change::Synced => {}
        }
    }

    fn tell(&mut self, what: &'static str, name: &str, version: Option<&str>) {
        let (name, version) = (name.to_owned(), version.map(str::to_owned));
        self.journal.push(Journal { what, name, version });
    }

    /// Whether exactly these objects should exist, by name and version.
    pub fn is(&self, truth: &BTreeMap<String, String>) -> bool {
        let known = self.present.iter().map(|(name, (_, version))| (name, version));
        self.present.len() == truth.len() && known.eq(truth)
    }

    /// The changes after the initial state, as the writes that caused them.
    pub fn changes(&self) -> Vec<Written> {
        let live = self.journal.iter().filter(|journal| journal.what != "initial");
        live.map(|journal| Written { name: journal.name.clone(), version: journal.version.clone() })
            .collect()
    }

    /// The received changes with versions counted from one, so that two worlds can be compared.
    pub fn story(&self) -> Vec<String> {
        let parse = |version: &String| version.parse::<u64>().unwrap();
        let versions: BTreeSet<u64> =
            self.journal.iter().filter_map(|journal| journal.version.as_ref().map(parse)).collect();
        let versions: Vec<u64> = versions.into_iter().collect();
        let rank = |version: &String| versions.partition_point(|one| *one <= parse(version));
        let line = |journal: &Journal| match &journal.version {
            Some(version) => format!("{} {} {}", journal.what, journal.name, rank(version)),
            None => format!("{} {}", journal.what, journal.name),
        };
        self.journal.iter().map(line).collect()
    }
}

fn row(map: &ConfigMap) -> (String, (String, String)) {
    (map.name().to_owned(), (map.uid().to_owned(), map.resource_version().to_string()))
}

fn number(map: &ConfigMap) -> u64 {
    map.resource_version().to_string().parse().unwrap()
}
