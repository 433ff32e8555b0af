//! Access control lists, extended attributes and file capabilities: compared with the real rsync.

use super::faults::as_nobody;
use super::files::receipt;
use super::support::{Place, may_give_away, skipped};
use super::walk::{ATTRIBUTES, WITH_ATTRIBUTES};

/// A tree with attributes of all kinds, if the tools and the file system allow it.
fn planted() -> Option<Place> {
    if !may_give_away() {
        return None;
    }
    let place = Place::new();
    if place.shell("rsync --version && setfacl --version && getfattr --version && getcap -h").status
        == Some(127)
    {
        skipped("there is no rsync, setfacl, getfattr or getcap");
        return None;
    }
    place.shell(WITH_ATTRIBUTES).is_done();
    Some(place)
}

fn attributes(place: &Place, of: &str) -> String {
    let told = place.shell(&format!("cd {of} && {ATTRIBUTES}"));
    told.is_done();
    told.out
}

#[test]
fn attributes_arrive_as_with_rsync() {
    let Some(place) = planted() else { return };
    let tree = attributes(&place, "tree");
    for holds in ["user.comment", "user:1234:rw-", "default:user:1234", "security.capability", "trusted.note"]
    {
        assert!(tree.contains(holds), "{holds}: {tree}");
    }
    // What is new may inherit lists, and what is there has attributes that the source does not have.
    let there = "mkdir -p new/sub; setfacl -d -m u:99:rwx new; setfattr -n user.older -v x new/sub; setfacl -m u:98:r new/sub";
    for (flags, flags_of_rsync) in [("", "-aAX"), ("--streams 3 --io threads", "-aAX"), ("--no-xattrs", "-a")]
    {
        place.shell(&format!("rm -rf new ours theirs ours2 theirs2; {there}")).is_done();
        place.shell("cp -a new ours2; cp -a new theirs2").is_done();
        place
            .shell(&format!("rsync {flags_of_rsync} tree/ theirs; rsync {flags_of_rsync} tree/ theirs2"))
            .is_done();
        let told = place.shell(&format!("$T pump tree ours --json {flags}"));
        assert_eq!(receipt(told.is_done()).not_kept, 0, "{told:?}");
        assert_eq!(attributes(&place, "ours"), attributes(&place, "theirs"), "{flags}");
        assert_eq!(attributes(&place, "ours") == tree, flags != "--no-xattrs", "{flags}");
        place.shell(&format!("$T pump tree/ ours2 -q {flags}")).is_done();
        if flags != "--no-xattrs" {
            assert_eq!(attributes(&place, "ours2"), attributes(&place, "theirs2"), "{flags}");
        }
    }
}

/// What is equal gets only its attributes.
#[test]
fn attributes_of_equal_files_are_set() {
    let Some(place) = planted() else { return };
    place.shell("$T pump tree copy -q --no-xattrs; $T pump tree/ copy -q --compare content").is_done();
    let told = place.shell("$T pump tree/ copy --json --compare content");
    assert_eq!(receipt(told.is_done()).files, 0, "{told:?}");
    assert_eq!(attributes(&place, "copy"), attributes(&place, "tree"));
}

#[test]
fn what_cannot_be_kept_is_named() {
    let Some(place) = planted() else { return };
    place.shell("chmod -R a+rX tree").is_done();
    let Some(told) = as_nobody(&place, "$T pump tree copy; $T pump tree copy2 --json") else {
        skipped("nobody else can reach this directory");
        return;
    };
    assert_eq!(told.status, Some(0), "{told:?}");
    let shown = "not kept  1 extended attribute, as of copy/sub/program: security.capability\n";
    assert!(told.out.contains(shown), "{told:?}");
    let json = told.out.lines().last().unwrap();
    assert_eq!((receipt(json).not_kept, receipt(json).not_kept_first.len()), (1, 1), "{json}");
    // Everything else is there.
    let without = |of: &str| -> Vec<String> {
        let kept = |line: &&str| !line.contains("security.capability") && !line.contains("cap_net_raw");
        attributes(&place, of).lines().filter(kept).map(String::from).collect()
    };
    place.shell("rm -rf theirs; rsync -aAX tree/ theirs; setfattr -x trusted.note theirs/sub").is_done();
    // Set-ID bits are not given to another owner.
    place.shell("chown -R 65534:65534 theirs; chmod g-s theirs/sub/deep").is_done();
    assert_eq!(without("copy"), without("theirs"));
}
