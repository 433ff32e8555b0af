//! Help, manual page and completions: they exist, are complete, and the programs that read them understand them.

mod examples;

use std::io::Write;
use std::process::{Command, Stdio};

use super::support::{Place, run};

const COMMANDS: &[&str] = &["gen", "check", "sort", "plan", "doctor", "bench", "help"];

/// Every flag, read from the help of every command.
fn flags() -> Vec<String> {
    let mut flags = Vec::new();
    for command in COMMANDS {
        let help = run(&["help", command, "--all"]);
        for line in help.is_done().lines().filter(|line| line.starts_with("  -")) {
            flags.extend(line.split([' ', ',']).filter(|word| word.starts_with("--")).map(String::from));
        }
    }
    flags.sort();
    flags.dedup();
    assert!(flags.len() > 20, "{flags:?}");
    flags
}

#[test]
fn help_is_asked_for_in_every_usual_way() {
    let long = run(&["sort", "--help"]).out;
    assert_eq!(run(&["help", "sort"]).is_done(), long);
    assert_eq!(run(&["--help", "sort"]).is_done(), long);
    let short = run(&["sort", "-h"]).out;
    assert!(short.len() < long.len() && short.contains("--datamation"), "{short}");
    assert!(long.lines().count() <= 50, "a screen: {long}");
    let all = run(&["sort", "--help", "--all"]).out;
    assert!(all.contains("--cluster NAME|DIR") && !long.contains("--cluster NAME|DIR"), "{long}");
    assert_eq!(run(&["help", "sort", "--all"]).is_done(), all);
    let program = run(&["help"]).out;
    assert_eq!(run(&["--help"]).is_done(), program);
    assert_eq!(run(&["-h"]).is_done(), program);
    for command in COMMANDS {
        assert!(program.contains(&format!("\n  {command} ")), "{command} in {program}");
        assert!(run(&[command, "-h"]).is_done().contains("Usage: thalweg"), "{command}");
    }
    run(&["help", "srot"]).is_refused(&["did you mean sort?"]);
}

#[test]
fn help_wins_over_what_else_is_missing() {
    assert!(run(&["sort", "--record", "100", "--help"]).is_done().contains("Usage"));
    assert!(run(&["plan", "sort", "-h"]).is_done().contains("thalweg plan"));
}

#[test]
fn the_version_is_that_of_the_package() {
    let version = run(&["--version"]);
    let build = version.is_done().strip_prefix(concat!("thalweg ", env!("CARGO_PKG_VERSION"), " (build "));
    let build = build.and_then(|rest| rest.strip_suffix(")\n")).unwrap_or_else(|| panic!("{version:?}"));
    assert!(build.len() == 16 && build.bytes().all(|b| b.is_ascii_hexdigit()), "{build}");
    assert_eq!(run(&["-V"]).is_done(), run(&["--version"]).out);
}

#[test]
fn the_manual_page_holds_every_flag() {
    let outcome = run(&["--generate", "man"]);
    let page = outcome.is_done();
    assert!(page.starts_with(".TH THALWEG 1 "), "{page}");
    for flag in flags() {
        assert!(page.contains(&flag.replace('-', "\\-")), "{flag}");
    }
}

#[test]
fn completions_hold_every_flag() {
    for shell in ["bash", "zsh", "fish"] {
        let outcome = run(&["--generate", &format!("complete-{shell}")]);
        let script = outcome.is_done();
        for flag in flags() {
            let fish = format!("-l {} ", &flag[2..]);
            assert!(script.contains(&flag) || script.contains(&fish), "{flag} in {shell}");
        }
    }
}

/// The completions that bash offers for the words, of which the last is being typed.
fn bash_completes(words: &[&str]) -> Vec<String> {
    let place = Place::new();
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let asked = format!(
        "{}\nCOMP_WORDS=(thalweg {}) COMP_CWORD={}\n_thalweg\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
        run(&["--generate", "complete-bash"]).is_done(),
        quoted.join(" "),
        words.len()
    );
    std::fs::create_dir(place.0.join("folder")).unwrap();
    std::fs::copy("/proc/self/cmdline", place.0.join("file of mine")).unwrap();
    let mut bash = Command::new("bash");
    bash.arg("--norc")
        .current_dir(&place.0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut bash = bash.spawn().expect("bash starts");
    bash.stdin.take().expect("a pipe was asked for").write_all(asked.as_bytes()).unwrap();
    let output = bash.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{asked}");
    let mut words: Vec<String> =
        String::from_utf8(output.stdout).unwrap().lines().map(String::from).collect();
    words.sort();
    words
}

#[test]
fn bash_completes_commands_flags_and_values() {
    assert_eq!(bash_completes(&["so"]), ["sort"]);
    assert_eq!(bash_completes(&["plan", ""]), ["sort"]);
    assert_eq!(bash_completes(&["bench", "i"]), ["incore", "io"]);
    assert_eq!(bash_completes(&["help", "d"]), ["doctor"]);
    assert_eq!(bash_completes(&["sort", "--sc"]), ["--scratch", "--scratch-limit"]);
    assert_eq!(bash_completes(&["gen", "--s"]), ["--skewed", "--start"]);
    assert_eq!(bash_completes(&["sort", "--io", ""]), ["auto", "threads", "uring"]);
    assert_eq!(bash_completes(&["sort", "--scratch", "f"]), ["folder"]);
    assert_eq!(bash_completes(&["sort", "f"]), ["file of mine", "folder"]);
    assert_eq!(bash_completes(&["sort", "-o", "f"]), ["file of mine", "folder"]);
}
