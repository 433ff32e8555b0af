//! Help, from the tables of flags and commands. Eighty columns, plain text.

use crate::commands::{CHAPTERS, COMMANDS, Command, info};
use thalweg_verbs::{At, Row};

use crate::flags;
use crate::program::BUILD;

const WIDTH: usize = 80;

/// `thalweg 0.1.0 (build 0123456789abcdef)`.
pub(crate) fn version() -> String {
    format!("thalweg {} (build {BUILD})\n", env!("CARGO_PKG_VERSION"))
}

/// The program's description and its commands.
pub(crate) fn program() -> String {
    let mut text =
        String::from("Sorts files of records at disk speed in bounded memory, and proves the result.\n\n");
    text += "Usage: thalweg COMMAND ...\n\nCommands:\n";
    for info in COMMANDS {
        text += &format!("  {:<10}{}\n", info.name, info.about);
    }
    text += "\nFlags of all commands:\n";
    text += &in_short(&flags(|flag| flag.at == At::Everywhere));
    for (title, chapter) in CHAPTERS {
        text += &format!("\n{title}:\n{}", wrapped(chapter, 2));
    }
    text + "\nthalweg help COMMAND explains a command at length.\n"
}

/// The verbs on records, whose flags do not all fit on a screen.
const WITH_MANY_FLAGS: &[Command] = {
    use Command::{Check, Join, Merge, Partition, Plan, Shuffle, Sort};
    &[Sort, Shuffle, Merge, Join, Partition, Check, Plan]
};
/// The flags of these verbs that few need: those of clusters and benchmarks.
const RARE: &[&str] =
    &["nodes", "cluster", "shares", "identity", "on", "detach", "simulate", "io", "no-proof"];

/// What fits on a screen, for commands with many flags; for others everything.
pub(crate) fn command(command: Command, all: bool) -> String {
    if all || !WITH_MANY_FLAGS.contains(&command) {
        return command_at_length(command);
    }
    let info = info(command);
    let (own, common) = frequent(command);
    let mut text = head(command);
    let first = info.doc.split("\n\n").next().unwrap_or_default();
    text += &format!("\n{}\nFlags:\n{}", wrapped(first, 0), in_short(&own));
    let common: Vec<String> = common.iter().map(|flag| typed(flag)).collect();
    text += &format!("\nOf all commands:\n{}\nExamples:\n", wrapped(&common.join("; "), 2));
    for (line, _) in info.examples {
        text += &format!("  {line}\n");
    }
    text + &more(command)
}

/// A command's own flags that a screen shows, and the flags of all commands.
fn frequent(command: Command) -> (Vec<&'static Row>, Vec<&'static Row>) {
    let (mut own, common) = flags_of(command);
    own.retain(|flag| !WITH_MANY_FLAGS.contains(&command) || !RARE.contains(&flag.long));
    (own, common)
}

fn more(command: Command) -> String {
    let name = info(command).name;
    match WITH_MANY_FLAGS.contains(&command) {
        true => format!("\nthalweg help {name} --all explains every flag, those for clusters too.\n"),
        false => format!("\nthalweg help {name} says more.\n"),
    }
}

/// The short help of a command: a line for each flag.
pub(crate) fn command_in_short(command: Command) -> String {
    let (own, common) = frequent(command);
    let mut text = head(command);
    if !own.is_empty() {
        text += &format!("\nFlags:\n{}", in_short(&own));
    }
    text += &format!("\nFlags of all commands:\n{}", in_short(&common));
    text + &more(command)
}

/// The full help of a command.
fn command_at_length(command: Command) -> String {
    let info = info(command);
    let (own, common) = flags_of(command);
    let mut text = head(command);
    text += &format!("\n{}", wrapped(info.doc, 0));
    if !own.is_empty() {
        text += &format!("\nFlags:\n{}", at_length(&own));
    }
    text += &format!("\nFlags of all commands:\n{}", at_length(&common));
    for (title, chapter) in CHAPTERS {
        text += &format!("\n{title}:\n{}", wrapped(chapter, 4));
    }
    if !info.examples.is_empty() {
        text += "\nExamples:\n";
    }
    for (line, what) in info.examples {
        text += &format!("    {line}\n        {what}\n");
    }
    text
}

/// A command's own flags, and the flags of all commands.
pub(crate) fn flags_of(command: Command) -> (Vec<&'static Row>, Vec<&'static Row>) {
    (flags(|flag| flag.at != At::Everywhere && flag.is_of(command)), flags(|flag| flag.at == At::Everywhere))
}

/// How a flag is typed: `-o, --output OUTPUT`.
pub(crate) fn typed(flag: &Row) -> String {
    let short = flag.short.map(|letter| format!("-{letter}, ")).unwrap_or_default();
    let value = flag.value_name().map(|name| format!(" {name}")).unwrap_or_default();
    format!("{short}--{}{value}", flag.long)
}

fn flags(wanted: impl Fn(&Row) -> bool) -> Vec<&'static Row> {
    flags::flags().filter(|flag| wanted(flag)).collect()
}

fn head(command: Command) -> String {
    let info = info(command);
    let usage = format!("thalweg {} {}", info.name, info.synopsis);
    format!("thalweg {}: {}\n\nUsage: {} [FLAGS]\n", info.name, info.about, usage.trim_end())
}

fn in_short(flags: &[&Row]) -> String {
    let mut text = String::new();
    for flag in flags {
        let name = typed(flag);
        // A long name has a line to itself.
        let gap = if name.len() < 22 { "" } else { "\n                        " };
        text += &format!("  {name:<22}{gap}{}\n", flag.about);
    }
    text
}

fn at_length(flags: &[&Row]) -> String {
    let texts: Vec<String> =
        flags.iter().map(|flag| format!("  {}\n{}", typed(flag), wrapped(flag.doc, 6))).collect();
    texts.join("\n")
}

/// Wraps paragraphs into lines, each indented by `indent` spaces.
fn wrapped(text: &str, indent: usize) -> String {
    let margin = " ".repeat(indent);
    let mut lines = Vec::new();
    for paragraph in text.split("\n\n") {
        let mut line = margin.clone();
        for word in paragraph.split_whitespace() {
            let full = line.len() + 1 + word.len() > WIDTH;
            if full && line.len() > indent {
                lines.push(std::mem::replace(&mut line, margin.clone()));
            }
            if line.len() > indent {
                line.push(' ');
            }
            line.push_str(word);
        }
        lines.push(line);
        lines.push(String::new());
    }
    lines.pop();
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_are_wrapped_at_the_margin() {
        let text = "word ".repeat(40) + "\n\nsecond";
        let lines = wrapped(&text, 4);
        assert!(lines.lines().all(|line| line.len() <= WIDTH), "{lines}");
        assert!(lines.ends_with("\n\n    second\n"), "{lines}");
        assert_eq!(lines.matches("word").count(), 40);
    }

    #[test]
    fn help_of_every_command_names_its_flags_and_fits() {
        for info in COMMANDS {
            let (short, long) = (command_in_short(info.command), command_at_length(info.command));
            for flag in flags::flags() {
                let name = typed(flag);
                let is_rare = WITH_MANY_FLAGS.contains(&info.command) && RARE.contains(&flag.long);
                let is_shown = flag.is_of(info.command) && !is_rare;
                assert_eq!(short.contains(&name), is_shown, "{name} in {short}");
                assert_eq!(long.contains(&name), flag.is_of(info.command), "{name} in {long}");
            }
            for line in long.lines().chain(short.lines()) {
                assert!(line.len() <= WIDTH, "{line}");
            }
        }
    }

    #[test]
    fn help_of_a_verb_with_many_flags_is_a_screen() {
        const SCREEN: usize = 50;
        for &verb in WITH_MANY_FLAGS {
            let text = command(verb, false);
            assert!(text.lines().count() <= SCREEN && text.contains("--all explains"), "{text}");
            assert!(text.lines().all(|line| line.len() <= 100) && !text.contains("--cluster NAME"), "{text}");
            assert_eq!(command(verb, true), command_at_length(verb));
        }
        assert_eq!(command(Command::Volume, false), command_at_length(Command::Volume));
    }

    #[test]
    fn the_list_names_every_command() {
        let text = program();
        for info in COMMANDS {
            assert!(text.contains(&format!("\n  {:<10}{}\n", info.name, info.about)), "{}", info.name);
        }
    }
}
