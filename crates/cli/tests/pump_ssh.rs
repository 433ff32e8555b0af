//! Transfers with a host that ssh reaches: in both directions, over direct links and through the ssh channel,
//! interrupted at either end and resumed, and each way of failing. The test starts a server of its own; without the
//! server's program it says that it was skipped.
#![allow(clippy::disallowed_methods)] // Tests look at files and processes directly.

mod support;
#[path = "pump_outside/walk.rs"]
mod walk;

use std::process::Command;
use std::time::{Duration, Instant};

use support::sshd::Sshd;
use support::{Outcome, Place, Running, skipped, until};
use thalweg_api::{PumpReceipt, from_json};
use walk::{OF_EVERYTHING, are_same};

const FILE_BYTES: u64 = 40_000_000;
const JOURNAL: &str = ".out.thalweg-journal";
/// How long the other end may outlive the client.
const SOON: Duration = Duration::from_secs(5);
/// The two routes: the flags that select each, and its name in the receipt.
const ROUTES: [(&[&str], &str); 2] = [(&[], "direct"), (&["--through-ssh"], "through ssh")];

struct There {
    sshd: Sshd,
    place: Place,
}

impl There {
    fn start() -> Option<There> {
        let place = Place::new();
        let sshd = Sshd::start(&place)?;
        place.shell(&format!("head -c {FILE_BYTES} /dev/urandom > in")).is_done();
        Some(There { sshd, place })
    }

    /// The argument for a name in the place.
    fn at(&self, host: &str, name: &str) -> String {
        format!("ssh://{host}{}/{name}", self.place.0.display())
    }

    fn command(&self, args: &[&str]) -> Command {
        self.place.command(&[&["pump"], args, &["--ssh", &self.sshd.ssh]].concat())
    }

    fn pump(&self, args: &[&str]) -> Outcome {
        Running::start(&mut self.command(args)).ends()
    }

    #[track_caller]
    fn receipt(&self, args: &[&str]) -> PumpReceipt {
        from_json(self.pump(&[args, &["--json"]].concat()).is_done()).unwrap()
    }

    /// The server processes of this place.
    fn serving(&self) -> Vec<u32> {
        let home = format!("HOME={}/home", self.place.0.display());
        let is_one = |pid: &u32| {
            let told = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            told("cmdline").ends_with(b"thalweg\0pump\0--serve\0")
                && told("environ").split(|b| *b == 0).any(|variable| variable == home.as_bytes())
        };
        let names = std::fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.filter_map(|name| name.parse().ok()).filter(is_one).collect()
    }

    fn listed(&self) -> u64 {
        let text = std::fs::read_to_string(self.place.0.join(JOURNAL)).unwrap_or_default();
        let ranges = text.lines().filter(|line| line.contains(" range "));
        ranges.filter_map(|line| line.split(' ').nth(4)?.parse::<u64>().ok()).sum()
    }

    /// Begins a slow transfer, and returns when the journal lists a large part of it.
    fn begun(&self, args: &[&str]) -> Running {
        let mut running = Running::start(&mut self.command(&[args, &["--limit", "8MB", "-q"]].concat()));
        let is_begun = || self.listed() > FILE_BYTES / 4;
        until("a part of it, or its end", || is_begun() || running.0.try_wait().unwrap().is_some());
        if !is_begun() {
            panic!("it has ended without a part of it in the journal: {:?}", running.ends());
        }
        running
    }

    /// Checks that no server process is left after a while, and that a resumed transfer continues from the listed data.
    #[track_caller]
    fn is_gone_on_from(&self, since: Instant, args: &[&str], route: &str) {
        until("the other end to go", || self.serving().is_empty());
        assert!(since.elapsed() < SOON, "after {:?}", since.elapsed());
        assert!(!self.place.0.join("out").exists());
        let there = self.listed();
        let told = self.receipt(&[args, &["--resume"]].concat());
        assert!(told.resumed_bytes == there && told.bytes == FILE_BYTES && told.holds, "{there} of {told:?}");
        let link = told.link.unwrap();
        assert!(link.route == route && link.sent_bytes.abs_diff(FILE_BYTES - there) < 1_000_000, "{link:?}");
        assert!(self.place.read("out") == self.place.read("in"));
        self.place.shell("rm out; ! ls -A | grep thalweg-").is_done();
    }
}

fn kill(pid: u32) {
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
}

#[test]
fn trees_go_there_and_back_on_both_routes() {
    let Some(there) = There::start() else { return };
    there.place.shell(OF_EVERYTHING).is_done();
    let tree = there.place.0.join("tree");
    for (number, (flags, route)) in ROUTES.into_iter().enumerate() {
        let (one, two) = (format!("one{number}"), format!("two{number}"));
        let far = there.at("n1", &one);
        let went = there.receipt(&[&["tree", &far], flags].concat());
        are_same(&tree, &there.place.0.join(&one));
        let came = there.receipt(&[&[&far, &two, "--verify", "--streams", "3"], flags].concat());
        are_same(&tree, &there.place.0.join(&two));
        for told in [&went, &came] {
            let link = told.link.as_ref().unwrap();
            assert!(link.route == route && link.sealed && link.sent_bytes < 7_000_000, "{link:?}");
            assert!(told.holds && told.proved && told.checksum_in != 0, "{told:?}");
            assert_eq!((told.links, told.hard_links, told.directories), (3, 3, 7), "{told:?}");
        }
        assert_eq!((&went.dest.host[..], &came.source.host[..], came.verified), ("n1", "n1", true));
        assert_ne!(went.source.pid, went.dest.pid);
        // Existing files are skipped.
        there.place.shell("echo new > tree/new").is_done();
        let again = there.receipt(&[&["tree/", &far, "--resume"], flags].concat());
        assert_eq!(again.files, 1, "{again:?}");
        there.place.shell(&format!("cmp tree/new {one}/new && rm tree/new")).is_done();
    }
    until("all to have ended", || there.serving().is_empty());
}

#[test]
fn a_user_a_port_streams_and_several_sources_are_understood() {
    let Some(there) = There::start() else { return };
    let user = there.place.shell("id -un").is_done().trim().to_string();
    let far = there.at(&format!("{user}@127.0.0.1:{}", there.sshd.port), "out");
    let text = there.pump(&["in", &far]);
    assert!(text.is_done().contains(&format!("dest: disk at {user}@127.0.0.1")), "{text:?}");
    assert!(text.out.contains(", direct, sealed, "), "{text:?}");
    assert!(there.place.read("out") == there.place.read("in"));
    let (ssh, far) = (&there.sshd.ssh, there.at("n2", "out"));
    let through = format!("--ssh '{ssh}' -q");
    there.place.shell(&format!("$T pump {far} - {through} | cmp - in")).is_done();
    there.place.shell(&format!("cat in | $T pump - {far} {through} --through-ssh && cmp in out")).is_done();
    there.receipt(&["zero:3MB", &far]);
    assert!(there.place.read("out") == vec![0; 3_000_000]);
    there.place.shell("rm out; mkdir -p some; echo a > a; echo b > b").is_done();
    there.receipt(&[&there.at("n1", "a"), &there.at("n1", "b"), "some"]);
    there.place.shell("cmp a some/a && cmp b some/b").is_done();
    // Below the user's home directory there, and back.
    there.place.shell("mkdir home/below").is_done();
    there.receipt(&["a", "ssh://n1/~/below/a b"]);
    there.receipt(&["ssh://n1/~/below", "back"]);
    there.place.shell("cmp a 'home/below/a b' && cmp a 'back/a b' && test ! -e /~").is_done();
    there.receipt(&["b", "ssh://n1/~"]);
    there.place.shell("cmp b home/b").is_done();
}

#[test]
fn a_client_that_is_killed_takes_the_other_end_along_and_is_gone_on_from() {
    let Some(there) = There::start() else { return };
    for (flags, route) in ROUTES {
        for (from, to) in [("in".to_string(), there.at("n1", "out")), (there.at("n1", "in"), "out".into())] {
            let args = [&[&from[..], &to], flags].concat();
            let running = there.begun(&args);
            assert_eq!(there.serving().len(), 1);
            let since = Instant::now();
            running.signal("-KILL");
            drop(running);
            there.is_gone_on_from(since, &args, route);
        }
    }
}

#[test]
fn an_end_or_an_ssh_that_is_killed_is_told_in_one_line() {
    let Some(there) = There::start() else { return };
    let far = there.at("n1", "out");
    for (flags, route) in ROUTES {
        for victim in ["ssh", "the other end"] {
            let args = [&["in", &far], flags].concat();
            let running = there.begun(&args);
            let since = Instant::now();
            let told = if victim == "ssh" {
                let pid = running.0.id();
                let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
                kill(children.trim().parse().unwrap());
                ["ssh to n1 was ended by signal 9", "--resume"]
            } else {
                kill(there.serving()[0]);
                ["n1", "--resume"]
            };
            running.ends().is_refused(&told);
            there.is_gone_on_from(since, &args, route);
        }
    }
    // A signal to the client is reported as such.
    let running = there.begun(&["in", &far]);
    running.signal("-INT");
    assert_eq!(running.ends().status, Some(130));
    until("the other end to go", || there.serving().is_empty());
}

#[test]
fn trees_go_from_one_host_to_another_and_within_one() {
    let Some(there) = There::start() else { return };
    there.place.shell(OF_EVERYTHING).is_done();
    for (flags, route) in ROUTES {
        let (from, to) = (there.at("n1", "tree"), there.at("n2", "out"));
        let args = [&[&from[..], &to, "--streams", "3"], flags].concat();
        let told = there.receipt(&args);
        are_same(&there.place.0.join("tree"), &there.place.0.join("out"));
        assert_eq!((&told.source.host[..], &told.dest.host[..]), ("n1", "n2"));
        let link = told.link.as_ref().unwrap();
        assert!(
            link.route == route && link.sealed && told.holds && told.source.pid != told.dest.pid,
            "{told:?}"
        );
        // Existing files are skipped.
        there.place.shell("echo new > tree/new").is_done();
        let again =
            there.receipt(&[&[&there.at("n1", "tree/"), &there.at("n2", "out"), "--resume"], flags].concat());
        assert_eq!(again.files, 1, "{again:?}");
        there.place.shell("cmp tree/new out/new && rm -r out tree/new").is_done();
    }
    let within = there.receipt(&[&there.at("n1", "tree"), &there.at("n1", "out")]);
    are_same(&there.place.0.join("tree"), &there.place.0.join("out"));
    assert_eq!((&within.source.host[..], &within.dest.host[..], &within.link), ("n1", "n1", &None));
    there.pump(&[&there.at("n1", "none"), &there.at("n2", "x")]).is_refused(&["n1: cannot inspect", "none"]);
    there
        .pump(&[&there.at("n1", "in"), "ssh://n2/none/at/all"])
        .is_refused(&["n2: cannot write /none/at/all"]);
    there.pump(&[&there.at("n1", "in"), &there.at("n3", "x")]).is_refused(&["ssh cannot reach n3"]);
    until("all to have ended", || there.serving().is_empty());
}

#[test]
fn whoever_is_killed_of_a_transfer_between_two_hosts_it_ends_in_one_line_and_is_gone_on_from() {
    let Some(there) = There::start() else { return };
    for (flags, route) in ROUTES {
        for victim in ["the client", "a first end", "a second end", "a first ssh", "a second ssh"] {
            let (from, to) = (there.at("n1", "in"), there.at("n2", "out"));
            let args = [&[&from[..], &to], flags].concat();
            let running = there.begun(&args);
            let serving = there.serving();
            assert_eq!(serving.len(), 2, "{victim}");
            let pid = running.0.id();
            let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
            let sshs: Vec<u32> = children.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
            let since = Instant::now();
            match victim {
                "the client" => running.signal("-KILL"),
                "a first end" => kill(serving[0]),
                "a second end" => kill(serving[1]),
                "a first ssh" => kill(sshs[0]),
                _ => kill(sshs[1]),
            }
            let told = running.ends();
            match victim {
                "the client" => {}
                "a first ssh" => told.is_refused(&["ssh to n1 was ended by signal 9", "--resume"]),
                "a second ssh" => told.is_refused(&["ssh to n2 was ended by signal 9", "--resume"]),
                _ => told.is_refused(&["resume"]),
            }
            there.is_gone_on_from(since, &args, route);
        }
    }
    let running = there.begun(&[&there.at("n1", "in"), &there.at("n2", "out")]);
    running.signal("-INT");
    assert_eq!(running.ends().status, Some(130));
    until("the other ends to go", || there.serving().is_empty());
}

/// As long as this value lives, nobody answers at an address of this machine.
struct Unanswered<'a>(&'a Place);

const RULE: &str = "OUTPUT -o lo -d 127.77.0.9 -p tcp -j DROP";

impl Unanswered<'_> {
    fn set(place: &Place) -> Option<Unanswered<'_>> {
        let set = place.shell(&format!("iptables -w -I {RULE}"));
        if set.status != Some(0) {
            skipped(&format!("no rule can be set here: {}", set.err));
            return None;
        }
        Some(Unanswered(place))
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.0.shell(&format!("iptables -w -D {RULE}"));
    }
}

#[test]
fn a_port_that_cannot_be_reached_costs_two_seconds_and_no_transfer() {
    let Some(there) = There::start() else { return };
    let Some(rule) = Unanswered::set(&there.place) else { return };
    let told = there.pump(&[
        "in",
        &there.at("n1", "out"),
        "--json",
        "--there",
        "SSH_CONNECTION='127.0.0.1 1 127.77.0.9 22' thalweg",
    ]);
    drop(rule);
    let told: PumpReceipt = from_json(told.is_done()).unwrap();
    assert_eq!(told.link.unwrap().route, "through ssh");
    assert!((2.0..6.0).contains(&told.seconds), "{} s", told.seconds);
    assert!(there.place.read("out") == there.place.read("in"));
}

#[test]
fn whatever_keeps_the_other_end_from_speaking_is_told_in_one_line() {
    let Some(there) = There::start() else { return };
    let n1 = there.at("n1", "out");
    let too_old = "sh -c 'echo \"thalweg: unknown flag --serve\" >&2; exit 2'";
    for (args, holds) in [
        (&[&n1[..], "--there", "nothing-like-it"][..], ["there is no nothing-like-it at n1", "--there"]),
        (&[&n1, "--there", &format!("{}/in", there.place.0.display())], ["n1 cannot run", "kind of machine"]),
        (&[&there.at("n3", "out")], ["ssh cannot reach n3", "Connection refused"]),
        (&[&there.at("n4", "out")], ["refuses ssh", "Permission denied (publickey"]),
        (&[&there.at("n5", "out")], ["ssh does not know n5", "look at its key"]),
        (
            &[&n1, "--there", "echo Welcome to n1; thalweg"],
            ["the shell of n1 prints 'Welcome to n1'", "start-up"],
        ),
        (&[&n1, "--there", "printf Hi; thalweg"], ["the shell of n1 prints 'Hi'", "start-up"]),
        (
            &[&n1, "--there", "echo thalweg-pump 9 {}; true"],
            [
                &format!("n1 speaks protocol 9, and this program speaks {}", thalweg_wire::VERSIONS),
                "one version",
            ],
        ),
        (&[&n1, "--there", too_old], ["n1 does not serve transfers", "one version"]),
        (&[&n1, "--there", "exit 3;"], ["ended with status 3", "-V"]),
        (&["ssh://n1/none/at/all"], ["n1: cannot write /none/at/all", "make it first"]),
        (&[&n1, "--ssh", "no-such-ssh"], ["cannot start no-such-ssh", "OpenSSH"]),
    ] {
        let mut command = there.place.command(&["pump", "in"]);
        // The last of two counts.
        command.args(["--ssh", &there.sshd.ssh]).args(args);
        Running::start(&mut command).ends().is_refused(&holds);
    }
    there.pump(&[&there.at("n1", "none"), "x"]).is_refused(&["n1: cannot inspect", "none"]);
    // Combinations that are refused.
    for (args, holds) in [
        (&["n1:/a", "ssh://n2/b"][..], "one end is over ssh and one on a node"),
        (&["ssh://n1/a", "ssh://n2/b", "."], "all sources of a transfer are on one host"),
        (&["ssh://-oProxyCommand=x/a", "b"], "is not where ssh could go"),
        (&["in", "b"], "for an end that is ssh://HOST/PATH"),
    ] {
        there.pump(args).is_refused(&[holds]);
    }
    until("all to have ended", || there.serving().is_empty());
    assert!(!there.place.0.join("out").exists());
}

/// Start-up files of the shell that ssh starts, if the shell reads them.
#[test]
fn a_shell_that_prints_is_told_apart_from_thalweg() {
    let Some(there) = There::start() else { return };
    there.place.write("home/.bashrc", b"echo Good morning\n");
    let told = there.place.shell(&format!("{} n1 true", there.sshd.ssh));
    if told.out != "Good morning\n" {
        skipped(&format!("the shell of this user reads no .bashrc: {told:?}"));
        return;
    }
    there.pump(&["in", &there.at("n1", "out")]).is_refused(&["the shell of n1 prints 'Good morning'"]);
}

/// Either end leaves out what it cannot read or store, and both account for it.
#[test]
fn what_fails_at_either_end_is_left_out_and_the_rest_arrives() {
    let Some(there) = There::start() else { return };
    let place = &there.place;
    place
        .shell(
            "mkdir -p tree/sub/below; for i in $(seq 100); do echo $i > tree/$i; done; echo a > tree/a; ln tree/a tree/sub/again
             head -c 300000 /dev/urandom > tree/large; echo b > tree/sub/below/b; ln -s a tree/link",
        )
        .is_done();
    let (tree, dest) =
        (place.0.join("tree").display().to_string(), place.0.join("dest").display().to_string());
    for (from, to) in [
        (format!("{tree}/"), there.at("n1", "dest")),
        (there.at("n1", "tree/"), dest.clone()),
        (there.at("n1", "tree/"), there.at("n2", "dest")),
    ] {
        // A directory has the name of a file in pieces, and a file that of a directory.
        place
            .shell("rm -rf dest; mkdir -p dest/large/x dest/7/x dest/sub; echo file > dest/sub/below")
            .is_done();
        let told = there.pump(&[&from, &to, "--json"]);
        let all: PumpReceipt = from_json(&told.out).unwrap();
        assert_eq!((told.status, all.holds, all.found), (Some(4), true, 108), "{told:?}");
        let mut names: Vec<_> = all.errors.iter().map(|e| e.path.rsplit('/').next().unwrap()).collect();
        names.sort_unstable();
        assert_eq!((all.left_out, names), (4, vec!["7", "b", "below", "large"]), "{told:?}");
        assert!(told.err.ends_with("copied but for 4 of 108 entries\n"), "{told:?}");
        place
            .shell("cmp tree/99 dest/99 && test dest/a -ef dest/sub/again && ! find dest | grep thalweg")
            .is_done();
        let strict = there.pump(&[&from, &to, "--strict"]);
        assert_eq!((strict.status, strict.err.lines().count()), (Some(2), 1), "{strict:?}");
    }
    // A file is overwritten while it is read; the transfer goes on with the others.
    place.shell("mkdir live; mv in live/; echo small > live/small").is_done();
    for (from, to) in [
        (place.0.join("live").display().to_string(), there.at("n1", "out")),
        (there.at("n1", "live"), place.0.join("out").display().to_string()),
    ] {
        let running = there.begun(&[&from, &to]);
        place.shell("dd if=/dev/zero of=live/in bs=1M count=1 conv=notrunc status=none").is_done();
        let told = running.ends();
        assert!(told.status == Some(4) && told.err.contains("live/in changed while it was read"), "{told:?}");
        place.shell("[ $(ls -A out) = small ] && rm -r out && ! ls -A | grep thalweg-").is_done();
    }
}

/// A choice of entries has the same effect as on one machine.
#[test]
fn the_same_entries_are_chosen_as_on_one_machine() {
    let Some(there) = There::start() else { return };
    let place = &there.place;
    place
        .shell(
            "mkdir -p tree/sub tree/cache was/sub was/cache was/gone/deep; echo 1 > tree/a; echo 2 > tree/sub/b.o; echo 3 > tree/cache/c
             cp -a tree/a was/a; echo old > was/sub/b.o; echo 4 > was/cache/kept; echo 5 > was/gone/deep/d; echo 6 > was/sub/e
             touch -d 2030-01-01 was/sub/b.o; echo new > tree/new; touch -d 2001-01-01 tree/a; head -c 200000 /dev/zero > tree/large
             cp tree/large was/large",
        )
        .is_done();
    let list = || place.shell("cd dest; find . -printf '%P %y %T@ %m %i\\n' | sort; cat sub/b.o").out;
    let kept = |line: &str| line.rsplit_once(' ').map_or(line, |(rest, _)| rest).to_string();
    for flags in [
        &["--delete", "--exclude", "cache/"][..],
        &["--delete", "--filter", "P gone/", "--include", "*.o", "--exclude", "sub/*"],
        &["--update"],
        &["--existing", "--delete"],
        &["--compare", "content"],
        &["--compare", "time"],
    ] {
        let tree = format!("{}/", place.0.join("tree").display());
        let dest = place.0.join("dest").display().to_string();
        let mut seen = Vec::new();
        for (from, to) in [
            (tree.clone(), dest.clone()),
            (tree.clone(), there.at("n1", "dest")),
            (there.at("n1", "tree/"), dest.clone()),
        ] {
            place.shell("rm -rf dest; cp -a was dest").is_done();
            let before = list();
            let all = |more: &[&str]| {
                let args = [&[&from, &to, "--json"], flags, more].concat();
                let ssh: &[&str] = if from.starts_with('/') && to.starts_with('/') {
                    &[]
                } else {
                    &["--ssh", &there.sshd.ssh]
                };
                let told = place.run(&[&["pump"], &args[..], ssh].concat());
                from_json::<PumpReceipt>(told.is_done()).unwrap()
            };
            let dry = all(&["--dry-run"]);
            assert_eq!(list(), before, "{flags:?} from {from} to {to}");
            let real = all(&[]);
            assert!(dry.holds && real.holds && dry.deleted == real.deleted, "{flags:?}: {dry:?} {real:?}");
            let mut items: Vec<String> = dry.items.iter().map(|item| format!("{item:?}")).collect();
            items.sort();
            let after: Vec<String> = list().lines().map(kept).collect();
            seen.push((after, items, real.files, real.resumed_files, real.skipped, real.excluded));
        }
        assert!(seen.iter().all(|other| *other == seen[0]), "{flags:?}: {seen:#?}");
    }
}
