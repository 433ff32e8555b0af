//! Links over real sockets and over memory: what is sent arrives, complete and in order; streams do not delay each
//! other; a failure ends in one line within the specified time, and leaves no block behind; answers are delivered as
//! they arrive.
#![allow(clippy::disallowed_methods)] // Tests open sockets as unauthenticated peers do.

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use support::{City, patience};
use thalweg_base::rng::Rng;
use thalweg_block::{Block, Pool};
use thalweg_pump::{Sink, Source};
use thalweg_wire::frame::{Head, Kind};
use thalweg_wire::{
    Gift, Heard, Incoming, Link, LinkError, News, Pipes, Role, TemporaryIdentity, Terms, What, listen,
    new_id, pair,
};

const BLOCK: usize = 1 << 20;

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..len.div_ceil(8)).flat_map(|_| rng.next_u64().to_le_bytes()).take(len).collect()
}

fn block(pool: &Pool, offset: u64, bytes: &[u8]) -> Block {
    let mut block = pool.take();
    block.set_len(bytes.len());
    block.set_offset(offset);
    block.copy_from_slice(bytes);
    block
}

/// Both directions at the same time, blocks of odd lengths, two streams; then the ends.
fn converse(near: &Link, far: &Link) {
    let lens = [0, 1, 31, 16_352, 16_353, 16_384, 16_385, 65_536, BLOCK - 1, BLOCK];
    let pools = [Pool::new(BLOCK, 6).unwrap(), Pool::new(BLOCK, 6).unwrap()];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (request, mut out, inc) = far.accept().unwrap().unwrap();
            assert_eq!(request, b"echo");
            let mut inc = inc.takes(&pools[1], 2);
            while let Some((channel, block)) = inc.next_on().unwrap() {
                out.put_on(channel, block).unwrap();
            }
            assert_eq!(inc.result(), Some(&b"that was all"[..]));
            out.end(b"heard").unwrap();
        });
        let (mut out, inc) = near.open(b"echo").unwrap();
        let mut inc = inc.takes(&pools[0], 2);
        let reader = scope.spawn(move || {
            for (i, len) in lens.into_iter().enumerate() {
                let (channel, block) = inc.next_on().unwrap().expect("an echo");
                assert_eq!((channel as usize, block.offset()), (i % 16, i as u64 * 7));
                assert!(*block == noise(i as u64, len), "block {i} of {len} bytes");
            }
            assert!(inc.next().unwrap().is_none());
            assert_eq!(inc.result(), Some(&b"heard"[..]));
        });
        for (i, len) in lens.into_iter().enumerate() {
            let sent = block(&pools[0], i as u64 * 7, &noise(i as u64, len));
            out.put_on((i % 16) as u8, sent).unwrap();
        }
        out.end(b"that was all").unwrap();
        reader.join().unwrap();
    });
    assert_eq!(pools.each_ref().map(Pool::free), [6, 6], "all blocks are home");
}

#[test]
fn what_is_put_comes_over_memory_and_sealed() {
    let (near, far) = pair(Terms::default()).unwrap();
    converse(&near, &far);
    let city = City::new();
    let (near, far) = city.link(Terms::default());
    assert_eq!((near.peer(), far.peer()), ("n1", "n2"));
    converse(&near, &far);
    drop(near);
    assert!(far.accept().unwrap().is_none(), "a goodbye");
}

/// Both sides send more than the connection holds: if a reader waited for a writer, both sides would write forever, and
/// nobody would read.
#[test]
fn both_sides_may_put_more_than_the_carrier_holds() {
    const BLOCKS: u64 = 400;
    let city = City::new();
    let links = [pair(Terms::default()).unwrap(), city.link(Terms::default())];
    for (near, far) in &links {
        let pool = Pool::new(BLOCK, 24).unwrap();
        let (out, inc) = near.open(b"there").unwrap();
        let (_, back, there) = far.accept().unwrap().unwrap();
        let (sent, came) = std::sync::mpsc::channel();
        for (mut out, inc) in [(out, inc), (back, there)] {
            let (pool, from) = (pool.clone(), sent.clone());
            std::thread::spawn(move || {
                (0..BLOCKS).for_each(|i| out.put(block(&pool, i, &[7; BLOCK])).unwrap());
                out.end(b"").unwrap();
            });
            let pool = Pool::new(BLOCK, 8).unwrap();
            std::thread::spawn(move || {
                let mut inc = inc.takes(&pool, 8);
                let count = std::iter::from_fn(|| inc.next().unwrap()).count() as u64;
                from.send(count).unwrap();
            });
        }
        for _ in 0..2 {
            assert_eq!(came.recv_timeout(Duration::from_secs(30)), Ok(BLOCKS), "nobody moves any more");
        }
    }
}

#[test]
fn payloads_are_not_to_be_seen_on_the_way() {
    let city = City::new();
    let secret = b"the secret of the river, 32 byte";
    let (seen, (near, far)) = city.tapped_link(Terms::default());
    let (mut out, inc) = near.open(b"look").unwrap();
    let pool = Pool::new(BLOCK, 4).unwrap();
    let mut inc = inc.takes(&pool, 1);
    let (_, mut answer, there) = far.accept().unwrap().unwrap();
    let reader = std::thread::spawn({
        let pool = pool.clone();
        move || {
            let mut there = there.takes(&pool, 1);
            let told = there.next().unwrap().unwrap().to_vec();
            assert!(there.next().unwrap().is_none());
            told
        }
    });
    out.send(0, &mut secret.to_vec()).unwrap();
    out.end(b"").unwrap();
    assert_eq!(reader.join().unwrap(), secret);
    answer.end(b"").unwrap();
    assert!(inc.next().unwrap().is_none());
    let seen = seen.lock().unwrap();
    let found = seen.windows(secret.len()).any(|w| w == secret);
    assert!(!found, "{} bytes went by", seen.len());
}

/// What went wrong: on unencrypted links, which existed then, a proxy of forty lines made a node run a command.
#[test]
fn what_a_proxy_puts_between_or_changes_ends_the_link_and_asks_nothing() {
    let city = City::new();
    let request =
        br#"{"exec":{"job":"00","command":["touch","pwned"],"env":[],"stdin":false,"detach":true}}"#;
    for sequence in 0..4 {
        let (tap, (far, near)) = city.cuttable_link(Terms::default());
        near.keep().unwrap();
        let mut head = Head::control(Kind::Open, 1, 0, request);
        head.sequence = sequence;
        tap.inject(&[&head.encode()[..], request].concat());
        let why = far.accept().map(|asked| asked.map(|(request, ..)| request)).unwrap_err();
        assert!(matches!(why.what, What::Refused(_)), "{why}");
    }
    // A bit in the middle of another peer's request: a dropped stream would be noticed in the same piece.
    let (tap, (far, near)) = city.cuttable_link(Terms::default());
    tap.flip.store(true, Ordering::Relaxed);
    let _asks = near.open(request).unwrap();
    let why = far.accept().map(|asked| asked.map(|(request, ..)| request)).unwrap_err();
    assert!(why.to_string().contains("changed on the way"), "{why}");
}

#[test]
fn a_stream_that_nobody_reads_holds_up_no_other() {
    let city = City::new();
    let (near, far) = city.link(Terms::default());
    let pool = Pool::new(BLOCK, 16).unwrap();
    let (mut idle, _idle_in) = near.open(b"idle").unwrap();
    let (mut busy, _busy_in) = near.open(b"busy").unwrap();
    let (_, _a, idle_there) = far.accept().unwrap().unwrap();
    let (_, _b, busy_there) = far.accept().unwrap().unwrap();
    // Two blocks of the idle stream are reserved, and never fetched.
    let _idle_there = idle_there.takes(&pool, 2);
    let mut busy_there = busy_there.takes(&pool, 2);
    std::thread::scope(|scope| {
        let pool = &pool;
        let stuck = scope.spawn(move || {
            let sent = (0..3).map(|i| idle.put(block(pool, i, b"x"))).collect::<Vec<_>>();
            (sent, idle)
        });
        let reader = scope.spawn(move || {
            let mut bytes = 0;
            while let Some(block) = busy_there.next().unwrap() {
                bytes += block.len();
            }
            bytes
        });
        for i in 0..200 {
            busy.put(block(pool, i * BLOCK as u64, &noise(i, BLOCK))).unwrap();
        }
        busy.finish().unwrap();
        assert_eq!(reader.join().unwrap(), 200 * BLOCK);
        assert!(!stuck.is_finished(), "the third block has no credit");
        drop(_idle_there);
        let (sent, _idle) = stuck.join().unwrap();
        let why = sent[2].as_ref().unwrap_err().to_string();
        assert_eq!(why, "n1 gave up: the other side wants no more of it");
    });
}

#[test]
fn dropping_an_end_tells_the_other_and_brings_all_blocks_home() {
    let city = City::new();
    let (near, far) = city.link(Terms::default());
    let pool = Pool::new(BLOCK, 8).unwrap();
    for _ in 0..20 {
        let (mut out, inc) = near.open(b"").unwrap();
        let (_, answer, there) = far.accept().unwrap().unwrap();
        let there = there.takes(&pool, 4);
        out.put(block(&pool, 0, &noise(1, 100_000))).unwrap();
        drop((out, inc));
        drop(answer);
        let why = there.takes(&pool, 4).last_error();
        let given_up = matches!(&why, Some(LinkError { what: What::Aborted(_) | What::GivenUp, .. }));
        assert!(given_up, "{why:?}");
    }
    assert_eq!(pool.free(), 8);
    let (near_out, _) = near.open(b"still there").unwrap();
    assert_eq!(far.accept().unwrap().unwrap().0, b"still there");
    near_out.abort("enough").unwrap();
}

/// The side that opened a stream announces credits with its next frame, or soon.
#[test]
fn what_is_promised_leaves_with_what_is_said_next_or_soon() {
    let city = City::new();
    let (near, far) = city.link(Terms::default());
    let pools = [Pool::new(BLOCK, 4).unwrap(), Pool::new(BLOCK, 4).unwrap()];
    thread::scope(|scope| {
        for speaks in [true, false] {
            let (mut out, inc) = near.open(b"some").unwrap();
            let (_, mut answer, inc_there) = far.accept().unwrap().unwrap();
            let mut inc_there = inc_there.takes(&pools[1], 2);
            let told = given(inc, &pools[0], 2, false);
            if speaks {
                out.send(0, &mut noise(1, 40_000)).unwrap();
                assert!(*inc_there.next_on().unwrap().unwrap().1 == noise(1, 40_000));
            }
            answer.send(1, &mut b"what there was a promise for".to_owned()).unwrap();
            if speaks {
                // Nobody read there until now.
                scope.spawn(|| while let Ok(Some(_)) = near.accept() {});
            }
            assert_eq!(told.recv().unwrap(), "1: what there was a promise for");
            answer.end(&[]).unwrap();
            assert_eq!(told.recv().unwrap(), "all");
            out.end(b"all").unwrap();
            assert!(inc_there.next_on().unwrap().is_none() && inc_there.result() == Some(b"all"));
        }
        near.close();
    });
}

/// Another thread reads the link while one sends, and handles the peer's abort: nothing of the stream may follow.
#[test]
fn a_stream_given_up_while_a_block_is_about_to_leave_breaks_no_rule() {
    let city = City::new();
    let (near, far) = city.link(Terms::default());
    let pools = [Pool::new(4096, 8).unwrap(), Pool::new(4096, 8).unwrap()];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while let Some((_, _out, inc)) = far.accept().unwrap() {
                let mut inc = inc.takes(&pools[1], 8);
                inc.next_on().unwrap().expect("a block");
            }
        });
        for _ in 0..3000 {
            let (mut out, inc) = near.open(b"some").unwrap();
            let reader = scope.spawn(|| inc.takes(&pools[0], 2).next_on().unwrap_err());
            while out.send(0, &mut [7; 100]).is_ok() {}
            reader.join().unwrap();
        }
        assert!(near.is_open() && far.is_open());
        near.close();
    });
}

trait LastError {
    fn last_error(self) -> Option<LinkError>;
}

impl LastError for thalweg_wire::Incoming {
    fn last_error(mut self) -> Option<LinkError> {
        loop {
            match self.next() {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(error) => return Some(error),
            }
        }
    }
}

#[test]
fn a_frozen_peer_is_found_out_in_the_stated_time_and_a_slow_one_is_not() {
    let city = City::new();
    let terms = Terms { patience: patience(1_000), ..Terms::default() };
    let (near, far) = city.link(terms);
    // The far side only keeps the link open, which is enough to count as alive.
    far.keep().unwrap();
    let waiting = std::thread::spawn(move || {
        let begun = Instant::now();
        (near.accept().map(|_| ()), begun.elapsed())
    });
    std::thread::sleep(Duration::from_millis(2_500));
    assert!(!waiting.is_finished(), "a kept link lives");
    far.close();
    assert!(waiting.join().unwrap().0.is_ok());

    // This one is neither read nor kept open.
    let (near, far) = city.link(terms);
    let begun = Instant::now();
    let why = near.accept().map(|_| ()).unwrap_err().to_string();
    assert!(why.starts_with("link with n1 closed: it has said nothing for 1."), "{why}");
    assert!(begun.elapsed() < Duration::from_millis(2_000), "{:?}", begun.elapsed());
    // It learns the reason when it reads again.
    let why = far.accept().map(|_| ()).unwrap_err().to_string();
    let said = " closed: it says that this side has said nothing for 1.";
    assert!(why.contains(said), "{why}");
}

/// What went wrong: only the header of a block counted as a sign of life, and the receiver sent none during the rest.
#[test]
fn a_block_may_take_longer_than_a_peer_is_patient() {
    let city = City::new();
    let bytes = 1 << 20;
    let terms = Terms { block_bytes: bytes as u32, patience: patience(1_000) };
    let (tap, (near, far)) = city.cuttable_link(terms);
    near.keep().unwrap();
    let (mut out, _inc) = near.open(b"").unwrap();
    let (_, _answer, there) = far.accept().unwrap().unwrap();
    let pool = Pool::new(bytes, 2).unwrap();
    let mut there = there.takes(&pool, 1);
    tap.slow_ms.store(150, Ordering::Relaxed);
    let sending = std::thread::spawn(move || out.send(0, &mut noise(7, bytes)).map(|()| out));
    let begun = Instant::now();
    let (_, block) = there.next_on().unwrap().expect("the block");
    assert!(block[..] == noise(7, bytes)[..] && begun.elapsed() > Duration::from_millis(1_500));
    sending.join().unwrap().unwrap();
    assert!(near.is_open() && far.is_open());
}

/// The connection accepts nothing more, and its own timeout is later than the reader's.
#[test]
fn who_sends_to_a_frozen_peer_learns_it_from_who_reads() {
    let city = City::new();
    let bytes = 1 << 20;
    let terms = Terms { block_bytes: bytes as u32, patience: patience(2_000) };
    let (near, far) = city.link(terms);
    let (mut out, _inc) = near.open(b"").unwrap();
    let (_, _answer, there) = far.accept().unwrap().unwrap();
    let pool = Pool::new(bytes, 64).unwrap();
    let _there = there.takes(&pool, 64);
    near.keep().unwrap();
    let begun = Instant::now();
    let sent = std::iter::repeat_with(|| out.send(0, &mut noise(7, bytes))).find_map(Result::err);
    let why = sent.expect("an error").to_string();
    assert!(why.contains("has said nothing for "), "{why}");
    assert!(begun.elapsed() < Duration::from_millis(3_750), "{:?}", begun.elapsed());
}

#[test]
fn a_cut_link_says_so_to_everyone_who_waits() {
    let city = City::new();
    let (tap, (near, far)) = city.cuttable_link(Terms::default());
    let (mut out, inc) = near.open(b"").unwrap();
    let (_, _answer, there) = far.accept().unwrap().unwrap();
    let pool = Pool::new(BLOCK, 4).unwrap();
    let mut there = there.takes(&pool, 1);
    std::thread::scope(|scope| {
        let waits = [
            scope.spawn(|| near.accept().map(|_| ()).unwrap_err()),
            scope.spawn(|| far.accept().map(|_| ()).unwrap_err()),
            scope.spawn(|| there.next().map(|_| ()).unwrap_err()),
        ];
        std::thread::sleep(Duration::from_millis(50));
        tap.cut();
        for wait in waits {
            let why = wait.join().unwrap().to_string();
            assert!(why.contains("is cut"), "{why}");
        }
    });
    let why = out.send(0, &mut [1]).unwrap_err().to_string();
    assert!(why.contains("is cut"), "{why}");
    drop((out, inc, there));
    assert_eq!(pool.free(), 4);
}

/// The answer of a node of the test cluster to bytes that are not a link.
fn strange(city: &City, bytes: &[u8], patience: Duration) -> (String, Duration) {
    let (address, accepted) = city.accept_one();
    let begun = Instant::now();
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(patience)).unwrap();
    socket.write_all(bytes).unwrap();
    let _ = socket.read_to_end(&mut Vec::new());
    let why = accepted.join().unwrap().unwrap_err().to_string();
    (why, begun.elapsed())
}

#[test]
fn strangers_are_refused_in_one_line_and_soon() {
    let city = City::new();
    let soon = Duration::from_secs(2);
    for bytes in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], &noise(5, 4096), &[22, 3, 1, 255, 255], &(1u64 << 63).to_be_bytes()]
    {
        let (why, took) = strange(&city, bytes, soon);
        assert!(why.contains("is not TLS") && why.lines().count() == 1, "{why}");
        assert!(took < soon, "{took:?}");
    }
    // Half a TLS hello, and then nothing: a slow loris.
    let (why, took) = strange(&city, &[22, 3, 1, 1, 0, 1], Duration::from_secs(10));
    assert!(why.contains("no handshake within 5 s"), "{why}");
    assert!((4..8).contains(&took.as_secs()), "{took:?}");
}

#[test]
fn certificates_that_do_not_hold_are_refused_and_both_sides_learn_why() {
    let city = City::new();
    let cases = [
        (city.expired_credentials(), "its certificate has expired", "our certificate is expired"),
        (
            City::new().credentials("n1"),
            "its certificate is of another cluster",
            "its certificate is of another cluster",
        ),
        (city.dropped_credentials(), "it was dropped from the cluster", "our certificate was dropped"),
    ];
    for (credentials, here, there) in cases {
        let (address, accepted) = city.accept_one();
        let theirs =
            credentials.connect("n2", address, Terms::default()).map(|_| ()).unwrap_err().to_string();
        assert!(theirs.contains(there), "{theirs}");
        let ours = accepted.join().unwrap().unwrap_err().to_string();
        // A client that rejects the server's certificate sends a TLS alert.
        assert!(ours.contains(here) || ours.contains("nknownCA") || ours.contains("DecryptError"), "{ours}");
    }
    let (address, accepted) = city.accept_one();
    let why =
        city.credentials("n1").connect("n3", address, Terms::default()).map(|_| ()).unwrap_err().to_string();
    assert!(why.contains("its certificate names another host"), "{why}");
    assert!(accepted.join().unwrap().is_err());
}

#[test]
fn a_link_goes_through_pipes_behind_a_line_from_each_side() {
    let ends =
        |from: std::io::PipeReader, to: std::io::PipeWriter| Pipes::new(from.into(), to.into()).unwrap();
    let ((there_in, out), (inc, there_out)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
    let (mut near, mut far) = (ends(inc, out), ends(there_in, there_out));
    let mut looked = 0;
    let nothing = near.hear(|| {
        looked += 1;
        looked < 2
    });
    assert_eq!((nothing.unwrap(), looked), (Heard::Nothing, 2));
    let patience = Duration::from_secs(1);
    far.say("who is there?", patience).unwrap();
    assert_eq!(near.hear(|| true).unwrap(), Heard::Line(b"who is there?".into()));
    let meeting = new_id();
    std::thread::scope(|scope| {
        let far = scope.spawn(|| {
            assert_eq!(far.hear(|| true).unwrap(), Heard::Line(b"".into()));
            far.link("near", (meeting, Role::Node), Terms::default()).unwrap()
        });
        near.say("", patience).unwrap();
        let near = near.link("far", (meeting, Role::Client), Terms::default()).unwrap();
        let far = far.join().unwrap();
        converse(&near, &far);
        assert!(near.bytes().1 > 2 << 20);
        drop(near);
        assert!(far.accept().unwrap().is_none());
    });
}

/// A sender finds its direction broken, while another thread waits for the other direction, which still works.
#[test]
fn what_comes_of_a_link_that_a_sender_found_broken_is_nobodys() {
    let (out, mut passes_on) = UnixStream::pair().unwrap();
    let cut = passes_on.try_clone().unwrap();
    let ((there_in, mut there), (inc, there_out)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
    thread::scope(|scope| {
        let _passing = scope.spawn(move || {
            let mut some = [0; 4096];
            while let Ok(came @ 1..) = passes_on.read(&mut some) {
                // At the end the far side may have gone before the last frame.
                if there.write_all(&some[..came]).is_err() {
                    break;
                }
            }
            // Returned, so that the far side's receiving half stays.
            there
        });
        let far = Pipes::new(there_in.into(), there_out.into()).unwrap();
        let meeting = new_id();
        let far = scope.spawn(move || far.link("near", (meeting, Role::Node), Terms::default()).unwrap());
        let near = Pipes::new(inc.into(), out.into()).unwrap();
        let near = near.link("far", (meeting, Role::Client), Terms::default()).unwrap();
        let far = far.join().unwrap();
        let pool = Pool::new(BLOCK, 2).unwrap();
        let told = given(near.ask(b"?", None).unwrap(), &pool, 2, false);
        let (_, mut answer, _inc) = far.accept().unwrap().unwrap();
        thread::scope(|scope| {
            let reads = scope.spawn(|| near.accept().map(drop).unwrap_err());
            answer.send(1, &mut b"one".to_owned()).unwrap();
            assert_eq!(told.recv().unwrap(), "1: one");
            cut.shutdown(Shutdown::Both).unwrap();
            // While another thread sends, it sends this request too, and is the one that fails.
            while near.open(b"another").is_ok() {
                thread::yield_now();
            }
            assert!(told.recv().unwrap().contains("Cut"), "it has been given up");
            answer.send(1, &mut b"two".to_owned()).unwrap();
            assert!(matches!(reads.join().unwrap().what, What::Cut(_)));
        });
        assert_eq!(pool.free(), 2);
    });
}

#[test]
fn a_pipe_that_ends_or_never_ends_a_line_is_told() {
    let (from, mut there) = std::io::pipe().unwrap();
    let (_back, to) = std::io::pipe().unwrap();
    let mut channel = Pipes::new(from.into(), to.into()).unwrap();
    there.write_all(&[b'x'; 20 << 10]).unwrap();
    assert!(matches!(channel.hear(|| true).unwrap(), Heard::Part(part) if part.len() >= 16 << 10));
    there.write_all(b"half").unwrap();
    drop(there);
    let Heard::Part(part) = channel.hear(|| true).unwrap() else { panic!("there is no whole line") };
    assert!(part.ends_with(b"half"));
    let error = channel.link("far", (new_id(), Role::Client), Terms::default()).unwrap_err();
    assert!(matches!(error.what, What::Cut(_)), "{error}");
}

#[test]
fn those_who_meet_once_know_each_other_and_no_third() {
    let meeting = new_id();
    let side = |role| TemporaryIdentity::new(meeting, role).unwrap();
    let (near, far, third) = (side(Role::Client), side(Role::Node), side(Role::Client));
    let server = far.meets("far", &near.authority()).unwrap();
    let door = listen([127, 0, 0, 1].into()).unwrap();
    let at = door.local_addr().unwrap();
    std::thread::scope(|scope| {
        let accepts = scope.spawn(|| {
            let accept = || server.accept(door.accept().unwrap().0, Terms::default());
            (accept().map(|_| ()), accept().map(|_| ()))
        });
        let ours = near.meets("near", &far.authority()).unwrap();
        let link = ours.connect("far", at, Terms::default()).unwrap();
        assert_eq!(link.peer(), "far");
        // It was told of the meeting and knows the server, but the server does not know it.
        let theirs = third.meets("near", &far.authority()).unwrap();
        let met = theirs.connect("far", at, Terms::default());
        let (first, second) = accepts.join().unwrap();
        assert!(first.is_ok(), "{first:?}");
        assert!(matches!(second.unwrap_err().what, What::Refused(_)) && met.is_err());
    });
}

/// Answers one request with two blocks and an end; returns the request.
fn answer(link: &Link) -> Vec<u8> {
    let (request, mut out, inc) = link.accept().unwrap().expect("a request");
    out.send(1, &mut b"one".to_owned()).unwrap();
    out.send(2, &mut b"two".to_owned()).unwrap();
    out.end(b"that was all").unwrap();
    drop(inc);
    request
}

#[test]
fn a_request_with_the_hello_is_answered() {
    let city = City::new();
    let terms = Terms::default();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let credentials = city.second.clone();
    let far = thread::spawn(move || {
        let link = credentials.accept(listener.accept().unwrap().0, terms).unwrap();
        (answer(&link), link)
    });
    let pool = Pool::new(BLOCK, 4).unwrap();
    let (link, mut inc) = city
        .credentials("n1")
        .connect_and_ask(("n2", address), terms, b"what is there?", Some((&pool, 2)))
        .unwrap();
    let mut came = Vec::new();
    while let Some((channel, block)) = inc.next_on().unwrap() {
        came.push((channel, block.to_vec()));
    }
    assert_eq!(came, [(1, b"one".to_vec()), (2, b"two".to_vec())]);
    assert_eq!(inc.result(), Some(&b"that was all"[..]));
    let (request, _far) = far.join().unwrap();
    assert_eq!(&request[..], b"what is there?");
    drop(link);
    drop(inc);
    assert_eq!(pool.free(), 4);
}

#[test]
fn a_request_with_the_hello_to_a_stranger_says_why_not() {
    let (city, other) = (City::new(), City::new());
    let (address, _accepted) = other.accept_one();
    let asked = city.credentials("n1").connect_and_ask(("n2", address), Terms::default(), b"?", None);
    let why = asked.map(|_| ()).unwrap_err().to_string();
    assert!(
        why.contains("n2 at 127.0.0.1") && why.contains("its certificate is of another cluster"),
        "{why}"
    );
}

#[test]
fn news_are_as_many_as_there_is_to_hear_before_and_after_somebody_listens() {
    for late in [false, true] {
        let (near, far) = pair(Terms::default()).unwrap();
        let pool = Pool::new(BLOCK, 4).unwrap();
        let inc = near.ask(b"?", Some((&pool, 2))).unwrap();
        let (tell, told) = channel();
        let listen = || inc.on_news(move |what| tell.send(what).unwrap());
        thread::scope(|scope| {
            let reads = || while let Ok(Some(_)) = near.accept() {};
            if late {
                answer(&far);
                // Everything had been read when the link's end arrived.
                far.close();
                reads();
                listen();
            } else {
                listen();
                scope.spawn(reads);
                answer(&far);
                far.close();
            }
        });
        let heard: Vec<News> = told.try_iter().collect();
        assert_eq!(heard[..3], [News::Block, News::Block, News::End], "late: {late}");
        assert!(heard[3..].iter().all(|what| *what == News::End), "the link's own: {heard:?}");
    }
}

/// What arrives on a stream that is handed over, in words, including its end.
fn given(inc: Incoming, pool: &Pool, window: usize, keep: bool) -> Receiver<String> {
    let ((tell, told), mut kept) = (channel(), Vec::new());
    inc.give(pool, window, move |came| {
        let word = match came {
            Gift::Block(channel, block) => {
                let word = format!("{channel}: {}", String::from_utf8_lossy(&block));
                kept.extend(Some(block).filter(|_| keep));
                word
            }
            Gift::End(said) => format!("all{}", String::from_utf8_lossy(&said)),
            Gift::Not(what) => format!("{what:?}"),
        };
        tell.send(word).unwrap();
    });
    told
}

#[test]
fn what_is_given_away_comes_without_being_asked_for() {
    let pool = Pool::new(BLOCK, 3).unwrap();
    for late in [false, true] {
        let (near, far) = pair(Terms::default()).unwrap();
        let inc = near.ask(b"?", None).unwrap();
        let (seen, sees) = channel();
        let reads = thread::spawn(move || {
            while let Ok(Some((request, ..))) = near.accept() {
                seen.send(request).unwrap()
            }
        });
        let puts = thread::spawn(move || {
            let (_, mut out, _inc) = far.accept().unwrap().unwrap();
            let words = if late { 0 } else { 100 };
            (0..words).for_each(|i| out.send(1, &mut i.to_string().into_bytes()).unwrap());
            out.end(b", so far").unwrap();
            drop(far.open(b"what comes behind it").unwrap());
            far
        });
        if late {
            // Then its end has been read.
            assert_eq!(sees.recv().unwrap(), b"what comes behind it");
        }
        let words = if late { 0..0 } else { 0..100 };
        let words = words.map(|i| format!("1: {i}")).chain(["all, so far".to_string()]);
        assert!(given(inc, &pool, 2, false).iter().eq(words), "late: {late}");
        puts.join().unwrap().close();
        reads.join().unwrap();
    }
    assert_eq!(pool.free(), 3);
}

#[test]
fn what_is_given_away_ends_with_its_link_or_without_a_block_for_it() {
    for short in [false, true] {
        let (near, far) = pair(Terms::default()).unwrap();
        let pool = Pool::new(BLOCK, 2).unwrap();
        let told = given(near.ask(b"?", None).unwrap(), &pool, 2, true);
        let reads = thread::spawn(move || while let Ok(Some(_)) = near.accept() {});
        let (_, mut out, inc) = far.accept().unwrap().unwrap();
        out.send(1, &mut b"one".to_owned()).unwrap();
        assert_eq!(told.recv().unwrap(), "1: one");
        if short {
            // The receiver holds the block, and the pool has none for the second.
            out.send(1, &mut b"two".to_owned()).unwrap();
            assert_eq!(told.recv().unwrap(), "1: two");
            assert!(told.recv().unwrap().contains("no block is left"), "it is given up");
            let error = (0..).find_map(|_| out.send(1, &mut b"more".to_owned()).err()).unwrap();
            assert!(matches!(error.what, What::GivenUp), "{error}");
        } else {
            far.close();
            assert_eq!(told.recv().unwrap(), "Closed");
        }
        assert_eq!(told.recv().ok(), None, "once");
        far.close();
        drop((out, inc, far));
        reads.join().unwrap();
        assert_eq!(pool.free(), 2);
    }
}

#[test]
fn who_may_still_say_something_is_told_to_stop_behind_the_answer() {
    let (near, far) = pair(Terms::default()).unwrap();
    let (mut out, _inc) = near.open(b"take this").unwrap();
    let (_, mut answer, heard) = far.accept().unwrap().unwrap();
    answer.end(b"no, thanks").unwrap();
    drop((answer, heard));
    // Otherwise it would wait for a credit that nobody grants.
    let error = out.send(0, &mut b"something".to_owned()).unwrap_err();
    assert!(matches!(error.what, What::GivenUp), "{error}");
}
