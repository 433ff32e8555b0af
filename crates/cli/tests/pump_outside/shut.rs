//! Directories that their owner has closed to itself, names that are taken, and what a dry run says of that.

use super::faults::as_nobody;
use super::files::receipt;
use super::support::{Place, Running, skipped};

/// A directory gets its permissions last, so that its owner can write in it until then.
#[test]
fn a_tree_of_read_only_directories_is_brought_up_to_date_by_its_owner() {
    let place = Place::new();
    let plant = "mkdir -p ro/sub/deep; echo 1 > ro/one; echo 2 > ro/sub/two; ln ro/sub/two ro/sub/deep/three
        ln ro/one ro/first; chmod 555 ro/sub/deep ro/sub ro";
    let Some(planted) = as_nobody(&place, plant) else {
        return skipped("nobody else can reach this directory");
    };
    planted.is_done();
    let nobody = |line: &str| as_nobody(&place, line).expect("nobody reached it before");
    let is_same = || {
        let list =
            |dir: &str| place.shell(&format!("cd {dir}; find . -printf \"%P %y %T@ %m %n\\n\" | sort")).out;
        assert_eq!(list("ro"), list("rod"));
        place.shell("diff -r ro rod && ! find . -name '.*thalweg*' | grep .").is_done();
    };
    nobody("$T pump ro rod -q").is_done();
    is_same();
    for how in ["", "--resume", "--compare content", "--compare time", "--update", "--existing", "--delete"] {
        nobody(&format!("$T pump ro/ rod -q {how}")).is_done();
        is_same();
    }
    nobody("chmod u+w rod; $T pump ro/ rod -q --compare time").is_done();
    is_same();
    // Something to do in each of them.
    nobody(
        "chmod u+w ro ro/sub ro/sub/deep rod/sub rod/sub/deep; echo 3 > ro/sub/deep/new; rm ro/sub/two
         ln ro/one ro/sub/deep/link; mkdir -p rod/sub/old/older; echo 4 > rod/sub/old/older/x
         chmod 555 ro ro/sub ro/sub/deep rod/sub/old/older rod/sub/old rod/sub/deep rod/sub",
    )
    .is_done();
    nobody("$T pump ro/ rod -q --resume --delete").is_done();
    is_same();
    // What was interrupted is cleared by the next run, whatever its permissions are.
    nobody("chmod u+w ro; head -c 3000000 /dev/urandom > ro/big; chmod 555 ro").is_done();
    nobody("timeout 0.7 $T pump ro again --limit 1MB -q --streams 1; true");
    nobody("$T pump ro again -q").is_done();
    place.shell("diff -r ro again && ! find . -name '.*thalweg*' | grep .").is_done();
    place.shell("chmod -R u+w .").is_done();
}

#[test]
fn of_two_transfers_to_one_new_name_one_is_told_and_leaves_nothing() {
    let place = Place::new();
    place.shell("mkdir src; for i in $(seq 300); do echo $i > src/$i; done").is_done();
    for round in 0..6 {
        let start = || Running::start(&mut place.command(&["pump", "src", "dst", "-q"]));
        let both = [start(), start()].map(Running::ends);
        let done = both.iter().filter(|told| told.status == Some(0)).count();
        assert!(done >= 1, "round {round}: {both:?}");
        for told in both.iter().filter(|told| told.status != Some(0)) {
            told.is_refused(&["another process is writing", "dst"]);
        }
        // The other may have come so late that the name was a directory, which it went into.
        place.shell("diff -r src dst -x src && ! ls -A . dst | grep thalweg && rm -r dst").is_done();
    }
}

#[test]
fn a_name_that_appears_meanwhile_is_told_and_nothing_is_left() {
    let place = Place::new();
    place.shell("mkdir src; head -c 3000000 /dev/urandom > src/big").is_done();
    let told =
        place.shell("$T pump src dst -q --limit 2MB & sleep 0.6; mkdir dst; echo 1 > dst/own; wait $!");
    told.is_refused(&["another process is writing", "dst"]);
    assert_eq!(place.shell("find . -mindepth 1 | sort").out, "./dst\n./dst/own\n./src\n./src/big\n");
}

#[test]
fn a_dry_run_names_what_would_be_left_out() {
    let place = Place::new();
    place
        .shell("mkdir -p s/x s/ok t/y t/z; echo 1 >s/x/one; echo f >t/x; echo 2 >s/y; ln -s no s/z; echo 3 >s/ok/a")
        .is_done();
    let mut errors = Vec::new();
    for dry in ["--dry-run", ""] {
        let told = place.shell(&format!("$T pump s/ t --json {dry}"));
        assert_eq!(told.status, Some(4), "{dry}: {told:?}");
        let receipt = receipt(&told.out);
        assert!(receipt.holds, "{dry}: {receipt:?}");
        assert!(receipt.items.iter().all(|item| item.path.starts_with("ok")), "{receipt:?}");
        let mut names: Vec<_> = receipt.errors.into_iter().map(|e| e.path).collect();
        // What is in a directory that is left out is not looked at by a dry run.
        names.retain(|path| !path.ends_with("one"));
        names.sort();
        errors.push(names);
    }
    assert_eq!(errors[0].len(), 3, "{errors:?}");
    assert_eq!(errors[0], errors[1]);
}
