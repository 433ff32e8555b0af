//! Parses the command line with the table of flags.
//!
//! Invariant: any input gives [`TypedArgs`] or one line that names the wrong argument, what is wrong with it, and the
//! nearest valid name, if there is one. `parse_fuzz.rs` tests this.

use std::ffi::{OsStr, OsString};

use lexopt::Arg;

use thalweg_verbs::{Ask, At, Row, Usage, nearest};

use crate::commands::{COMMANDS, Command, info};
use crate::flags::{flags, set};
use crate::reserved::{OF_RSYNC, RESERVED, Reserved};
use crate::typed::{Help, TypedArgs};

/// A flag as typed.
#[derive(Debug, Clone)]
enum Name {
    Short(char),
    Long(String),
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Name::Short(letter) => write!(f, "-{letter}"),
            Name::Long(name) => write!(f, "--{name}"),
        }
    }
}

/// Parses the arguments after the program's name.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<TypedArgs, Usage> {
    // lexopt needs an iterator that lives as long as the parser.
    let mut parser = lexopt::Parser::from_args(args.into_iter().collect::<Vec<_>>());
    let mut args = TypedArgs::default();
    let mut asked = None;
    loop {
        let name = match parser.next().map_err(misused)? {
            None => return sorted_by(asked, &args).map_or(Ok(args), Err),
            Some(Arg::Value(word)) => {
                take_word(&mut args, word)?;
                continue;
            }
            Some(Arg::Short(letter)) => Name::Short(letter),
            Some(Arg::Long(name)) => Name::Long(name.to_string()),
        };
        if let Name::Short(letter @ ('h' | 'V')) = name {
            asked = Some(letter);
        }
        let flag = find(&name, args.ask.command)?;
        let value = match flag.value_name() {
            None => OsString::new(),
            Some(value_name) => {
                parser.value().map_err(|_| Usage(format!("{name} needs a value: {name} {value_name}")))?
            }
        };
        if let Some(of) = flag.value_name().filter(|_| flag.is_name() && value.is_empty()) {
            return Err(Usage(format!("{name}: the name is empty; write {name} {of}")));
        }
        set(flag, &mut args, &value).map_err(|why| Usage(format!("{name}: {why}")))?;
        if matches!(name, Name::Short('h')) {
            args.help = Some(Help::Short);
        }
    }
}

/// The error if `-h` or `-V` stands beside inputs of `sort`, where it asks GNU sort for an order: help or a version would
/// be taken for the sorted output.
fn sorted_by(asked: Option<char>, args: &TypedArgs) -> Option<Usage> {
    let (letter, long, today) = match asked? {
        'h' => ('h', "human-numeric-sort", "--help explains sort"),
        letter => (letter, "version-sort", "--version prints the version"),
    };
    let is_order = args.ask.command == Some(Command::Sort) && !args.ask.words.is_empty();
    let row = RESERVED.iter().find(|row| row.long == long).filter(|_| is_order)?;
    Some(Usage(format!("-{letter} is reserved for what it means to GNU sort; {}; {today}", row.today)))
}

/// The first argument that is not a flag is the command; the others belong to the command.
fn take_word(args: &mut TypedArgs, word: OsString) -> Result<(), Usage> {
    if args.ask.command.is_some() {
        args.ask.words.push(word);
    } else {
        args.ask = Ask::new(command_named(&word)?);
    }
    Ok(())
}

/// The command with this name; the error suggests the nearest one.
pub(crate) fn command_named(word: &OsStr) -> Result<Command, Usage> {
    let typed = word.to_string_lossy();
    let found = COMMANDS.iter().find(|info| info.name == typed).map(|info| info.command);
    found.ok_or_else(|| {
        let names: Vec<&str> = COMMANDS.iter().map(|info| info.name).collect();
        let hint = match nearest(&typed, names.iter().copied()) {
            Some(name) => format!("did you mean {name}?"),
            None => format!("the commands are {}", names.join(", ")),
        };
        Usage(format!("unknown command '{typed}'; {hint}"))
    })
}

/// The flag's row, if the flag is allowed here.
fn find(name: &Name, command: Option<Command>) -> Result<&'static Row, Usage> {
    let is_it = |flag: &&Row| match name {
        Name::Short(letter) => flag.short == Some(*letter),
        Name::Long(long) => flag.long == long,
    };
    let may_stand = |flag: &&Row| match command {
        Some(command) => flag.is_of(command),
        None => flag.at == At::Everywhere,
    };
    let found = flags().find(is_it);
    match found {
        Some(flag) if may_stand(&flag) => Ok(flag),
        // A flag of another command is said to be that, also if GNU sort has it.
        _ => Err(found
            .filter(|_| matches!(name, Name::Long(_)) && command != Some(Command::Pump))
            .map(|flag| misplaced(flag, name, command))
            .or_else(|| reserved(name, command))
            .or_else(|| found.map(|flag| misplaced(flag, name, command)))
            .unwrap_or_else(|| {
                let names = flags().filter(may_stand).map(|flag| flag.long);
                unknown(name, command, names)
            })),
    }
}

/// The error for a flag of GNU sort, or of rsync; some commands reserve none. For `exec`, a short flag is one of the typed command.
fn reserved(name: &Name, command: Option<Command>) -> Option<Usage> {
    match command {
        Some(Command::Exec) if matches!(name, Name::Short(_)) => {
            return Some(Usage(format!(
                "{name} is no flag of exec; write the command behind '--', as in thalweg exec -- uname -r"
            )));
        }
        Some(Command::Exec | Command::Cluster | Command::Job | Command::Node) => return None,
        _ => {}
    }
    let is_it = |row: &&Reserved| match name {
        Name::Short(letter) => row.short == Some(*letter),
        Name::Long(long) => row.long == long,
    };
    if command == Some(Command::Pump) {
        let row = OF_RSYNC.iter().find(is_it)?;
        return Some(Usage(format!("{name} is a flag of rsync; {}", row.today)));
    }
    let row = RESERVED.iter().find(is_it)?;
    Some(Usage(format!("{name} is reserved for what it means to GNU sort; {}", row.today)))
}

fn misplaced(flag: &Row, name: &Name, command: Option<Command>) -> Usage {
    let owners = COMMANDS.iter().filter(|info| flag.is_of(info.command)).map(|info| info.name);
    let owners = owners.collect::<Vec<_>>().join(", ");
    Usage(match command {
        Some(command) => format!("{name} is a flag of {owners}, not of {}", info(command).name),
        None => format!("{name} comes after its command, which may be {owners}"),
    })
}

fn unknown(name: &Name, command: Option<Command>, names: impl Iterator<Item = &'static str>) -> Usage {
    let near = match name {
        Name::Short(_) => None,
        Name::Long(long) => nearest(long, names),
    };
    let shown = command.map(|command| format!(" {}", info(command).name)).unwrap_or_default();
    Usage(match near {
        Some(near) => format!("unknown flag {name}; did you mean --{near}?"),
        None => format!("unknown flag {name}; thalweg{shown} -h lists those there are"),
    })
}

/// An error that lexopt finds before any row is looked up.
fn misused(error: lexopt::Error) -> Usage {
    match error {
        lexopt::Error::UnexpectedValue { option, value } => {
            Usage(format!("{option} takes no value, and '{}' is one", value.to_string_lossy()))
        }
        other => Usage(other.to_string()),
    }
}

/// An error if a command has arguments left that it does not use.
pub(crate) fn nothing_left(words: &[OsString], command: Command) -> Result<(), Usage> {
    match words.first() {
        None => Ok(()),
        Some(word) => {
            let name = info(command).name;
            Err(Usage(format!("'{}' is one word too many for {name}", word.to_string_lossy())))
        }
    }
}
