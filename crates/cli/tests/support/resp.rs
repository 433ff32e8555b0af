//! A Redis client for a test.
#![allow(dead_code)] // Each program of tests uses its part.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};

use thalweg_base::rng::Rng;

/// A client that sees the bytes of replies.
pub(crate) struct Client<S>(pub(crate) BufReader<S>);

impl<S: Read + Write> Client<S> {
    pub(crate) fn new(socket: S) -> Client<S> {
        Client(BufReader::new(socket))
    }

    pub(crate) fn send(&mut self, words: &[&[u8]]) {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend(format!("${}\r\n", word.len()).bytes());
            request.extend_from_slice(word);
            request.extend(b"\r\n");
        }
        self.0.get_mut().write_all(&request).unwrap();
    }

    /// The bytes of one reply; of an error, its code alone.
    pub(crate) fn reply(&mut self) -> Vec<u8> {
        let mut reply = Vec::new();
        let n = self.0.read_until(b'\n', &mut reply).unwrap();
        assert!(n > 0, "the server hung up");
        let number = || -> i64 { std::str::from_utf8(&reply[1..n - 2]).unwrap().parse().unwrap() };
        let mut parts = 0;
        match reply[0] {
            b'-' => return reply.split(|byte| *byte == b' ').next().unwrap().to_vec(),
            b'$' if number() >= 0 => {
                let mut bytes = vec![0; number() as usize + 2];
                self.0.read_exact(&mut bytes).unwrap();
                reply.extend(bytes);
            }
            b'*' => parts = number().max(0),
            b'%' => parts = 2 * number(),
            _ => {}
        }
        (0..parts).for_each(|_| reply.extend(self.reply()));
        reply
    }

    /// The line of a reply that is an error.
    pub(crate) fn error(&mut self, line: &str) -> String {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.send(&words);
        let mut reply = String::new();
        self.0.read_line(&mut reply).unwrap();
        assert!(reply.starts_with('-'), "{line}: {reply}");
        reply
    }

    pub(crate) fn ask(&mut self, line: &str) -> String {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.send(&words);
        String::from_utf8_lossy(&self.reply()).into_owned()
    }
}

/// The keys that are there throughout a test of scans.
const FIXED: u32 = 300;
/// The clients that change other keys meanwhile, and those that scan.
const CHANGERS: u64 = 8;
const SCANNERS: usize = 3;

/// The cursor and the keys of a reply to a scan.
fn scanned(reply: &str) -> (String, Vec<&str>) {
    let mut lines = reply.split("\r\n").skip(2);
    let cursor = lines.next().unwrap_or_else(|| panic!("{reply}")).to_string();
    (cursor, lines.skip(2).step_by(2).collect())
}

/// Scans keys, and fields of a hash, on several connections, while others change them. Each scan has everything that is
/// there throughout, and a cursor is refused unless it was given for the scan.
pub(crate) fn scan_while_others_change(connect: impl Fn() -> Client<TcpStream> + Sync) {
    let mut client = connect();
    for i in 0..FIXED {
        client.ask(&format!("SET fixed:{i:04} v"));
        client.ask(&format!("HSET scanned fixed:{i:04} v"));
    }
    let is_over = AtomicBool::new(false);
    let (connect, is_over) = (&connect, &is_over);
    std::thread::scope(|scope| {
        for seed in 0..CHANGERS {
            scope.spawn(move || {
                let (mut client, mut rng) = (connect(), Rng::new(seed));
                while !is_over.load(Ordering::Relaxed) {
                    let key = format!("{}:{}", ["a", "fixed:01", "z"][rng.below(3) as usize], rng.below(500));
                    let line =
                        ["SET K v", "DEL K", "HSET scanned K v", "HDEL scanned K"][rng.below(4) as usize];
                    client.ask(&line.replace('K', &key));
                }
            });
        }
        let scanners: Vec<_> = (0..SCANNERS).map(|_| scope.spawn(move || scan(&mut connect()))).collect();
        let ended: Vec<_> = scanners.into_iter().map(|scanner| scanner.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok));
    });
}

fn scan(client: &mut Client<TcpStream>) {
    let expected: BTreeSet<String> = (0..FIXED).map(|i| format!("fixed:{i:04}")).collect();
    for (line, other) in
        [("SCAN @ COUNT 40", "HSCAN scanned @"), ("HSCAN scanned @ COUNT 40 NOVALUES", "SCAN @")]
    {
        let (mut seen, mut cursor) = (BTreeSet::new(), "0".to_string());
        loop {
            let reply = client.ask(&line.replace('@', &cursor));
            let (next, keys) = scanned(&reply);
            seen.extend(keys.into_iter().map(String::from));
            if next == "0" {
                break;
            }
            cursor = next;
            let number: u64 = cursor.parse().unwrap();
            for wrong in [1, 2, 3, number - 1, number + 1] {
                assert_eq!(client.ask(&format!("SCAN {wrong}")), "-ERR", "{wrong} beside {number}");
            }
            assert_eq!(client.ask(&other.replace('@', &cursor)), "-ERR");
        }
        let missed: Vec<_> = expected.difference(&seen).collect();
        assert!(missed.is_empty(), "{line} missed {} keys, as {}", missed.len(), missed[0]);
    }
}
