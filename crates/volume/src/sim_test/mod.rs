//! Simulates clients, a manager and stores of a mirrored volume, each on its own host, from a seed. Messages are lost
//! before or after they were carried out, are repeated by senders without an answer, or come late. Each host crashes
//! and restarts, stores also in the middle of a request or without their unsynced bytes; disks are full for a while.
//! Meanwhile a client repairs: both sides interrupt each other in the middle of requests. Half of the time few things
//! fail, so that repairs come to an end.
//!
//! Invariant: a byte that is read was written last or, after a failure, is one of those that may have been; what a
//! client synced is there. When everything works again, `repair` leaves two equal copies of every strip, none of them
//! stale, and no strip without a file.
//! Non-goals: locks, and changes of names on which clients disagree.

mod model;
mod network;
mod turns;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use thalweg_api::VolumeEntry;
use thalweg_base::rng::{Rng, seeds};

use crate::alone::{OpenVolume, Watch};
use crate::attach::{Attachment, Mark, Reach, Way};
use crate::callers::Turns as Connections;
use crate::check::check;
use crate::client::Client;
use crate::layout::Policy;
use crate::remote::Dial;
use crate::store::Strip;
use crate::{Result, Volume, repair};
use model::Model;
use network::{Hosts, MANAGER, Port, STORES, STRIPE};

/// The number of runs, unless the environment says another; see `seeds`.
const SEEDS: u64 = 500;
/// The steps before everything works again, and how often that is repeated.
const STEPS: u64 = 50;
const ROUNDS: u64 = 3;
const CLIENTS: usize = 2;
/// The files that clients share.
const FILES: [&str; 2] = ["a", "b"];
/// The longest file, a little more than one stripe on each store.
const FILE_BYTES_MAX: u64 = STORES as u64 * STRIPE + 1000;

/// A client, until it ends.
struct User {
    /// Unique.
    id: usize,
    port: Arc<Port>,
    volume: Arc<Volume>,
    open: BTreeMap<&'static str, crate::File>,
}

struct World {
    rng: Rng,
    hosts: Arc<Hosts>,
    users: Vec<Option<User>>,
    last_id: usize,
    /// The client that repairs, and its thread.
    repair: Option<(Arc<Port>, JoinHandle<()>)>,
    models: BTreeMap<&'static str, Model>,
    /// Small files that were made, and whether each certainly exists.
    small: BTreeMap<String, bool>,
    made: u64,
}

/// Reaches the manager with one attempt, without waiting.
struct ByPort(Arc<Port>, Connections);

impl Reach for ByPort {
    fn reach(&self, _has_open: bool, _: &mut Mark) -> Result<(Way, Vec<Option<String>>)> {
        let (connection, attached) =
            self.0.connect("the manager", MANAGER, &network::request(), self.1.next())?;
        Ok((Way::There(connection, Default::default()), attached.lost))
    }
}

impl User {
    fn begin(hosts: &Arc<Hosts>, id: usize) -> Option<User> {
        let port = Port::new(hosts);
        let (attachment, _) =
            Attachment::by(Box::new(ByPort(Arc::clone(&port), Connections::new())), "v").ok()?;
        let volume = Volume::of(Client::by(attachment), Arc::new(port.stores()));
        Some(User { id, port, volume, open: BTreeMap::new() })
    }

    /// Ends without closing anything.
    fn crash(self) {
        self.port.ends();
    }
}

impl World {
    fn new(seed: u64) -> World {
        let hosts = Hosts::new(seed);
        let mut world = World {
            rng: Rng::new(!seed),
            users: (0..CLIENTS).map(|_| None).collect(),
            last_id: 0,
            repair: None,
            models: FILES.map(|name| (name, Model::default())).into(),
            small: BTreeMap::new(),
            made: 0,
            hosts,
        };
        let first = User::begin(&world.hosts, 0).expect("nothing fails yet");
        for name in FILES {
            first.volume.create(Path::new(name), 0o644, true).unwrap();
        }
        first.volume.sync().unwrap();
        world.users[0] = Some(first);
        world
    }

    fn step(&mut self) {
        let is_rare = self.hosts.is_quiet() && !self.rng.one_in(4);
        match self.rng.below(20) {
            0..=3 if is_rare => self.act_interrupted(),
            0 => self.hosts.crash_or_revive_store(&mut self.rng),
            1 => self.hosts.fill_or_free_disk(&mut self.rng),
            2 if self.rng.one_in(2) => self.hosts.crash_or_revive_manager(),
            3 if self.rng.one_in(3) => {
                let who = self.rng.below(CLIENTS as u64) as usize;
                self.users[who].take().into_iter().for_each(User::crash);
            }
            4 | 5 => self.hosts.deliver_late(&mut self.rng),
            6 if self.rng.one_in(2) => self.hosts.finish_left(),
            7 | 8 if !self.hosts.turns.has_repair() => self.begin_repair(),
            7 if self.rng.one_in(5) => self.repair.iter().for_each(|(port, _)| port.ends()),
            _ => self.act_interrupted(),
        }
        if self.hosts.lost_power() {
            self.models.values_mut().for_each(Model::lost_power);
        }
    }

    fn act_interrupted(&mut self) {
        self.hosts.turns.may_pause(true);
        self.act();
        self.hosts.turns.may_pause(false);
    }

    /// Lets a client of its own repair, between and in the middle of the steps that follow.
    fn begin_repair(&mut self) {
        self.end_repair();
        self.last_id += 1;
        let Some(User { port, volume, .. }) = User::begin(&self.hosts, self.last_id) else { return };
        self.hosts.note(|| "a repair begins".into());
        let hosts = Arc::clone(&self.hosts);
        let repair = move || {
            let done = repair::run(&volume, &stores());
            hosts.note(|| format!("a repair ends: {done:?}"));
            drop(volume);
        };
        self.repair = Some((port, self.hosts.turns.begin(repair)));
    }

    fn end_repair(&mut self) {
        while self.hosts.turns.pass() {}
        let ended = self.repair.take().map(|(_, thread)| thread.join());
        ended.into_iter().for_each(|ended| ended.unwrap_or_else(|why| std::panic::resume_unwind(why)));
    }

    /// Lets a client take a step.
    fn act(&mut self) {
        let who = self.rng.below(CLIENTS as u64) as usize;
        self.last_id += 1;
        let begin = || User::begin(&self.hosts, self.last_id);
        let Some(user) = self.users[who].take().or_else(begin) else { return };
        self.users[who] = Some(self.acts(who, user));
    }

    fn acts(&mut self, who: usize, mut user: User) -> User {
        let name = FILES[self.rng.below(FILES.len() as u64) as usize];
        let what = self.rng.below(12);
        if what < 2 {
            self.small_files(&user);
            return user;
        }
        if what == 2 {
            if let Some(file) = user.open.remove(name) {
                let done = file.flush();
                self.hosts.note(|| format!("client {who} closes {name}: {done:?}"));
                if done.is_err() {
                    self.models.get_mut(name).expect("it is one of the files").not_synced();
                }
            }
            return user;
        }
        // An open shows what other clients have done in the meantime.
        let Ok(file) = user.volume.open(Path::new(name)) else { return user };
        let model = self.models.get_mut(name).expect("it is one of the files");
        match what {
            3 | 4 => {
                let done = file.sync();
                self.hosts.note(|| format!("client {who} syncs {name}: {done:?}"));
                match done {
                    Ok(()) => model.synced(user.id),
                    Err(_) => model.not_synced(),
                }
            }
            5 => {
                let size = self.rng.below(FILE_BYTES_MAX);
                let done = file.set_size(size);
                self.hosts.note(|| format!("client {who} cuts {name} to {size}: {done:?}"));
                model.resize(user.id, size as usize, done.is_ok());
            }
            9 => {
                let size = file.size();
                let at = self.rng.below(size + 1);
                let len = self.rng.below(size - at + 1);
                let done = file.punch(at, len);
                self.hosts.note(|| format!("client {who} makes a hole in {name} at {at}, {len}: {done:?}"));
                if len > 0 {
                    model.write(user.id, at as usize, len as usize, 0, done.is_ok());
                }
            }
            6..=8 => {
                let at = self.rng.below(FILE_BYTES_MAX - 1);
                let len = 1 + self.rng.below((FILE_BYTES_MAX - at).min(2 * STRIPE));
                let value = self.rng.below(255) as u8 + 1;
                let done = file.write_at(at, &vec![value; len as usize]);
                self.hosts.note(|| format!("client {who} writes {value} to {name} at {at}, {len}: {done:?}"));
                model.write(user.id, at as usize, len as usize, value, done.is_ok());
            }
            _ => {
                let mut found = vec![0; file.size() as usize];
                let read = file.read_at(0, &mut found);
                self.hosts.note(|| format!("client {who} reads {name}: {read:?}"));
                if let Ok(n) = read {
                    model.check(&found[..n]).unwrap_or_else(|why| self.hosts.fails(name, &why));
                }
            }
        }
        user.open.insert(name, file);
        user
    }

    /// Makes a small file, or removes one.
    fn small_files(&mut self, user: &User) {
        match self.small.keys().next().cloned() {
            Some(name) if self.rng.one_in(2) => {
                let done = user.volume.remove(Path::new(&name));
                self.hosts.note(|| format!("{name} is removed: {done:?}"));
                match done {
                    Ok(()) => _ = self.small.remove(&name),
                    // It may have been removed.
                    Err(_) => _ = self.small.insert(name, false),
                }
            }
            _ => {
                let name = format!("s{}", self.made);
                self.made += 1;
                let made = user.volume.create(Path::new(&name), 0o644, true);
                let done = made.and_then(|file| {
                    file.write_at(0, &[7; 100])?;
                    file.sync()
                });
                self.hosts.note(|| format!("{name} is made: {done:?}"));
                self.small.insert(name, done.is_ok());
            }
        }
    }

    /// Everything works for a while, and all clients have ended: checks that all promises hold.
    fn rests(&mut self) {
        self.hosts.note(|| "everything works again".into());
        self.hosts.is_calm(true);
        self.hosts.revive();
        self.end_repair();
        for user in self.users.iter_mut().filter_map(Option::take) {
            drop(user.open);
            // An earlier failure may be reported now, once.
            let _ = user.volume.sync();
        }
        self.hosts.deliver_all();
        let volume = self.hosts.open_alone();
        self.find(&volume);
        let repaired = repair::run(&volume, &stores());
        let repaired = repaired.unwrap_or_else(|e| self.hosts.fails("repair", &e.to_string()));
        self.hosts.note(|| format!("repaired: {repaired:?}"));
        if let Some(differs) = repaired.iter().find(|line| line.contains("is mended")) {
            self.hosts.fails("copies that should be equal differ", differs);
        }
        let (name, manager, clients) = ("v".into(), "m".into(), Vec::new());
        let entry = VolumeEntry { name, cluster: None, manager, stores: stores(), clients };
        let open = OpenVolume { volume: Arc::clone(&volume), entry, watch: Watch::default() };
        let problems = check(&open).unwrap().problems;
        if !problems.is_empty() {
            self.hosts.fails("check", &problems.join("\n"));
        }
        self.find(&volume);
        self.copies_are_equal(&volume);
    }

    /// Checks that all files exist and have bytes that they may have, which the model has from now on.
    fn find(&mut self, volume: &Arc<Volume>) {
        for (name, model) in &mut self.models {
            let file = volume.open(Path::new(name)).unwrap();
            let mut found = vec![0; file.size() as usize];
            file.read_at(0, &mut found).unwrap_or_else(|e| self.hosts.fails(name, &e.to_string()));
            model.check(&found).unwrap_or_else(|why| self.hosts.fails(name, &why));
            model.is(&found);
        }
        for (name, is_certain) in &self.small {
            match volume.open(Path::new(name)) {
                Ok(file) if *is_certain => {
                    let mut found = [0; 100];
                    let read = file.read_at(0, &mut found).map_err(|e| e.to_string());
                    if read != Ok(100) || found != [7; 100] {
                        self.hosts.fails(name, &format!("{read:?}"));
                    }
                }
                Err(e) if *is_certain => self.hosts.fails(name, &e.to_string()),
                _ => {}
            }
        }
    }

    fn copies_are_equal(&self, volume: &Arc<Volume>) {
        for name in FILES {
            let inode = volume.stat(Path::new(name)).unwrap();
            let layout = inode.layout.unwrap();
            // A strip without bytes is not asked, and may not know the last generation.
            let has_bytes = |index: &u32| layout.strip_len(*index, inode.size) > 0;
            let strips = (0..layout.width).filter(|index| inode.strips >> index & 1 == 1);
            for index in strips.filter(has_bytes) {
                let copies = [0, 1].map(|copy| {
                    let strip = Strip { inode: inode.id, index, copy };
                    let mut bytes = vec![0; layout.strip_len(index, inode.size) as usize];
                    let store = volume.stores.of(&layout, strip).unwrap();
                    store.read(strip, inode.generation, 0, &mut bytes).map(|()| bytes).unwrap()
                });
                if copies[0] != copies[1] {
                    self.hosts.fails(name, &format!("the copies of strip {index} differ"));
                }
            }
        }
    }
}

/// Runs a seed. Returns the trace of the run.
fn run(seed: u64) -> Vec<String> {
    let mut world = World::new(seed);
    for _ in 0..ROUNDS {
        world.hosts.revive();
        world.hosts.is_calm(false);
        world.hosts.set_quiet(world.rng.one_in(2));
        (0..STEPS).for_each(|_| world.step());
        world.rests();
    }
    world.hosts.end();
    world.hosts.trace()
}

#[test]
fn whatever_fails_nothing_that_was_synced_is_lost_and_copies_become_equal() {
    seeds(SEEDS).for_each(|seed| _ = run(seed));
}

/// A manager that started without a majority of its stores took the strips that it knew for all that a file had, and
/// clients read zeros in the place of what others had written.
#[test]
fn what_a_manager_cannot_change_yet_is_not_taken_for_settled() {
    run(1239);
}

/// A client that such a manager had not taken for a writer reported strips when it closed its file, which all stores had
/// lost: nobody could read the file any more.
#[test]
fn who_could_not_join_as_a_writer_reports_nothing() {
    run(2653);
}

/// The same seed gives the same run; otherwise a failure could not be examined.
#[test]
fn a_seed_decides_everything() {
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

/// The names of the stores.
fn stores() -> Vec<String> {
    (0..STORES).map(|slot| format!("store {slot}")).collect()
}

fn policy() -> Policy {
    Policy { stripe_bytes: STRIPE, copies: 2, ..Policy::default() }
}
