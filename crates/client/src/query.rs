//! List and watch queries, and their encoding as URL parameters.
//!
//! River: reflector → **query** → source.
//! Promise: each query has one encoding; no parameter is dropped or changed.

use std::fmt::Write as _;

use headwater_api::selector::ShardSelector;

use crate::version::ResourceVersion;

/// The version of the collection to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum At {
    /// The newest version: a consistent read.
    #[default]
    Unset,
    /// Any version, from the server's cache (`resourceVersion=0`).
    Any,
    /// This version or a newer one.
    AtLeast(ResourceVersion),
    /// Exactly this version.
    Exact(ResourceVersion),
}

/// The objects of a collection to read; all by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selection {
    /// A label selector; empty selects everything.
    pub labels: String,
    /// A field selector; empty selects everything.
    pub fields: String,
    /// The part of the collection by the hash of a field.
    pub shard: Option<ShardSelector>,
}

/// One list request, or one page of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// Which objects.
    pub selection: Selection,
    /// The version; not sent with a continue token, which contains it.
    pub at: At,
    /// The maximum number of objects in the response.
    pub limit: Option<u32>,
    /// The token of the previous page.
    pub continue_token: Option<String>,
}

/// One watch request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchQuery {
    /// Which objects.
    pub selection: Selection,
    /// The version to start after.
    pub at: At,
    /// Whether to start with all current objects and a marker: a watch-list.
    pub initial_events: bool,
    /// After how many seconds the server should end the stream.
    pub timeout_seconds: u32,
}

impl ListQuery {
    /// The query string.
    pub fn to_query(&self) -> String {
        let mut pairs = Pairs::default();
        pairs.selection(&self.selection);
        if let Some(limit) = self.limit {
            pairs.push("limit", &limit.to_string());
        }
        if let Some(token) = &self.continue_token {
            pairs.push("continue", token);
            return pairs.text;
        }
        match &self.at {
            At::Unset => {}
            At::Any => pairs.push("resourceVersion", "0"),
            At::AtLeast(version) => {
                pairs.push("resourceVersion", &version.text());
                pairs.push("resourceVersionMatch", "NotOlderThan");
            }
            At::Exact(version) => {
                pairs.push("resourceVersion", &version.text());
                pairs.push("resourceVersionMatch", "Exact");
            }
        }
        pairs.text
    }
}

impl WatchQuery {
    /// The query string.
    pub fn to_query(&self) -> String {
        let mut pairs = Pairs::default();
        pairs.push("watch", "true");
        pairs.push("allowWatchBookmarks", "true");
        pairs.push("timeoutSeconds", &self.timeout_seconds.to_string());
        pairs.selection(&self.selection);
        match &self.at {
            At::Unset => {}
            At::Any => pairs.push("resourceVersion", "0"),
            At::AtLeast(version) | At::Exact(version) => {
                pairs.push("resourceVersion", &version.text());
            }
        }
        if self.initial_events {
            pairs.push("sendInitialEvents", "true");
            pairs.push("resourceVersionMatch", "NotOlderThan");
        }
        pairs.text
    }
}

#[derive(Default)]
struct Pairs {
    text: String,
}

impl Pairs {
    fn selection(&mut self, selection: &Selection) {
        if !selection.labels.is_empty() {
            self.push("labelSelector", &selection.labels);
        }
        if !selection.fields.is_empty() {
            self.push("fieldSelector", &selection.fields);
        }
        if let Some(shard) = &selection.shard {
            self.push("shardSelector", &shard.to_string());
        }
    }

    fn push(&mut self, name: &str, value: &str) {
        if !self.text.is_empty() {
            self.text.push('&');
        }
        self.text.push_str(name);
        self.text.push('=');
        for byte in value.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                self.text.push(char::from(byte));
            } else {
                write!(self.text, "%{byte:02X}").expect("writing to a string cannot fail");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use headwater_api::selector::ShardField;

    use super::*;

    const SELECTED: &str = "&labelSelector=app%20in%20%28a%2Cb%29&fieldSelector=spec.nodeName%3Dn1\
        &shardSelector=shardRange%28object.metadata.uid%2C%20%270x8000000000000000%27%2C%20\
        %270x10000000000000000%27%29";

    fn selected() -> Selection {
        Selection {
            labels: "app in (a,b)".into(),
            fields: "spec.nodeName=n1".into(),
            shard: ShardSelector::part(ShardField::Uid, 1, 2),
        }
    }

    #[track_caller]
    fn list(at: At, limit: Option<u32>, token: Option<&str>, expected: &str) {
        let continue_token = token.map(str::to_owned);
        let query = ListQuery { selection: Selection::default(), at, limit, continue_token };
        assert_eq!(query.to_query(), expected);
        let query = ListQuery { selection: selected(), ..query };
        let selectors = SELECTED.trim_start_matches('&');
        let joint = if expected.is_empty() { "" } else { "&" };
        assert_eq!(query.to_query(), format!("{selectors}{joint}{expected}"));
    }

    /// C1.1, C1.2
    #[test]
    fn every_list_query_has_one_encoding_without_losses() {
        list(At::Unset, None, None, "");
        list(At::Unset, Some(500), None, "limit=500");
        list(At::Any, None, None, "resourceVersion=0");
        list(At::Any, Some(500), None, "limit=500&resourceVersion=0");
        let least = "resourceVersion=12&resourceVersionMatch=NotOlderThan";
        list(At::AtLeast("12".into()), None, None, least);
        list(At::AtLeast("12".into()), Some(7), None, &format!("limit=7&{least}"));
        list(At::Exact("12".into()), None, None, "resourceVersion=12&resourceVersionMatch=Exact");
    }

    /// C1.4
    #[test]
    fn a_page_keeps_selectors_and_limit_and_leaves_the_version_out() {
        list(At::Any, Some(500), Some("a/b=="), "limit=500&continue=a%2Fb%3D%3D");
        list(At::AtLeast("12".into()), Some(500), Some("t"), "limit=500&continue=t");
        list(At::Exact("12".into()), None, Some("t"), "continue=t");
    }

    #[track_caller]
    fn watch(at: At, initial_events: bool, timeout_seconds: u32, expected: &str) {
        let query =
            WatchQuery { selection: Selection::default(), at, initial_events, timeout_seconds };
        let start = format!("watch=true&allowWatchBookmarks=true&timeoutSeconds={timeout_seconds}");
        assert_eq!(query.to_query(), format!("{start}{expected}"));
        let query = WatchQuery { selection: selected(), ..query };
        assert_eq!(query.to_query(), format!("{start}{SELECTED}{expected}"));
    }

    /// C1.1, C1.5, C1.6, C1.7
    #[test]
    fn every_watch_query_has_one_encoding() {
        watch(At::Unset, false, 300, "");
        watch(At::Any, false, 300, "&resourceVersion=0");
        watch(At::AtLeast("12".into()), false, 599, "&resourceVersion=12");
        watch(At::Exact("12".into()), false, 3600, "&resourceVersion=12");
        let initial = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        watch(At::Unset, true, 300, initial);
        watch(At::AtLeast("12".into()), true, 600, &format!("&resourceVersion=12{initial}"));
    }
}
