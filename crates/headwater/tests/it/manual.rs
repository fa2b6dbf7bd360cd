//! Completions, man pages, and an example in the help of every command.

use crate::process::run;

fn output(args: &[&str]) -> String {
    let ended = run(args);
    assert_eq!(ended.status.code(), Some(0), "{args:?}");
    String::from_utf8(ended.stdout).unwrap()
}

/// The commands that the help lists.
fn commands() -> Vec<String> {
    let help = output(&["--help"]);
    let (_, rest) = help.split_once("Commands:\n").unwrap();
    let (list, _) = rest.split_once("\n\n").unwrap();
    let names = list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.map(|line| line.split_whitespace().next().unwrap().to_owned());
    names.filter(|name| name != "help").collect()
}

#[test]
fn every_command_has_an_example_in_its_help() {
    let commands = commands();
    assert!(commands.len() > 20, "{commands:?}");
    for command in commands {
        let help = output(&[&command, "--help"]);
        assert!(
            help.contains(&format!("headwater {command}")) && help.contains("Example"),
            "{command}"
        );
    }
}

#[test]
fn completions_name_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = output(&["completions", shell]);
        for command in commands() {
            assert!(script.contains(&command), "{shell}: {command}");
        }
    }
    assert_eq!(run(&["completions", "cmd"]).status.code(), Some(2));
}

#[test]
fn there_is_a_man_page_for_every_command() {
    let dir = tempfile::tempdir().unwrap();
    output(&["man", dir.path().to_str().unwrap()]);
    let page = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    assert!(page("headwater.1").contains(".TH"));
    for command in commands() {
        assert!(page(&format!("headwater-{command}.1")).contains(".SH"), "{command}");
    }
    assert!(page("headwater-record.1").contains("secrets"));
}
