//! Compares the lock table with a model that has one entry for each byte, under random requests.

use thalweg_base::rng::Rng;

use super::*;

const SECOND: u64 = 1_000_000_000;
const BYTES: u64 = 8;
const CLIENTS: [ClientId; 2] = [[1, 1], [2, 2]];

fn lock(owner: u64, start: u64, end: u64, exclusive: bool) -> Lock {
    Lock { inode: 1, owner, start, end, exclusive, pid: owner as u32 }
}

/// For each byte, the clients that have a lock on it, and whether it is exclusive.
#[derive(Default)]
struct Model([Vec<(ClientId, u64, bool)>; BYTES as usize]);

impl Model {
    fn is_free(&self, client: ClientId, lock: Lock) -> bool {
        let others = |byte: u64| self.0[byte as usize].iter();
        (lock.start..=lock.end).all(|byte| {
            others(byte).all(|(of, owner, exclusive)| {
                (*of, *owner) == (client, lock.owner) || !(*exclusive || lock.exclusive)
            })
        })
    }

    fn set(&mut self, client: ClientId, lock: Lock, has: bool) {
        for byte in lock.start..=lock.end {
            let byte = &mut self.0[byte as usize];
            byte.retain(|(of, owner, _)| (*of, *owner) != (client, lock.owner));
            byte.extend(has.then_some((client, lock.owner, lock.exclusive)));
        }
    }

    fn assert_equals(&self, locks: &Locks) {
        let mut found = Model::default();
        let held = locks.files.get(&1).into_iter().flat_map(|file| file.held.all());
        for (client, lock) in held {
            for byte in lock.start..=lock.end {
                found.0[byte as usize].push((*client, lock.owner, lock.exclusive));
            }
        }
        for (found, expected) in found.0.iter_mut().zip(&self.0) {
            found.sort_unstable();
            let mut expected = expected.clone();
            expected.sort_unstable();
            assert_eq!(*found, expected);
        }
        let count = |client| locks.files.get(&1).map_or(0, |file| file.held.count(client));
        assert_eq!(locks.held, CLIENTS.into_iter().map(count).sum::<usize>());
        for client in CLIENTS {
            assert_eq!(locks.members[&client].held, count(client));
        }
    }
}

fn members(locks: &mut Locks) {
    CLIENTS.into_iter().for_each(|client| assert!(locks.claim(client, &[], 0)));
}

#[test]
fn any_requests_are_answered_as_by_a_model_of_single_bytes() {
    for seed in 0..300 {
        let (mut rng, mut model) = (Rng::new(seed), Model::default());
        let mut locks = Locks::new(0, []);
        members(&mut locks);
        let mut waiting: Vec<(ClientId, u64, Lock)> = Vec::new();
        for ticket in 0..200 {
            let client = CLIENTS[rng.below(2) as usize];
            let (one, other) = (rng.below(BYTES), rng.below(BYTES));
            let lock = lock(rng.below(3), one.min(other), one.max(other), rng.one_in(2));
            match rng.below(5) {
                0 => {
                    assert!(locks.unlock(client, lock));
                    model.set(client, lock, false);
                }
                1 => {
                    let verdict = locks.ask(client, ticket, lock, How::Test).unwrap();
                    assert_eq!(verdict == Verdict::Free, model.is_free(client, lock), "{lock:?}");
                }
                2 => match locks.ask(client, ticket, lock, How::Wait) {
                    Some(Verdict::Free) => {
                        assert!(model.is_free(client, lock));
                        model.set(client, lock, true);
                    }
                    Some(verdict) => assert_eq!(verdict, Verdict::Deadlock),
                    None => {
                        assert!(!model.is_free(client, lock));
                        waiting.push((client, ticket, lock));
                    }
                },
                3 if !waiting.is_empty() => {
                    let (client, ticket, _) = waiting.swap_remove(rng.below(waiting.len() as u64) as usize);
                    assert!(locks.cancel(client, 1, ticket));
                    assert!(!locks.cancel(client, 1, ticket));
                }
                _ => {
                    let verdict = locks.ask(client, ticket, lock, How::Try).unwrap();
                    assert_eq!(verdict == Verdict::Free, model.is_free(client, lock), "{lock:?}");
                    if verdict == Verdict::Free {
                        model.set(client, lock, true);
                    }
                }
            }
            // Bytes that became free went to the waiting requests, in the order in which these were made.
            let mut news: Vec<(u64, ClientId)> = Vec::new();
            for client in CLIENTS {
                for (ticket, inode, verdict) in locks.news(client).unwrap() {
                    assert_eq!((inode, verdict), (1, Verdict::Free));
                    news.push((ticket, client));
                }
            }
            news.sort_unstable();
            for (ticket, client) in news {
                let at = waiting.iter().position(|wait| (wait.0, wait.1) == (client, ticket)).unwrap();
                let (_, _, lock) = waiting.remove(at);
                model.set(client, lock, true);
            }
            model.assert_equals(&locks);
            assert!(waiting.iter().all(|(client, _, lock)| !model.is_free(*client, *lock)), "seed {seed}");
            assert_eq!(locks.waiting, waiting.len());
        }
    }
}

#[test]
fn who_is_silent_loses_its_locks_and_who_waits_gets_them() {
    let [silent, other] = CLIENTS;
    let mut locks = Locks::new(0, []);
    members(&mut locks);
    assert_eq!(locks.ask(silent, 1, lock(1, 0, 9, true), How::Try), Some(Verdict::Free));
    assert_eq!(locks.ask(other, 1, lock(1, 5, 5, false), How::Wait), None);
    assert!(locks.hear(other, 5 * SECOND));
    locks.tick(10 * SECOND - 1);
    assert_eq!(locks.news(other).unwrap(), []);
    locks.tick(10 * SECOND);
    assert_eq!(locks.news(other).unwrap(), [(1, 1, Verdict::Free)]);
    assert!(!locks.hear(silent, 10 * SECOND), "it is told that it lost them");
}

#[test]
fn a_table_that_succeeds_another_grants_only_reclaims_for_a_while() {
    let [old, new] = CLIENTS;
    let mut locks = Locks::new(0, [old, [4, 4]]);
    assert!(locks.claim(old, &[lock(1, 0, 4, true)], SECOND));
    assert!(!locks.claim([3, 3], &[lock(1, 4, 4, false)], SECOND), "it has a range of another client");
    assert!(locks.claim(new, &[], SECOND));
    for (ticket, how, at) in [(1, How::Try, 0), (2, How::Try, 5), (3, How::Test, 4), (4, How::Wait, 4)] {
        assert_eq!(locks.ask(new, ticket, lock(2, at, at, true), how), None);
    }
    for at in [9, 10] {
        assert_eq!(locks.news(new).unwrap(), []);
        assert!(locks.hear(old, at * SECOND) && locks.hear(new, at * SECOND));
        assert_eq!(locks.tick(at * SECOND), if at == 9 { vec![] } else { vec![[4, 4]] });
    }
    let taken = Verdict::Taken(Lock { pid: 0, ..lock(1, 0, 4, true) });
    assert_eq!(locks.news(new).unwrap(), [(1, 1, taken), (2, 1, Verdict::Free), (3, 1, taken)]);
    assert!(!locks.claim([4, 4], &[lock(3, 7, 7, true)], 11 * SECOND), "it is too late");
    assert!(locks.unlock(old, lock(1, 0, 9, true)));
    assert_eq!(locks.news(new).unwrap(), [(4, 1, Verdict::Free)]);
}

#[test]
fn when_all_clients_of_the_table_before_have_come_others_get_locks() {
    let [old, new] = CLIENTS;
    let mut locks = Locks::new(0, [old]);
    assert!(locks.claim(new, &[], 0));
    assert_eq!(locks.ask(new, 1, lock(1, 5, 5, true), How::Try), None);
    assert!(locks.claim(old, &[lock(1, 0, 4, true)], SECOND));
    assert_eq!(locks.news(new).unwrap(), [(1, 1, Verdict::Free)]);
}

#[test]
fn owners_that_would_wait_for_each_other_are_told() {
    let [one, other] = CLIENTS;
    let mut locks = Locks::new(0, []);
    members(&mut locks);
    assert_eq!(locks.ask(one, 1, lock(1, 0, 0, true), How::Wait), Some(Verdict::Free));
    assert_eq!(locks.ask(other, 1, lock(1, 1, 1, true), How::Wait), Some(Verdict::Free));
    assert_eq!(locks.ask(one, 2, lock(1, 1, 1, true), How::Wait), None);
    assert_eq!(locks.ask(other, 2, lock(1, 0, 0, false), How::Wait), Some(Verdict::Deadlock));
    assert_eq!(locks.ask(other, 3, lock(2, 0, 0, false), How::Wait), None, "another owner may wait");
}

#[test]
fn the_table_is_bounded_and_what_it_refuses_changes_nothing() {
    let mut locks = Locks::new(0, []);
    members(&mut locks);
    let [client, other] = CLIENTS;
    let mut at = 0;
    while locks.ask(client, at, lock(1, 2 * at, 2 * at, true), How::Try) == Some(Verdict::Free) {
        at += 1;
    }
    assert!((CLIENT_LOCKS_MAX - 2..=CLIENT_LOCKS_MAX).contains(&locks.held));
    assert_eq!(locks.ask(other, 1, lock(1, 1, 1, true), How::Try), Some(Verdict::Free), "others have room");
    for ticket in 0..WAITS_MAX as u64 {
        assert_eq!(locks.ask(other, ticket, lock(1, 0, 0, true), How::Wait), None);
    }
    assert_eq!(locks.ask(other, u64::MAX, lock(1, 0, 0, true), How::Wait), Some(Verdict::Full));
    assert!(locks.unlock(client, lock(1, 0, u64::MAX, true)));
    locks.leave(other);
    assert_eq!((locks.held, locks.waiting, locks.files.len()), (0, 0, 0));
}

#[test]
fn who_leaves_is_not_waited_for_by_the_next_table() {
    let [client, other] = CLIENTS;
    let mut locks = Locks::new(0, [other]);
    assert!(locks.claim(client, &[], 0));
    assert_eq!(locks.ask(client, 1, lock(1, 0, 0, true), How::Try), None, "another may claim it");
    // It has not claimed anything in this table.
    locks.end(other);
    assert_eq!(locks.news(client), Some(vec![(1, 1, Verdict::Free)]));
    assert_eq!(locks.ask(client, 2, lock(1, 1, 1, true), How::Try), Some(Verdict::Free));
    assert!(!locks.claim(other, &[lock(2, 5, 5, true)], 0), "it has gone");
}
