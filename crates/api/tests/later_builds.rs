//! What another build sends or has written is understood.
//!
//! `recorded/protocol-7.txt` has messages and files as the first build with version 7 of the protocol wrote them, each
//! behind its type. Later builds have to read them for as long as they speak that version: a field that they add needs a
//! default, and one that they do not know is skipped.
#![allow(clippy::disallowed_methods)] // Tests read sources.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use thalweg_api::*;

/// What went wrong: a message with a field that was new to its reader was refused, and so was a cluster file that a
/// later build had written. Consequence: no two builds could work together, not even until all nodes had the new one.
/// Principle: every reader skips what it does not know.
#[test]
fn what_was_recorded_is_read_with_fields_that_a_later_build_adds_or_without() {
    let mut objects = 0;
    for line in include_str!("recorded/protocol-7.txt").lines() {
        let (name, text) = line.split_once(' ').expect("a type and its text");
        let read = match name {
            "CheckSaid" => read::<CheckSaid>,
            "ClientFile" => read::<ClientFile>,
            "ClientFileRequest" => read::<ClientFileRequest>,
            "ClusterFile" => read::<ClusterFile>,
            "CommandRequest" => read::<CommandRequest>,
            "ExecEnd" => read::<ExecEnd>,
            "FromParticipant" => read::<FromParticipant>,
            "HostEnd" => read::<HostEnd>,
            "HostProcess" => read::<HostProcess>,
            "HostRequest" => read::<HostRequest>,
            "JobList" => read::<JobList>,
            "JobRequest" => read::<JobRequest>,
            "NodeReady" => read::<NodeReady>,
            "NodeStatus" => read::<NodeStatus>,
            "TableRequest" => read::<TableRequest>,
            "TableShare" => read::<TableShare>,
            "ToParticipant" => read::<ToParticipant>,
            "TransferRequest" => read::<TransferRequest>,
            "VolumeEntry" => read::<VolumeEntry>,
            "VolumeRequest" => read::<VolumeRequest>,
            "VoteRecord" => read::<VoteRecord>,
            "VoteSaid" => read::<VoteSaid>,
            other => panic!("{other} is not read here"),
        };
        objects += read(line, text);
    }
    assert!(objects > 60, "{objects} objects had a field more");
    let request = r#"{"service":"host","body":"keep","of_a_later_build":{}}"#;
    assert_eq!(Request::parse(request).unwrap().service, "host");
}

/// Reads a text as it is, and with a field more in each object in turn. Returns how many objects took it.
fn read<T: DeserializeOwned + Serialize + PartialEq + Debug>(line: &str, text: &str) -> usize {
    let told: T = from_json(text).unwrap_or_else(|why| panic!("{why}: {line}"));
    assert_eq!(from_json(&to_json(&told)).as_ref(), Ok(&told), "{line}");
    let whole: Value = from_json(text).unwrap();
    let mut objects = Vec::new();
    paths(&whole, String::new(), &mut objects);
    let mut taken = 0;
    for path in objects {
        let mut more = whole.clone();
        let object = more.pointer_mut(&path).and_then(Value::as_object_mut).expect("there is an object");
        let fields = object.len();
        object.insert("of_a_later_build".into(), json!({"any": [1, null]}));
        match from_json::<T>(&more.to_string()) {
            // A job is not to be done without what was asked: its options keep the field, and nodes refuse it.
            Ok(other)
                if line.starts_with("JobRequest")
                    && (path.ends_with("/ask") || path.ends_with("/ask/join")) =>
            {
                assert!(to_json(&other).contains("of_a_later_build"), "{path} in {line}");
                taken += 1;
            }
            Ok(other) => {
                assert_eq!(other, told, "{path} in {line}");
                taken += 1;
            }
            // An object with one field may be one of several alternatives, and its field says which.
            Err(why) => assert_eq!(fields, 1, "{path}: {why}: {line}"),
        }
    }
    taken
}

/// The paths of all objects in a value.
fn paths(value: &Value, path: String, into: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| paths(value, format!("{path}/{name}"), into));
            into.push(path);
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, value)| paths(value, format!("{path}/{i}"), into));
        }
        _ => {}
    }
}

/// No reader anywhere refuses fields: what other builds write is read in many places.
#[test]
fn no_reader_refuses_fields_that_it_does_not_know() {
    let mut sources = vec![std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))];
    let (mut files, refuses) = (0, concat!("deny_unknown", "_fields"));
    while let Some(path) = sources.pop() {
        if path.is_dir() {
            sources.extend(path.read_dir().unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files += 1;
            assert!(!std::fs::read_to_string(&path).unwrap().contains(refuses), "{}", path.display());
        }
    }
    assert!(files > 300, "{files} files were looked at");
}
