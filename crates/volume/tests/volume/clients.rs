//! Several processes with one volume open: each sees what the others wrote, and when the one ends that serves it, in
//! whatever way, the others go on with what they have open.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

use thalweg_volume::layout::Policy;
use thalweg_volume::{File, Kind, New, OpenVolume, Place, ROOT, Registry, create, open};

/// Where the other process finds the registry.
const REGISTRY: &str = "THALWEG_TEST_REGISTRY";
const PIECE: usize = 100_000;

struct Bed(PathBuf);

impl Bed {
    fn new(name: &str, copies: u32) -> Bed {
        let place = std::env::temp_dir().join(format!("thalweg-clients-{name}-{}", std::process::id()));
        let stores: Vec<PathBuf> = (0..3).map(|n| place.join(format!("d{n}"))).collect();
        stores.iter().for_each(|dir| fs::create_dir_all(dir).unwrap());
        let policy = Policy { stripe_bytes: 65536, copies, ..Policy::default() };
        let bed = Bed(place);
        create(&Registry::at(bed.registry()), "v", &stores, None, &policy).unwrap();
        bed
    }

    fn registry(&self) -> PathBuf {
        self.0.join("volumes.json")
    }

    fn open(&self) -> OpenVolume {
        open(&Registry::at(self.registry()), "v").unwrap()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn file(volume: &OpenVolume) -> File {
    volume.volume.create(Path::new("f"), 0o644, false).unwrap()
}

/// Appends a piece, durably.
fn append(file: &File, with: u8) {
    file.append(&[with; PIECE]).unwrap();
    file.sync().unwrap();
}

/// The pieces of a file, each by the byte that it is made of.
fn pieces(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.stat().unwrap().size as usize];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
    let piece = |piece: &[u8]| {
        assert!(piece.iter().all(|byte| *byte == piece[0]), "a piece of {} is torn", piece[0]);
        piece[0]
    };
    bytes.chunks(PIECE).map(piece).collect()
}

/// Another process that has the volume open.
struct Other {
    process: Child,
    answers: BufReader<ChildStdout>,
}

impl Other {
    fn new(bed: &Bed) -> Other {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "clients::process", "--ignored", "--nocapture"])
            .env(REGISTRY, bed.registry())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        let mut other = Other { process, answers };
        assert_eq!(other.answer(), "open");
        other
    }

    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.answers.read_line(&mut line).unwrap() > 0, "the other process ended");
            if let Some(answer) = line.trim_end().rsplit_once("> ") {
                return answer.1.into();
            }
        }
    }

    fn ask(&mut self, what: &str) -> String {
        writeln!(self.process.stdin.as_mut().unwrap(), "{what}").unwrap();
        self.answer()
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let id = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(id, signal).unwrap();
        if signal == rustix::process::Signal::STOP {
            // Until all of its threads have stopped one of them may still answer.
            rustix::process::waitpid(Some(id), rustix::process::WaitOptions::UNTRACED).unwrap();
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
#[ignore = "the other process of the tests here"]
fn process() {
    let Some(registry) = std::env::var_os(REGISTRY) else { return };
    let volume = open(&Registry::at(registry.into()), "v").unwrap();
    let file = file(&volume);
    println!("> open");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        match line.split_once(' ') {
            Some(("append", with)) => append(&file, with.parse().unwrap()),
            Some(("write", with)) => _ = file.append(&[with.parse().unwrap(); PIECE]).unwrap(),
            _ if line == "remove" => volume.volume.remove(Path::new("f")).unwrap(),
            _ => {
                println!("> {:?}", pieces(&file));
                continue;
            }
        }
        println!("> done");
    }
}

#[test]
fn two_processes_write_and_read_in_turn() {
    let bed = Bed::new("turn", 2);
    let mut other = Other::new(&bed);
    let here = bed.open();
    let file = file(&here);
    let mut expected = Vec::new();
    for turn in 0..10 {
        expected.push(turn);
        match turn % 2 {
            0 => append(&file, turn),
            _ => _ = other.ask(&format!("append {turn}")),
        }
        assert_eq!(pieces(&file), expected);
        assert_eq!(other.ask("read"), format!("{expected:?}"));
    }
    let found = thalweg_volume::check(&here).unwrap();
    assert_eq!(found.problems, Vec::<String>::new());
}

/// This process writes while the one that serves ends; what was synced is there, and the file is open all the time.
fn goes_on_while_the_other_ends(name: &str, end: fn(Other)) {
    let bed = Bed::new(name, 2);
    let mut other = Other::new(&bed);
    let here = bed.open();
    let file = Arc::new(file(&here));
    assert_eq!(other.ask("append 200"), "done");
    assert_eq!(other.ask("write 201"), "done");
    let writer = {
        let file = Arc::clone(&file);
        std::thread::spawn(move || (0..60).for_each(|turn| append(&file, turn)))
    };
    while file.size() < 12 * PIECE as u64 {
        std::thread::yield_now();
    }
    end(other);
    writer.join().unwrap();
    let expected: Vec<u8> = [200, 201].into_iter().chain(0..60).collect();
    assert_eq!(pieces(&file), expected);
    // The next process finds the same.
    let mut other = Other::new(&bed);
    assert_eq!(other.ask("read"), format!("{expected:?}"));
    assert_eq!(other.ask("append 202"), "done");
    assert_eq!(pieces(&file), [expected, vec![202]].concat());
}

#[test]
fn the_process_that_serves_is_killed_and_another_goes_on() {
    goes_on_while_the_other_ends("killed", drop);
}

#[test]
fn the_process_that_serves_ends_and_another_goes_on() {
    goes_on_while_the_other_ends("ends", |mut other| {
        drop(other.process.stdin.take());
        assert!(other.process.wait().unwrap().success());
    });
}

#[test]
fn a_file_without_names_stays_open_when_the_process_ends_that_serves() {
    let bed = Bed::new("unlinked", 1);
    let mut other = Other::new(&bed);
    let here = bed.open();
    let file = file(&here);
    append(&file, 1);
    assert_eq!(other.ask("remove"), "done");
    drop(other);
    assert_eq!(pieces(&file), [1]);
    append(&file, 2);
    assert_eq!(pieces(&file), [1, 2]);
}

#[test]
fn a_process_that_serves_and_hangs_is_an_error_in_time() {
    let bed = Bed::new("hangs", 1);
    let other = Other::new(&bed);
    let here = bed.open();
    let file = file(&here);
    append(&file, 1);
    other.signal(rustix::process::Signal::STOP);
    let watch = thalweg_base::clock::Stopwatch::start();
    let why = file.read_at(0, &mut [0; 10]).unwrap_err();
    assert_eq!(why.errno(), 5, "{why}");
    assert!((9.0..15.0).contains(&watch.seconds()), "{why} after {} s", watch.seconds());
    other.signal(rustix::process::Signal::CONT);
    assert_eq!(pieces(&file), [1]);
}

/// The state of a thread of this process, as its file in /proc has it behind the name: `S` while it waits.
fn state(thread: rustix::process::Pid) -> char {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
}

#[test]
fn a_name_is_made_although_the_server_is_killed_before_it_answers() {
    let bed = Bed::new("unanswered", 1);
    let other = Other::new(&bed);
    let here = bed.open();
    other.signal(rustix::process::Signal::STOP);
    std::thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        let volume = &here.volume;
        let made = scope.spawn(move || {
            tell.send(rustix::thread::gettid()).unwrap();
            let place = Place { directory: ROOT, name: b"g".to_vec() };
            let new = New { kind: Kind::File, mode: 0o644, umask: 0, user: 0, group: 0, target: Vec::new() };
            volume.create_at(place, new)
        });
        let thread = told.recv().unwrap();
        // Its request is sent, and it waits for the answer.
        while state(thread) != 'S' {
            std::thread::yield_now();
        }
        drop(other);
        made.join().unwrap().unwrap();
    });
    assert_eq!(here.volume.stat(Path::new("g")).unwrap().size, 0);
}
