//! The flags of `table` on the nodes of a cluster, in the table of flags.

use std::time::Duration;

use thalweg::table::{Duplicates, Shape, Transport, Variant};

use crate::commands::Command::Table;
use crate::flag::{At, Flag, Value};
use crate::values;

const TABLES: At = At::Commands(&[Table]);

pub(crate) const CAPACITY: Flag = Flag {
    long: "capacity",
    short: None,
    value: Value::Any("RECORDS"),
    at: TABLES,
    about: "records of a bucket of a new table [default: 50000]",
    doc: "\
How many records a bucket of a new table has. One that has more is split: another node gets its upper half, or, if keys come in \
ascending order, the keys behind its last one.",
    set: |args, value| values::record_count(value).map(|records| args.capacity = Some(records)),
};

pub(crate) const INDEX: Flag = Flag {
    long: "index",
    short: None,
    value: Value::None,
    at: TABLES,
    about: "a new table with an index on its nodes",
    doc: "\
Gives a new table an index: pages on the nodes that say where its buckets are, for clients with --variant s.",
    set: |args, _| {
        args.index = true;
        Ok(())
    },
};

pub(crate) const VARIANT: Flag = Flag {
    long: "variant",
    short: None,
    value: Value::OneOf("HOW", &["n", "c", "cu", "s"]),
    at: TABLES,
    about: "how the nodes of records are found [default: cu]",
    doc: "\
How the node with a record is found. n: all nodes are asked, and the one with the record answers. c: as n, except for records \
whose node is known from earlier answers. cu: the node of the nearest range that is known is asked, and forwards the request. s: \
the index of the table leads to it; it needs a table that was created with --index. The answers are the same.",
    set: |args, value| values::choice(value, &Variant::WORDS).map(|variant| args.variant = Some(variant)),
};

pub(crate) const TRANSPORT: Flag = Flag {
    long: "transport",
    short: None,
    value: Value::OneOf("HOW", &["links", "udp"]),
    at: TABLES,
    about: "how requests for records travel [default: links]",
    doc: "\
How requests for single records travel. links: over links, that is, TCP. udp: in encrypted datagrams, as many requests in each as it \
can hold; one that is lost is sent again. What is for all nodes (--variant n or c) is multicast if every node receives that. What is \
too long for a datagram, and everything if no datagrams arrive, travels over links.",
    set: |args, value| {
        let choices = [("links", Transport::Links), ("udp", Transport::Udp)];
        values::choice(value, &choices).map(|transport| args.transport = Some(transport))
    },
};

pub(crate) const ON_DUPLICATE: Flag = Flag {
    long: "on-duplicate",
    short: None,
    value: Value::OneOf("WHAT", &["error", "first", "last"]),
    at: TABLES,
    about: "which of records with one key is loaded [default: error]",
    doc: "\
What a load does with records that have the same key, of which a table has only one. error: it fails, and the table is as it was. \
first, last: it takes the first or the last of them, in the order of the inputs.",
    set: |args, value| {
        let choices = [("error", Duplicates::Fail), ("first", Duplicates::First), ("last", Duplicates::Last)];
        values::choice(value, &choices).map(|what| args.on_duplicate = Some(what))
    },
};

pub(crate) const PARITY: Flag = Flag {
    long: "parity",
    short: None,
    value: Value::Any("M+K"),
    at: TABLES,
    about: "survive the failure of any K nodes",
    doc: "\
A new table survives the failure of any K nodes, with K 1 or 2. For each group of up to M buckets on different nodes, K other nodes \
have parity buckets, from which lost buckets are recovered. A change is acknowledged when the parity buckets have it. Without this \
flag, the records of a node are lost when it fails.",
    set: |args, value| {
        let shape = values::text(value).and_then(Shape::parse);
        shape.map(|shape| args.parity = Some(shape))
    },
};

pub(crate) const WAIT_SAFE: Flag = Flag {
    long: "wait-safe",
    short: None,
    value: Value::Any("SECONDS"),
    at: TABLES,
    about: "wait until any K nodes of a table with parity may fail",
    doc: "\
Waits until all keys of a table with --parity M+K are there and any K nodes may fail, as all nodes with its buckets and parity \
buckets say after the call. Ends with status 1 if that is not so after this time.",
    set: |args, value| {
        let seconds: f64 = values::parsed(value)?;
        let wait = Duration::try_from_secs_f64(seconds).map_err(|why| why.to_string())?;
        args.wait_safe = Some(wait);
        Ok(())
    },
};

pub(crate) const HEX: Flag = Flag {
    long: "hex",
    short: None,
    value: Value::None,
    at: TABLES,
    about: "keys and values in hexadecimal instead of text",
    doc: "\
Keys and values are written and shown in hexadecimal, two digits for each byte. Without this flag they are text, in which \\xHH is \
any byte, and \\\\, \\n, \\r and \\t are a backslash and what they are in C.",
    set: |args, _| {
        args.hex = true;
        Ok(())
    },
};

pub(crate) const WHERE: Flag = Flag {
    long: "where",
    short: None,
    value: Value::Any("CONDITION"),
    at: TABLES,
    about: "records whose value meets a condition",
    doc: "\
Records whose value meets a condition: contains:X, prefix:X, or one of = != < <= > >= and X, which may stand behind OFFSET: or \
OFFSET:LENGTH to compare only these bytes, as in 4:8>=abc. The nodes look for them in parallel.",
    set: |args, value| values::text(value).map(|condition| args.condition = Some(condition.into())),
};

pub(crate) const FIRST: Flag = Flag {
    long: "first",
    short: None,
    value: Value::Any("RECORDS"),
    at: TABLES,
    about: "at most so many records",
    doc: "At most so many records, the first of the range, or the last with --descending.",
    set: |args, value| values::record_count(value).map(|records| args.first = Some(records)),
};

pub(crate) const DESCENDING: Flag = Flag {
    long: "descending",
    short: None,
    value: Value::None,
    at: TABLES,
    about: "from the last record to the first",
    doc: "From the last record of the range to the first.",
    set: |args, _| {
        args.descending = true;
        Ok(())
    },
};

pub(crate) const KEYS_ONLY: Flag = Flag {
    long: "keys-only",
    short: None,
    value: Value::None,
    at: TABLES,
    about: "keys without their values",
    doc: "Keys without their values, which then do not travel.",
    set: |args, _| {
        args.keys_only = true;
        Ok(())
    },
};
