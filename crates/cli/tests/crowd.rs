//! Very many clients that connect to a node and send little: other clients do not notice, and memory is bounded.
#![allow(clippy::disallowed_methods)] // Strangers open sockets in other ways.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::nodes::Nodes;
use thalweg_io::process;

/// As many connections as the system lets this process open, less those that it needs itself.
fn crowd(nodes: &Nodes, most: usize) -> Vec<TcpStream> {
    let files = process::allow_open_files(most as u64 + 200) as usize;
    let count = most.min(files.saturating_sub(100));
    if count < most {
        println!("only {count} connections: the system allows {files} open files");
    }
    (0..count).filter_map(|_| TcpStream::connect(("127.0.0.1", nodes.ports[0])).ok()).collect()
}

#[test]
fn ten_thousand_connections_disturb_no_job_and_take_no_memory() {
    let nodes = Nodes::start(1);
    let before = nodes.status().hosts[0].status.clone().unwrap();
    // A job that prints twenty times a second; its pauses are measured.
    let script = "i=0; while [ $i -lt 1000 ]; do i=$((i+1)); echo $i; sleep 0.05; done";
    let mut client = nodes.place.command(&["exec", "--", "sh", "-c", script]);
    let mut client = client.env("THALWEG_IDENTITY", "own").stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(client.stdout.take().unwrap());
    out.read_line(&mut String::new()).unwrap();
    let longest = std::thread::spawn(move || {
        let (mut last, mut longest, mut lines) = (Instant::now(), Duration::ZERO, 0);
        for _ in out.lines().map_while(Result::ok) {
            longest = longest.max(last.elapsed());
            last = Instant::now();
            lines += 1;
        }
        (longest, lines)
    });
    let mut crowd = crowd(&nodes, 10_000);
    assert!(crowd.len() > 900, "{} connections", crowd.len());
    // Some of them begin to send, one byte at a time.
    let begun = Instant::now();
    for round in 0..5 {
        let some = crowd.len().saturating_sub(200);
        for loris in &mut crowd[some..] {
            let _ = loris.write_all(&[[22, 3, 1, 2, 0][round]]);
        }
        let asked = Instant::now();
        nodes.run(&["exec", "--", "true"]).is_done();
        assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
        std::thread::sleep(Duration::from_millis(200));
    }
    let after = nodes.status().hosts[0].status.clone().unwrap();
    let grown = after.resident_bytes.saturating_sub(before.resident_bytes);
    assert!(grown < 48 << 20, "{grown} bytes more");
    let given_way = (after.refused - before.refused) as usize;
    assert!(given_way + 300 >= crowd.len(), "{given_way} of {} gave way", crowd.len());
    // The last of them is disconnected when its time is over.
    let mut last = crowd.pop().unwrap();
    last.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    assert_eq!(last.read(&mut [0; 64]).unwrap_or(0), 0);
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
    client.kill().unwrap();
    client.wait().unwrap();
    let (longest, lines) = longest.join().unwrap();
    assert!(lines > 20 && longest < Duration::from_secs(1), "a pause of {longest:?} in {lines} lines");
}

#[test]
fn one_of_ours_that_asks_slowly_is_hung_up_on_too() {
    let nodes = Nodes::start(1);
    let address = format!("127.0.0.1:{}", nodes.ports[0]);
    let mut slow = Command::new("openssl");
    slow.args(["s_client", "-quiet", "-connect", &address, "-servername", "n1", "-alpn", "http/1.1"]);
    slow.args(["-cert", "own/cert.pem", "-key", "own/key.pem", "-CAfile", "own/authority.pem"]);
    slow.current_dir(&nodes.place.0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let begun = Instant::now();
    let mut slow = slow.spawn().expect("openssl is there");
    let mut stdin = slow.stdin.take().unwrap();
    stdin.write_all(b"GET /v1/status HTTP/1.1\r\nHost: n1\r\nX-Slow: ").unwrap();
    let ended = loop {
        // A byte now and then does not count as progress.
        let _ = stdin.write_all(b"x");
        if slow.try_wait().unwrap().is_some() {
            break begun.elapsed();
        }
        assert!(begun.elapsed() < Duration::from_secs(12), "it still listens");
        std::thread::sleep(Duration::from_millis(100));
    };
    assert!(ended >= Duration::from_secs(4), "hung up on after {ended:?}, which is no time to ask in");
    nodes.run(&["exec", "--", "true"]).is_done();
}
