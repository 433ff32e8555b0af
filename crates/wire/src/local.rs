//! A link within one process: a cluster of one uses the same links as any other.

use std::thread;

use crate::carrier::memory;
use crate::error::Result;
use crate::hello::{Hello, Id, Role, VERSIONS};
use crate::link::{Link, PeerInfo};
use crate::tls::Terms;

/// The two ends of a link in this process; the first one is the side that began it.
pub fn pair(terms: Terms) -> Result<(Link, Link)> {
    let hello = |node| Hello {
        versions: VERSIONS,
        cluster: Id(0),
        node: Id(node),
        role: Role::Node,
        block_bytes: terms.block_bytes,
        epoch: 0,
    };
    let [near, other] = memory();
    let far = |name: &str| PeerInfo { name: name.to_string(), proved: None, exporter: None };
    thread::scope(|scope| {
        let began = scope.spawn(|| {
            let carrier = (Box::new(near.0) as _, Box::new(near.1) as _);
            Link::establish(hello(1), far("this process"), true, carrier, terms.patience)
        });
        let carrier = (Box::new(other.0) as _, Box::new(other.1) as _);
        let accepted = Link::establish(hello(2), far("this process"), false, carrier, terms.patience)?;
        Ok((began.join().expect("a hello does not panic")?, accepted))
    })
}
