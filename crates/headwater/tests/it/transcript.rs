//! Transcripts: shell commands with their expected output.
//!
//! A shell runs each `$ ` line in a temporary directory; the following lines, up to the next
//! command, are its output and errors. Values that differ between runs are written `<AGE>`, `<IP>`,
//! `<PORT>`, `<TIME>`; columns are separated by two spaces. The output of a failed command ends
//! with the line `(exit N)`.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use headwater_testkit::tools::has_kubectl;
use tempfile::TempDir;

use crate::process::Process;

/// A server, and a shell with a kubectl configured for it.
pub(crate) struct Terminal {
    directory: TempDir,
    _server: Process,
}

impl Terminal {
    /// `None` if the machine has no kubectl.
    pub(crate) fn open() -> Option<Terminal> {
        if !has_kubectl() {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = directory.path().join("kubeconfig");
        let server =
            Process::serve(&["--memory", "--kubeconfig-out", kubeconfig.to_str().unwrap()]);
        Some(Terminal { directory, _server: server })
    }

    /// A file in the directory that commands run in.
    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.directory.path().join(name), text).unwrap();
    }

    /// A program in that directory.
    pub(crate) fn script(&self, name: &str, text: &str) {
        use std::os::unix::fs::PermissionsExt;
        self.write(name, &format!("#!/bin/sh\n{text}\n"));
        let path = self.directory.path().join(name);
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
    }

    /// Runs every command of a transcript and compares its output.
    #[track_caller]
    pub(crate) fn check(&self, transcript: &str) {
        for step in steps(transcript) {
            let said = self.run(&step.command);
            let expected = step.output.trim_end();
            assert_eq!(said.trim_end(), expected, "\n$ {}\nsaid:\n{said}", step.command);
        }
    }

    /// The normalized output of a command.
    pub(crate) fn run(&self, command: &str) -> String {
        let path: &Path = self.directory.path();
        let output = Command::new("sh")
            .args(["-c", &format!("exec 2>&1\n{command}")])
            .current_dir(path)
            .env("KUBECONFIG", path.join("kubeconfig"))
            .env("HOME", path)
            .env("TMPDIR", path)
            .env("TZ", "UTC")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let directory = path.to_str().unwrap();
        let mut said: Vec<String> = text.replace(directory, "<DIR>").lines().map(settled).collect();
        if !output.status.success() {
            said.push(format!("(exit {})", output.status.code().unwrap_or(-1)));
        }
        said.join("\n")
    }
}

struct Step {
    command: String,
    output: String,
}

fn steps(transcript: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in transcript.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { command: command.to_owned(), output: String::new() });
        } else if let Some(step) = steps.last_mut() {
            let line = if step.output.is_empty() { line.to_owned() } else { format!("\n{line}") };
            step.output.push_str(&line);
        }
    }
    steps
}

/// A line without values that differ between runs and versions of kubectl.
fn settled(line: &str) -> String {
    // Newer versions name the namespace of a deleted object.
    let line = match line.split_once("\" deleted from ") {
        Some((what, place)) if place.ends_with(" namespace") => &format!("{what}\" deleted"),
        _ => line,
    };
    let body = line.trim_start();
    let indent = &line[..line.len() - body.len()];
    let mut settled = indent.replace('\t', "  ");
    let mut gap = "";
    for word in body.split(' ') {
        match word {
            "" => gap = "  ",
            word => {
                settled.push_str(gap);
                let cells: Vec<String> = word.split('\t').map(placeholder).collect();
                settled.push_str(&cells.join("  "));
                gap = " ";
            }
        }
    }
    settled
}

fn placeholder(word: &str) -> String {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_age(word) {
        return "<AGE>".to_owned();
    }
    if word.starts_with("10.") && word.split('.').count() == 4 && word.split('.').all(digits) {
        return "<IP>".to_owned();
    }
    if word.len() == 20 && word.ends_with('Z') && word.as_bytes()[10] == b'T' {
        return "<TIME>".to_owned();
    }
    match word.split_once(':').and_then(|(port, rest)| Some((port, rest.split_once('/')?))) {
        Some((port, (node, protocol))) if digits(port) && digits(node) => {
            format!("{port}:<PORT>/{protocol}")
        }
        _ => word.to_owned(),
    }
}

/// An age in seconds, or in minutes on a busy machine: `7s`, `119s`, `3m`, `2m5s`. `200m` is a
/// quantity.
fn is_age(word: &str) -> bool {
    let digits = |text: &str, most: usize| {
        (1..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    let seconds = |text: &str| text.strip_suffix('s').is_some_and(|text| digits(text, 3));
    match word.split_once('m') {
        Some((minutes, rest)) => digits(minutes, 2) && (rest.is_empty() || seconds(rest)),
        None => seconds(word),
    }
}

#[test]
fn a_quantity_is_not_an_age() {
    assert!(["7s", "119s", "3m", "2m5s"].iter().all(|word| is_age(word)));
    assert!(!["200m", "m", "s", "5", "web", "1ms"].iter().any(|word| is_age(word)));
}

#[test]
fn values_that_differ_between_runs_are_normalized() {
    let line = "service/np   NodePort   10.105.99.33   <none>   80:31806/TCP   2s   app=np";
    let settled = settled(line);
    assert_eq!(settled, "service/np  NodePort  <IP>  <none>  80:<PORT>/TCP  <AGE>  app=np");
}
