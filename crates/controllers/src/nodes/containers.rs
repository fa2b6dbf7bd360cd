//! What simulated containers say: their logs, and replies to commands in them.
//!
//! River: a pod and the time → **containers** → lines, output.
//! Promise: pure; the same pod, window and command give the same answer. Nothing is kept: a line
//! that is due every second exists because the time has passed.

use headwater_api::clock::rfc3339;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::time::parse;

use super::replies::ExecReplies;

/// The pod annotation with the lines that its containers write when they start.
pub const LOG_START: &str = "headwater.dev/log-start";
/// The pod annotation with the lines that its containers write again and again, one after the other;
/// `{n}`, `{time}`, `{pod}` and `{container}` are replaced.
pub const LOG_LINE: &str = "headwater.dev/log-line";
/// The pod annotation with the period of [`LOG_LINE`]; a second by default.
pub const LOG_EVERY: &str = "headwater.dev/log-every";
/// The pod annotation with replies to commands: a YAML map from command lines to replies.
pub const EXEC_REPLIES: &str = "headwater.dev/exec-replies";

/// Lines between the start of a container and its readiness are this far apart.
const START_STEP: SignedDuration = SignedDuration::from_millis(20);
/// The exit code of a shell for a command that does not exist.
const NOT_FOUND: i32 = 127;

/// A line with its time.
pub type TimedLine = (Timestamp, String);

/// The lines that a container wrote after `after`, up to `until`: the last `max` of them, and
/// whether it may write more.
///
/// # Errors
/// A sentence for the client: the container waits, or was not restarted.
pub fn log(
    pod: &Value,
    container: &str,
    previous: bool,
    window: (Timestamp, Timestamp),
    max: usize,
) -> Result<(Vec<TimedLine>, bool), String> {
    let run = ContainerRun::of(pod, container, previous)?;
    let (after, until) = window;
    let mut lines = run.start_lines();
    lines.retain(|(time, _)| *time > after && *time <= until);
    lines.extend(run.periodic_lines(after, until, max));
    if let Some(end) = run.end_line().filter(|(time, _)| *time > after && *time <= until) {
        lines.push(end);
    }
    let surplus = lines.len().saturating_sub(max);
    lines.drain(..surplus);
    Ok((lines, run.ended.is_none()))
}

/// One run of a container, from its start to its end.
struct ContainerRun<'a> {
    pod: &'a Value,
    name: &'a str,
    started: Timestamp,
    ended: Option<Timestamp>,
    state: &'a Value,
}

impl<'a> ContainerRun<'a> {
    fn of(pod: &'a Value, name: &'a str, previous: bool) -> Result<ContainerRun<'a>, String> {
        let lists = ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];
        let mut all = lists.iter().flat_map(|list| pod["status"][*list].as_array()).flatten();
        let status = all.find(|status| status["name"] == name).unwrap_or(&Value::Null);
        let pod_name = pod["metadata"]["name"].as_str().unwrap_or_default();
        let time = |value: &Value| value.as_str().and_then(|text| text.parse::<Timestamp>().ok());
        let ended = |state: &'a Value| {
            let terminated = &state["terminated"];
            let started = time(&terminated["startedAt"])?;
            Some(ContainerRun {
                pod,
                name,
                started,
                ended: time(&terminated["finishedAt"]),
                state: terminated,
            })
        };
        if previous {
            return ended(&status["lastState"]).ok_or_else(|| {
                format!("previous terminated container {name:?} in pod {pod_name:?} not found")
            });
        }
        if let Some(started) = time(&status["state"]["running"]["startedAt"]) {
            let state = &status["state"]["running"];
            return Ok(ContainerRun { pod, name, started, ended: None, state });
        }
        let last = || ended(&status["lastState"]);
        ended(&status["state"]).or_else(last).ok_or_else(|| {
            let why = status["state"]["waiting"]["reason"].as_str().unwrap_or("ContainerCreating");
            format!("container {name:?} in pod {pod_name:?} is waiting to start: {why}")
        })
    }

    fn annotation(&self, name: &str) -> Option<&'a str> {
        self.pod["metadata"]["annotations"][name].as_str()
    }

    fn spec(&self) -> &'a Value {
        let lists = ["initContainers", "containers", "ephemeralContainers"];
        let mut all = lists.iter().flat_map(|list| self.pod["spec"][*list].as_array()).flatten();
        all.find(|container| container["name"] == self.name).unwrap_or(&Value::Null)
    }

    /// The lines of the start: those of the annotation, or plausible ones.
    fn start_lines(&self) -> Vec<TimedLine> {
        let texts: Vec<String> = match self.annotation(LOG_START) {
            Some(text) => text.lines().map(str::to_owned).collect(),
            None => {
                let image = self.spec()["image"].as_str().unwrap_or_default();
                let ports = self.spec()["ports"].as_array().into_iter().flatten();
                let ports = ports.filter_map(|port| port["containerPort"].as_u64());
                let mut texts = vec![
                    format!("simulated container {} of image {image}", self.name),
                    "configuration loaded".to_owned(),
                ];
                texts.extend(ports.map(|port| format!("listening on 0.0.0.0:{port}")));
                texts.push("started".to_owned());
                texts
            }
        };
        let steps = texts.into_iter().zip(0_i32..);
        let line = |(text, step): (String, i32)| {
            let time = self.started.saturating_add(START_STEP * step).unwrap_or(self.started);
            (self.ended.map_or(time, |ended| time.min(ended)), text)
        };
        steps.map(line).collect()
    }

    /// The last lines that are written periodically, at most `max`.
    fn periodic_lines(&self, after: Timestamp, until: Timestamp, max: usize) -> Vec<TimedLine> {
        let texts: Vec<&str> = self.annotation(LOG_LINE).into_iter().flat_map(str::lines).collect();
        if texts.is_empty() {
            return Vec::new();
        }
        let every = self.annotation(LOG_EVERY).and_then(parse).map_or(1_000, |it| it.as_millis());
        let every = i128::try_from(every).unwrap_or(i128::MAX).max(10);
        let until = self.ended.map_or(until, |ended| ended.min(until));
        let millis = |time: Timestamp| {
            i128::from(time.duration_since(self.started).as_secs()) * 1_000
                + i128::from(time.duration_since(self.started).subsec_millis())
        };
        let last = millis(until).div_euclid(every);
        let max = i128::try_from(max).unwrap_or(i128::MAX);
        // The first line is written one period after the start.
        let first = millis(after).div_euclid(every).saturating_add(1).max(1).max(last - max + 1);
        let pod = self.pod["metadata"]["name"].as_str().unwrap_or_default();
        let line = |number: i128| {
            let offset = i64::try_from(number.saturating_mul(every)).unwrap_or(i64::MAX);
            let time = self.started.saturating_add(SignedDuration::from_millis(offset));
            let time = time.unwrap_or(self.started);
            let turn = usize::try_from(number - 1).unwrap_or(0) % texts.len();
            let text = texts[turn].replace("{n}", &number.to_string());
            let text = text.replace("{pod}", pod).replace("{container}", self.name);
            (time, text.replace("{time}", &rfc3339(time)))
        };
        (first..=last).map(line).collect()
    }

    /// The last line of a container that has ended.
    fn end_line(&self) -> Option<TimedLine> {
        let text = match self.state["message"].as_str() {
            Some(message) => message.to_owned(),
            None => {
                let code = self.state["exitCode"].as_i64().unwrap_or_default();
                let reason = self.state["reason"].as_str().unwrap_or_default();
                format!("exit code {code} ({reason})")
            }
        };
        Some((self.ended?, text))
    }
}

/// What a command writes, and its exit code; `None` while it waits for input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandReply {
    /// To standard output.
    pub output: String,
    /// To standard error.
    pub error: String,
    /// The exit code.
    pub exit_code: Option<i32>,
}

fn done(output: impl Into<String>) -> CommandReply {
    CommandReply { output: output.into(), error: String::new(), exit_code: Some(0) }
}

fn failed(error: impl Into<String>, code: i32) -> CommandReply {
    CommandReply { output: String::new(), error: error.into(), exit_code: Some(code) }
}

/// The reply of a command in a container; `input` are lines for a shell or a filter.
pub fn exec(
    pod: &Value,
    container: &str,
    command: &[String],
    input: Option<&str>,
    now: Timestamp,
) -> CommandReply {
    let shell = Shell { pod, container, now };
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    match words.as_slice() {
        [program, "-c" | "-ec" | "-lc", script, ..] if is_shell(program) => match script.trim() {
            only if only == "cat" || is_shell(only) => shell.program(&[only], input),
            script => shell.script(script),
        },
        words => shell.program(words, input),
    }
}

const PROMPT: &str = "/ # ";

fn is_shell(program: &str) -> bool {
    matches!(program.rsplit('/').next(), Some("sh" | "bash" | "ash"))
}

/// A container in which commands run.
struct Shell<'a> {
    pod: &'a Value,
    container: &'a str,
    now: Timestamp,
}

impl Shell<'_> {
    /// A program that may read input.
    fn program(&self, words: &[&str], input: Option<&str>) -> CommandReply {
        let waiting = |output: String| CommandReply { output, ..CommandReply::default() };
        match (words, input) {
            ([program, ..], None) if is_shell(program) => waiting(PROMPT.to_owned()),
            ([program, ..], Some(lines)) if is_shell(program) => self.session(lines),
            (["cat"], None) => CommandReply::default(),
            (["cat"], Some(lines)) => waiting(lines.replace('\r', "\n")),
            (words, _) => self.command(words),
        }
    }

    /// The lines that were typed into an interactive shell.
    fn session(&self, lines: &str) -> CommandReply {
        let mut session = CommandReply::default();
        for line in lines.split(['\n', '\r']).filter(|line| !line.trim().is_empty()) {
            let words: Vec<&str> = line.split_whitespace().collect();
            if matches!(words.as_slice(), ["exit" | "logout" | "\u{4}", ..]) {
                let code = words.get(1).and_then(|code| code.parse().ok()).unwrap_or(0);
                return CommandReply { exit_code: Some(code), ..session };
            }
            let reply = self.script(line);
            session.output.push_str(&reply.output);
            session.error.push_str(&reply.error);
        }
        session.output.push_str(PROMPT);
        session
    }

    /// Commands that are separated by `;` or `&&`; the second kind stops at a failure.
    fn script(&self, script: &str) -> CommandReply {
        if let Some(reply) = self.canned(script.trim()) {
            return reply;
        }
        let mut all = CommandReply { exit_code: Some(0), ..CommandReply::default() };
        for part in script.split(';') {
            for command in part.split("&&").map(str::trim).filter(|it| !it.is_empty()) {
                let words: Vec<String> = command.split_whitespace().map(unquoted).collect();
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                let reply = self.command(&words);
                all.output.push_str(&reply.output);
                all.error.push_str(&reply.error);
                all.exit_code = reply.exit_code;
                if reply.exit_code != Some(0) {
                    break;
                }
            }
        }
        all
    }

    fn command(&self, words: &[&str]) -> CommandReply {
        let line = words.join(" ");
        if let Some(reply) = self.canned(&line) {
            return reply;
        }
        let [program, arguments @ ..] = words else { return done("") };
        match program.rsplit('/').next().unwrap_or_default() {
            "true" | ":" | "sleep" | "test" => done(""),
            "false" => failed("", 1),
            "exit" => failed("", arguments.first().and_then(|it| it.parse().ok()).unwrap_or(0)),
            "echo" => done(format!("{}\n", arguments.join(" "))),
            "hostname" => done(format!("{}\n", self.hostname())),
            "whoami" => done("root\n"),
            "pwd" => done("/\n"),
            "date" => done(format!("{}\n", self.now.strftime("%a %b %e %H:%M:%S UTC %Y"))),
            "env" | "printenv" => done(self.environment()),
            // `kubectl cp` needs it.
            "tar" => failed("sh: tar: not found; a simulated container has no files\n", NOT_FOUND),
            _ => done(format!("simulated: {line}\n")),
        }
    }

    /// The reply that the pod's annotation has for a command line.
    fn canned(&self, line: &str) -> Option<CommandReply> {
        let text = self.pod["metadata"]["annotations"][EXEC_REPLIES].as_str()?;
        ExecReplies::parse(text).ok()?.reply(line)
    }

    fn hostname(&self) -> &str {
        let named = self.pod["spec"]["hostname"].as_str();
        named.or_else(|| self.pod["metadata"]["name"].as_str()).unwrap_or_default()
    }

    /// The variables of the container that have a value.
    fn environment(&self) -> String {
        let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n";
        let mut text = format!("{path}HOSTNAME={}\n", self.hostname());
        let containers = self.pod["spec"]["containers"].as_array().into_iter().flatten();
        let own = containers.filter(|container| container["name"] == self.container);
        for variable in own.flat_map(|container| container["env"].as_array()).flatten() {
            if let (Some(name), Some(value)) =
                (variable["name"].as_str(), variable["value"].as_str())
            {
                text.push_str(&format!("{name}={value}\n"));
            }
        }
        text
    }
}

/// A word without the quotes around it.
fn unquoted(word: &str) -> String {
    word.trim_matches(['"', '\'']).to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(change: Value) -> Value {
        let mut value = json!({
            "metadata": {"name": "web-0"},
            "spec": {"containers": [{"name": "c", "image": "nginx", "ports": [{"containerPort": 80}],
                "env": [{"name": "A", "value": "1"}]}]},
            "status": {"containerStatuses": [{"name": "c",
                "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]},
        });
        crate::fixture::merge(&mut value, &change);
        value
    }

    fn at(text: &str) -> Timestamp {
        format!("2026-01-01T00:00:{text}Z").parse().unwrap()
    }

    fn texts(pod: &Value, from: &str, until: &str, max: usize) -> Vec<String> {
        let (lines, _) = log(pod, "c", false, (at(from), at(until)), max).unwrap();
        lines.into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn a_container_writes_lines_when_it_starts_and_then_periodically() {
        let (lines, is_open) =
            log(&pod(json!({})), "c", false, (Timestamp::MIN, at("10")), 100).unwrap();
        assert!(is_open);
        assert!(lines[0].1.contains("nginx") && lines[2].1 == "listening on 0.0.0.0:80");
        assert_eq!(log(&pod(json!({})), "c", false, (at("05"), at("10")), 9), Ok((vec![], true)));
        let annotations = json!({LOG_START: "one\ntwo", LOG_LINE: "{pod} {n}", LOG_EVERY: "2s"});
        let web = pod(json!({"metadata": {"annotations": annotations}}));
        assert_eq!(texts(&web, "00", "05", 9), ["two", "web-0 1", "web-0 2"]);
        assert_eq!(texts(&web, "04", "08", 9), ["web-0 3", "web-0 4"]);
        let turns = json!({LOG_LINE: "INFO {n}\nWARN {time}", LOG_EVERY: "2s", LOG_START: ""});
        let turns = pod(json!({"metadata": {"annotations": turns}}));
        let expected = ["INFO 1", "WARN 2026-01-01T00:00:04Z", "INFO 3"];
        assert_eq!(texts(&turns, "00", "07", 9), expected);
        let all = log(&web, "c", false, (Timestamp::MIN, Timestamp::MAX), 3).unwrap().0;
        assert_eq!(all.len(), 3, "a window without end is bounded");
    }

    #[test]
    fn the_previous_run_and_waiting_containers_are_told_apart() {
        let ended = |at: &str| {
            json!({"terminated": {"startedAt": "2026-01-01T00:00:01Z",
            "finishedAt": at, "exitCode": 3, "reason": "Error"}})
        };
        let statuses = json!([{"name": "c", "lastState": ended("2026-01-01T00:00:09Z"),
            "state": {"running": {"startedAt": "2026-01-01T00:00:20Z"}}}]);
        let web = pod(json!({"status": {"containerStatuses": statuses}}));
        let (lines, is_open) = log(&web, "c", true, (Timestamp::MIN, at("59")), 100).unwrap();
        assert!(!is_open);
        assert_eq!(lines.last().unwrap().1, "exit code 3 (Error)");
        let fresh = log(&pod(json!({})), "c", true, (Timestamp::MIN, at("59")), 9).unwrap_err();
        assert_eq!(fresh, "previous terminated container \"c\" in pod \"web-0\" not found");
        let waits = json!([{"name": "c", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]);
        let waits = pod(json!({"status": {"containerStatuses": waits}}));
        let why = log(&waits, "c", false, (Timestamp::MIN, at("59")), 9).unwrap_err();
        assert!(why.ends_with("is waiting to start: ImagePullBackOff"), "{why}");
    }

    fn run(pod: &Value, words: &[&str], input: Option<&str>) -> CommandReply {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        exec(pod, "c", &words, input, at("00"))
    }

    #[test]
    fn commands_reply() {
        let web = pod(json!({}));
        assert_eq!(run(&web, &["echo", "a", "b"], None), done("a b\n"));
        assert_eq!(run(&web, &["hostname"], None), done("web-0\n"));
        assert!(run(&web, &["env"], None).output.ends_with("A=1\n"));
        assert_eq!(run(&web, &["ls", "/"], None), done("simulated: ls /\n"));
        assert_eq!(run(&web, &["false"], None).exit_code, Some(1));
        assert_eq!(run(&web, &["tar", "cf", "-"], None).exit_code, Some(NOT_FOUND));
        assert_eq!(run(&web, &["sh", "-c", "echo 'x'; exit 3"], None).exit_code, Some(3));
        assert_eq!(run(&web, &["sh", "-c", "false && echo x"], None), failed("", 1));
        let replies = json!({"metadata": {"annotations": {EXEC_REPLIES: "redis-cli ping: PONG"}}});
        assert_eq!(run(&pod(replies), &["redis-cli", "ping"], None), done("PONG\n"));
    }

    #[test]
    fn a_shell_reads_lines_until_it_exits() {
        let web = pod(json!({}));
        assert_eq!(run(&web, &["sh"], None).output, PROMPT);
        let reply = run(&web, &["/bin/bash"], Some("echo hi\r"));
        assert_eq!((reply.output.as_str(), reply.exit_code), ("hi\n/ # ", None));
        assert_eq!(run(&web, &["sh"], Some("exit 4\n")).exit_code, Some(4));
        for command in [&["cat"][..], &["sh", "-c", "cat"]] {
            assert_eq!(run(&web, command, None), CommandReply::default());
            assert_eq!(run(&web, command, Some("a\n")).output, "a\n");
        }
        assert_eq!(run(&web, &["sh", "-c", "sh"], None).output, PROMPT);
    }
}
