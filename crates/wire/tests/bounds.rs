//! Bounds on what a peer can make this side keep, and on the damage of a bug: requests and answers of any length up to
//! the limit, bounds on what nobody reads, and a panic that ends one link.
//!
//! What went wrong: an answer of more than 64 KiB failed an assertion, which ended the node; ten thousand streams that
//! were opened and given up left 600 MB of requests behind.
#![allow(clippy::disallowed_methods)] // Tests write what no correct peer would.

mod support;

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread;

use support::City;
use thalweg_block::Pool;
use thalweg_wire::frame::{Head, Kind, MORE, PAYLOAD_BYTES_MAX};
use thalweg_wire::{Id, Link, Pipes, Role, Terms, VERSIONS, new_id, pair};

/// The request on a new stream, and its answer.
fn ask(near: &Link, far: &Link, request: &[u8], answer: &[u8]) -> Result<Vec<u8>, String> {
    thread::scope(|scope| {
        let asks = scope.spawn(|| {
            let mut inc = near.ask(request, None).map_err(|e| e.to_string())?;
            while inc.next_on().map_err(|e| e.to_string())?.is_some() {}
            Ok(inc.result().unwrap().to_vec())
        });
        let (heard, mut out, inc) = far.accept().unwrap().unwrap();
        assert!(heard == request, "{} bytes of {}", heard.len(), request.len());
        let _ = out.end(answer);
        drop(inc);
        asks.join().unwrap()
    })
}

#[test]
fn requests_and_answers_may_be_longer_than_a_frame() {
    let city = City::new();
    for (near, far) in [pair(Terms::default()).unwrap(), city.link(Terms::default())] {
        let some = |len: usize| (0..len).map(|i| (i / 1000) as u8).collect::<Vec<u8>>();
        for len in [0, 65_535, 65_536, 65_537, 131_072, 200_000, PAYLOAD_BYTES_MAX] {
            let answer = ask(&near, &far, &some(len), &some(len)).unwrap();
            assert!(answer == some(len), "{} bytes of {len}", answer.len());
        }
        let long = some(PAYLOAD_BYTES_MAX + 1);
        let refused = near.open(&long).map(drop).unwrap_err().to_string();
        assert!(
            refused.contains("8388609 bytes for ") && refused.contains("8388608 is the most"),
            "{refused}"
        );
        let refused = ask(&near, &far, b"?", &long).unwrap_err();
        assert!(refused.contains("an answer of 8388609 bytes, where 8388608 is the most"), "{refused}");
        assert_eq!(ask(&near, &far, b"?", b"!").unwrap(), b"!", "the link stands");
    }
}

#[test]
fn streams_given_up_before_they_were_accepted_leave_nothing() {
    let (near, far) = pair(Terms::default()).unwrap();
    let pool = Pool::new(4096, 4).unwrap();
    let (mut last, back) = near.open(b"all along").unwrap();
    let (_, out, there) = far.accept().unwrap().unwrap();
    thread::scope(|scope| {
        // These read everything, and accept no streams.
        let [mut back, mut there] = [back, there].map(|inc| inc.takes(&pool, 1));
        scope.spawn(move || while back.next_on().is_ok_and(|came| came.is_some()) {});
        let reads = scope.spawn(move || {
            while there.next_on().unwrap().is_some() {}
            drop(out);
        });
        for _ in 0..10_000 {
            // The maximum number of streams waits for an answer.
            while near.open(&[b'x'; 1000]).map(drop).is_err() {
                thread::yield_now();
            }
        }
        let live = std::iter::repeat_with(|| near.open(b"live")).find_map(Result::ok).unwrap();
        last.end(&[]).unwrap();
        reads.join().unwrap();
        let (request, ..) = far.accept().unwrap().unwrap();
        assert!(request == b"live", "one of {} bytes that was given up", request.len());
        drop(live);
    });
}

#[test]
fn requests_that_nobody_accepts_are_refused_before_they_fill_the_memory() {
    let (near, far) = pair(Terms::default()).unwrap();
    let pool = Pool::new(4096, 4).unwrap();
    let (mut last, _back) = near.open(b"all along").unwrap();
    let (_, _out, there) = far.accept().unwrap().unwrap();
    let mut there = there.takes(&pool, 2);
    thread::scope(|scope| {
        let reads = scope.spawn(move || while there.next_on().unwrap().is_some() {});
        let request = vec![b'x'; PAYLOAD_BYTES_MAX];
        let mut asked: Vec<_> = (0..9).map(|_| near.open(&request).unwrap()).collect();
        last.end(&[]).unwrap();
        reads.join().unwrap();
        let (_, refused) = &mut asked[8];
        let why = refused.next_on().map(drop).unwrap_err().to_string();
        assert!(why.contains("67108864 bytes of requests wait here"), "{why}");
        (0..8).for_each(|_| assert_eq!(far.accept().unwrap().unwrap().0.len(), PAYLOAD_BYTES_MAX));
    });
}

/// A peer of this cluster that sends only the bytes that a test writes, and the link with it.
fn raw() -> (Raw, Link) {
    raw_of(1 << 20)
}

/// The same, for a peer that accepts blocks of this many bytes.
fn raw_of(block_bytes: u32) -> (Raw, Link) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let meeting = new_id();
    let mut raw = Raw { socket: ours, sequence: 0 };
    let versions = [VERSIONS.first, VERSIONS.last].map(u16::to_le_bytes).concat();
    let ids = [meeting, Id(7)].map(|id| id.0.to_be_bytes()).concat();
    let rest = [Role::Client as u32, block_bytes, 0, 0].map(u32::to_le_bytes).concat();
    let hello = [&b"thalweg\0"[..], &versions, &[0; 4], &ids, &rest].concat();
    raw.frame(Head::control(Kind::Hello, 0, 0, &hello), &hello);
    let (from, to) = (OwnedFd::from(theirs.try_clone().unwrap()), OwnedFd::from(theirs));
    let link = Pipes::new(from, to).unwrap().link("it", (meeting, Role::Node), Terms::default()).unwrap();
    (raw, link)
}

struct Raw {
    socket: UnixStream,
    sequence: u32,
}

impl Raw {
    fn frame(&mut self, head: Head, payload: &[u8]) {
        let head = Head { sequence: self.sequence, ..head };
        self.sequence += 1;
        // A side that has closed the link accepts no more.
        let _ = self.socket.write_all(&[&head.encode()[..], payload].concat());
    }

    /// The first part of a request that continues.
    fn piece(&mut self, stream: u32, payload: &[u8]) {
        self.frame(Head { flags: MORE, ..Head::control(Kind::Open, stream, 0, payload) }, payload);
    }
}

#[test]
fn who_asks_and_does_not_read_the_answers_is_closed() {
    let (mut raw, link) = raw();
    // It keeps reading while it waits for something else.
    let waits = thread::spawn(move || {
        let (_out, mut inc) = link.open(b"?").unwrap();
        inc.next_on().map(drop).unwrap_err().to_string()
    });
    for stream in (1..200_000).step_by(2) {
        raw.frame(Head::control(Kind::Open, stream, 0, b"x"), b"x");
        raw.frame(Head::control(Kind::Abort, stream, 0, b""), b"");
    }
    let why = waits.join().unwrap();
    assert!(why.contains("has left 65537 answers unread"), "{why}");
}

#[test]
fn pieces_of_a_request_stand_together_and_have_an_end() {
    let broken = |say: &dyn Fn(&mut Raw)| {
        let (mut raw, link) = raw();
        say(&mut raw);
        link.accept().map(drop).unwrap_err().to_string()
    };
    let some = [b'x'; 65_536];
    let why = broken(&|raw| {
        raw.piece(1, &some);
        raw.frame(Head::control(Kind::Ping, 0, 0, b""), b"");
    });
    assert!(why.contains("sent a Ping frame where none may be"), "{why}");
    let why = broken(&|raw| {
        raw.piece(1, &some);
        raw.piece(3, &some);
    });
    assert!(why.contains("sent a Open frame where none may be"), "{why}");
    // The maximum number for one side, and one more.
    let why = thread::scope(|scope| {
        let (mut raw, link) = raw();
        scope.spawn(move || (0..129).for_each(|_| raw.piece(1, &some)));
        link.accept().map(drop).unwrap_err().to_string()
    });
    assert!(why.contains("sent an Open of more than 8388608 bytes"), "{why}");
}

/// What went wrong: a peer that accepts only small blocks made the other side panic.
#[test]
fn a_block_that_the_peer_does_not_take_is_an_error() {
    let (_raw, link) = raw_of(4096);
    let (mut out, _inc) = link.open(b"?").unwrap();
    let pool = Pool::new(8192, 1).unwrap();
    let mut block = pool.try_take().unwrap();
    block.set_len(8192);
    let why = out.put_on(0, block).unwrap_err().to_string();
    assert!(why.contains("a block of 8192 bytes for it, which takes at most 4096"), "{why}");
}

#[test]
fn a_panic_with_a_link_in_hand_ends_that_link_and_no_other() {
    let (near, far) = pair(Terms::default()).unwrap();
    let (other_near, other_far) = pair(Terms::default()).unwrap();
    let pool = Pool::new(4096, 8).unwrap();
    let (mut out, _inc) = near.open(b"give").unwrap();
    let (_, _out, inc) = far.accept().unwrap().unwrap();
    inc.give(&pool, 2, |_| panic!("what the test is about"));
    let (_live, live) = near.open(b"waits").unwrap();
    let mut live = live.takes(&pool, 1);
    assert_eq!(far.accept().unwrap().unwrap().0, b"waits");
    thread::scope(|scope| {
        let waits = scope.spawn(|| live.next_on().map(drop).unwrap_err().to_string());
        out.send(0, &mut [1; 100]).unwrap();
        assert!(scope.spawn(|| far.accept().map(drop)).join().is_err(), "who read has panicked");
        let why = far.accept().map(drop).unwrap_err().to_string();
        assert!(why.contains("an internal error on this side"), "{why}");
        assert!(far.open(b"more").is_err() && !far.is_open());
        far.close();
        let told = waits.join().unwrap();
        assert!(told.contains("this process"), "{told}");
    });
    assert_eq!(ask(&other_near, &other_far, b"?", b"!").unwrap(), b"!");
}
