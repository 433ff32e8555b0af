"""redis-py as it is installed, on the server whose URL is the argument. Ends with an exception where a reply is wrong."""

import sys
import threading

import redis


def check(client, text):
    """Every kind of command, in one version of the protocol. `text` makes of a string what the client returns for it."""
    client.flushdb()
    films = {f"film:{i:03}": f"name {i}" for i in range(300)}

    # A pipeline is a transaction; without one, requests just go together.
    for is_transaction in (True, False):
        with client.pipeline(transaction=is_transaction) as pipe:
            for key, name in films.items():
                pipe.set(key, name)
            pipe.incr("counter").get("film:007").ttl("film:007")
            replies = pipe.execute()
        assert replies[:300] == [True] * 300 and replies[301:] == [text("name 7"), -1], replies[299:]
    assert client.get("counter") == text("2")
    with client.pipeline() as pipe:
        pipe.set("film:000", "x").hget("film:000", "y").set("film:001", "z")
        replies = pipe.execute(raise_on_error=False)
    assert replies[0] is True and isinstance(replies[1], redis.ResponseError) and replies[2] is True, replies

    # A key that changes after WATCH makes EXEC fail, and redis-py's own retry succeeds.
    with client.pipeline() as pipe:
        pipe.watch("counter")
        client.set("counter", "10")
        pipe.multi()
        pipe.set("counter", "11")
        try:
            pipe.execute()
            raise AssertionError("the key was changed")
        except redis.WatchError:
            pass
    assert client.get("counter") == text("10")

    def add(pipe):
        value = int(pipe.get("counter"))
        pipe.multi()
        pipe.set("counter", value + 1)

    threads = [
        threading.Thread(target=lambda: [client.transaction(add, "counter") for _ in range(25)]) for _ in range(4)
    ]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert client.get("counter") == text("110")

    # Scans return every key once.
    assert sorted(client.scan_iter("film:*", count=17)) == [text(key) for key in films]
    client.hset("years", mapping={f"f{i:04}": i for i in range(1000)})
    assert len(list(client.hscan_iter("years", match="f00*", count=50))) == 100
    assert [*client.scan_iter(_type="hash")] == [text("years")]

    # Hashes.
    assert client.hset("hash", mapping={"b": 2, "a": "one", "c": b"\x00\xff" if text("") == b"" else "z"}) == 3
    assert client.hget("hash", "b") == text("2")
    assert client.hmget("hash", "a", "none") == [text("one"), None]
    everything = client.hgetall("hash")
    assert list(everything) == [text("a"), text("b"), text("c")], everything
    assert client.hincrby("hash", "b", 40) == 42 and client.hdel("hash", "a", "none") == 1
    assert client.hlen("hash") == 2 and client.hexists("hash", "b") is True

    # Sorted sets by their members.
    assert client.zadd("set", {f"m{i:03}": 0 for i in range(500)}) == 500
    assert client.zrange("set", "[m100", "(m103", bylex=True) == [text(f"m{i}") for i in (100, 101, 102)]
    assert client.zrange("set", "+", "-", bylex=True, desc=True, offset=1, num=2) == [text("m498"), text("m497")]
    assert client.zrangebylex("set", "[m490", "+", start=5, num=2) == [text("m495"), text("m496")]
    assert client.zrevrangebylex("set", "(m002", "-") == [text("m001"), text("m000")]
    assert client.zlexcount("set", "[m100", "+") == 400 and client.zcard("set") == 500
    assert client.zscore("set", "m001") == 0.0
    assert client.zremrangebylex("set", "-", "(m400") == 400 and client.zrem("set", "m400", "none") == 1
    assert client.zrange("hash", "-", "+", bylex=True) == [text("b"), text("c")]

    # Keys that expire.
    assert client.set("short", "x", px=30, nx=True) is True and client.set("short", "y", nx=True) is None
    assert client.pttl("short") <= 30 and client.expire("counter", 100) is True and client.ttl("counter") == 100
    assert client.persist("counter") is True and client.ttl("counter") == -1
    assert client.set("counter", "5", ex=50, get=True) == text("110") and 49 <= client.ttl("counter") <= 50
    while client.exists("short"):
        pass
    assert client.get("short") is None and client.ttl("short") == -2

    # Errors have the classes that programs catch.
    for call, kind in (
        (lambda: client.hget("counter", "x"), redis.ResponseError),
        (lambda: client.incr("film:003"), redis.ResponseError),
        (lambda: client.execute_command("NOSUCH"), redis.ResponseError),
    ):
        try:
            call()
            raise AssertionError("it was not refused")
        except kind:
            pass
    assert client.type("hash") == text("hash") and client.delete("hash", "set", "none") == 2
    assert client.info()["maxmemory_policy"] == "noeviction" and client.ping() is True
    assert client.dbsize() == 302, client.dbsize()


for protocol in (2, 3):
    for decode_responses in (False, True):
        with redis.Redis.from_url(sys.argv[1], protocol=protocol, decode_responses=decode_responses) as client:
            check(client, (lambda text: text) if decode_responses else str.encode)
print("redis-py", redis.__version__)
