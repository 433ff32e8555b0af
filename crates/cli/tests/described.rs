//! The HTTP interface of a node behaves as it describes itself, whatever the request: schemathesis makes valid and
//! invalid requests from `/openapi.json`. `./test` installs it; without it the test says that it was skipped.
#![allow(clippy::disallowed_methods)] // Users of the command look at files in other ways.

mod support;

use std::path::Path;
use std::process::{Command, Stdio};

use support::nodes::Nodes;
use support::{skipped, until};

#[test]
fn a_node_answers_as_it_describes_itself() {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../schemathesis/bin/schemathesis");
    if !program.exists() {
        skipped("there is no schemathesis; ./test installs it");
        return;
    }
    let nodes = Nodes::start(1);
    // A job that requests can find.
    nodes.run(&["exec", "--", "true"]).is_done();
    let own = "--cert own/cert.pem --key own/key.pem";
    let described = nodes.curl(&format!("{own} N1/openapi.json")).is_done().to_string();
    nodes.place.write("openapi.json", described.as_bytes());
    let mut run = Command::new(program);
    run.args(["run", "openapi.json", "--url", &format!("https://127.0.0.1:{}", nodes.ports[0])]);
    run.args([
        "--request-cert",
        "own/cert.pem",
        "--request-cert-key",
        "own/key.pem",
        "--tls-verify",
        "false",
    ]);
    run.args([
        "--max-examples",
        "20",
        "--max-time",
        "25",
        "--seed",
        "7",
        "--no-color",
        "--request-timeout",
        "5",
    ]);
    let output = run.current_dir(&nodes.place.0).stdin(Stdio::null()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    assert!(told.contains("generated"), "{told}");
    // The node still works, once it has forgotten that it was drained, and nothing in it has changed.
    until("the node takes jobs", || nodes.run(&["exec", "--", "true"]).status == Some(0));
    assert_eq!(nodes.status().epoch, 1);
}
