//! Replies by rule: what commands in simulated containers print, and what their ports serve.
//!
//! Promise: pure. Both are YAML maps in an annotation; the value of an entry is a text, or a map with
//! details. An entry whose key ends with `*` matches everything that begins like it; an exact
//! entry takes precedence, then the longest.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::containers::CommandReply;

/// The pod annotation with replies to HTTP requests: a YAML map from paths to replies.
pub const HTTP_REPLIES: &str = "headwater.dev/http-replies";

/// A text, or a map with details.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
enum Entry<T> {
    Text(String),
    Details(T),
}

/// Entries by their key.
#[derive(Clone, Debug, PartialEq)]
struct Entries<T>(BTreeMap<String, Entry<T>>);

impl<T: DeserializeOwned> Entries<T> {
    fn parse(text: &str) -> Result<Entries<T>, String> {
        serde_saphyr::from_str(text).map(Entries).map_err(|error| error.to_string())
    }

    /// The entry for a text.
    fn find(&self, text: &str) -> Option<&Entry<T>> {
        let prefix = |key: &&String| key.strip_suffix('*').is_some_and(|it| text.starts_with(it));
        let longest = || self.0.keys().filter(prefix).max_by_key(|key| key.len());
        self.0.get(text).or_else(|| self.0.get(longest()?))
    }
}

/// Replies to command lines: `redis-cli ping: PONG`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ExecReplies(Entries<CommandDetails>);

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct CommandDetails {
    stdout: String,
    stderr: String,
    exit_code: i32,
}

impl ExecReplies {
    pub(crate) fn parse(text: &str) -> Result<ExecReplies, String> {
        Entries::parse(text).map(ExecReplies)
    }

    /// The reply to a command line.
    pub(crate) fn reply(&self, line: &str) -> Option<CommandReply> {
        let lines = |text: &str| match text.is_empty() {
            true => String::new(),
            false => format!("{}\n", text.trim_end_matches('\n')),
        };
        Some(match self.0.find(line)? {
            Entry::Text(text) => {
                CommandReply { output: lines(text), error: String::new(), exit_code: Some(0) }
            }
            Entry::Details(details) => CommandReply {
                output: lines(&details.stdout),
                error: lines(&details.stderr),
                exit_code: Some(details.exit_code),
            },
        })
    }
}

/// Replies to HTTP requests. A key is a path, with a method or a port before it if only those are meant:
/// `/healthz: ok`, `POST /orders: …`, `:9090/metrics: …`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HttpReplies(Entries<PageDetails>);

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct PageDetails {
    status: u16,
    headers: BTreeMap<String, String>,
    body: String,
}

impl Default for PageDetails {
    fn default() -> PageDetails {
        PageDetails { status: 200, headers: BTreeMap::new(), body: String::new() }
    }
}

/// The reply to an HTTP request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimulatedPage {
    /// The status code.
    pub status: u16,
    /// Headers with their values.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
}

impl HttpReplies {
    pub(crate) fn parse(text: &str) -> Result<HttpReplies, String> {
        let entries: Entries<PageDetails> = Entries::parse(text)?;
        let invalid = entries.0.iter().find_map(|(key, entry)| match entry {
            Entry::Details(page) if !(200..=599).contains(&page.status) => Some(key),
            _ => None,
        });
        match invalid {
            Some(key) => Err(format!("the status of {key:?} must be from 200 to 599")),
            None => Ok(HttpReplies(entries)),
        }
    }

    fn page(&self, method: &str, port: u16, path: &str) -> Option<SimulatedPage> {
        let ways = [
            format!("{method} :{port}{path}"),
            format!(":{port}{path}"),
            format!("{method} {path}"),
            path.to_owned(),
        ];
        Some(match ways.iter().find_map(|way| self.0.find(way))? {
            Entry::Text(text) => {
                SimulatedPage { status: 200, headers: Vec::new(), body: line(text) }
            }
            Entry::Details(page) => SimulatedPage {
                status: page.status,
                headers: page.headers.clone().into_iter().collect(),
                body: line(&page.body),
            },
        })
    }
}

fn line(text: &str) -> String {
    match text.is_empty() || text.ends_with('\n') {
        true => text.to_owned(),
        false => format!("{text}\n"),
    }
}

/// What a pod replies to an HTTP request at one of its ports: the entry of its annotation, or a page
/// that names the pod.
pub fn http(pod: &Value, port: u16, method: &str, target: &str) -> SimulatedPage {
    let path = target.split('?').next().unwrap_or("/");
    let replies = pod["metadata"]["annotations"][HTTP_REPLIES].as_str();
    let replies = replies.and_then(|text| HttpReplies::parse(text).ok());
    if let Some(page) = replies.and_then(|replies| replies.page(method, port, path)) {
        return page;
    }
    let text = |value: &Value| escaped(value.as_str().unwrap_or_default());
    let (namespace, name) = (text(&pod["metadata"]["namespace"]), text(&pod["metadata"]["name"]));
    let node = text(&pod["spec"]["nodeName"]);
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    let images: Vec<String> = containers.map(|container| text(&container["image"])).collect();
    let (images, target) = (images.join(", "), escaped(target));
    let body = format!(
        "<!DOCTYPE html>\n<html><head><title>{name}</title></head><body>\n<h1>{name}</h1>\n\
         <p>Simulated pod {namespace}/{name} on {node}, image {images}</p>\n\
         <p>{method} {target} on port {port}</p>\n</body></html>\n"
    );
    let html = ("content-type".to_owned(), "text/html; charset=utf-8".to_owned());
    SimulatedPage { status: 200, headers: vec![html], body }
}

/// A text as part of an HTML document.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn commands_reply_by_exact_line_or_longest_prefix() {
        let replies = ExecReplies::parse(
            "
redis-cli ping: PONG
redis-cli *: {stderr: refused, exitCode: 1}
redis-cli get *: '\"1\"'
fails: {stdout: a, stderr: b, exitCode: 3}
",
        )
        .unwrap();
        let reply = |output: &str, error: &str, code: i32| {
            let (output, error) = (output.to_owned(), error.to_owned());
            Some(CommandReply { output, error, exit_code: Some(code) })
        };
        for (line, expected) in [
            ("redis-cli ping", reply("PONG\n", "", 0)),
            ("redis-cli get a", reply("\"1\"\n", "", 0)),
            ("redis-cli set a 1", reply("", "refused\n", 1)),
            ("fails", reply("a\n", "b\n", 3)),
            ("fails twice", None),
        ] {
            assert_eq!(replies.reply(line), expected, "{line}");
        }
        for text in ["- a", "a: {stdin: x}", "a: {exitCode: x}"] {
            ExecReplies::parse(text).unwrap_err();
        }
    }

    #[test]
    fn ports_serve_pages_by_method_port_and_path() {
        let replies = "
/healthz: ok
/api/*: {status: 404, headers: {x-reason: none}, body: '{}'}
POST /api/orders: {status: 201}
':9090/healthz': metrics
";
        let pod = json!({"metadata": {"annotations": {HTTP_REPLIES: replies}}});
        for (method, port, target, status, body) in [
            ("GET", 80, "/healthz", 200, "ok\n"),
            ("GET", 80, "/healthz?verbose", 200, "ok\n"),
            ("GET", 9090, "/healthz", 200, "metrics\n"),
            ("GET", 80, "/api/orders", 404, "{}\n"),
            ("POST", 80, "/api/orders", 201, ""),
        ] {
            let page = http(&pod, port, method, target);
            assert_eq!((page.status, page.body.as_str()), (status, body), "{method} {target}");
        }
        let page = http(&pod, 80, "GET", "/api/x");
        assert_eq!(page.headers, [("x-reason".to_owned(), "none".to_owned())]);
        HttpReplies::parse("/: {status: 99}").unwrap_err();
    }

    #[test]
    fn without_a_rule_the_page_names_the_pod_and_escapes_what_it_repeats() {
        let pod = json!({"metadata": {"name": "web-0", "namespace": "shop"}});
        let page = http(&pod, 8080, "GET", "/<script>");
        assert_eq!(page.status, 200);
        assert!(page.body.contains("shop/web-0") && page.body.contains("8080"), "{}", page.body);
        assert!(!page.body.contains("<script>"), "{}", page.body);
    }
}
