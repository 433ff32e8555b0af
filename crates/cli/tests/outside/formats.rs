//! Inputs that are not lines, or not only: files of other formats, and tables with a header.

use super::support::Place;

/// Parquet sorted as lines "held", and the output was garbage.
#[test]
fn files_of_other_formats_are_refused_unless_the_length_of_records_is_given() {
    let place = Place::new();
    let lines: &[u8] = b"some\nlines\n";
    let cases: &[(&str, &[u8], &[u8], &str)] = &[
        ("parquet", b"PAR1", b"PAR1", "is a Parquet file, not lines; write its rows as lines first"),
        ("orc", b"ORC", b"ORC\x17", "is an ORC file"),
        ("arrow", b"ARROW1\0\0", b"ARROW1", "is an Arrow file"),
        ("gz", b"\x1f\x8b\x08\0", b"", "is compressed with gzip, not lines; pipe it through gzip -dc"),
        ("zst", b"\x28\xb5\x2f\xfd", b"", "zstd -dc"),
        ("xz", b"\xfd7zXZ\0", b"", "xz -dc"),
        ("lz4", b"\x04\x22\x4d\x18", b"", "lz4 -dc"),
        ("bz2", b"BZh91AY&SY", b"", "bzip2 -dc"),
        ("zip", b"PK\x03\x04", b"", "is a zip archive"),
        ("sqlite", b"SQLite format 3\0", b"", "is an SQLite database"),
        ("h5", b"\x89HDF\r\n\x1a\n", b"", "is an HDF5 file"),
        ("avro", b"Obj\x01", b"", "is an Avro file"),
    ];
    for (name, head, tail, told) in cases {
        place.write(name, &[head, lines, tail].concat());
        for verb in ["sort", "shuffle --seed 1", "merge", "partition --parts 2 --pick hash"] {
            let line = format!("exec $T {verb} {name} -o out{{}}");
            place.shell(&line).is_refused(&[name, told, "--record"]);
        }
        place.shell(&format!("exec $T check {name}")).is_refused(&[told]);
        place.shell(&format!("exec $T sort -o out < {name}")).is_refused(&[told]);
        place.shell(&format!("exec $T join {name} {name} -o out")).is_refused(&[told]);
        place.shell(&format!("$T sort {name} -o out --record 1 -q && rm out")).is_done();
    }
    // Text that only begins like one of these.
    for text in [
        "PAR1\na\n",
        "ORC\nELF\n",
        "ARROW1\n",
        "BZh9\n",
        "BZh01AY&SY\n",
        "PK\n",
        "Obj\n",
        "SQLite format 3\n",
    ] {
        place.write("text", text.as_bytes());
        place.shell("$T sort text -o out -q && LC_ALL=C sort text | cmp - out").is_done();
    }
    assert!(!place.names().iter().any(|name| name.starts_with("out{")), "{:?}", place.names());
}

#[test]
fn a_header_stays_in_front_and_once() {
    let place = Place::new();
    place.write("a", b"name,size\npear,2\napple,1\n");
    place.write("b", b"name,size\nfig,3");
    place.write("none", b"");
    place.shell("$T sort a b none -o out --header 1 -q").is_done();
    assert_eq!(place.read("out"), b"name,size\napple,1\nfig,3\npear,2\n");
    place.shell("$T check --header 1 out -q").is_done();
    assert_eq!(place.shell("$T check out -q").status, Some(1), "it is not in order as a whole");
    place.shell("$T sort out -o out --header 1 --by 0:99:desc -q").is_done();
    assert_eq!(place.read("out"), b"name,size\npear,2\nfig,3\napple,1\n");
    // A header without records, two lines, more lines than there are, none.
    place.write("bare", b"name,size");
    place.shell("$T sort bare -o out --header 1 -q").is_done();
    assert_eq!(place.read("out"), b"name,size\n");
    place.shell("$T sort a -o out --header 2 -q").is_done();
    assert_eq!(place.read("out"), b"name,size\npear,2\napple,1\n");
    place.shell("$T sort a -o out --header 9 -q && cmp a out").is_done();
    place.shell("$T sort none -o out --header 1 -q && cmp none out").is_done();
    // Between pipes, from a named pipe, and shuffled.
    let piped = place.shell("cat b | $T sort --header 1 -o - -q");
    assert_eq!(piped.is_done(), "name,size\nfig,3\n");
    place.shell("mkfifo p; cat a > p & $T sort p b -o out --header 1 --unique -q").is_done();
    assert_eq!(place.read("out"), b"name,size\napple,1\nfig,3\npear,2\n");
    place
        .shell("$T shuffle a b -o out --header 1 --seed 1 -q && head -n 1 out | grep -qx name,size")
        .is_done();
    place.shell("sort out | uniq -c | grep -c ' 1 '").is_done();
    // The receipt counts the records, and the bytes of the file.
    let told = place.shell("$T sort a b -o out --header 1 --json");
    assert!(told.is_done().contains("\"output_file_bytes\":31,"), "{told:?}");
    place.write("c", b"size,name\n1,2\n");
    place.shell("exec $T sort a c -o no --header 1").is_refused(&["lines of c are not those of a"]);
    place.shell("exec $T sort a -o no --header 1 --record 1").is_refused(&["a header is of lines"]);
    place.shell("exec $T sort a -o no --header 1 --nodes 2").is_refused(&["on one node"]);
    place.shell("exec $T sort a -o no --header 1 --resume").is_refused(&["without a header"]);
    place.shell("exec $T sort a -o no --header x").is_refused(&["--header", "'x'"]);
    assert!(!place.names().contains(&"no".into()));
}

/// Two passes, with a header that does not end at a sector.
#[test]
fn a_header_stays_in_front_of_what_does_not_fit_in_memory() {
    let place = Place::new();
    place.shell("$T gen 400k lines --ascii -q; { echo a,b; cat lines; } > in").is_done();
    place.shell("$T sort in -o out --header 1 --memory 16MiB -q").is_done();
    place.shell("{ echo a,b; LC_ALL=C sort -s lines; } | cmp - out").is_done();
    place.shell("cat in | $T sort -o - --header 1 --memory 16MiB -q | cmp - out").is_done();
    assert_eq!(place.names(), ["in", "lines", "out"]);
}

/// A log that is appended to, often in the middle of a line, could not be sorted at all.
#[test]
fn a_file_that_grows_is_read_as_it_was_when_it_was_opened() {
    let place = Place::new();
    place.shell("seq 300000 | tac > log; cp log lines").is_done();
    let grow = "while [ ! -e stop ]; do printf %s $RANDOM; printf '5\\n'; done >> log & ";
    let many = "for i in 1 2 3 4 5 6; do $T sort log -o out$i --json > told$i; done; \
                $T shuffle log -o mixed --seed 1 --json > told7; \
                $T partition log -o part{} --parts 1 --pick hash --json > told8; \
                $T check log --json > told9; touch stop; wait";
    let told = place.shell(&format!("{grow}{many}"));
    assert_eq!((told.status, told.err.as_str()), (Some(0), ""), "{told:?}");
    for i in 1..=6 {
        place.shell(&format!("head -n $(wc -l < out{i}) log | LC_ALL=C sort | cmp - out{i}")).is_done();
    }
    place.shell("head -n $(wc -l < mixed) log | sort > a; sort mixed | cmp - a").is_done();
    place.shell("head -n $(wc -l < part0) log | cmp - part0").is_done();
    for i in 1..=9 {
        let told = String::from_utf8(place.read(&format!("told{i}"))).unwrap();
        assert!(told.contains("\"grown\":{\"inputs\":1,\"bytes\":"), "{i}: {told}");
    }
    // What changes in another way is still refused, and a file that does not grow gets its last newline.
    place.shell("printf 'b\\na' > bare; $T sort bare -o out -q; printf 'a\\nb\\n' | cmp - out").is_done();
}
