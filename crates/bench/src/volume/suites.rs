//! `thalweg-bench volume --suites`: the test suites of other file systems, and unmodified programs, on mounts of a mirrored
//! volume, for longer than the tests have time for.
//!
//! Model: a suite is a shell script that fails if something is wrong; the last line of its output has its counts. `MNT`
//! is the mount, `OTHER` a second one of the same volume, `DIR` a directory beside them, `N` a number of repetitions.
//! Invariant: after each suite the volume is unmounted, and all copies of all data are read.
//! Non-goals: installing the suites, which `./test` does.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use thalweg_api::{BenchReport, BenchRow};

use super::mounts::{Mounts, NAME, Striped};
use crate::lab::{Lab, Wanted};
use thalweg_measure::data_dir::DataDir;
use thalweg_measure::process::{Ended, Series, whole_process};
use thalweg_measure::{Asked, Result, failed};

/// Where `./test` installs suites, below the current directory.
const TOOLS: &str = "target/tools/bin";
/// The number of repetitions, for a `--size` of 1 GB.
const TIMES: u64 = 1000;
const TIMES_MIN: u64 = 10;
const STORES: u32 = 4;
/// The hosts of the lab in which a store is killed, and the one whose store it is.
const HOSTS: u32 = 3;
const KILLED: u32 = 3;
/// How long the store works between kills.
const BETWEEN_KILLS: Duration = Duration::from_secs(1);
/// The row in which a store is killed.
const WITH_KILLS: &str = "fsx-killed";

struct Suite {
    name: &'static str,
    work: &'static str,
    needs: &'static [&'static str],
    script: &'static str,
}

const SUITES: &[Suite] = &[
    Suite {
        name: "pjdfstest",
        work: "what POSIX says of names, permissions and times",
        needs: &["pjdfstest"],
        script: r#"
cat >"$DIR/settings.toml" <<END
[features]
posix_fallocate = {}
utimensat = {}
utime_now = {}
rename_ctime = {}
[settings]
naptime = 0.01
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
END
pjdfstest -c "$DIR/settings.toml" -p "$MNT" >"$DIR/said" || { grep -i -m 5 fail "$DIR/said" >&2; exit 1; }
sed -n 's/^Summary: //p' "$DIR/said""#,
    },
    Suite {
        name: "stress-ng",
        work: "the stressors of stress-ng for file systems, one after the other",
        needs: &["stress-ng"],
        script: r#"
# binderfs is a file system of its own, which not every kernel has.
stress-ng --class filesystem --exclude binderfs --sequential 1 --timeout $((N / 500 + 1)) --verify --temp-path "$MNT" >"$DIR/said" 2>&1 || {
    grep -E -m 5 'fail|error|warn' "$DIR/said" >&2
    exit 1
}
echo "$(sed -n 's/.*dispatching hogs: //p' "$DIR/said" | tr ',' '\n' | wc -l) stressors, $(grep -c 'skipping' "$DIR/said" || true) not supported by the machine""#,
    },
    Suite { name: "fsx", work: FSX_WORK, needs: &["fsx"], script: FSX },
    Suite { name: WITH_KILLS, work: FSX_WORK, needs: &["fsx"], script: FSX },
    Suite {
        name: "fio-verify",
        work: "fio reads and writes at random and verifies what it reads",
        needs: &["fio"],
        script: r#"
fio --name=v --directory="$MNT" --size=$((N / 8 + 8))m --rw=randrw --bsrange=1k-300k --numjobs=4 --ioengine=psync \
    --verify=crc32c --fsync=32 --randseed=7 >"$DIR/said"
echo "4 jobs of $((N / 8 + 8)) MiB verified""#,
    },
    Suite {
        name: "sqlite",
        work: "four processes insert into one database, with a write-ahead log",
        needs: &["sqlite3"],
        script: r#"
sqlite3 "$MNT/db" 'PRAGMA journal_mode = WAL; CREATE TABLE t (n INTEGER PRIMARY KEY, x BLOB);' >/dev/null
for i in 1 2 3 4; do
    (for j in $(seq "$N"); do
        echo '.timeout 60000'; echo 'INSERT INTO t (x) VALUES (randomblob(5000));'
    done | sqlite3 "$MNT/db") &
done
for job in $(jobs -p); do wait "$job"; done
test "$(sqlite3 "$MNT/db" 'PRAGMA integrity_check')" = ok
count=$(sqlite3 "$MNT/db" 'SELECT count(*) FROM t')
test "$count" -eq $((4 * N))
echo "$count rows by 4 processes, integrity_check ok""#,
    },
    Suite {
        name: "git",
        work: "commits, gc, clone and fsck",
        needs: &["git"],
        script: r#"
cd "$MNT"
git init -q r
cd r
for i in $(seq "$N"); do
    echo "$i" >"f$((i % 50))"
    git add .
    git -c user.name=a -c user.email=a@b commit -qm "$i"
done
git gc -q
git clone -q . ../r2
cd ../r2
git fsck --strict 2>/dev/null
test -z "$(git status --porcelain)"
echo "$(git log --oneline | wc -l) commits, fsck ok""#,
    },
    Suite {
        name: "cargo",
        work: "cargo builds a crate, and what it built runs",
        needs: &["cargo"],
        script: r#"
cd "$MNT"
cargo init -q --vcs none --name tiny tiny
cd tiny
for i in $(seq $((N / 2))); do
    echo "pub fn f$i(x: u64) -> u64 { x.rotate_left($((i % 64))) }" >"src/m$i.rs"
    echo "mod m$i;"
done >mods
cat src/main.rs >>mods
mv mods src/main.rs
env -u CARGO_TARGET_DIR cargo build -q --offline 2>/dev/null
test "$(target/debug/tiny)" = 'Hello, world!'
echo "$(find . -type f | wc -l) files, the program runs""#,
    },
    Suite {
        name: "tree",
        work: "tar and rsync -a of a tree, there and back",
        needs: &["tar", "rsync"],
        script: r#"
digest() { (cd "$1" && find . -printf '%P %y %m %l %n %T@\n' | sort && find . -type f -print0 | sort -z | xargs -0 sha256sum) | sha256sum; }
mkdir "$DIR/tree"
cd "$DIR/tree"
for i in $(seq $((4 * N))); do
    mkdir -p "d$((i % 37))/e$((i % 11))"
    head -c $((i * i * 37 % 200000)) /dev/zero | tr '\0' "$((i % 10))" >"d$((i % 37))/e$((i % 11))/f$i"
done
ln -s d1/e1 link
ln d1/e1/f1 hard
find . -exec touch -h -d '2001-02-03 04:05:06.789' {} +
rsync -aH "$DIR/tree/" "$MNT/synced"
mkdir "$MNT/tarred"
tar --format=posix -cf - . | tar -C "$MNT/tarred" -xpf -
touch -d '2001-02-03 04:05:06.789' "$MNT/tarred"
rsync -aH "$MNT/synced/" "$DIR/back"
expected=$(digest "$DIR/tree")
for there in "$MNT/synced" "$MNT/tarred" "$DIR/back"; do test "$(digest "$there")" = "$expected"; done
echo "$(find . -type f | wc -l) files, 3 digests equal""#,
    },
    Suite {
        name: "two-mounts",
        work: "two mounts write and read one file in turn",
        needs: &["cmp"],
        script: r#"
here=$MNT there=$OTHER
for i in $(seq "$N"); do
    head -c $((i * 997 % 300000 + 1)) /dev/urandom >"$DIR/turn"
    cp "$DIR/turn" "$here/turn"
    cmp "$DIR/turn" "$there/turn"
    swap=$here here=$there there=$swap
done
echo "$N turns""#,
    },
];

const FSX_WORK: &str = "random reads, writes, truncations and mappings of a file";
const FSX: &str = r#"
for seed in 1 2 3 4; do fsx -N $((N * 25)) -S "$seed" -q "$MNT/fsx-$seed" >"$DIR/said-$seed" 2>&1 & done
for job in $(jobs -p); do wait "$job" || { tail -n 3 "$DIR"/said-* >&2; exit 1; }; done
echo "4 runs of $((N * 25)) operations""#;

/// Names of the suites.
pub(crate) fn names() -> Vec<&'static str> {
    SUITES.iter().map(|suite| suite.name).collect()
}

/// Runs the suites that are asked for, once each.
pub(crate) fn measure(asked: &Asked<'_>, dir: &DataDir, report: &mut BenchReport) -> Result<()> {
    let suites: Vec<&Suite> = SUITES.iter().filter(|suite| asked.wants(suite.name)).collect();
    for (suite, number) in suites.iter().zip(1..) {
        asked.should_continue()?;
        asked.progress.begin(suite.name, number, suites.len() as u64, 0);
        let place = dir.path().join(suite.name);
        make(&place)?;
        let missing = suite.needs.iter().find(|program| !is_there(program));
        let run = Run { asked, suite, place };
        match missing {
            Some(program) => report.notes.push(format!("left out: {}: there is no {program}", suite.name)),
            None if suite.name == WITH_KILLS => match lab(asked) {
                Ok(lab) => report.rows.push(run.row(|| run.while_killed(&lab))),
                Err(why) => report.notes.push(format!("left out: {}: {why}", suite.name)),
            },
            None => report.rows.push(run.row(|| run.on_this_machine())),
        }
    }
    Ok(())
}

fn lab(asked: &Asked<'_>) -> std::result::Result<Lab, String> {
    Lab::up(&asked.options.program, Wanted { hosts: HOSTS, ..Wanted::default() })
}

fn make(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(|e| failed("make", dir, &e))
}

/// The variable `PATH`, with the directory of the suites.
fn path() -> String {
    let tools = std::path::absolute(TOOLS).unwrap_or_default();
    format!("{}:{}", tools.display(), std::env::var("PATH").unwrap_or_default())
}

fn is_there(program: &str) -> bool {
    let mut command = Command::new("sh");
    whole_process(command.args(["-c", &format!("command -v {program}")]).env("PATH", path())).is_ok()
}

struct Run<'a> {
    asked: &'a Asked<'a>,
    suite: &'a Suite,
    place: PathBuf,
}

impl Run<'_> {
    fn times(&self) -> u64 {
        (TIMES * self.asked.bytes / 1_000_000_000).max(TIMES_MIN)
    }

    /// The row of a suite, whether it passed or not.
    fn row(&self, run: impl FnOnce() -> Result<(Ended, String)>) -> BenchRow {
        let Suite { name, work, .. } = self.suite;
        let mut row = BenchRow { name: (*name).into(), work: (*work).into(), ..BenchRow::default() };
        match run() {
            Ok((ended, counts)) => {
                let mut ours = Series::default();
                ours.add(ended.seconds, ended.usage);
                row.ours = ours.measure();
                row.notes.push(counts);
            }
            Err(why) => row.failed = why.to_string(),
        }
        row
    }

    /// Runs the script. Returns its usage and its counts.
    fn script(&self, mnt: &Path, other: &Path) -> Result<(Ended, String)> {
        let mut bash = Command::new("bash");
        bash.args(["-euo", "pipefail", "-c", self.suite.script]).env("PATH", path());
        bash.env("MNT", mnt).env("OTHER", other).env("DIR", &self.place).env("N", self.times().to_string());
        let ended = whole_process(&mut bash)?;
        let counts = ended.out.trim().lines().last().unwrap_or("nothing was counted").to_string();
        Ok((ended, counts))
    }

    /// Our command, with a registry of its own.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.asked.options.program);
        command.args(words).env("XDG_CONFIG_HOME", self.place.join("settings"));
        command
    }

    /// Runs the suite on a volume of four directories.
    fn on_this_machine(&self) -> Result<(Ended, String)> {
        let dirs: Vec<PathBuf> = (1..=STORES).map(|i| self.place.join(format!("store{i}"))).collect();
        dirs.iter().try_for_each(|dir| make(dir))?;
        let stores = dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(",");
        let create = ["volume", "create", NAME, "--stores", &stores, "--copies", "2", "--stripe", "64KiB"];
        whole_process(&mut self.command(&create))?;
        let mount = |name: &str| {
            let at = self.place.join(name);
            make(&at)?;
            Mounts::one(&at, self.command(&["mount", NAME]).arg(&at))
        };
        let ended = {
            let (one, two) = (mount("mnt")?, mount("other")?);
            self.script(one.at(1), two.at(1))?
        };
        whole_process(&mut self.command(&["volume", "check", NAME]))?;
        Ok(ended)
    }

    /// Runs the suite on the hosts of a lab, one of which is killed and revived again and again.
    fn while_killed(&self, lab: &Lab) -> Result<(Ended, String)> {
        let volume = Striped::create(self.asked, lab)?;
        volume.directory("two", &["--copies", "2", "--stripe", "64KiB"])?;
        let mounts = volume.mount(1, &[])?;
        let at = mounts.at(1).join("two");
        let (runs, end) = channel::<()>();
        let (ended, kills) = std::thread::scope(|scope| {
            let killing = scope.spawn(|| self.kills(lab, end));
            let ended = self.script(&at, &at);
            drop(runs);
            (ended, killing.join().expect("a thread does not panic"))
        });
        let ((ended, counts), kills) = (ended?, kills?);
        drop(mounts);
        Ok((ended, format!("{counts}, a store killed {kills} times")))
    }

    /// Kills a node and starts it again, until the other end of the channel is dropped. Returns the number of kills.
    fn kills(&self, lab: &Lab, end: Receiver<()>) -> Result<u64> {
        let (program, host) = (&self.asked.options.program, format!("n{KILLED}"));
        let mut kills = 0;
        loop {
            lab.script(program, "kill", &[&host])?;
            lab.script(program, "revive", &[&host])?;
            kills += 1;
            if end.recv_timeout(BETWEEN_KILLS) != Err(RecvTimeoutError::Timeout) {
                return Ok(kills);
            }
        }
    }
}
