//! A Redis client for a test.
#![allow(dead_code)] // Each program of tests uses its part.

use std::io::{BufRead, BufReader, Read, Write};

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
