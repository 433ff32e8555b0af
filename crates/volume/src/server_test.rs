//! Several clients of one volume, in turn and at once, on stores of a simulated disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_io::sim::Sim;

use super::Server;
use crate::client::Client;
use crate::layout::Policy;
use crate::manager::Change;
use crate::stores::Stores;
use crate::{LocalStore, SqliteManager, Store, Volume};

const VOLUME: u128 = 7;
const STORES: u32 = 3;
const STRIPE: usize = 4096;

struct Bed {
    sim: Sim,
    place: PathBuf,
    server: Arc<Server>,
}

impl Bed {
    fn new(name: &str, copies: u32) -> Bed {
        let place = std::env::temp_dir().join(format!("thalweg-server-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&place).unwrap();
        let sim = Sim::new(1);
        let dirs: Vec<PathBuf> = (0..STORES).map(|slot| format!("/s{slot}").into()).collect();
        let store = |(slot, dir): (u32, &PathBuf)| {
            sim.make_dir(dir);
            LocalStore::create(&sim.io(), dir, VOLUME, slot).unwrap();
            Ok(Arc::new(LocalStore::open(&sim.io(), dir, VOLUME, slot).unwrap()) as Arc<dyn Store>)
        };
        let stores = Arc::new(Stores::new((0..).zip(&dirs).map(store).collect()));
        let policy = Policy { stripe_bytes: STRIPE as u64, copies, ..Policy::default() };
        SqliteManager::create(&place, VOLUME, &dirs, &policy, (0, 0)).unwrap();
        let manager = SqliteManager::open(&place).unwrap();
        Bed { server: Server::start(Box::new(manager), stores, true, None).unwrap(), sim, place }
    }

    fn client(&self) -> Arc<Volume> {
        Volume::of(
            Client::by(crate::session::OwnSession::begin(&self.server)),
            Arc::clone(&self.server.stores),
        )
    }

    fn strips(&self) -> usize {
        self.sim.names().iter().filter(|path| path.extension().is_some_and(|end| end == "strip")).count()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.place);
    }
}

fn file(volume: &Arc<Volume>) -> crate::File {
    volume.create(Path::new("f"), 0o644, false).unwrap()
}

fn contents(file: &crate::File) -> Vec<u8> {
    let mut bytes = vec![0; file.stat().unwrap().size as usize];
    let n = file.read_at(0, &mut bytes).unwrap();
    assert_eq!(n, bytes.len());
    bytes
}

#[test]
fn clients_that_append_in_turn_do_not_overwrite_each_other() {
    let bed = Bed::new("append", 1);
    let clients = [bed.client(), bed.client()];
    let files = [file(&clients[0]), file(&clients[1])];
    let mut expected = Vec::new();
    for n in 0..20_u8 {
        let bytes = vec![n; 1000 + usize::from(n)];
        assert_eq!(files[usize::from(n) % 2].append(&bytes).unwrap(), expected.len() as u64);
        expected.extend(bytes);
    }
    for file in &files {
        assert!(contents(file) == expected);
    }
}

#[test]
fn a_file_is_as_long_as_what_another_client_has_written() {
    let bed = Bed::new("size", 1);
    let (writer, reader) = (bed.client(), bed.client());
    let written = file(&writer);
    written.write_at(0, &[1; 3 * STRIPE]).unwrap();
    assert_eq!(reader.stat(Path::new("f")).unwrap().size, 3 * STRIPE as u64);
    assert_eq!(contents(&file(&reader)), [1; 3 * STRIPE]);
    // What is told late does not make it shorter.
    let other = file(&reader);
    other.write_at(5 * STRIPE as u64, &[2]).unwrap();
    drop(other);
    written.write_at(0, &[3]).unwrap();
    drop(written);
    assert_eq!(bed.client().stat(Path::new("f")).unwrap().size, 5 * STRIPE as u64 + 1);
}

#[test]
fn a_file_without_names_is_there_until_the_last_client_closes_it() {
    let bed = Bed::new("unlink", 1);
    let (one, other) = (bed.client(), bed.client());
    let held = file(&one);
    held.write_at(0, &[5; 2 * STRIPE]).unwrap();
    held.sync().unwrap();
    other.remove(Path::new("f")).unwrap();
    other.sync().unwrap();
    assert_eq!(contents(&held), [5; 2 * STRIPE]);
    drop(held);
    one.sync().unwrap();
    assert_eq!(bed.strips(), 0);
}

#[test]
fn a_client_finds_a_file_cut_that_another_truncated() {
    let bed = Bed::new("cut", 2);
    let (one, other) = (bed.client(), bed.client());
    let first = file(&one);
    first.write_at(0, &[1; 4 * STRIPE]).unwrap();
    let second = file(&other);
    first.set_size(10).unwrap();
    let mut bytes = [9; 100];
    assert_eq!(second.read_at(0, &mut bytes).unwrap(), 10, "the store tells that the file was cut");
    second.write_at(20, &[2; 10]).unwrap();
    assert_eq!(contents(&first), [&[1; 10][..], &[0; 10], &[2; 10]].concat());
    // A strip that was made by a write of before.
    second.set_size(0).unwrap();
    first.write_at(0, &[3; 2 * STRIPE]).unwrap();
    assert_eq!(contents(&second), [3; 2 * STRIPE]);
}

#[test]
fn a_file_is_settled_when_nobody_may_write_it_any_more() {
    let bed = Bed::new("settle", 2);
    let (one, other) = (bed.client(), bed.client());
    let (first, second) = (file(&one), file(&other));
    first.write_at(0, &[1; 10]).unwrap();
    second.write_at(STRIPE as u64, &[2; 10]).unwrap();
    first.sync().unwrap();
    let unsettled = || bed.server.manager.inode(first.inode()).unwrap().unsettled;
    assert!(unsettled(), "the second client may write");
    second.sync().unwrap();
    assert!(!unsettled());
    // A client that goes without closing is finished by the server.
    second.write_at(2 * STRIPE as u64, &[3; 10]).unwrap();
    assert!(unsettled());
    let size = 2 * STRIPE as u64 + 10;
    bed.server.end(2);
    let found = bed.server.manager.inode(first.inode()).unwrap();
    assert_eq!((found.unsettled, found.size, found.strips), (false, size, 0b111));
}

#[test]
fn of_two_copies_one_stays_current() {
    let bed = Bed::new("stale", 2);
    let (one, other) = (bed.client(), bed.client());
    let written = file(&one);
    written.write_at(0, &[1; 10]).unwrap();
    let stale = |client: &Volume, copy| client.manager.change(&Change::Stale(written.inode(), copy, 0b101));
    assert_eq!(stale(&one, 1).unwrap().stale, [0, 0b101]);
    assert_eq!(stale(&one, 1).unwrap().stale, [0, 0b101]);
    assert_eq!(stale(&other, 0).unwrap_err().errno(), 5);
    assert_eq!(other.manager.inode(written.inode()).unwrap().stale, [0, 0b101]);
}
