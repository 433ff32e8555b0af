//! Completions for bash, zsh and fish, from the tables of flags and commands.

use crate::commands::{COMMANDS, CommandInfo, info};
use thalweg_verbs::{At, Row, Value};

use crate::flags::flags;

fn flags_of(info: &CommandInfo) -> impl Iterator<Item = &'static Row> {
    let command = info.command;
    flags().filter(move |flag| flag.is_of(command))
}

/// How a flag can be typed.
fn spellings(flag: &Row) -> Vec<String> {
    let short = flag.short.map(|letter| format!("-{letter}"));
    short.into_iter().chain([format!("--{}", flag.long)]).collect()
}

fn command_names() -> String {
    COMMANDS.iter().map(|info| info.name).collect::<Vec<_>>().join(" ")
}

/// The subcommands of a command.
fn subjects(info: &CommandInfo) -> String {
    match info.command {
        crate::commands::Command::Help => command_names(),
        _ => info.subjects.join(" "),
    }
}

/// For bash. Where no flag or subcommand fits, file names are completed.
pub(crate) fn bash() -> String {
    let mut script = String::from(
        "# Completions of thalweg for bash: put this where bash-completion looks, or source it.\n\
         _thalweg() {\n    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n    \
         local command=${COMP_WORDS[1]}\n    COMPREPLY=()\n    case $before in\n",
    );
    for flag in flags() {
        let reply = match flag.value {
            Value::Switch => continue,
            Value::OneOf(_, words) => bash_reply(&format!("-W '{}'", words.join(" "))),
            Value::Dir(_) => bash_reply("-d"),
            Value::File(_) => bash_reply("-f"),
            Value::Any(_) => ":".to_string(),
        };
        script += &format!("        {}) {reply}; return ;;\n", spellings(flag).join("|"));
    }
    script += "    esac\n    local flags='' subjects=''\n    case $command in\n";
    for info in COMMANDS {
        let flags: Vec<String> = flags_of(info).flat_map(spellings).collect();
        script +=
            &format!("        {}) flags='{}' subjects='{}' ;;\n", info.name, flags.join(" "), subjects(info));
    }
    let everywhere: Vec<String> = flags().filter(|f| f.at == At::Everywhere).flat_map(spellings).collect();
    script += &format!("        *) flags='{}' ;;\n    esac\n", everywhere.join(" "));
    let branches = [
        ("if [[ $word == -?* ]]", bash_reply("-W \"$flags\"")),
        ("elif ((COMP_CWORD == 1))", bash_reply(&format!("-W '{}'", command_names()))),
        ("elif ((COMP_CWORD == 2)) && [[ -n $subjects ]]", bash_reply("-W \"$subjects\"")),
    ];
    for (condition, reply) in branches {
        script += &format!("    {condition}; then\n        {reply}\n");
    }
    script
        + &format!(
            "    else\n        {}\n    fi\n}}\ncomplete -o filenames -F _thalweg thalweg\n",
            bash_reply("-f")
        )
}

/// The line that sets the completions. One completion may contain spaces.
fn bash_reply(compgen: &str) -> String {
    format!("mapfile -t COMPREPLY < <(compgen {compgen} -- \"$word\")")
}

/// For zsh.
pub(crate) fn zsh() -> String {
    let mut script = String::from(
        "#compdef thalweg\n# Completions of thalweg for zsh: put this into a directory of $fpath as _thalweg.\n\
         _thalweg() {\n    local -a commands=(\n",
    );
    for info in COMMANDS {
        script += &format!("        '{}:{}'\n", info.name, zsh_text(info.about));
    }
    script += "    )\n    if ((CURRENT == 2)) && [[ $words[2] != -* ]]; then\n        \
               _describe command commands\n        return\n    fi\n    case $words[2] in\n";
    for info in COMMANDS {
        script += &format!("    {})\n", info.name);
        let subjects = subjects(info);
        if !subjects.is_empty() {
            script += &format!("        if ((CURRENT == 3)); then compadd {subjects}; fi\n");
        }
        script += "        _arguments \\\n";
        for flag in flags_of(info) {
            script += &zsh_flag(flag);
        }
        script += "            '*:file:_files' ;;\n";
    }
    script += "    *)\n        _arguments \\\n";
    let everywhere: Vec<String> = flags().filter(|flag| flag.at == At::Everywhere).map(zsh_flag).collect();
    script += everywhere.concat().trim_end_matches(" \\\n");
    script + " ;;\n    esac\n}\n_thalweg \"$@\"\n"
}

fn zsh_flag(flag: &Row) -> String {
    let action = match flag.value {
        Value::Switch => String::new(),
        Value::Any(name) => format!(":{}: ", zsh_text(name)),
        Value::File(name) => format!(":{}:_files", zsh_text(name)),
        Value::Dir(name) => format!(":{}:_files -/", zsh_text(name)),
        Value::OneOf(name, words) => format!(":{}:({})", zsh_text(name), words.join(" ")),
    };
    let lines = spellings(flag);
    let lines =
        lines.iter().map(|name| format!("            '*{name}[{}]{action}' \\\n", zsh_text(flag.about)));
    lines.collect()
}

fn zsh_text(text: &str) -> String {
    text.replace('\'', "'\\''").replace('[', "\\[").replace(']', "\\]").replace(':', "\\:")
}

/// For fish.
pub(crate) fn fish() -> String {
    let mut script =
        String::from("# Completions of thalweg for fish: put this into its completions directory.\n");
    for info in COMMANDS {
        let about = fish_text(info.about);
        script += &format!("complete -c thalweg -n __fish_use_subcommand -f -a {} -d '{about}'\n", info.name);
        let subjects = subjects(info);
        if !subjects.is_empty() {
            let seen = format!("__fish_seen_subcommand_from {}", info.name);
            script += &format!("complete -c thalweg -n '{seen}' -f -a '{subjects}'\n");
        }
    }
    for flag in flags() {
        let condition = match flag.at {
            At::Everywhere => String::new(),
            At::Commands(commands) => {
                let names: Vec<&str> = commands.iter().map(|command| info(*command).name).collect();
                format!(" -n '__fish_seen_subcommand_from {}'", names.join(" "))
            }
        };
        let short = flag.short.map(|letter| format!(" -s {letter}")).unwrap_or_default();
        let value = match flag.value {
            Value::Switch => String::new(),
            Value::Any(_) => " -x".to_string(),
            Value::File(_) => " -r -F".to_string(),
            Value::Dir(_) => " -x -a '(__fish_complete_directories)'".to_string(),
            Value::OneOf(_, words) => format!(" -x -a '{}'", words.join(" ")),
        };
        let about = fish_text(flag.about);
        script += &format!("complete -c thalweg{condition}{short} -l {}{value} -d '{about}'\n", flag.long);
    }
    script
}

fn fish_text(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\'', "\\'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_knows_every_command_and_flag() {
        for script in [bash(), zsh(), fish()] {
            for info in COMMANDS {
                assert!(script.contains(info.name), "{}", info.name);
            }
            for flag in flags() {
                let spelled = [format!("--{}", flag.long), format!("-l {} ", flag.long)];
                assert!(spelled.iter().any(|name| script.contains(name)), "{} in {script}", flag.long);
            }
        }
    }
}
