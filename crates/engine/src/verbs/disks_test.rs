//! Verbs with their inputs on one disk, their output on another and their scratch on a third: two simulated ones and
//! the real one, which takes each of the three places in turn.
#![allow(clippy::disallowed_methods)] // A test looks at files from outside.

use std::path::PathBuf;
use std::sync::Arc;

use thalweg_api::PartitionPick;
use thalweg_base::rng::Rng;
use thalweg_base::units::{MIB, Size};
use thalweg_io::FileSystem;
use thalweg_io::sim::Sim;
use thalweg_io::threads::Threads;
use thalweg_record::Layout;

use super::{check, generate, join, merge, partition, sort};
use crate::machine::Disks;
use crate::{CheckOptions, Endpoint, GenOptions, IoChoice, JoinKind, Progress, RightSide, Work, WorkOptions};

const ROLES: [&str; 3] = ["inputs", "output", "scratch"];
const RECORD: usize = 16;

/// A disk with one directory.
struct Disk {
    fs: Arc<dyn FileSystem>,
    sim: Option<Sim>,
    directory: PathBuf,
}

impl Disk {
    fn simulated(role: &str) -> Disk {
        let (sim, directory) = (Sim::new(1), PathBuf::from("/thalweg-disks").join(role));
        sim.make_dir(&directory);
        Disk { fs: sim.io(), sim: Some(sim), directory }
    }

    fn real(test: &str) -> Disk {
        let name = format!("thalweg-disks-{test}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let directory = directory.canonicalize().unwrap();
        Disk { fs: Arc::new(Threads::new(2)), sim: None, directory }
    }

    fn end(&self, name: &str) -> Endpoint {
        Endpoint::Path(self.directory.join(name))
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Endpoint {
        match &self.sim {
            Some(sim) => sim.put(self.directory.join(name), bytes),
            None => std::fs::write(self.directory.join(name), bytes).unwrap(),
        }
        self.end(name)
    }

    fn get(&self, name: &str) -> Vec<u8> {
        match &self.sim {
            Some(sim) => sim.get(self.directory.join(name)).unwrap(),
            None => std::fs::read(self.directory.join(name)).unwrap(),
        }
    }

    fn names(&self) -> Vec<String> {
        let paths = self.fs.list(&self.directory).unwrap();
        paths.iter().map(|path| path.file_name().unwrap().display().to_string()).collect()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.sim.is_none() {
            let _ = std::fs::remove_dir_all(&self.directory);
        }
    }
}

/// Calls `verb` with each arrangement of disks: those of inputs, output and scratch.
fn on_three_disks(test: &str, verb: impl Fn(&[Disk; 3], &Disks)) {
    for real in ROLES {
        let three = ROLES.map(|role| if role == real { Disk::real(test) } else { Disk::simulated(role) });
        let [inputs, output, scratch] = [0, 1, 2].map(|i| Arc::clone(&three[i].fs));
        verb(&three, &Disks::apart(inputs, output, scratch));
        assert!(three[2].names().is_empty(), "scratch is left: {:?}", three[2].names());
    }
}

/// `count` records with few different keys.
fn records(count: usize) -> Vec<[u8; RECORD]> {
    let mut rng = Rng::new(7);
    let record = |i| (u128::from(rng.next_u64() % 1000) << 64 | i as u128).to_be_bytes();
    (0..count).map(record).collect()
}

fn options(work: Work, inputs: Vec<Endpoint>, [_, output, scratch]: &[Disk; 3], name: &str) -> WorkOptions {
    WorkOptions {
        memory: Some(Size::Bytes(24 * MIB)),
        scratch: vec![scratch.directory.clone()],
        threads: Some(2),
        ..WorkOptions::new(work, inputs, output.end(name), Layout::Fixed(RECORD as u32))
    }
}

#[test]
fn a_sort_that_spills_has_its_files_on_three_disks() {
    on_three_disks("sort", |three, disks| {
        let all = records(2 << 20);
        let (first, second) = all.split_at(all.len() / 3);
        let inputs = vec![three[0].put("a", first.as_flattened()), three[0].put("b", second.as_flattened())];
        let options = options(Work::Sort, inputs, three, "sorted");
        let receipt = sort::sort_on(disks, &options, &Progress::default()).unwrap();
        assert!(receipt.holds && receipt.io.scratch.written_bytes > 0, "{receipt:?}");
        let names: Vec<&str> = receipt.io.backend.split('+').collect();
        assert!(names.contains(&"sim") && names.contains(&"threads"), "{names:?}");
        if let Some(scratch) = &three[2].sim {
            assert_eq!(scratch.bytes_written("/"), receipt.io.scratch.written_bytes);
        }
        let mut sorted = all.clone();
        sorted.sort_unstable();
        assert!(three[1].get("sorted") == sorted.as_flattened());
    });
}

#[test]
fn a_merge_reads_one_disk_and_writes_another() {
    on_three_disks("merge", |three, disks| {
        let mut sides: Vec<Vec<[u8; RECORD]>> = records(9000).chunks(4000).map(<[_]>::to_vec).collect();
        sides.iter_mut().for_each(|side| side.sort_unstable());
        let put = |(i, side): (usize, &Vec<[u8; RECORD]>)| three[0].put(&i.to_string(), side.as_flattened());
        let inputs = sides.iter().enumerate().map(put).collect();
        let options = options(Work::Merge, inputs, three, "merged");
        let receipt =
            merge::merge_at_once(disks, &options, &Progress::default()).unwrap().expect("three fit");
        assert!(receipt.holds);
        let mut merged = sides.concat();
        merged.sort_unstable();
        assert!(three[1].get("merged") == merged.as_flattened());
    });
}

#[test]
fn a_join_has_its_files_on_three_disks() {
    on_three_disks("join", |three, disks| {
        let lines =
            |count: usize, of: &str| -> String { (0..count).map(|i| format!("{} {of}\n", i % 10)).collect() };
        let (left, right) = (lines(40, "left"), lines(20, "right"));
        let key = thalweg_record::KeyPart { offset: 0, length: 1, descending: false };
        let inputs = vec![three[0].put("left", left.as_bytes())];
        let right = RightSide {
            inputs: vec![three[0].put("right", right.as_bytes())],
            layout: Layout::Lines,
            keys: vec![key],
            kind: JoinKind::Inner,
            between: b"|".to_vec(),
            ..RightSide::default()
        };
        let options = WorkOptions {
            layout: Layout::Lines,
            keys: vec![key],
            right: Some(right),
            memory: Some(Size::Bytes(64 * MIB)),
            ..options(Work::Join, inputs, three, "joined")
        };
        let receipt = join::join_on(disks, &options, &Progress::default()).unwrap();
        assert!(receipt.holds);
        let joined = String::from_utf8(three[1].get("joined")).unwrap();
        let expected: String =
            (0..10).flat_map(|key| (0..8).map(move |_| format!("{key} left|{key} right\n"))).collect();
        assert_eq!(joined, expected);
    });
}

#[test]
fn a_partition_reads_one_disk_and_writes_another() {
    on_three_disks("partition", |three, disks| {
        let all = records(50_000);
        let how = (PartitionPick::Range, 3, false);
        let work = Work::Partition { pick: how.0, parts: how.1, split_keys: how.2 };
        let options = options(work, vec![three[0].put("in", all.as_flattened())], three, "part-{}");
        let receipt = partition::partition_on(disks, &options, how, &Progress::default()).unwrap();
        assert!(receipt.holds);
        let parts = (0..3).map(|part| three[1].get(&format!("part-{part}"))).collect::<Vec<_>>().concat();
        let (mut parts, mut expected) = (parts.as_chunks::<RECORD>().0.to_vec(), all);
        let keys: Vec<&[u8]> = parts.iter().map(|record| &record[..8]).collect();
        assert!(keys.len() == expected.len() && three[1].names().len() == 3);
        parts.sort_unstable();
        expected.sort_unstable();
        assert!(parts == expected);
    });
}

#[test]
fn what_was_generated_on_one_disk_is_checked_there_and_the_summary_goes_to_another() {
    on_three_disks("check", |three, disks| {
        let generated = GenOptions {
            count: 30_000,
            output: three[1].end("records"),
            ascii: false,
            skewed: false,
            start: 0,
            io: IoChoice::Threads,
        };
        let receipt = generate::generate_on(disks, &generated, &Progress::default()).unwrap();
        assert!(receipt.holds);
        let bytes = three[1].get("records");
        let Endpoint::Path(summary) = three[1].end("summary") else { unreachable!("it is a path") };
        let options = CheckOptions {
            inputs: vec![three[0].put("copy", &bytes)],
            layout: Layout::Fixed(100),
            keys: vec![thalweg_record::KeyPart { offset: 0, length: 10, descending: false }],
            header: 0,
            summary: Some(summary),
            merge: false,
            io: IoChoice::Threads,
        };
        let found = check::check_on(disks, &options, &Progress::default()).unwrap();
        assert_eq!((found.proof.records, found.proof.checksum), (30_000, receipt.output.checksum));
        assert_eq!(three[1].names(), ["records", "summary"]);
    });
}
