//! The signed list of a cluster's members, and the admission of peers by it.

mod support;

use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use support::City;
use thalweg_base::clock::{Stopwatch, wall_seconds};
use thalweg_wire::{Authority, Named, NotVerified, Role, Terms, ends_at, new_id, verify};

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

#[test]
fn a_list_counts_only_with_the_signature_of_its_own_authority() {
    let city = City::new();
    let (file, text) = city.signed(|file| file.epoch = 7);
    let authority = der(&city.authority());
    assert_eq!(verify(&text, &authority).unwrap(), file);
    // Another epoch; another name; no signature; half a signature; that of another authority.
    let changed = text.replace("\"epoch\":7", "\"epoch\":8");
    let renamed = text.replace("\"city\"", "\"town\"");
    let (unsigned, _) = text.split_once(",\"signature\"").unwrap();
    let half = text.trim_end().strip_suffix("00\"}").map_or(text.replace("\"}\n", "ab\"}\n"), String::from);
    let (_, theirs) = City::new().signed(|there| *there = file.clone());
    for (what, text) in [("changed", changed), ("renamed", renamed), ("half", half), ("theirs", theirs)] {
        let why = verify(&text, &authority).unwrap_err();
        assert!(matches!(why, NotVerified::Forged), "{what}: {why}");
    }
    for behind in [" ", "\n", " \n", "x"] {
        let why = verify(&format!("{text}{behind}"), &authority).unwrap_err();
        assert!(matches!(why, NotVerified::Unsigned | NotVerified::Forged), "{behind:?}: {why}");
    }
    let why = verify(&format!("{unsigned}}}\n"), &authority).unwrap_err().to_string();
    assert!(why.contains("it is not signed") && why.contains("thalweg cluster renew"), "{why}");
}

#[test]
fn whom_the_authority_has_signed_and_the_list_does_not_name_is_refused() {
    let city = City::new();
    let credentials = city.unlisted_credentials();
    let (address, accepted) = city.accept_one();
    let theirs = credentials.connect("n2", address, Terms::default()).map(|_| ()).unwrap_err().to_string();
    assert!(theirs.contains("our certificate is not in its cluster file"), "{theirs}");
    let ours = accepted.join().unwrap().unwrap_err().to_string();
    assert!(ours.contains("it is not in the cluster file"), "{ours}");
    // A listed id with another key, as after a renewal with a copied key.
    let credentials = city.credentials("n1");
    let (file, _) = city.signed(|file| {
        file.epoch += 1;
        file.hosts.last_mut().unwrap().key = "0".repeat(64);
    });
    city.second.identity().members.set(&file);
    let (address, accepted) = city.accept_one();
    assert!(credentials.connect("n2", address, Terms::default()).is_err());
    assert!(accepted.join().unwrap().is_err());
}

#[test]
fn a_link_tells_its_epoch_and_ends_when_its_peer_is_dropped() {
    let city = City::new();
    let (far, near) = city.link(Terms::default());
    let epoch = far.hello().epoch;
    assert_eq!(near.hello().epoch, epoch);
    let watch = Stopwatch::start();
    city.drop_last();
    assert!(far.accept().is_err() || !far.is_open());
    assert!(near.accept().map_or(true, |next| next.is_none()));
    assert!(watch.seconds() < Duration::from_secs(1).as_secs_f64(), "{}", watch.seconds());
    let (far, near) = city.link(Terms::default());
    assert!(far.hello().epoch > epoch && near.hello().epoch == far.hello().epoch);
}

#[test]
fn certificates_say_when_they_end() {
    let cluster = new_id();
    let authority = Authority::new(cluster).unwrap();
    let named = Named { host: "n1".into(), node: new_id(), cluster, role: Role::Node };
    for days in [-1_i64, 1, 365, 3650, 36_500] {
        let ends = ends_at(&der(&authority.issue(&named, days).unwrap().certificate)).unwrap() as i64;
        let expected = wall_seconds() as i64 + days * 86_400;
        assert!((expected - 5..=expected).contains(&ends), "{days} days: {ends}, not {expected}");
    }
    let whole = der(&authority.kept().certificate);
    for len in 0..60 {
        assert_eq!(ends_at(&whole[..len]), None, "{len} bytes of it");
    }
}
