//! A test case for each flag: how it is typed, and what it sets. The last test checks that no flag lacks a case.

use std::ffi::OsString;
use std::path::Path;

use thalweg::table::Duplicates;
use thalweg::volume::Hint;
use thalweg::{IoChoice, KeyPart, PartitionPick};
use thalweg_api::{May, PumpCompare, Schedule};
use thalweg_base::units::Size;

use thalweg_verbs::{At, Value};

use crate::commands::{COMMANDS, info};
use crate::flags::flags;
use crate::parse::parse;
use crate::reserved::{OF_RSYNC, RESERVED};
use crate::typed::{Document, Help, TypedArgs, When};

/// A flag's name, arguments that contain it, and a check of the result.
type Case = (&'static str, &'static [&'static str], fn(&TypedArgs) -> bool);

const CASES: &[Case] = &[
    ("output", &["sort", "-o", "out"], |a| a.ask.output.as_deref() == Some("out".as_ref())),
    ("output", &["plan", "sort", "--output=-"], |a| a.ask.output.as_deref() == Some("-".as_ref())),
    ("record", &["sort", "--record", "100"], |a| a.ask.form.record == Some(100)),
    ("record", &["check", "--record=1KiB"], |a| a.ask.form.record == Some(1024)),
    ("prefixed", &["shuffle", "--prefixed"], |a| a.ask.form.prefixed),
    ("header", &["sort", "--header", "1"], |a| a.ask.work.header == 1),
    ("by", &["sort", "--by", "0:10,12:2:desc"], |a| {
        let second = KeyPart { offset: 12, length: 2, descending: true };
        a.ask.work.keys.len() == 2 && a.ask.work.keys[1] == second
    }),
    ("by", &["check", "--by", "4:1", "--by=0:4"], |a| {
        a.ask.work.keys.len() == 2 && a.ask.work.keys[0].offset == 4
    }),
    ("datamation", &["plan", "sort", "--datamation"], |a| a.ask.datamation),
    ("memory", &["sort", "--memory", "1GiB"], |a| a.ask.work.memory == Some(Size::Bytes(1 << 30))),
    ("memory", &["sort", "--memory=10%"], |a| a.ask.work.memory == Some(Size::Percent(10.0))),
    ("on-duplicate", &["table", "load", "--on-duplicate", "last"], |a| {
        a.on_duplicate == Some(Duplicates::Last)
    }),
    ("scratch", &["sort", "--scratch", "a", "--scratch", "b"], |a| {
        a.ask.work.scratch == [Path::new("a"), Path::new("b")]
    }),
    ("scratch-limit", &["sort", "--scratch-limit", "512M"], |a| {
        a.ask.work.scratch_limit == Some(Size::Bytes(512 << 20))
    }),
    ("threads", &["sort", "--threads", "3"], |a| a.ask.work.threads == Some(3)),
    ("unique", &["sort", "--unique"], |a| a.ask.work.unique),
    ("resume", &["sort", "--resume"], |a| a.ask.work.resume),
    ("no-proof", &["sort", "--no-proof"], |a| a.ask.work.no_proof),
    ("io", &["sort", "--io", "threads"], |a| a.ask.work.io == IoChoice::Threads),
    ("io", &["gen", "--io=uring"], |a| a.ask.work.io == IoChoice::Uring),
    ("pick", &["partition", "--pick", "hash"], |a| a.ask.pick == PartitionPick::Hash),
    ("parts", &["partition", "--parts=16"], |a| a.ask.parts == Some(16)),
    ("split-keys", &["partition", "--split-keys"], |a| a.ask.split_keys),
    ("seed", &["shuffle", "--seed", "7"], |a| a.ask.seed == Some(7)),
    ("type", &["join", "--type", "anti"], |a| a.ask.kind == thalweg::JoinKind::Anti),
    ("right-record", &["join", "--right-record=8"], |a| a.ask.right_record == Some(8)),
    ("right-by", &["join", "--right-by", "0:4"], |a| {
        a.ask.right_keys.len() == 1 && a.ask.work.keys.is_empty()
    }),
    ("between", &["join", "--between", ", "], |a| a.ask.between.as_deref() == Some(b", ")),
    ("ascii", &["gen", "--ascii"], |a| a.ask.generated.ascii),
    ("skewed", &["gen", "--skewed"], |a| a.ask.generated.skewed),
    ("start", &["gen", "--start", "10M"], |a| a.ask.generated.start == 10_000_000),
    ("summary", &["check", "--summary", "s"], |a| a.ask.summary.as_deref() == Some(Path::new("s"))),
    ("merge", &["check", "--merge"], |a| a.ask.merge),
    ("resume", &["pump", "--resume"], |a| a.ask.work.resume),
    ("streams", &["pump", "--streams", "4"], |a| a.ask.pump.streams == Some(4)),
    ("limit", &["pump", "--limit=50MB"], |a| a.ask.pump.limit == Some(50_000_000)),
    ("verify", &["pump", "--verify"], |a| a.ask.pump.verify),
    ("no-disk", &["pump", "--no-disk", "1GiB"], |a| a.ask.pump.no_disk == Some(1 << 30)),
    ("no-checksum", &["pump", "--no-checksum"], |a| a.ask.pump.no_checksum),
    ("strict", &["pump", "--strict"], |a| a.ask.pump.strict),
    ("exclude", &["pump", "--exclude", "*.o"], |a| a.ask.pump.choice.rules == ["- *.o"]),
    ("include", &["pump", "--include=b", "--exclude", "+ c"], |a| a.ask.pump.choice.rules == ["+ b", "+ c"]),
    ("filter", &["pump", "--filter", "P d/"], |a| a.ask.pump.choice.rules == ["P d/"]),
    ("delete", &["pump", "--delete"], |a| a.ask.pump.choice.delete),
    ("dry-run", &["pump", "--dry-run"], |a| a.ask.pump.choice.dry_run),
    ("compare", &["pump", "--compare", "content"], |a| a.ask.pump.choice.compare == PumpCompare::Content),
    ("update", &["pump", "--update"], |a| a.ask.pump.choice.update),
    ("existing", &["pump", "--existing"], |a| a.ask.pump.choice.existing),
    ("no-xattrs", &["pump", "--no-xattrs"], |a| a.ask.pump.choice.no_xattrs),
    ("files-from", &["pump", "--files-from=f"], |a| a.ask.files_from.as_deref() == Some("f".as_ref())),
    ("max-delete", &["pump", "--max-delete", "5"], |a| a.ask.pump.choice.max_delete == Some(5)),
    ("there", &["pump", "--there", "bin/t"], |a| a.ask.there.as_deref() == Some("bin/t")),
    ("through-ssh", &["pump", "--through-ssh"], |a| a.ask.through_ssh),
    ("stores", &["volume", "create", "--stores", "a,b", "--stores=c"], |a| a.stores.len() == 3),
    ("manager", &["volume", "--manager", "m"], |a| a.manager.as_deref() == Some(Path::new("m"))),
    ("clients", &["volume", "create", "--clients", "a,b", "--clients=c"], |a| a.clients == ["a", "b", "c"]),
    ("stripe", &["volume", "--stripe", "64KiB"], |a| a.stripe_bytes == Some(64 << 10)),
    ("width", &["volume", "--width=4"], |a| a.width == Some(4)),
    ("copies", &["volume", "--copies", "2"], |a| a.copies == Some(2)),
    ("background", &["mount", "--background"], |a| a.background),
    ("read-only", &["mount", "--read-only"], |a| a.read_only),
    ("options", &["mount", "--options", "noatime,nofail"], |a| a.mount_options.typed.len() == 2),
    ("cache", &["mount", "--cache", "64MiB"], |a| a.cache_bytes == Some(64 << 20)),
    ("hint", &["mount", "--hint=once"], |a| a.hint == Some(Hint::Once)),
    ("recursive", &["volume", "--recursive"], |a| a.recursive),
    ("force", &["volume", "--force"], |a| a.force),
    ("resp", &["table", "--resp", "127.0.0.1:0"], |a| a.resp.is_some()),
    ("tls-cert", &["table", "--tls-cert", "c"], |a| a.tls_cert == Some("c".into())),
    ("tls-key", &["table", "--tls-key", "k"], |a| a.tls_key == Some("k".into())),
    ("password-file", &["table", "--password-file", "p"], |a| {
        a.password_file.as_deref() == Some(Path::new("p"))
    }),
    ("size", &["bench", "--size", "1GB"], |a| a.size == Some(Size::Bytes(1_000_000_000))),
    ("rows", &["bench", "--rows", "a,b", "--rows=c"], |a| a.rows == ["a", "b", "c"]),
    ("dir", &["bench", "--dir", "a", "--dir=b"], |a| a.dirs == [Path::new("a"), Path::new("b")]),
    ("cluster", &["sort", "--cluster", "lab"], |a| a.ask.cluster == Some("lab".into())),
    ("cluster", &["plan", "sort", "--cluster=lab"], |a| a.ask.cluster == Some("lab".into())),
    ("shares", &["sort", "--shares", "equal"], |a| a.ask.work.equal),
    ("simulate", &["plan", "--simulate", "nodes=3,disk=1MB/s,link=8Mbit"], |a| {
        a.ask.simulate.is_some_and(|s| s.nodes == 3 && s.disk_bytes_per_second == s.link_bytes_per_second)
    }),
    ("nodes", &["sort", "--nodes", "4"], |a| a.ask.nodes == Some(4)),
    ("schedule", &["cluster", "--schedule", "paced"], |a| a.schedule == Some(Schedule::Paced)),
    ("may", &["cluster", "--may", "status"], |a| a.may == Some(May::Status)),
    ("runs", &["bench", "--runs", "7"], |a| a.runs == Some(7)),
    ("via", &["exec", "--via", "n1"], |a| a.via.as_deref() == Some("n1")),
    ("identity", &["exec", "--identity", "d"], |a| a.ask.identity.as_deref() == Some(Path::new("d"))),
    ("listen", &["node", "run", "--listen", "127.0.0.1:0"], |a| {
        a.listen.is_some_and(|at| at.ip().is_loopback() && at.port() == 0)
    }),
    ("join", &["node", "run", "--join", "d"], |a| a.join.as_deref() == Some(Path::new("d"))),
    ("on", &["exec", "--on", "a,b", "--on=c"], |a| a.ask.on == ["a", "b", "c"]),
    ("on", &["exec", "--on", "n[08-10],!n09"], |a| a.ask.on == ["n08", "n09", "n10", "!n09"]),
    ("ssh", &["cluster", "--ssh", "ssh -F f"], |a| a.ask.ssh.as_deref() == Some("ssh -F f")),
    ("ssh", &["pump", "--ssh=ssh -v"], |a| a.ask.ssh.as_deref() == Some("ssh -v")),
    ("dead-after", &["cluster", "init", "--dead-after", "2s"], |a| {
        a.dead_after.is_some_and(|t| t.as_secs() == 2)
    }),
    ("timeout", &["exec", "--timeout", "1500ms"], |a| a.timeout.is_some_and(|t| t.as_millis() == 1500)),
    ("capacity", &["table", "--capacity", "1k"], |a| a.capacity == Some(1000)),
    ("parity", &["table", "--parity", "4+1"], |a| a.parity.is_some_and(|shape| shape.seats() == 5)),
    ("index", &["table", "--index"], |a| a.index),
    ("variant", &["table", "--variant", "s"], |a| a.variant == Some(thalweg::table::Variant::Indexed)),
    ("transport", &["table", "--transport=udp"], |a| a.transport == Some(thalweg::table::Transport::Udp)),
    ("wait-safe", &["table", "--wait-safe", "2.5"], |a| {
        a.wait_safe == Some(std::time::Duration::from_millis(2500))
    }),
    ("hex", &["table", "--hex"], |a| a.hex),
    ("where", &["table", "--where", "contains:x"], |a| a.condition.as_deref() == Some("contains:x")),
    ("first", &["table", "--first=3"], |a| a.first == Some(3)),
    ("descending", &["table", "--descending"], |a| a.descending),
    ("keys-only", &["table", "--keys-only"], |a| a.keys_only),
    ("detach", &["exec", "--detach", "--", "a", "-q"], |a| {
        a.ask.detach && !a.quiet && a.ask.words.len() == 2
    }),
    ("env", &["exec", "--env", "A=1", "--env=B=2"], |a| a.env.len() == 2 && a.env[1].1 == "2"),
    ("gather", &["exec", "--gather"], |a| a.gather),
    ("fanout", &["exec", "--fanout", "8"], |a| a.fanout == Some(8)),
    ("json", &["--json", "doctor"], |a| a.json),
    ("progress", &["sort", "--progress", "never"], |a| a.progress == When::Never),
    ("quiet", &["sort", "-q"], |a| a.quiet),
    ("quiet", &["sort", "-qoout"], |a| a.quiet && a.ask.output.as_deref() == Some("out".as_ref())),
    ("help", &["sort", "--help"], |a| a.help == Some(Help::Long)),
    ("help", &["-h"], |a| a.help == Some(Help::Short)),
    ("all", &["help", "sort", "--all"], |a| a.all),
    ("version", &["-V"], |a| a.version),
    ("generate", &["--generate", "man"], |a| a.generate == Some(Document::Man)),
    ("generate", &["--generate=complete-fish"], |a| a.generate == Some(Document::Fish)),
];

fn typed(words: &[&str]) -> Result<TypedArgs, String> {
    parse(words.iter().map(OsString::from)).map_err(|usage| usage.0)
}

#[test]
fn each_flag_sets_what_it_says() {
    for (name, words, holds) in CASES {
        let args = typed(words).unwrap_or_else(|message| panic!("{name}: {message}"));
        assert!(holds(&args), "{name}: {words:?} gave {args:?}");
    }
}

#[test]
fn each_flag_has_a_case() {
    for flag in flags() {
        assert!(CASES.iter().any(|(name, ..)| *name == flag.long), "no case for --{}", flag.long);
    }
}

#[test]
fn each_flag_stands_where_its_row_says_and_nowhere_else() {
    for flag in flags() {
        let value = match flag.value {
            Value::Switch => String::new(),
            Value::OneOf(_, words) => format!("={}", words[0]),
            _ if flag.long.ends_with("by") => "=0:1".to_string(),
            _ if flag.long == "simulate" => "=nodes=1,disk=1,link=1".to_string(),
            _ if ["listen", "resp"].contains(&flag.long) => "=127.0.0.1:0".to_string(),
            _ if flag.long == "env" => "=A=1".to_string(),
            _ if flag.long == "parity" => "=4+1".to_string(),
            _ if flag.long == "options" => "=ro".to_string(),
            _ => "=1".to_string(),
        };
        let spelled = format!("--{}{value}", flag.long);
        for info in COMMANDS {
            let result = typed(&[info.name, &spelled]);
            assert_eq!(result.is_ok(), flag.is_of(info.command), "{} {spelled}: {result:?}", info.name);
        }
        assert_eq!(typed(&[&spelled]).is_ok(), flag.at == At::Everywhere, "{spelled}");
    }
}

#[test]
fn a_value_that_is_wrong_or_missing_is_told_with_its_flag() {
    for flag in flags() {
        let command = match flag.at {
            At::Everywhere => "sort",
            At::Commands(commands) => info(commands[0]).name,
        };
        let name = format!("--{}", flag.long);
        let message = match flag.value {
            Value::Switch => typed(&[command, &format!("{name}=1")]).unwrap_err(),
            _ => typed(&[command, &name]).unwrap_err(),
        };
        assert!(message.starts_with(&name), "{message}");
        if let Value::OneOf(_, words) = flag.value {
            let message = typed(&[command, &name, "nonsense"]).unwrap_err();
            assert!(words.iter().all(|word| message.contains(word)), "{message}");
            for word in words {
                typed(&[command, &name, word]).unwrap_or_else(|message| panic!("{name} {word}: {message}"));
            }
        }
    }
}

#[test]
fn rows_are_fit_to_print() {
    for (i, flag) in flags().enumerate() {
        assert!(flags().take(i).all(|other| other.long != flag.long), "--{} twice", flag.long);
        assert!(flag.about.len() <= 56 && !flag.about.ends_with('.'), "--{}: {}", flag.long, flag.about);
        assert!(flag.doc.ends_with(['.', ')']), "--{}: {}", flag.long, flag.doc);
        assert!(!flag.doc.contains("  "), "--{}: {}", flag.long, flag.doc);
    }
    for info in COMMANDS {
        assert!(
            info.about.len() <= 70 && info.doc.ends_with('.') && !info.doc.contains("  "),
            "{}",
            info.name
        );
    }
}

#[test]
fn flags_of_rsync_name_those_that_do_the_same() {
    for row in OF_RSYNC {
        let long = format!("--{}", row.long);
        let typed_long = typed(&["pump", &long]).err();
        assert!(typed_long.is_none_or(|why| why.contains(row.today)), "{long}");
        let Some(letter) = row.short else { continue };
        let message = typed(&["pump", &format!("-{letter}")]).unwrap_err();
        assert!(message.contains("rsync") && message.contains(row.today), "{message}");
    }
    // Those that users of rsync type next, and that pump does without.
    for flag in [
        "-x",
        "-L",
        "--exclude-from",
        "--delete-excluded",
        "--ignore-existing",
        "--one-file-system",
        "--chown",
        "--max-size",
        "--remove-source-files",
        "--numeric-ids",
        "--stats",
        "--from0",
        "--inplace",
    ] {
        let message = typed(&["pump", flag, "a", "b"]).unwrap_err();
        assert!(message.contains(&format!("{flag} is a flag of rsync; ")), "{message}");
    }
    let message = typed(&["pump", "--checksum", "a", "b"]).unwrap_err();
    assert!(message.contains("--compare content"), "{message}");
}

#[test]
fn what_gnu_sort_calls_its_own_is_kept_free() {
    for row in RESERVED {
        let Some(letter) = row.short else { continue };
        assert!(flags().all(|flag| flag.short != Some(letter)), "-{letter} is taken");
        let message = typed(&["sort", &format!("-{letter}1")]).unwrap_err();
        assert!(message.contains("reserved") && message.contains(row.today), "{message}");
    }
    for letter in "bdfgiMnRrVhcCkmosStTuz".chars().filter(|letter| !"hVo".contains(*letter)) {
        assert!(RESERVED.iter().any(|row| row.short == Some(letter)), "-{letter} is not reserved");
    }
    let long = [
        "ignore-leading-blanks",
        "dictionary-order",
        "general-numeric-sort",
        "human-numeric-sort",
        "ignore-nonprinting",
        "month-sort",
        "random-sort",
        "random-source=f",
        "version-sort",
        "sort=month",
        "batch-size=4",
        "compress-program=gzip",
        "debug",
        "files0-from=f",
    ];
    for name in long {
        let message = typed(&["sort", &format!("--{name}")]).unwrap_err();
        assert!(message.contains("reserved") && message.contains("; today "), "{message}");
    }
    assert!(typed(&["sort", "--parallel=4"]).unwrap_err().contains("--threads N"));
}

#[test]
fn a_slip_finds_the_flag_or_command_that_was_meant() {
    let cases: &[(&[&str], &str)] = &[
        (&["sort", "--recrod", "100"], "unknown flag --recrod; did you mean --record?"),
        (&["sort", "--mem", "1G"], "unknown flag --mem; did you mean --memory?"),
        (&["sort", "--xyzzy"], "unknown flag --xyzzy; thalweg sort -h lists those there are"),
        (&["sort", "-x"], "unknown flag -x; thalweg sort -h lists those there are"),
        (&["--verison"], "unknown flag --verison; did you mean --version?"),
        (&["srot"], "unknown command 'srot'; did you mean sort?"),
        (
            &["xyzzy"],
            "unknown command 'xyzzy'; the commands are gen, check, sort, shuffle, merge, join, plan, partition, pump, volume, mount, table, doctor, bench, exec, job, node, cluster, help",
        ),
        (&["sort", "--ascii"], "--ascii is a flag of gen, not of sort"),
        (&["check", "--unique", "f"], "--unique is a flag of sort, merge, plan, not of check"),
        (
            &["sort", "-V", "f"],
            "-V is reserved for what it means to GNU sort; today keys compare as bytes; --version prints the version",
        ),
        (
            &["sort", "f", "-h"],
            "-h is reserved for what it means to GNU sort; today only numbers of equal width sort, as bytes; --help \
             explains sort",
        ),
        (
            &["--memory", "1G"],
            "--memory comes after its command, which may be sort, shuffle, merge, join, plan, partition, table, node",
        ),
    ];
    for (words, expected) in cases {
        assert_eq!(typed(words).unwrap_err(), *expected, "{words:?}");
    }
}
