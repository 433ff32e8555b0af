//! The flags of `table`, in the table of flags.

use std::path::PathBuf;
use std::time::Duration;

use thalweg::table::{Duplicates, Shape, Transport, Variant};
use thalweg_verbs::Command::Table;
use thalweg_verbs::Value::{Any, File, OneOf, Switch};
use thalweg_verbs::{At, Flag, flag, on, values};

use crate::typed::TypedArgs;

const TABLES: At = At::Commands(&[Table]);

#[rustfmt::skip] // The rows of a table.
pub(crate) const FLAGS: &[Flag<TypedArgs>] = &[
    flag("resp", Any("WHERE"), TABLES, "where Redis clients connect", "\
Where Redis clients connect: ADDRESS:PORT, with port 0 for any that is free, or unix:PATH, which only this user can connect to. \
An address that other machines can reach needs --tls-cert, --tls-key and --password-file.",
        |args, value| values::parsed(value).map(|place| args.resp = Some(place))),
    flag("password-file", File("FILE"), TABLES, "a file with the password that clients have to give", "\
A file with the password that clients have to give with AUTH, in its first line. Without this flag they give none: whoever is on \
this machine can connect to a port of its.",
        |args, value| {
            args.password_file = Some(PathBuf::from(value));
            Ok(())
        }),
    flag("tls-cert", File("FILE"), TABLES, "the certificate of the server, in PEM", "\
A file with the certificate that the server shows, in PEM, perhaps with those that lead to its authority behind it. With it and \
--tls-key, connections are encrypted with TLS 1.3.",
        |args, value| {
            args.tls_cert = Some(PathBuf::from(value));
            Ok(())
        }),
    flag("tls-key", File("FILE"), TABLES, "the key of the certificate, in PEM", "\
A file with the key of the certificate in --tls-cert, in PEM. Only its owner may be able to read it.",
        |args, value| {
            args.tls_key = Some(PathBuf::from(value));
            Ok(())
        }),
    flag("capacity", Any("RECORDS"), TABLES, "records of a bucket of a new table [default: 50000]", "\
How many records a bucket of a new table has. One that has more is split: another node gets its upper half, or, if keys come in \
ascending order, the keys behind its last one.",
        |args, value| values::record_count(value).map(|records| args.capacity = Some(records))),
    flag("index", Switch, TABLES, "a new table with an index on its nodes", "\
Gives a new table an index: pages on the nodes that say where its buckets are, for clients with --variant s.",
        on!(index)),
    flag("variant", OneOf("HOW", &["n", "c", "cu", "s"]), TABLES,
        "how the nodes of records are found [default: cu]", "\
How the node with a record is found. n: all nodes are asked, and the one with the record answers. c: as n, except for records \
whose node is known from earlier answers. cu: the node of the nearest range that is known is asked, and forwards the request. s: \
the index of the table leads to it; it needs a table that was created with --index. The answers are the same.",
        |args, value| values::choice(value, &Variant::WORDS).map(|variant| args.variant = Some(variant))),
    flag("transport", OneOf("HOW", &["links", "udp"]), TABLES, "how requests for records travel [default: links]", "\
How requests for single records travel. links: over links, that is, TCP. udp: in encrypted datagrams, as many requests in each as it \
can hold; one that is lost is sent again. What is for all nodes (--variant n or c) is multicast if every node receives that. What is \
too long for a datagram, and everything if no datagrams arrive, travels over links.",
        |args, value| {
            let choices = [("links", Transport::Links), ("udp", Transport::Udp)];
            values::choice(value, &choices).map(|transport| args.transport = Some(transport))
        }),
    flag("on-duplicate", OneOf("WHAT", &["error", "first", "last"]), TABLES,
        "which of records with one key is loaded [default: error]", "\
What a load does with records that have the same key, of which a table has only one. error: it fails, and the table is as it was. \
first, last: it takes the first or the last of them, in the order of the inputs.",
        |args, value| {
            let choices =
                [("error", Duplicates::Fail), ("first", Duplicates::First), ("last", Duplicates::Last)];
            values::choice(value, &choices).map(|what| args.on_duplicate = Some(what))
        }),
    flag("parity", Any("M+K"), TABLES, "survive the failure of any K nodes", "\
A new table survives the failure of any K nodes, with K 1 or 2. For each group of up to M buckets on different nodes, K other nodes \
have parity buckets, from which lost buckets are recovered. A change is acknowledged when the parity buckets have it. Without this \
flag, the records of a node are lost when it fails.",
        |args, value| {
            let shape = values::text(value).and_then(Shape::parse);
            shape.map(|shape| args.parity = Some(shape))
        }),
    flag("wait-safe", Any("SECONDS"), TABLES, "wait until any K nodes of a table with parity may fail", "\
Waits until all keys of a table with --parity M+K are there and any K nodes may fail, as all nodes with its buckets and parity \
buckets say after the call. Ends with status 1 if that is not so after this time.",
        |args, value| {
            let seconds: f64 = values::parsed(value)?;
            let wait = Duration::try_from_secs_f64(seconds).map_err(|why| why.to_string())?;
            args.wait_safe = Some(wait);
            Ok(())
        }),
    flag("hex", Switch, TABLES, "keys and values in hexadecimal instead of text", "\
Keys and values are written and shown in hexadecimal, two digits for each byte. Without this flag they are text, in which \\xHH is \
any byte, and \\\\, \\n, \\r and \\t are a backslash and what they are in C.",
        on!(hex)),
    flag("where", Any("CONDITION"), TABLES, "records whose value meets a condition", "\
Records whose value meets a condition: contains:X, prefix:X, or one of = != < <= > >= and X, which may stand behind OFFSET: or \
OFFSET:LENGTH to compare only these bytes, as in 4:8>=abc. The nodes look for them in parallel.",
        |args, value| values::text(value).map(|condition| args.condition = Some(condition.into()))),
    flag("first", Any("RECORDS"), TABLES, "at most so many records", "\
At most so many records, the first of the range, or the last with --descending.",
        |args, value| values::record_count(value).map(|records| args.first = Some(records))),
    flag("descending", Switch, TABLES, "from the last record to the first", "\
From the last record of the range to the first.",
        on!(descending)),
    flag("keys-only", Switch, TABLES, "keys without their values", "\
Keys without their values, which then do not travel.",
        on!(keys_only)),
];
