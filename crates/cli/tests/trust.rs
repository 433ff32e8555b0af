//! Who is accepted, and for how long: the signed cluster file, its epochs, clients with rights, and what happens to
//! dropped peers, seen from outside.
//!
//! Invariant: a test ends every node that it starts.
#![allow(clippy::disallowed_methods)] // Users of the command open files and sockets in other ways.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, Stdio};
use std::time::{Duration, Instant};

use support::nodes::{Nodes, terminate};
use support::{Outcome, Place, Running, may_give_away, until};
use thalweg_api::{
    AuditLine, ClusterDoctor, ClusterFile, ClusterReport, CommandRequest, DroppedHost, HostRequest, Links,
    ServiceRequest, from_json,
};
use thalweg_wire::{
    Authority, Credentials, Id, Identity, Link, Named, Role, Terms, Timeouts, key_of, read_cluster, sign,
};

const EXEC: [&str; 3] = ["exec", "--", "true"];

fn epochs(nodes: &Nodes) -> Vec<u64> {
    nodes.status().hosts.iter().map(|host| host.status.as_ref().map_or(0, |status| status.epoch)).collect()
}

/// Ends a node and waits until it is gone.
fn end(nodes: &mut Nodes, i: usize) {
    let mut node = nodes.running.remove(i);
    nodes.pids.remove(i);
    terminate(&node);
    node.wait().unwrap();
}

fn cluster(nodes: &Nodes, directory: &str) -> ClusterFile {
    read_cluster(&nodes.place.0.join(directory)).unwrap().0
}

/// The status code of the first node's answer to this client.
fn code(nodes: &Nodes, client: &str, args: &str) -> String {
    let own = format!("--cert {client}/cert.pem --key {client}/key.pem");
    nodes.curl(&format!("-o /dev/null -w '%{{http_code}}' {own} {args}")).out
}

#[test]
fn a_cluster_file_that_is_forged_or_not_signed_is_refused_by_everybody() {
    let nodes = Nodes::start(1);
    let text = String::from_utf8(nodes.place.read("own/cluster.json")).unwrap();
    nodes.place.write("forged.json", text.replace("\"epoch\":1", "\"epoch\":9").as_bytes());
    assert_eq!(code(&nodes, "own", "-X PUT --data-binary @forged.json N1/v1/cluster"), "409");
    assert_eq!(epochs(&nodes), [1]);
    nodes.place.shell("cp forged.json own/cluster.json").is_done();
    nodes.run(&EXEC).is_refused(&["own/cluster.json cannot be used", "signature is not the authority's"]);
    nodes.run(&["cluster", "drop", "n1"]).is_refused(&["signature is not the authority's"]);
    // A running node ignores it and keeps the file that it has; a node that is started with it refuses to start.
    nodes.place.shell("cp forged.json own/hosts/n1/cluster.json").is_done();
    let started = nodes.place.run(&["node", "run", "--identity", "own/hosts/n1"]);
    assert!(started.err.contains("signature is not the authority's"), "{started:?}");
    nodes.place.write("own/cluster.json", text.as_bytes());
    nodes.run(&EXEC).is_done();
    // A file from before files were signed: the owner signs it, and nobody else accepts it.
    let (open, _) = text.split_once(",\"signature\"").unwrap();
    let old = format!("{open}}}\n").replace("\"format\":2", "\"format\":1");
    nodes.place.write("own/cluster.json", old.as_bytes());
    nodes.run(&EXEC).is_refused(&["it is not signed", "thalweg cluster renew"]);
    nodes.run(&["cluster", "renew"]).is_done();
    until("all have new certificates", || nodes.run(&EXEC).status == Some(0));
}

/// What went wrong: 40,000 requests of a client that may only look rotated the audit log away in 5 s. Principle:
/// refused requests of a peer have a limited number of lines per minute, and cannot displace the entries of others.
#[test]
fn who_may_only_look_cannot_wash_the_audit_log() {
    let nodes = Nodes::start(1);
    nodes.run(&["exec", "--", "echo", "before-it"]).is_done();
    nodes.run(&["cluster", "client", "eye", "--may", "status"]).is_done();
    let urls = "N1/xxx[1-300]";
    assert_eq!(code(&nodes, "own/clients/eye", &format!("-X POST {urls}")).len(), 900);
    assert_eq!(
        code(&nodes, "own/clients/eye", &format!("-X ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEFGHIJK {urls}")).len(),
        900
    );
    assert_eq!(code(&nodes, "own/clients/eye", "-I N1/v1/status[1-100]").len(), 300);
    let link = linked(&nodes, "own/clients/eye", 0);
    let bad = HostRequest::Cluster(Some("no cluster file".into()));
    let same = HostRequest::Cluster(Some(String::from_utf8(nodes.place.read("own/cluster.json")).unwrap()));
    for _ in 0..100 {
        assert!(does(&link).is_err() && ask(&link, &bad).is_err() && ask(&link, &same).is_ok());
    }
    let text = String::from_utf8(nodes.place.read("own/hosts/n1/audit.log")).unwrap();
    let lines: Vec<AuditLine> = text.lines().map(|line| from_json(line).unwrap()).collect();
    let eye = &cluster(&nodes, "own").clients[1].id;
    let theirs: Vec<&AuditLine> = lines.iter().filter(|line| line.id == *eye).collect();
    // A minute may have ended in between.
    assert!((60..=180).contains(&theirs.len()), "{}", theirs.len());
    assert!(
        theirs.iter().all(|line| line.ended.starts_with("refused: ") && line.what.len() <= 32),
        "{theirs:?}"
    );
    assert!(lines.iter().any(|line| line.words.contains(&"before-it".to_string())));
}

/// What went wrong: a file from before links were encrypted was refused because it is not signed, and the remedy, to
/// sign it, was refused because its links are not encrypted.
#[test]
fn a_cluster_file_of_before_links_were_sealed_is_renewed_in_one_step() {
    let nodes = Nodes::start(1);
    let text = String::from_utf8(nodes.place.read("own/cluster.json")).unwrap();
    let (open, _) = text.split_once(",\"signature\"").unwrap();
    let old =
        format!("{open}}}\n").replace("\"format\":2", "\"format\":1").replace("\"sealed\"", "\"clear\"");
    let (authority, mut file) = authority(&nodes);
    (file.links, file.epoch) = (Links::Clear, 2);
    let cases = [(old, "it is not signed"), (sign(&file, &authority).unwrap(), "links that are not sealed")];
    for (text, why) in cases {
        nodes.place.write("own/cluster.json", text.as_bytes());
        nodes.run(&EXEC).is_refused(&[why, "in the owner's directory thalweg cluster renew"]);
        nodes.run(&["cluster", "add", "n2"]).is_refused(&[why, "thalweg cluster renew"]);
        nodes.run(&["cluster", "renew"]).is_done();
        assert_eq!(cluster(&nodes, "own").links, Links::Sealed);
    }
    until("all have new certificates", || nodes.run(&EXEC).status == Some(0));
}

#[test]
fn only_a_newer_epoch_is_taken() {
    let nodes = Nodes::start(2);
    nodes.place.shell("cp own/cluster.json first.json").is_done();
    nodes.run(&["cluster", "client", "ada"]).is_done();
    nodes.run(&["cluster", "client", "bob"]).is_done();
    assert_eq!(epochs(&nodes), [3, 3]);
    assert_eq!(code(&nodes, "own", "-X PUT --data-binary @first.json N1/v1/cluster"), "409", "older");
    assert_eq!(
        code(&nodes, "own", "-X PUT --data-binary @own/cluster.json N1/v1/cluster"),
        "200",
        "the same"
    );
    // The same epoch, signed by the same authority, with one client fewer.
    let (authority, mut file) = authority(&nodes);
    file.clients.pop();
    nodes.place.write("other.json", sign(&file, &authority).unwrap().as_bytes());
    assert_eq!(code(&nodes, "own", "-X PUT --data-binary @other.json N1/v1/cluster"), "409", "another");
    nodes.place.shell("cp first.json own/hosts/n1/cluster.json").is_done();
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(epochs(&nodes), [3, 3], "an older one in the node's own directory");
    nodes.run_as("own/clients/bob", &EXEC).is_done();
}

/// The owner's authority, and the cluster file.
fn authority(nodes: &Nodes) -> (Authority, ClusterFile) {
    let file = cluster(nodes, "own");
    let read = |name: &str| String::from_utf8(nodes.place.read(name)).unwrap();
    let id: Id = file.id.parse().unwrap();
    (Authority::load(id, &read("own/authority.pem"), &read("own/authority.key")).unwrap(), file)
}

/// Makes a client's certificate without adding it to the cluster file, or with a change there.
fn issued(nodes: &Nodes, directory: &str, id: Id, role: Role, days: i64) -> String {
    let (authority, file) = authority(nodes);
    let host = if role == Role::Node { "n1" } else { "client" };
    let named = Named { host: host.into(), node: id, cluster: file.id.parse().unwrap(), role };
    let issued = authority.issue(&named, days).unwrap();
    nodes.place.write(&format!("{directory}/cert.pem"), issued.certificate.as_bytes());
    nodes.place.write(&format!("{directory}/key.pem"), issued.key.as_bytes());
    key_of(&issued.certificate).unwrap()
}

#[test]
fn a_certificate_of_the_authoritys_that_is_not_listed_opens_nothing() {
    let nodes = Nodes::start(1);
    nodes.place.shell("cp -a own stranger").is_done();
    issued(&nodes, "stranger", thalweg_wire::new_id(), Role::Client, 365);
    nodes.run_as("stranger", &EXEC).is_refused(&["our certificate is not in its cluster file"]);
    assert_eq!(code(&nodes, "stranger", "N1/v1/status"), "000");
    // The id of a listed client, with another key.
    let own = cluster(&nodes, "own").clients[0].id.parse().unwrap();
    issued(&nodes, "stranger", own, Role::Client, 365);
    nodes.run_as("stranger", &EXEC).is_refused(&["our certificate is not in its cluster file"]);
    nodes.run(&EXEC).is_done();
}

/// What went wrong: any certificate that the authority had signed for a name was accepted as that host's, even a
/// client's.
#[test]
fn only_the_host_of_a_name_is_taken_for_it() {
    let nodes = Nodes::start(1);
    nodes.run(&["cluster", "client", "N1"]).is_refused(&["'N1' is there twice, as 'n1' too"]);
    nodes.run(&["cluster", "client", "eve"]).is_done();
    let (authority, mut file) = authority(&nodes);
    let eve = file.clients.last_mut().unwrap();
    let (node, cluster) = (eve.id.parse().unwrap(), file.id.parse().unwrap());
    let named = Named { host: "n1".into(), node, cluster, role: Role::Client };
    let issued = authority.issue(&named, 365).unwrap();
    (eve.key, file.epoch) = (key_of(&issued.certificate).unwrap(), file.epoch + 1);
    for directory in ["own", "own/clients/eve"] {
        nodes.place.write(&format!("{directory}/cluster.json"), sign(&file, &authority).unwrap().as_bytes());
    }
    nodes.place.write("own/clients/eve/cert.pem", issued.certificate.as_bytes());
    nodes.place.write("own/clients/eve/key.pem", issued.key.as_bytes());
    let credentials =
        |directory: &str| Credentials::of(Identity::load(&nodes.place.0.join(directory)).unwrap().0).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let (eve, host) = (credentials("own/clients/eve"), credentials("own/hosts/n1"));
    let accepting = std::thread::spawn(move || {
        [eve, host]
            .map(|credentials| credentials.accept(listener.accept().unwrap().0, Terms::default()).is_ok())
    });
    let own = credentials("own");
    let why = own.connect("n1", at, Terms::default()).unwrap_err().to_string();
    assert!(why.contains("its certificate names another host"), "{why}");
    own.connect("n1", at, Terms::default()).unwrap();
    assert_eq!(accepting.join().unwrap(), [false, true]);
}

#[test]
fn a_client_that_may_look_looks_and_does_nothing_else() {
    let nodes = Nodes::start(2);
    let made = nodes.run(&["cluster", "client", "eye", "--may", "status"]);
    assert!(made.is_done().contains("own/clients/eye"), "{made:?}");
    // The whole directory is copied to where it is used.
    nodes.place.shell("mv own/clients/eye eye").is_done();
    for args in [&["cluster", "status"][..], &["job", "list"], &["node", "ping"]] {
        nodes.run_as("eye", args).is_done();
    }
    for path in ["/v1/status", "/metrics", "/v1/jobs"] {
        assert_eq!(code(&nodes, "eye", &format!("N1{path}")), "200", "{path}");
    }
    let only = "this certificate may only look";
    nodes.place.write("it", b"bytes");
    let here = nodes.place.0.join("taken");
    let there = format!("n1:{}", here.display());
    for args in
        [&EXEC[..], &["exec", "--via", "n2", "--", "true"], &["pump", "it", &there], &["cluster", "probe"]]
    {
        let told = nodes.run_as("eye", args);
        assert!(told.status == Some(2) && told.err.contains(only), "{args:?}: {told:?}");
    }
    assert!(!here.exists());
    for args in ["-X POST N1/v1/jobs/x/cancel", "-X PUT -d x N1/v1/cluster", "N1/v1/doctor"] {
        let own = "--cert eye/cert.pem --key eye/key.pem";
        let told = nodes.curl(&format!("-w ' %{{http_code}}' {own} {args}"));
        assert!(told.out.contains(only) && told.out.ends_with(" 403"), "{args}: {told:?}");
    }
    nodes.run(&["cluster", "client", "eye"]).is_refused(&["'eye' is there twice", "thalweg cluster drop"]);
    nodes.run(&["cluster", "client", "n1"]).is_refused(&["'n1' is there twice"]);
    nodes.run(&["cluster", "drop", "n2", "--may", "all"]).is_refused(&["--may is a flag of cluster client"]);
}

/// A keep-alive connection of curl: sends one request at once, and another one when it is told to.
struct KeptAlive(Child, ChildStdin, BufReader<std::process::ChildStdout>);

impl KeptAlive {
    fn open(nodes: &Nodes, client: &str) -> KeptAlive {
        let mut command = std::process::Command::new("openssl");
        command.current_dir(&nodes.place.0).args(["s_client", "-quiet", "-CAfile", "own/authority.pem"]);
        command.arg("-cert").arg(format!("{client}/cert.pem")).arg("-key").arg(format!("{client}/key.pem"));
        command.args(["-alpn", "http/1.1", "-connect", &format!("127.0.0.1:{}", nodes.ports[0])]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut kept = KeptAlive(child, stdin, stdout);
        assert!(kept.asks(), "it is let in");
        kept
    }

    /// Sends a request. Returns whether it is answered.
    fn asks(&mut self) -> bool {
        let sent = self.1.write_all(b"GET /v1/status HTTP/1.1\r\nhost: n1\r\n\r\n");
        let mut line = String::new();
        if sent.is_err() || self.2.read_line(&mut line).is_err() || !line.starts_with("HTTP/1.1 200") {
            return false;
        }
        let mut length = 0;
        while line != "\r\n" {
            line.clear();
            self.2.read_line(&mut line).unwrap();
            length = line.strip_prefix("content-length: ").map_or(length, |n| n.trim().parse().unwrap());
        }
        self.2.read_exact(&mut vec![0; length]).is_ok()
    }

    /// Waits for its end.
    fn ends(mut self) {
        assert_eq!(self.2.read_line(&mut String::new()).unwrap_or(0), 0, "nothing more comes");
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}

#[test]
fn what_goes_on_for_a_dropped_client_ends_at_once() {
    let nodes = Nodes::start(2);
    nodes.run(&["cluster", "client", "ada"]).is_done();
    nodes.run_as("own/clients/ada", &EXEC).is_done();
    let start = |args: &[&str]| {
        let mut command = nodes.place.command(args);
        Running::start(command.env("THALWEG_IDENTITY", "own/clients/ada"))
    };
    let jobs = start(&["exec", "--", "sleep", "1000"]);
    let there = |host: &str, name: &str| format!("{host}:{}", nodes.place.0.join(name).display());
    nodes.place.shell("head -c 50M /dev/zero > big").is_done();
    let transfer = start(&["pump", "big", &there("n2", "copy"), "--limit", "1MiB"]);
    let between = start(&["pump", &there("n1", "big"), &there("n2", "second"), "--limit", "1MiB"]);
    let mut http = KeptAlive::open(&nodes, "own/clients/ada");
    assert!(http.asks(), "it stays open");
    let has =
        |word: &str| nodes.place.names().iter().any(|name| name.starts_with('.') && name.contains(word));
    until("they run", || has("copy") && has("second") && nodes.jobs().jobs.len() >= 4);
    let begun = Instant::now();
    nodes.run(&["cluster", "drop", "ada"]).is_done();
    http.ends();
    let ends: Vec<Outcome> = [jobs, transfer, between].map(Running::ends).into();
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert!(ends.iter().all(|end| end.status == Some(2)), "{ends:?}");
    assert!(!nodes.place.0.join("copy").exists() && !nodes.place.0.join("second").exists());
    nodes
        .run_as("own/clients/ada", &["exec", "--on", "n1", "--", "true"])
        .is_refused(&["our certificate was dropped"]);
    nodes.run(&["cluster", "drop", "client"]).is_refused(&["'client' is the owner's own certificate"]);
    nodes.run(&["cluster", "drop", "client2"]).is_refused(&["'client2' is not a host"]);
}

#[test]
fn a_transfer_to_a_dropped_host_ends_though_its_own_side_began_it() {
    let nodes = Nodes::start(2);
    let there = |host: &str, name: &str| format!("{host}:{}", nodes.place.0.join(name).display());
    nodes.place.shell("head -c 50M /dev/zero > big").is_done();
    let mut command =
        nodes.place.command(&["pump", &there("n1", "big"), &there("n2", "copy"), "--limit", "1MiB"]);
    let between = Running::start(command.env("THALWEG_IDENTITY", "own"));
    until("it runs", || {
        nodes.place.names().iter().any(|name| name.starts_with('.') && name.contains("copy"))
    });
    let begun = Instant::now();
    nodes.run(&["cluster", "drop", "n2"]).is_done();
    let told = between.ends();
    assert!(
        told.status == Some(2) && begun.elapsed() < Duration::from_secs(4),
        "{told:?} {:?}",
        begun.elapsed()
    );
    assert!(!nodes.place.0.join("copy").exists());
}

/// A link from this test to the node with this index, with the identity in a directory.
fn linked(nodes: &Nodes, directory: &str, i: usize) -> Link {
    let (identity, file) = Identity::load(&nodes.place.0.join(directory)).unwrap();
    let at = format!("127.0.0.1:{}", nodes.ports[i]).parse().unwrap();
    Credentials::of(identity).unwrap().connect(&file.hosts[i].name, at, Terms::default()).unwrap()
}

/// The answer of a node on a link, or the reason for the refusal.
fn ask(link: &Link, request: &impl ServiceRequest) -> Result<String, String> {
    let mut inc = link.ask(request.text().as_bytes(), None).map_err(|why| why.to_string())?;
    inc.next_on().map_err(|why| why.to_string())?;
    Ok(String::from_utf8_lossy(inc.result().unwrap()).into_owned())
}

/// Asks the node to run an empty command, which needs all rights.
fn does(link: &Link) -> Result<String, String> {
    let exec =
        r#"{"run":{"job":"JOB","command":["true"],"env":[],"stdin":false,"detach":true,"timeout_ms":null}}"#;
    ask(
        link,
        &from_json::<CommandRequest>(&exec.replace("JOB", &thalweg_wire::new_id().to_string())).unwrap(),
    )
}

#[test]
fn a_client_that_may_look_may_no_more_over_a_link_of_its_own() {
    let nodes = Nodes::start(1);
    nodes.run(&["cluster", "client", "eye", "--may", "status"]).is_done();
    for change in ["renew", "drop"] {
        let link = linked(&nodes, "own/clients/eye", 0);
        assert!(ask(&link, &HostRequest::Identify).unwrap().contains("\"epoch\":"));
        let why = does(&link).unwrap_err();
        assert!(why.contains("this certificate may only look"), "{why}");
        nodes.run(&["cluster", change, "eye"]).is_done();
        assert!(ask(&link, &CommandRequest::Ping).is_err());
    }
}

#[test]
fn an_identity_in_another_users_directory_is_refused() {
    let place = Place::new();
    if !may_give_away() {
        return;
    }
    place.shell("mkdir theirs && chown 1234 theirs").is_done();
    let told = place.run(&["cluster", "init", "river", "n1=127.0.0.1:1", "--identity", "theirs"]);
    told.is_refused(&["theirs belongs to another user"]);
    assert!(std::fs::read_dir(place.0.join("theirs")).unwrap().next().is_none());
}

/// What went wrong: a client that may only look took all 1,024 connections of every node, which kept out the owner, and
/// the news that the client was dropped; for each of its links a node stored 8 MiB of a request that never ended.
/// Principle: fewer rights mean fewer resources.
#[test]
fn a_client_that_may_look_cannot_keep_others_out() {
    let nodes = Nodes::start(1);
    nodes.run(&["cluster", "client", "eye", "--may", "status"]).is_done();
    // Connections are counted after the handshake, so a refused one is recognised because it gets no answer.
    let looks = |link: &Link| ask(link, &HostRequest::Identify).is_ok();
    let links: Vec<Link> = (0..32).map(|_| linked(&nodes, "own/clients/eye", 0)).collect();
    assert!(links.iter().all(looks));
    let (identity, _) = Identity::load(&nodes.place.0.join("own/clients/eye")).unwrap();
    let at = format!("127.0.0.1:{}", nodes.ports[0]).parse().unwrap();
    let credentials = Credentials::of(identity).unwrap();
    let more =
        (0..100).filter(|_| credentials.connect("n1", at, Terms::default()).is_ok_and(|link| looks(&link)));
    assert_eq!(more.count(), 0, "it has as many links as it may");
    assert_eq!(code(&nodes, "own/clients/eye", "N1/v1/status"), "000", "nor a connection for HTTP");
    assert!(nodes.run(&EXEC).status == Some(0), "others are let in");
    let long = links[0].open(&[b' '; 300 << 10]).map(|(_out, mut inc)| inc.next_on().map(|_| ()));
    assert!(long.is_err() || long.is_ok_and(|ended| ended.is_err()), "a request of more than 256 KiB");
    until("the end of a link", || !looks(&links[0]));
    until("a place that is free again", || {
        credentials.connect("n1", at, Terms::default()).is_ok_and(|link| looks(&link))
    });
    nodes.run(&["cluster", "drop", "eye"]).is_done();
    assert!(!links.iter().any(looks));
}

/// What went wrong: 32 such clients together took all 1,024 connections.
/// Principle: clients that may only look leave enough connections to those with more rights.
#[test]
fn clients_that_may_look_cannot_keep_others_out_together() {
    // So many links on a busy machine may say nothing for the usual 5 s, and a link that ends makes place.
    let mut nodes = Nodes::made_with(&[String::new()], &["--dead-after", "60s"]);
    nodes.begin(0);
    let terms = Terms { patience: Timeouts::of_dead(60_000), ..Terms::default() };
    let at = format!("127.0.0.1:{}", nodes.ports[0]).parse().unwrap();
    let eyes: Vec<Credentials> = (0..17)
        .map(|i| {
            let name = format!("eye{i}");
            nodes.run(&["cluster", "client", &name, "--may", "status"]).is_done();
            Credentials::of(Identity::load(&nodes.place.0.join("own/clients").join(name)).unwrap().0).unwrap()
        })
        .collect();
    let looks = |link: &Link| ask(link, &HostRequest::Identify).is_ok();
    let open = |credentials: &Credentials| credentials.connect("n1", at, terms).ok().filter(looks);
    let mut links: Vec<Link> = eyes[..16].iter().flat_map(|eye| (0..32).filter_map(|_| open(eye))).collect();
    assert_eq!(links.len(), 512, "half of the places are theirs");
    assert!(open(&eyes[16]).is_none(), "and no more");
    assert_eq!(code(&nodes, "own/clients/eye16", "N1/v1/status"), "000", "nor over HTTP");
    assert!(nodes.run(&EXEC).status == Some(0), "others are let in");
    links.pop().unwrap().close();
    until("a place that is free again", || open(&eyes[16]).is_some());
}

/// What went wrong: open links stayed when their peer was renewed, so a thief of the old key kept all rights.
/// Principle: a link is worth as much as the key that opened it.
#[test]
fn links_that_were_opened_with_an_old_key_end_with_the_renewal() {
    let nodes = Nodes::start(2);
    nodes.run(&["cluster", "client", "ada"]).is_done();
    nodes
        .place
        .shell("cp -a own/clients/ada thief; cp -a own/hosts/n1 thief1; cp -a own/hosts/n2 thief2")
        .is_done();
    let mut command = nodes.place.command(&["exec", "--", "sleep", "1000"]);
    let theirs = Running::start(command.env("THALWEG_IDENTITY", "thief"));
    let http = KeptAlive::open(&nodes, "thief");
    until("it runs", || nodes.jobs().jobs.len() >= 2);
    let begun = Instant::now();
    nodes.run(&["cluster", "renew", "ada"]).is_done();
    http.ends();
    let told = theirs.ends();
    assert!(
        told.status == Some(2) && begun.elapsed() < Duration::from_secs(4),
        "{told:?} {:?}",
        begun.elapsed()
    );
    // The old key of a host: no new request is accepted once the host has shown its new certificate, and running work
    // between nodes continues.
    for (thief, renewed, other, i) in [("thief2", "n2", "n1", 0), ("thief1", "n1", "n2", 1)] {
        nodes.place.shell(&format!("cp own/cluster.json {thief}")).is_done();
        let link = linked(&nodes, thief, i);
        does(&link).unwrap();
        let script = "echo on; read line; echo $line";
        let via = ["exec", "--via", other, "--on", renewed, "--", "sh", "-c", script];
        let mut between = nodes.place.command(&via);
        let between =
            between.env("THALWEG_IDENTITY", "own").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut between = between.unwrap();
        let mut said = BufReader::new(between.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert_eq!(line, format!("{renewed}: on\n"));
        nodes.run(&["cluster", "renew", renewed]).is_done();
        until("the old key is worth nothing", || does(&link).is_err());
        between.stdin.take().unwrap().write_all(b"still\n").unwrap();
        line.clear();
        said.read_line(&mut line).unwrap();
        assert_eq!((line, between.wait().unwrap().code()), (format!("{renewed}: still\n"), Some(0)));
        nodes.run(&["exec", "--via", other, "--", "true"]).is_done();
    }
}

#[test]
fn a_node_that_was_down_learns_of_a_drop_before_it_serves_the_dropped() {
    let mut nodes = Nodes::start(3);
    end(&mut nodes, 0);
    let told = nodes.run(&["cluster", "drop", "n3"]);
    assert!(told.err.contains("not sent to n1"), "{told:?}");
    // The file as it was when the node ended, wherever the owner writes.
    let old = nodes.place.read("own/hosts/n2/cluster.json");
    assert!(String::from_utf8_lossy(&old).contains("\"epoch\":2"));
    let (authority, mut file) = authority(&nodes);
    let n3 = read_cluster(&nodes.place.0.join("own/hosts/n3")).unwrap().0;
    (file.epoch, file.hosts, file.dropped) = (1, n3.hosts, Vec::new());
    nodes.place.write("own/hosts/n1/cluster.json", sign(&file, &authority).unwrap().as_bytes());
    nodes.begin(0);
    let told = nodes.run_as("own/hosts/n3", &["exec", "--on", "n1", "--", "true"]);
    told.is_refused(&["our certificate was dropped"]);
    assert_eq!(epochs(&nodes), [2, 2]);
}

/// What went wrong: a starting node asked one host after the other, and one that accepted the connection and sent
/// nothing kept it from those that knew of its drop. Principle: all are asked at once, and a silent host delays nobody.
#[test]
fn a_dropped_host_that_is_silent_keeps_no_node_from_learning_of_its_drop() {
    let mut nodes = Nodes::start(3);
    end(&mut nodes, 2);
    end(&mut nodes, 0);
    let old = nodes.place.read("own/hosts/n3/cluster.json");
    let told = nodes.run(&["cluster", "drop", "n1"]);
    assert!(told.err.contains("not sent to n3") && !told.err.contains("n2"), "{told:?}");
    nodes.place.write("own/hosts/n3/cluster.json", &old);
    let _silent = TcpListener::bind(("127.0.0.1", nodes.ports[0])).unwrap();
    nodes.begin(2);
    nodes
        .run_as("own/hosts/n1", &["exec", "--on", "n3", "--", "true"])
        .is_refused(&["our certificate was dropped"]);
}

/// What went wrong: nodes compared their epochs only when one connected to the other. With a link open, the second node
/// served a dropped peer forever. Principle: a node that learns of a drop tells all nodes to which it has a link.
#[test]
fn nodes_pass_on_over_their_links_what_only_one_was_told() {
    let nodes = Nodes::start(3);
    nodes.run(&["cluster", "client", "ada"]).is_done();
    let links = || nodes.status().hosts.into_iter().map(|host| host.status.unwrap().links);
    until("all have links with each other", || links().all(|links| links >= 2));
    let (authority, mut file) = authority(&nodes);
    let ada = file.clients.pop().unwrap();
    file.epoch += 1;
    file.dropped.push(DroppedHost { name: ada.name, id: ada.id, epoch: file.epoch });
    nodes.place.write("dropped.json", sign(&file, &authority).unwrap().as_bytes());
    let begun = Instant::now();
    assert_eq!(code(&nodes, "own", "-X PUT --data-binary @dropped.json N1/v1/cluster"), "200");
    until("all know of it", || epochs(&nodes) == [3, 3, 3]);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    for host in ["n2", "n3"] {
        nodes
            .run_as("own/clients/ada", &["exec", "--on", host, "--", "true"])
            .is_refused(&["our certificate was dropped"]);
    }
}

#[test]
fn a_node_that_nobody_told_learns_from_the_first_client_that_knows() {
    let mut nodes = Nodes::start(1);
    nodes.place.shell("cp -a own before").is_done();
    end(&mut nodes, 0);
    let told = nodes.run(&["cluster", "client", "ada"]);
    assert!(told.err.contains("not sent to n1"), "{told:?}");
    nodes.place.shell("cp before/hosts/n1/cluster.json own/hosts/n1/cluster.json").is_done();
    nodes.begin(0);
    assert_eq!(epochs(&nodes), [1]);
    nodes.run(&EXEC).is_done();
    assert_eq!(epochs(&nodes), [2], "brought by a link of the owner's");
    nodes.run_as("own/clients/ada", &EXEC).is_done();
    // And a client with an older file gets the newer one from a node.
    nodes.run_as("before", &EXEC).is_done();
    assert_eq!(cluster(&nodes, "before").epoch, 2);
}

/// What went wrong: a client with an older file learned of a drop from the first node, and continued with the dropped
/// host to the end of its command.
#[test]
fn a_client_that_learns_of_a_drop_is_done_with_the_dropped_at_once() {
    let nodes = Nodes::start(2);
    nodes.place.shell("cp -a own before").is_done();
    nodes.run(&["cluster", "drop", "n2"]).is_done();
    let told = nodes.run_as("before", &["exec", "--", "sh", "-c", "echo on; sleep 1; echo off"]);
    assert!(
        told.status == Some(2) && told.out.contains("n1: off\n") && !told.out.contains("n2: off"),
        "{told:?}"
    );
    assert!(told.err.lines().count() == 1 && told.err.contains("n2"), "{told:?}");
}

#[test]
fn a_copied_key_is_worth_nothing_after_a_renewal() {
    let nodes = Nodes::start(2);
    nodes.run(&["cluster", "client", "ada"]).is_done();
    nodes.place.shell("cp -a own/clients/ada thief; cp -a own/hosts/n2 thief2").is_done();
    nodes.run_as("thief", &EXEC).is_done();
    let before = cluster(&nodes, "own");
    nodes.run(&["cluster", "renew", "ada", "n2"]).is_done();
    let after = cluster(&nodes, "own");
    assert!(before.hosts[0] == after.hosts[0] && before.hosts[1].id != after.hosts[1].id);
    assert!(before.hosts[1].key != after.hosts[1].key && before.clients[1].key != after.clients[1].key);
    until("n2 shows its new certificate", || nodes.run(&EXEC).status == Some(0));
    nodes.run_as("own/clients/ada", &EXEC).is_done();
    for thief in ["thief", "thief2"] {
        let told = nodes.run_as(thief, &["exec", "--on", "n1", "--", "true"]);
        told.is_refused(&["our certificate is not in its cluster file"]);
    }
    assert_eq!(
        nodes.status().hosts[1].status.as_ref().unwrap().pid,
        nodes.pids[1],
        "it was not started anew"
    );
}

/// What went wrong: changes took no lock, so two at once made two files of the same epoch, and one was lost.
#[test]
fn changes_of_a_cluster_wait_for_each_other() {
    let place = Place::new();
    place.run(&["cluster", "init", "river", "n1=127.0.0.1:1", "--identity", "own"]).is_done();
    let ended: Vec<Outcome> = std::thread::scope(|scope| {
        let client = |i: usize| place.run(&["cluster", "client", &format!("c{i}"), "--identity", "own"]);
        let running: Vec<_> = (0..8).map(|i| scope.spawn(move || client(i))).collect();
        running.into_iter().map(|client| client.join().unwrap()).collect()
    });
    assert!(ended.iter().all(|end| end.status == Some(0)), "{ended:?}");
    let file = read_cluster(&place.0.join("own")).unwrap().0;
    assert_eq!((file.epoch, file.clients.len()), (9, 9));
    // Without a cluster, nothing is left behind.
    place.shell("mkdir none").is_done();
    place.run(&["cluster", "add", "n2", "--identity", "none"]).is_refused(&["no cluster in none"]);
    assert_eq!(place.shell("ls -A none").is_done(), "");
}

#[test]
fn hosts_come_and_go_wherever_their_directories_are() {
    let mut nodes = Nodes::start(2);
    end(&mut nodes, 1);
    end(&mut nodes, 0);
    nodes.place.shell("mv own/hosts away").is_done();
    for host in ["away/n1", "away/n2"] {
        let (child, pid) = nodes.spawn(&["--identity", host]);
        nodes.running.push(child);
        nodes.pids.push(pid);
    }
    let told = nodes.run(&["cluster", "add", "n3=127.0.0.1:1"]);
    assert!(told.status == Some(0) && told.err.is_empty(), "{told:?}");
    assert_eq!((cluster(&nodes, "own/hosts/n3").epoch, cluster(&nodes, "away/n1").epoch), (2, 2));
    let told = nodes.run(&["cluster", "drop", "n3", "n2"]);
    assert!(told.status == Some(0) && told.err.is_empty(), "{told:?}");
    let file = cluster(&nodes, "own");
    assert_eq!((file.epoch, file.hosts.len(), file.dropped.len()), (3, 1, 2));
}

#[test]
fn certificates_that_end_soon_are_told_with_the_remedy() {
    let nodes = Nodes::start(1);
    let warned = |args: &[&str]| nodes.run(args).err;
    assert_eq!(warned(&["cluster", "status"]), "");
    // Certificates of 29 days, for the host and for the owner; both are listed in a file that the authority has signed.
    let (authority, mut file) = authority(&nodes);
    let (host, client) = (file.hosts[0].id.parse().unwrap(), file.clients[0].id.parse().unwrap());
    file.epoch += 1;
    file.hosts[0].key = issued(&nodes, "own/hosts/n1", host, Role::Node, 29);
    file.clients[0].key = issued(&nodes, "own", client, Role::Client, 29);
    let text = sign(&file, &authority).unwrap();
    nodes.place.write("own/cluster.json", text.as_bytes());
    nodes.place.write("own/hosts/n1/cluster.json", text.as_bytes());
    until("the node shows it", || nodes.run(&EXEC).status == Some(0));
    let said = warned(&["cluster", "status"]);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(
        lines[0].contains("of this client, client, expires in 28 days; thalweg cluster renew client"),
        "{said}"
    );
    assert!(lines[1].contains("host n1 expires in 28 days; thalweg cluster renew n1"), "{said}");
    assert!(lines[1].contains("thalweg cluster install brings it"), "{said}");
    assert_eq!(warned(&["cluster", "doctor"]), said);
    let report: ClusterReport = from_json(&nodes.run(&["cluster", "status", "--json"]).out).unwrap();
    let doctor: ClusterDoctor = from_json(&nodes.run(&["cluster", "doctor", "--json"]).out).unwrap();
    assert_eq!((report.warnings.len(), doctor.warnings.len()), (2, 2));
    nodes.run(&["cluster", "renew"]).is_done();
    until("it is renewed", || nodes.run(&EXEC).status == Some(0));
    assert_eq!(warned(&["cluster", "status"]), "");
}
