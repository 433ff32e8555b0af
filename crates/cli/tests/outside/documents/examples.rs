//! The examples of README.md and docs/guide: each of them runs, prints what the page shows, and names flags that exist.
//!
//! A block ```` ```console ```` holds commands after `$ ` and, optionally, their output. One shell runs all blocks of a
//! page in order, in an empty directory of its own. A reader does not see three kinds of comment before a block:
//!
//!     <!-- not run: WHY -->          the next block is not run; its flags are checked all the same
//!     <!-- before: COMMAND -->       what the next block needs and would only distract
//!     <!-- not compared: WHY -->     what the next block prints is not compared
//!
//! A command must end with status 0, or with the one that a comment after it gives (`# exit status 3`). Its output is
//! compared without numbers, which are times and rates, and without the line `io`. A line `...` stands for any number
//! of lines. In a test, paths below `/data`, `/mnt` and `/shared`, and the ports 7101 to 7109 of this machine, are
//! replaced by others.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::super::support::{Place, free_ports, run};

/// Each page is a test of its own, and a page that is not listed is an error.
macro_rules! pages {
    ($($name:ident $path:literal,)*) => {
        const PAGES: &[&str] = &[$($path),*];
        $(#[test]
        fn $name() {
            Page::read($path).runs();
        })*
    };
}

pages! {
    readme "README.md",
    cluster "docs/guide/cluster.md",
    install "docs/guide/install.md",
    library "docs/guide/library.md",
    moving_files "docs/guide/moving-files.md",
    partition_and_join "docs/guide/partition-and-join.md",
    python "docs/guide/python.md",
    ray "docs/guide/ray.md",
    resume_and_faults "docs/guide/resume-and-faults.md",
    sort "docs/guide/sort.md",
    tables "docs/guide/tables.md",
    threat_model "docs/guide/threat-model.md",
    tuning "docs/guide/tuning.md",
    volumes "docs/guide/volumes.md",
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn no_page_of_the_guide_is_forgotten() {
    let guide = root().join("docs/guide").read_dir().expect("the guide is there");
    let mut there: Vec<String> =
        guide.map(|entry| format!("docs/guide/{}", entry.unwrap().file_name().to_string_lossy())).collect();
    there.push("README.md".into());
    there.sort();
    assert_eq!(there, PAGES);
}

#[test]
fn flags_in_readme_and_guide_exist() {
    let verbs = verbs();
    let all: BTreeSet<&String> = verbs.iter().flat_map(|(_, flags)| flags).collect();
    let mut wrong = String::new();
    for path in PAGES {
        let page = Page::read(path);
        let lines = page.blocks.iter().flat_map(|block| &block.commands).map(|command| command.line.as_str());
        for line in lines.chain(page.spans.iter().map(String::as_str)) {
            for part in line.split(['|', ';', '&', '(', ')']) {
                let mut words = part.split_whitespace().skip_while(|word| *word != "thalweg").skip(1);
                let verb = words.next().unwrap_or_default();
                let known = verbs.iter().find(|(name, _)| name == verb);
                let is_verb = verb.starts_with(|c: char| c.is_ascii_lowercase());
                if is_verb && known.is_none() && verb != "help" {
                    let _ = writeln!(wrong, "{path}: no command '{verb}' in '{line}'");
                }
                let flags: Vec<&str> = match known {
                    Some(_) => words.take_while(|word| *word != "--").collect(),
                    None if part.starts_with("--") => part.split_whitespace().collect(),
                    None => continue,
                };
                let flags = flags.iter().map(|word| word.split(['=', ',', '.']).next().unwrap_or_default());
                for flag in flags.filter(|flag| flag.starts_with("--") && flag.len() > 2) {
                    let exists = match known {
                        // The Python package has this flag for every verb.
                        Some(_) if line.contains("--cluster ray:") && flag == "--cluster" => true,
                        Some((_, flags)) => flags.contains(flag),
                        None => all.contains(&flag.to_string()),
                    };
                    if !exists {
                        let _ = writeln!(wrong, "{path}: no flag '{flag}' in '{line}'");
                    }
                }
            }
        }
    }
    assert_eq!(wrong, "");
}

/// Every command with its flags, as the help shows them.
fn verbs() -> Vec<(String, BTreeSet<String>)> {
    let help = run(&["help"]);
    let commands = help.is_done().split("Commands:\n").nth(1).expect("help lists commands");
    let commands = commands.lines().take_while(|line| !line.is_empty());
    let names = commands.map(|line| line.split_whitespace().next().expect("a name").to_string());
    names.filter(|name| name != "help").map(|name| (name.clone(), flags(&name))).collect()
}

fn flags(verb: &str) -> BTreeSet<String> {
    let help = run(&["help", verb, "--all"]);
    let lines = help.is_done().lines().filter(|line| line.starts_with("  -"));
    lines
        .flat_map(|line| line.split([' ', ',']).filter(|word| word.starts_with("--")).map(String::from))
        .collect()
}

/// The examples of a page of Markdown.
#[derive(Default)]
struct Page {
    path: String,
    blocks: Vec<Block>,
    /// The text between backticks in its sentences.
    spans: Vec<String>,
}

/// Commands, one after the other.
#[derive(Default)]
struct Block {
    before: Vec<String>,
    runs: bool,
    compared: bool,
    commands: Vec<Command>,
}

/// A command and its output; `None` if the page does not show it.
struct Command {
    line: String,
    prints: Vec<String>,
}

impl Page {
    fn read(path: &str) -> Page {
        let text = std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
        let mut page = Page { path: path.into(), ..Page::default() };
        let fresh = || Block { runs: true, compared: true, ..Block::default() };
        let (mut block, mut sentences, mut lines) = (fresh(), String::new(), text.lines());
        while let Some(line) = lines.next() {
            if let Some(comment) = line.strip_prefix("<!-- ") {
                let (kind, what) = comment.split_once(": ").unwrap_or((comment, ""));
                match kind {
                    "not run" => block.runs = false,
                    "not compared" => block.compared = false,
                    "before" => block.before.push(what.strip_suffix(" -->").expect("one line").into()),
                    _ => panic!("{path}: what is '{line}'?"),
                }
            } else if let Some(language) = line.strip_prefix("```") {
                let inside: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
                if language == "console" {
                    block.commands = commands(&inside);
                    page.blocks.push(std::mem::replace(&mut block, fresh()));
                }
            } else {
                assert!(!line.starts_with("    $ "), "{path}: examples are blocks of ```console: '{line}'");
                sentences += line;
                sentences += "\n";
            }
        }
        page.spans = sentences.split('`').skip(1).step_by(2).map(String::from).collect();
        page
    }

    /// Runs its blocks in one shell, and compares what each command prints.
    fn runs(&self) {
        let place = Place::new();
        let (mut script, mut commands) = (String::from(PROLOGUE), Vec::new());
        for block in self.blocks.iter().filter(|block| block.runs) {
            for line in &block.before {
                let _ = writeln!(script, "{{ {line}\n}} >/dev/null 2>&1 || echo 'before failed: '{line:?}");
            }
            for command in &block.commands {
                let _ = writeln!(script, "echo '{MARK}'; {{ {}\n}} 2>&1; echo \"{MARK}$?\"", command.line);
                commands.push((command, block.compared));
            }
        }
        let outcome = place.shell(&elsewhere(&script, &place.0));
        let mut told = outcome.out.split(MARK).skip(1);
        for (command, compared) in commands {
            let (out, status) = (told.next().unwrap_or_default(), told.next().unwrap_or_default());
            let said = command.line.split_once("# exit status ").map_or("0", |(_, status)| status.trim());
            let status = status.lines().next().unwrap_or_default();
            assert_eq!(status, said, "{}: status of '{}', which printed\n{out}", self.path, command.line);
            let (out, prints) = (plain(out.lines()), plain(command.prints.iter().map(String::as_str)));
            let fits = command.prints.is_empty() || !compared || fits(&prints, &out);
            assert!(fits, "{}: '{}' prints\n{out:#?}\nand not\n{prints:#?}", self.path, command.line);
        }
        assert!(!outcome.out.contains("before failed: "), "{}: {outcome:?}", self.path);
    }
}

/// Marks the beginning and the end of each output.
const MARK: &str = "\u{1}";

/// Makes the command available by its name, sets directories of its own for the user, and ends what a page leaves
/// running.
const PROLOGUE: &str = "\
P=$PWD; mkdir -p bin home here && ln -s \"$T\" bin/thalweg && cd here || exit 9
export PATH=$P/bin:$PATH HOME=$P/home; unset XDG_CONFIG_HOME XDG_CACHE_HOME THALWEG_IDENTITY THALWEG_VIA
mkdir -p $P/data $P/mnt $P/shared
trap 'kill $(jobs -p); wait' EXIT
";

/// The script, with directories and ports of this test.
fn elsewhere(script: &str, place: &Path) -> String {
    let mut script = script.to_string();
    for folder in ["data", "mnt", "shared"] {
        for before in [" ", ":", "'", "="] {
            let there = format!("{before}{}/{folder}", place.display());
            script = script.replace(&format!("{before}/{folder}"), &there);
        }
    }
    for (i, port) in (1..).zip(free_ports(9)) {
        script = script.replace(&format!(":710{i}"), &format!(":{port}"));
    }
    script
}

/// The lines after `$ `, each with the lines that follow; a line that ends with `\` continues.
fn commands(lines: &[&str]) -> Vec<Command> {
    let mut commands: Vec<Command> = Vec::new();
    for line in lines {
        match (line.strip_prefix("$ "), commands.last_mut()) {
            (Some(line), _) => commands.push(Command { line: line.into(), prints: Vec::new() }),
            (None, Some(last)) if last.prints.is_empty() && last.line.ends_with('\\') => {
                last.line += "\n";
                last.line += line;
            }
            (None, Some(last)) => last.prints.push(line.to_string()),
            (None, None) => panic!("'{line}' comes before any command"),
        }
    }
    commands
}

/// The words of each line without numbers and their units.
fn plain<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    const UNITS: &[&str] =
        &["B", "kB", "MB", "GB", "KiB", "MiB", "GiB", "s", "ms", "kB/s", "MB/s", "GB/s", "%"];
    let plain = lines.map(|line| {
        let words = line.split_whitespace().map(|word| word.trim_matches([',', ':', '(', ')', ';']));
        let is_text = |word: &&str| {
            !UNITS.contains(word) && (!word.contains(|c: char| c.is_ascii_digit()) || is_sum(word))
        };
        words.filter(is_text).collect::<Vec<_>>().join(" ")
    });
    // Whether there is io_uring depends on the machine.
    plain.filter(|line| !line.is_empty() && !line.starts_with("io ")).collect()
}

/// Whether a word is a checksum, which shows that the records are the same.
fn is_sum(word: &str) -> bool {
    word.len() == 32 && word.chars().all(|c| c.is_ascii_hexdigit())
}

/// Whether the printed lines are the shown ones, where `...` stands for any number of lines.
fn fits(shown: &[String], printed: &[String]) -> bool {
    match (shown.split_first(), printed.split_first()) {
        (None, None) => true,
        (Some((first, rest)), _) if first == "..." => {
            (0..=printed.len()).any(|passed| fits(rest, &printed[passed..]))
        }
        (Some((shown, shown_rest)), Some((printed, printed_rest))) => {
            shown == printed && fits(shown_rest, printed_rest)
        }
        _ => false,
    }
}

#[test]
fn outputs_are_compared_without_their_numbers() {
    let plain = |text: &str| plain(text.lines());
    assert_eq!(plain("sorted 1 000 records, in 0.90 s: 7 MB/s"), plain("sorted 2 records, in 1.2 s: 1 GB/s"));
    assert_ne!(plain("invariant out = in: holds"), plain("invariant out = in: broken"));
    let (a, b) = ("09126a993560c40f5af73f880ed3c45e", "19126a993560c40f5af73f880ed3c45e");
    assert_ne!(plain(a), plain(b));
    assert!(fits(&plain("a\n...\nb"), &plain("a\nx\ny\nb")) && !fits(&plain("a\n..."), &plain("b")));
}
