//! The roster: every controller by its name, and which of them are wanted.

use headwater_client::Error;
use headwater_client::controller::Prepared;

use crate::cluster::Cluster;
use crate::{
    deployment, disruption, endpointslice, garbage, job, namespace, nodelifecycle, nodes,
    replicaset, scheduler, serviceaccount,
};

/// How a controller is made ready to run.
type Prepare = fn(&Cluster) -> Result<Prepared, Error>;

/// Every controller. The names are those of Kubernetes where it has one; what makes sense only
/// together has one name.
#[rustfmt::skip] // a row a line
const ALL: &[(&str, Prepare)] = &[
    ("scheduler", scheduler::prepare),
    ("simulated-nodes", nodes::node),
    ("simulated-nodes", nodes::lease),
    ("simulated-nodes", nodes::kubelet),
    ("replicaset", replicaset::prepare),
    ("deployment", deployment::prepare),
    ("namespace", namespace::prepare),
    ("garbage", garbage::prepare),
    ("serviceaccount", serviceaccount::prepare),
    ("serviceaccount", serviceaccount::prepare_root_ca),
    ("endpointslice", endpointslice::prepare),
    ("job", job::prepare),
    ("disruption", disruption::prepare),
    ("nodelifecycle", nodelifecycle::prepare),
];

/// The names of all controllers.
pub fn names() -> impl Iterator<Item = &'static str> {
    let before = |at: usize, name: &str| ALL[..at].iter().any(|(other, _)| *other == name);
    let each = ALL.iter().enumerate();
    each.filter(move |(at, (name, _))| !before(*at, name)).map(|(_, (name, _))| *name)
}

/// Which controllers run.
///
/// ```
/// use headwater_controllers::Selected;
///
/// let all_but_one: Selected = "*,-scheduler".parse()?;
/// assert!(all_but_one.has("simulated-nodes") && !all_but_one.has("scheduler"));
/// assert!("schedular".parse::<Selected>().is_err());
/// # Ok::<(), headwater_controllers::roster::Unknown>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selected {
    names: Vec<&'static str>,
}

/// There is no controller of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no controller is called {0:?}; there are: {all}", all = names().collect::<Vec<_>>().join(", "))]
pub struct Unknown(String);

impl Selected {
    /// All of them.
    pub fn all() -> Selected {
        Selected { names: names().collect() }
    }

    /// Whether one is among them.
    pub fn has(&self, name: &str) -> bool {
        self.names.contains(&name)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub(crate) fn prepare(&self, cluster: &Cluster) -> Result<Vec<Prepared>, Error> {
        let wanted = ALL.iter().filter(|(name, _)| self.has(name));
        wanted.map(|(_, prepare)| prepare(cluster)).collect()
    }
}

impl std::fmt::Display for Selected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.names.join(", "))
    }
}

/// A list such as `deployment,replicaset`, `*`, or `*,-scheduler`; later words win.
impl std::str::FromStr for Selected {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<Selected, Unknown> {
        let mut selected = Selected::default();
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            match word.strip_prefix('-') {
                _ if word == "*" => selected = Selected::all(),
                Some(name) => {
                    let name = known(name)?;
                    selected.names.retain(|chosen| *chosen != name);
                }
                None => {
                    let name = known(word)?;
                    if !selected.has(name) {
                        selected.names.push(name);
                    }
                }
            }
        }
        Ok(selected)
    }
}

fn known(name: &str) -> Result<&'static str, Unknown> {
    names().find(|known| *known == name).ok_or_else(|| Unknown(name.to_owned()))
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value, reason = "tables write values where they are used")]
mod tests {
    use super::*;

    #[test]
    fn controllers_are_chosen_by_name() {
        let all = names().count();
        check("*", Ok(all));
        check("", Ok(0));
        check("scheduler", Ok(1));
        check("scheduler,scheduler", Ok(1));
        check("*,-scheduler", Ok(all - 1));
        check("-scheduler,*", Ok(all));
        check(" scheduler , simulated-nodes ", Ok(2));
        check("schedular", Err(Unknown("schedular".into())));
        check("-nobody", Err(Unknown("nobody".into())));
    }

    #[track_caller]
    fn check(text: &str, expected: Result<usize, Unknown>) {
        assert_eq!(text.parse::<Selected>().map(|selected| selected.names.len()), expected);
    }
}
