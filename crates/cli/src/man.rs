//! The manual page, in roff, from the tables of flags and commands.

use crate::commands::{CHAPTERS, COMMANDS};
use thalweg_verbs::{At, Row};

use crate::flags::flags;

/// The whole page.
pub(crate) fn page() -> String {
    let mut page = format!(".TH THALWEG 1 \"\" \"thalweg {}\" \"Thalweg\"\n", env!("CARGO_PKG_VERSION"));
    page += ".SH NAME\nthalweg \\- sort files of records at the speed of the disk, and prove the result\n.SH SYNOPSIS\n";
    let synopses: Vec<String> = COMMANDS.iter().map(|info| synopsis(info.name, info.synopsis)).collect();
    page += &synopses.join(".br\n");
    page += ".SH COMMANDS\n";
    for info in COMMANDS {
        page += &format!(".SS {}\n{}", escaped(info.name), synopsis(info.name, info.synopsis));
        page += &format!(".PP\n{}", paragraphs(info.doc, ".PP"));
        for flag in flags().filter(|flag| flag.at != At::Everywhere && flag.is_of(info.command)) {
            page += &flag_item(flag);
        }
    }
    page += ".SH FLAGS OF ALL COMMANDS\n";
    for flag in flags().filter(|flag| flag.at == At::Everywhere) {
        page += &flag_item(flag);
    }
    for (title, chapter) in CHAPTERS {
        page += &format!(".SH {}\n{}", title.to_uppercase(), paragraphs(chapter, ".PP"));
    }
    page += ".SH EXAMPLES\n";
    for (line, what) in COMMANDS.iter().flat_map(|info| info.examples) {
        page += &format!(".TP\n\\fB{}\\fR\n{}\n", escaped(line), guarded(what));
    }
    page + ".SH SEE ALSO\n\\fBsort\\fR(1), \\fBio_uring\\fR(7), \\fBopen\\fR(2)\n"
}

fn synopsis(name: &str, follows: &str) -> String {
    format!("\\fBthalweg {}\\fR {}\n", escaped(name), escaped(follows)).replace("\\fR \n", "\\fR\n")
}

fn flag_item(flag: &Row) -> String {
    let short = flag.short.map(|letter| format!("\\fB\\-{letter}\\fR, ")).unwrap_or_default();
    let value = flag.value_name().map(|name| format!(" \\fI{}\\fR", escaped(name))).unwrap_or_default();
    format!(".TP\n{short}\\fB\\-\\-{}\\fR{value}\n{}", escaped(flag.long), paragraphs(flag.doc, ".IP"))
}

/// Paragraphs, with a roff request between each two.
fn paragraphs(text: &str, between: &str) -> String {
    let paragraphs: Vec<String> = text.split("\n\n").map(|paragraph| guarded(paragraph) + "\n").collect();
    paragraphs.join(&format!("{between}\n"))
}

/// Escapes text at the beginning of a line, where a dot or a quote would be a request.
fn guarded(text: &str) -> String {
    let text = escaped(text);
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_command_and_every_flag_where_it_may_stand() {
        let page = page();
        for info in COMMANDS {
            assert!(page.contains(&format!("\n.SS {}\n", info.name)), "{}", info.name);
        }
        for flag in flags() {
            let places = match flag.at {
                At::Everywhere => 1,
                At::Commands(commands) => commands.len(),
            };
            let name = format!("\\fB\\-\\-{}\\fR", escaped(flag.long));
            assert_eq!(page.matches(&name).count(), places, "{}", flag.long);
        }
    }

    #[test]
    fn nothing_in_the_text_is_taken_for_roff() {
        assert_eq!(guarded(".TH"), "\\&.TH");
        assert_eq!(guarded("'-' is a\\b"), "\\(aq\\-\\(aq is a\\eb");
        for line in page().lines().filter(|line| line.starts_with('.')) {
            let request = line.split(' ').next().expect("a split has a first part");
            assert!([".TH", ".SH", ".SS", ".TP", ".IP", ".PP", ".br"].contains(&request), "{line}");
        }
    }
}
