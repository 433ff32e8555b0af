//! Requests of a client while another client repairs.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::layout::Policy;
use crate::manager::{Change, Edit, Inode, Place, ROOT};
use crate::request::{Answer, Request};
use crate::test_bed::{Bed, file};

/// How long a fence lasts after it has begun. Answers that do not wait for its end take less than a millisecond.
const A_WHILE: Duration = Duration::from_millis(5);

type Begin = Box<dyn FnOnce() + Send>;

/// Calls `begin` at a point of a request: the manager's requests are counted down, before and after each.
#[derive(Default)]
struct AtPoint {
    left: AtomicUsize,
    begin: Mutex<Option<Begin>>,
}

impl AtPoint {
    fn passes(&self) {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1
            && let Some(begin) = self.begin.lock().unwrap().take()
        {
            begin();
        }
    }
}

/// Each request that is answered with inodes.
fn asks(inode: &Inode) -> Vec<Request> {
    let id = inode.id;
    let changes = vec![
        Change::Unsettle(id),
        Change::Cut(id, inode.generation),
        Change::Resize(id, inode.size + 1, 0),
        Change::Resize(id, inode.size - 1, 0),
        Change::Stale(id, 0, 1),
        Change::Set(id, Edit::default()),
        Change::Raise(id, 1),
    ];
    let place = Place { directory: ROOT, name: "f".into() };
    let queries = vec![
        Request::Inode(id),
        Request::Lookup(place),
        Request::Names(ROOT, Vec::new()),
        Request::Unfinished(0),
        Request::Open(id),
    ];
    queries.into_iter().chain(changes.into_iter().map(Request::Change)).collect()
}

/// A client that knew the generation of a fence could write to the copy from which the repair has copied everything.
#[test]
fn no_request_tells_the_generation_of_a_fence() {
    let point = Arc::new(AtPoint::default());
    let hook = Arc::clone(&point);
    let policy = Policy { stripe_bytes: 4096, copies: 2, ..Policy::default() };
    let bed = Bed::hooked("fences", &policy, (None, None), Box::new(move || hook.passes()));
    let written = file(&bed.client());
    written.write_at(0, &[1; 5 * 4096]).unwrap();
    written.sync().unwrap();
    let inode = written.stat().unwrap();
    for what in 0..asks(&inode).len() {
        for is_lifted in [true, false] {
            let mut at = 1;
            while is_asked(&bed, &point, (what, at), is_lifted) {
                at += 1;
            }
            assert!(at > 1, "{:?} does not ask the manager", asks(&inode)[what]);
        }
    }
}

/// Carries out a request during which a fence begins at this point, and then is lifted or left by its session. Returns
/// false if the request has no such point.
fn is_asked(bed: &Bed, point: &AtPoint, (what, at): (usize, usize), is_lifted: bool) -> bool {
    let server = &bed.server;
    let (client, repairs) = (server.begin(), server.begin());
    let Ok(Answer::Found(Some(inode))) =
        server.answer(client, &Request::Lookup(Place { directory: ROOT, name: "f".into() }))
    else {
        panic!("there is no file");
    };
    let id = inode.id;
    server.answer(client, &Request::Open(id)).unwrap();
    server.answer(client, &Request::Change(Change::Unsettle(id))).unwrap();
    server.answer(repairs, &Request::Repair).unwrap();
    let request = asks(&inode).swap_remove(what);
    let (begun, fence) = channel();
    let own = Arc::clone(server);
    *point.begin.lock().unwrap() = Some(Box::new(move || {
        let (soon, is_soon) = channel();
        std::thread::spawn(move || {
            let Ok(Answer::Inode(fenced)) = own.answer(repairs, &Request::Fence(id)) else { return };
            let _ = soon.send(());
            let _ = begun.send(fenced.generation);
        });
        // Later, if the request is in the middle of something that a fence waits for.
        let _ = is_soon.recv_timeout(A_WHILE);
    }));
    let is_over = &AtomicBool::new(false);
    let fenced = std::thread::scope(|scope| {
        let ending = scope.spawn(move || {
            let generation = fence.recv().ok()?;
            std::thread::park_timeout(A_WHILE);
            is_over.store(true, Ordering::SeqCst);
            match is_lifted {
                true => _ = server.answer(repairs, &Request::Lift(id)).unwrap(),
                false => server.end(repairs),
            }
            Some(generation)
        });
        point.left.store(at, Ordering::Relaxed);
        let answer = server.answer(client, &request);
        let may_know = is_lifted && is_over.load(Ordering::SeqCst);
        drop(point.begin.lock().unwrap().take());
        let fenced = ending.join().unwrap()?;
        let mut answer = answer.unwrap_or_else(|why| panic!("{request:?}: {why}"));
        for inode in answer.inodes().filter(|inode| inode.id == id) {
            let is_known = inode.generation == fenced;
            assert!(may_know || !is_known, "{request:?}, with a fence at point {at}, lifted: {is_lifted}");
        }
        Some(fenced)
    });
    server.end(client);
    server.end(repairs);
    fenced.is_some()
}
