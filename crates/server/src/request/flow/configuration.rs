//! PriorityLevelConfigurations: the settings of a level.
//!
//! River: objects → **configuration** → levels. Defaults are those of S7.2.

use serde::Deserialize;

use super::borrow::Shares;
use super::level::LevelSettings;
use super::queues::{Discipline, Queuing};

/// The spec of a PriorityLevelConfiguration.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LevelSpec {
    #[serde(rename = "type")]
    kind: LevelKind,
    exempt: ExemptLevel,
    limited: LimitedLevel,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
enum LevelKind {
    Exempt,
    #[default]
    Limited,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ExemptLevel {
    nominal_concurrency_shares: u32,
    lendable_percent: u32,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LimitedLevel {
    nominal_concurrency_shares: u32,
    lendable_percent: u32,
    borrowing_limit_percent: Option<u32>,
    limit_response: LimitResponse,
}

impl Default for LimitedLevel {
    fn default() -> LimitedLevel {
        LimitedLevel {
            nominal_concurrency_shares: 30,
            lendable_percent: 0,
            borrowing_limit_percent: None,
            limit_response: LimitResponse::default(),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LimitResponse {
    #[serde(rename = "type")]
    kind: ResponseKind,
    queuing: QueuingSpec,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
enum ResponseKind {
    #[default]
    Queue,
    Reject,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct QueuingSpec {
    queues: u32,
    hand_size: u32,
    queue_length_limit: usize,
}

impl Default for QueuingSpec {
    fn default() -> QueuingSpec {
        QueuingSpec { queues: 64, hand_size: 8, queue_length_limit: 50 }
    }
}

impl LevelSpec {
    pub(super) fn settings(&self) -> LevelSettings {
        let LevelSpec { kind, exempt, limited } = self;
        if *kind == LevelKind::Exempt {
            let shares = Shares {
                shares: exempt.nominal_concurrency_shares,
                lendable_percent: exempt.lendable_percent,
                borrowing_percent: None,
            };
            return LevelSettings { discipline: Discipline::Exempt, shares };
        }
        let QueuingSpec { queues, hand_size, queue_length_limit } = limited.limit_response.queuing;
        let discipline = match limited.limit_response.kind {
            ResponseKind::Reject => Discipline::Reject,
            ResponseKind::Queue => {
                Discipline::Queue(Queuing { queues, hand: hand_size, length: queue_length_limit })
            }
        };
        let shares = Shares {
            shares: limited.nominal_concurrency_shares,
            lendable_percent: limited.lendable_percent,
            borrowing_percent: limited.borrowing_limit_percent,
        };
        LevelSettings { discipline, shares }
    }
}

#[cfg(test)]
mod tests {
    use headwater_json::json;

    use super::*;

    #[track_caller]
    fn settings(spec: &headwater_json::Value) -> LevelSettings {
        headwater_json::from_value::<LevelSpec>(spec).unwrap().settings()
    }

    /// S7.2
    #[test]
    fn absent_fields_have_their_defaults() {
        let level = settings(&json!({
            "type": "Limited", "limited": { "limitResponse": { "type": "Queue", "queuing": {} } },
        }));
        let queuing = Queuing { queues: 64, hand: 8, length: 50 };
        assert_eq!(level.discipline, Discipline::Queue(queuing));
        let shares = Shares { shares: 30, lendable_percent: 0, borrowing_percent: None };
        assert_eq!(level.shares, shares);
    }

    #[test]
    fn every_field_is_read() {
        let level = settings(&json!({
            "type": "Limited", "limited": {
                "nominalConcurrencyShares": 0, "lendablePercent": 7, "borrowingLimitPercent": 0,
                "limitResponse": { "type": "Reject" },
            },
        }));
        let shares = Shares { shares: 0, lendable_percent: 7, borrowing_percent: Some(0) };
        assert_eq!(level, LevelSettings { discipline: Discipline::Reject, shares });
        let level = settings(&json!({
            "type": "Exempt", "exempt": { "nominalConcurrencyShares": 9, "lendablePercent": 50 },
        }));
        let shares = Shares { shares: 9, lendable_percent: 50, borrowing_percent: None };
        assert_eq!(level, LevelSettings { discipline: Discipline::Exempt, shares });
    }
}
