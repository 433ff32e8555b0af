//! Messages are decoded as they were encoded, and nothing else is.

use super::*;

fn facts() -> Attributes {
    Attributes {
        kind: EntryKind::File,
        len: 5,
        allocated: 4096,
        device: 1,
        inode: 2,
        links: 3,
        mode: 0o4755,
        user: 7,
        group: 8,
        modified_ns: -5,
        changed_ns: 6,
    }
}

fn extended() -> Extended {
    let all = [("user.a", "b"), ("system.posix_acl_access", ""), ("trusted.c", "d\0")];
    Extended::of(all.map(|(name, value)| (name.into(), value.into())).into()).expect("all are copied")
}

/// A peer cannot set attributes that are not copied.
#[test]
fn other_attributes_are_none() {
    for name in ["system.nfs4_acl", "security.selinux", "btrfs.compression", "", "user.a\0b"] {
        assert_eq!(Extended::of(vec![(name.into(), vec![])]), None, "{name}");
    }
    for name in ["security.capability", "system.posix_acl_default", "user.", "trusted.x"] {
        assert!(Extended::of(vec![(name.into(), vec![])]).is_some(), "{name}");
    }
}

fn samples() -> Vec<Message> {
    let root = Offered { path: "/a".into(), name: "a".into(), facts: Some(facts()), contents: true };
    let named = Named {
        place: "b/c".into(),
        facts: facts(),
        name: "x".into(),
        first: "y".into(),
        top: 1,
        key: b"k".to_vec(),
        first_key: b"l".to_vec(),
    };
    let offer = Offer {
        hashing: true,
        verify: true,
        strict: true,
        lanes: 2,
        total: 9,
        roots: vec![root],
        ..Offer::default()
    };
    vec![
        Message::Offer(offer),
        Message::Accept(1, vec!["a".into(), OsString::new()]),
        Message::Dir(2, 1, "d".into(), facts(), extended(), Some(0)),
        Message::DirEnd(1, 700, true),
        Message::File(1, 0, OsString::from_vec(b"odd\n\xff".to_vec()), Some(facts()), extended(), None),
        Message::File(1, 0, "pump".into(), None, Extended::default(), Some(5)),
        Message::Take(1, true),
        Message::FileEnd(1, 2, u128::MAX),
        Message::Ask(1, vec!["a".into(), "b".into()]),
        Message::Name(Box::new(named)),
        Message::End(3),
        Message::Ranges(vec![(0, 4096, 5)], true),
        Message::Cells(vec![(4096, vec![1, 2])]),
        Message::There(vec![None, Some(facts())]),
        Message::AskSums(3, vec!["a".into()]),
        Message::Sums(vec![None, Some(7)]),
        Message::Facts(1, "f".into(), facts(), extended()),
        Message::Item(PumpItem { change: PumpChange::Deleted, path: "a/b/".into() }),
        Message::FileLost(1, 2),
        Message::Names(1, vec!["a".into()]),
        Message::LeftOut(LeftOut { path: "a".into(), kind: LeftOutKind::Changed, why: "it did".into() }),
    ]
}

#[test]
fn what_is_said_is_heard_and_nothing_but_all_of_it() {
    for message in samples() {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        assert_eq!(Message::decode(&bytes[4..]).as_ref(), Some(&message));
        assert_eq!(bytes.len() - 4, u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize);
        for cut in 4..bytes.len() {
            assert_eq!(Message::decode(&bytes[4..cut]), None, "{message:?} cut at {cut}");
        }
    }
}

/// What went wrong: a message of 1 MiB took 48 MiB of memory.
#[test]
fn answers_are_no_longer_than_questions_may_be() {
    let cell = (0, vec![0; 1]);
    for (most, more) in [
        (Message::There(vec![None; ASKED]), Message::There(vec![None; ASKED + 1])),
        (Message::Sums(vec![None; ASKED]), Message::Sums(vec![None; ASKED + 1])),
        (Message::Ask(0, vec!["n".into(); ASKED]), Message::Ask(0, vec!["n".into(); ASKED + 1])),
        (Message::Cells(vec![cell.clone(); CELLS]), Message::Cells(vec![cell; CELLS + 1])),
        (
            Message::Ranges(vec![(0, 1, 2); RANGES], false),
            Message::Ranges(vec![(0, 1, 2); RANGES + 1], false),
        ),
    ] {
        let decoded = [&most, &more].map(|message| {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            Message::decode(&bytes[4..])
        });
        assert_eq!(decoded, [Some(most), None]);
    }
}

#[test]
fn a_block_says_what_it_is_about_behind_its_bytes() {
    let small = |what| Small { dir: 3, name: "n".into(), facts: facts(), extended: extended(), what };
    for tail in [Tail::Piece(1, 1 << 20), Tail::Pack(vec![small(Ok(5)), small(Err("to".into()))])] {
        let mut block = b"bytes".to_vec();
        block.extend_from_slice(&tail.encode());
        assert_eq!(Tail::decode(&block), Some((tail, 5)));
        let last = block.len() - 1;
        for at in 5..last {
            let mut damaged = block.clone();
            damaged[at] ^= 1;
            assert_eq!(Tail::decode(&damaged), None, "damaged at {at}");
        }
    }
}

#[test]
fn names_that_lead_elsewhere_are_none() {
    for name in ["", ".", "..", "a/b", "/etc", "a\0"] {
        let mut bytes = Vec::new();
        Message::File(1, 0, name.into(), None, Extended::default(), None).encode(&mut bytes);
        assert_eq!(Message::decode(&bytes[4..]), None, "{name:?}");
    }
    for way in ["/etc", "../x", "a/../../b"] {
        let Message::Name(mut named) = samples().remove(9) else { panic!("it is the ninth") };
        named.first = way.into();
        let mut bytes = Vec::new();
        Message::Name(named).encode(&mut bytes);
        assert_eq!(Message::decode(&bytes[4..]), None, "{way:?}");
    }
}

/// Mutations from a seed are decoded or rejected.
#[test]
fn mutations_of_messages_are_answered() {
    let all: Vec<Vec<u8>> = samples()
        .iter()
        .map(|message| {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            bytes.split_off(4)
        })
        .collect();
    for seed in 0..20_000u64 {
        let mut rng = thalweg_base::rng::Rng::new(seed);
        let mut bytes = all[rng.below(all.len() as u64) as usize].clone();
        for _ in 0..=rng.below(4) {
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] = rng.next_u64() as u8;
        }
        if let Some(message) = Message::decode(&bytes) {
            let mut again = Vec::new();
            message.encode(&mut again);
            assert_eq!(Message::decode(&again[4..]), Some(message));
        }
    }
}
