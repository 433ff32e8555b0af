//! A hostile sink, which sends anything it likes to a real source.
//!
//! Cause and consequence: the name that a sink gave to a file became part of what the source sends, and a name that was
//! too long made the source panic. An answer of 1 MiB took 48 MiB of the source's memory, and five of them could wait.
//! Principle: a source reads and sends only what was requested, ends by itself, with one clear line if something is
//! wrong, and its memory is bounded.

use std::os::unix::fs::MetadataExt;

use thalweg_api::{FailureKind, PumpLink, PumpReceipt, PumpVerdict, from_json, to_json};

use crate::speak::{Field, Got, Said, Turn, facts, name, said, serve};
use crate::support::{self, Outcome, Place};
use crate::{is_one_line, others};

/// Data that no sink may get.
const SECRET: &[u8] = b"none of the sink's business";
/// The blocks of one lane, a link, and the program.
const PEAK_BYTES_MAX: u64 = 96 << 20;
const RESUME: [&str; 5] = ["-q", "--resume", "--streams", "1", "--json"];

/// A tree with a file in pieces, small files, a directory, and a link to a file beside the tree.
fn yard() -> Place {
    let place = Place::new();
    let things = "mkdir -p tree/below && head -c 300000 /dev/zero > tree/large && echo small > tree/small && \
                  echo more > tree/below/more && ln -s ../secret tree/way && touch -d 2020-01-01 tree/*";
    place.shell(things).is_done();
    place.write("secret", SECRET);
    place.write("tree-secret", SECRET);
    place
}

fn turn(after: u8, said: Said) -> Turn {
    Turn { after: Some(after), said }
}

fn at_once(said: Said) -> Turn {
    Turn { after: None, said }
}

fn accept(names: &[&str]) -> Said {
    let first = [Field::N(1), Field::N(names.len() as u64)];
    said(2, first.into_iter().chain(names.iter().map(|called| name(called))))
}

/// An answer about `count` names: that for each there is a file of this length and time.
fn there(count: usize, len: u64, time: u128) -> Said {
    let mut known = [vec![Field::B(1)], facts(1, len)].concat();
    let times = known.len() - 2;
    known[times] = Field::W(time);
    let known = std::iter::repeat_n(known, count).flatten();
    said(13, std::iter::once(Field::N(count as u64)).chain(known))
}

/// What a sink says that has a part of `large`, and all of `small`.
fn honest(place: &Place) -> Vec<Turn> {
    let small = place.0.join("tree/small").metadata().unwrap();
    let time = small.mtime() as u128 * 1_000_000_000 + small.mtime_nsec() as u128;
    let there_of = |count| there(count, small.len(), time);
    let ranges = [
        Field::B(1),
        Field::N(2),
        Field::N(0),
        Field::N(4096),
        Field::W(1),
        Field::N(8192),
        Field::N(4096),
        Field::W(2),
    ];
    let cells = [Field::N(1), Field::N(8192), Field::S(vec![0; 4096])];
    vec![
        turn(1, accept(&["tree"])),
        turn(8, there_of(4)),
        turn(5, said(11, ranges)),
        at_once(said(12, cells)),
        turn(8, there_of(1)),
    ]
}

/// What an honest sink would report at the end.
fn receipt(sum: u128) -> PumpReceipt {
    let told: PumpReceipt =
        from_json(support::run(&["pump", "zero:1", "null:", "--json"]).is_done()).unwrap();
    // What comes of `yard`: two of three files, as one is there. Only the source finds entries.
    PumpReceipt { checksum_in: sum, checksum_out: sum, found: 0, files: 2, directories: 2, links: 1, ..told }
}

fn verdict(sum: u128) -> String {
    to_json(&PumpVerdict::done(receipt(sum)))
}

/// Checks that the source succeeded, or ended with one line, within its bounds, and sent nothing that it was not to
/// send.
#[track_caller]
fn keeps_its_head((outcome, heard): &(Outcome, Got), of: &str) {
    if outcome.status == Some(0) {
        assert!(outcome.err.is_empty(), "{of}: {outcome:?}");
        let is_odd = |c: char| c.is_control() && c != '\n';
        assert!(!outcome.out.contains(is_odd), "{of}: {outcome:?}");
    } else {
        is_one_line(outcome, of);
    }
    let has_it = heard.bytes.windows(SECRET.len()).any(|some| some == SECRET);
    assert!(!has_it, "{of}: it was sent what is beside the tree");
    assert!(heard.peak_bytes < PEAK_BYTES_MAX, "{of}: {} bytes", heard.peak_bytes);
}

#[test]
fn an_honest_sink_is_served() {
    let place = yard();
    let (outcome, heard) = serve(&place, &RESUME, &honest(&place), verdict);
    let told: PumpReceipt = from_json(outcome.is_done()).unwrap();
    assert_eq!((told.resumed_files, told.resumed_bytes), (1, 6 + 2 * 4096), "{told:?}");
    assert!(heard.bytes.windows(4).any(|some| some == b"more"));
    keeps_its_head(&(outcome, heard), "honest");
}

/// The honest answers, with each field of each changed to each other value, with each tag, and with each left out,
/// doubled, or swapped with the next.
fn changed(honest: &[Turn]) -> Vec<(String, Vec<Turn>)> {
    let mut all = Vec::new();
    for (at, turn) in honest.iter().enumerate() {
        for (number, field) in turn.said.fields.iter().enumerate() {
            for other in others(field).into_iter().filter(|other| other != field) {
                let mut turns = honest.to_vec();
                turns[at].said.fields[number] = other.clone();
                all.push((format!("turn {at}, field {number}: {other:?}"), turns));
            }
        }
        for tag in 0..=20 {
            let mut turns = honest.to_vec();
            turns[at].said.tag = tag;
            all.push((format!("turn {at}, tag {tag}"), turns));
        }
        let (mut without, mut doubled, mut swapped) = (honest.to_vec(), honest.to_vec(), honest.to_vec());
        without.remove(at);
        doubled.insert(at, at_once(turn.said.clone()));
        let next = (at + 1) % honest.len();
        (swapped[at].said, swapped[next].said) = (honest[next].said.clone(), turn.said.clone());
        all.extend(
            [("without", without), ("twice", doubled), ("swapped", swapped)]
                .map(|(how, turns)| (format!("turn {at} {how}"), turns)),
        );
    }
    all
}

/// Every `stride`-th of the changes, beginning with `first`, several at a time.
fn sweep(first: usize, stride: usize) {
    let honest = honest(&yard());
    let all = changed(&honest);
    crate::several_at_once(all.iter().skip(first).step_by(stride), |(of, turns)| {
        keeps_its_head(&serve(&yard(), &RESUME, turns, verdict), of);
    });
    println!("of {} changes one in {stride}", all.len());
}

#[test]
fn a_change_of_any_answer_gets_nothing_that_was_not_asked_for() {
    sweep(2, 4);
}

#[test]
#[ignore = "all changes take minutes"]
fn every_change_of_every_answer_gets_nothing_that_was_not_asked_for() {
    sweep(0, 1);
}

/// What went wrong: when a sink ended successfully before it had answered, the message named a signal 0 that nobody had
/// sent.
#[test]
fn a_sink_that_ends_before_it_has_answered_is_named() {
    let place = yard();
    let mut turns = honest(&place);
    turns.truncate(3);
    let (outcome, _) = serve(&place, &RESUME, &turns, verdict);
    outcome.is_refused(&["far", "it ended before it had answered"]);
}

/// What went wrong: a name of 70 kB for a small file did not fit after a block, and an assertion failed.
#[test]
fn names_that_no_file_can_have_end_in_one_line() {
    let long = "n".repeat(70_000);
    for called in
        [&long[..], &long[..256], "a/b", "../tree-secret", "/", ".", "..", "", "a\0b", "\n\u{1b}[2J"]
    {
        let place = yard();
        place.shell("rm -r tree; echo small > tree").is_done();
        let told = serve(&place, &["-q"], &[turn(1, accept(&[called]))], verdict);
        keeps_its_head(&told, called);
        assert!(called.starts_with('\n') || told.0.status == Some(2), "{called}: {told:?}", told = told.0);
    }
}

/// What went wrong: each entry of an answer about existing files takes a byte in a message and 48 in memory.
#[test]
fn answers_that_nobody_asked_for_take_no_memory() {
    let none = |tag, first: Vec<Field>, count: u64| {
        let fields = [first, vec![Field::N(count)], vec![Field::B(0); (1 << 20) - 16]].concat();
        said(tag, fields)
    };
    let cases = [
        ("there", none(13, vec![], (1 << 20) - 16)),
        ("ranges", none(11, vec![Field::B(1)], ((1 << 20) - 16) / 32)),
        ("cells", none(12, vec![], ((1 << 20) - 16) / 16)),
    ];
    for (of, large) in cases {
        let place = yard();
        for turns in [
            [vec![turn(1, accept(&["tree"]))], vec![at_once(large.clone()); 8]].concat(),
            [vec![turn(1, accept(&["tree"])), turn(8, large.clone())], vec![at_once(large.clone()); 8]]
                .concat(),
        ] {
            keeps_its_head(&serve(&place, &RESUME, &turns, verdict), of);
        }
        // Meanwhile the source is busy, and asks nothing.
        let turns = [vec![turn(1, accept(&["tree"]))], vec![at_once(large); 8]].concat();
        keeps_its_head(&serve(&place, &["-q", "--limit", "300KB"], &turns, verdict), of);
    }
}

/// Answers that nobody waited for kept the source from noticing that the sink had gone: it waited forever.
#[test]
fn answers_that_nobody_asked_for_end_the_transfer() {
    let place = yard();
    let turns = [vec![turn(1, accept(&["tree"]))], vec![at_once(there(1, 6, 0)); 8]].concat();
    let (told, _) = serve(&place, &["-q", "--limit", "300KB"], &turns, verdict);
    assert!(
        told.status == Some(2) && told.err.contains("sent a message that cannot be understood"),
        "{told:?}"
    );
}

/// A receipt with one thing changed.
type Change = Box<dyn Fn(&mut PumpReceipt)>;
/// What a sink reports last, for this sum.
type Last = Box<dyn Fn(u128) -> String + Sync>;

/// The sink's own receipt is shown together with the source's.
#[test]
fn a_receipt_without_sense_is_shown_or_refused_by_a_program_that_keeps_its_head() {
    const ODD: &str = "all\n\u{1b}[2Jis well";
    let mut changes: Vec<Change> = Vec::new();
    for huge in [0.0, -1.0, 1e308, -1e308, 5e-324] {
        changes.push(Box::new(move |receipt| receipt.seconds = huge));
        changes.push(Box::new(move |receipt| receipt.sync_seconds = huge));
        changes.push(Box::new(move |receipt| receipt.cpu_seconds = huge));
        changes.push(Box::new(move |receipt| receipt.clock_hz = Some(huge)));
        changes.push(Box::new(move |receipt| receipt.dest.waited_seconds = huge));
        changes.push(Box::new(move |receipt| receipt.dest.bytes_per_completion = huge));
        changes.push(Box::new(move |receipt| receipt.source.waited_seconds = huge));
    }
    for many in [0, 1, u64::MAX] {
        changes.push(Box::new(move |receipt| {
            (receipt.files, receipt.bytes, receipt.directories) = (many, many, many);
            (receipt.links, receipt.hard_links, receipt.special) = (many, many, many);
        }));
        changes.push(Box::new(move |receipt| {
            (receipt.resumed_bytes, receipt.resumed_files, receipt.streams) = (many, many, many as u32);
        }));
        changes.push(Box::new(move |receipt| {
            (receipt.dest.bytes, receipt.dest.direct_bytes, receipt.dest.completions) = (many, many, many);
            (receipt.memory.peak_bytes, receipt.memory.limit_bytes) = (many, many);
        }));
    }
    changes.push(Box::new(|receipt| receipt.verb = ODD.into()));
    changes.push(Box::new(|receipt| receipt.backend = ODD.into()));
    changes.push(Box::new(|receipt| receipt.fallback = Some(ODD.into())));
    changes.push(Box::new(|receipt| (receipt.dest.kind, receipt.dest.waited_seconds) = (ODD.into(), 1e9)));
    changes.push(Box::new(|receipt| receipt.bottleneck = ODD.into()));
    changes.push(Box::new(|receipt| {
        receipt.link = Some(PumpLink { route: ODD.into(), received_bytes: u64::MAX, ..PumpLink::default() });
    }));
    changes.push(Box::new(|receipt| (receipt.proved, receipt.holds) = (false, false)));
    changes.push(Box::new(|receipt| receipt.checksum_out ^= 1));
    let verdicts = ["", "{}", "nonsense", "\"\"", &"[".repeat(100_000)].map(String::from);
    let failed = PumpVerdict { error: Some(ODD.into()), kind: FailureKind::Wrong, receipt: None };
    let mut all: Vec<(String, Last)> = Vec::new();
    for text in verdicts.into_iter().chain([to_json(&failed)]) {
        all.push((format!("{:.40}", text.escape_debug()), Box::new(move |_| text.clone())));
    }
    let told = receipt(0);
    for (number, change) in changes.into_iter().enumerate() {
        let mut changed = told.clone();
        change(&mut changed);
        let by = changed.checksum_out;
        let of = format!("change {number} of the receipt");
        all.push((
            of,
            Box::new(move |sum| {
                to_json(&PumpVerdict::done(PumpReceipt { checksum_out: sum ^ by, ..changed.clone() }))
            }),
        ));
    }
    crate::several_at_once(all.iter(), |(of, verdict)| {
        keeps_its_head(&serve(&yard(), &[], &[turn(1, accept(&["tree"]))], verdict), of);
    });
}
