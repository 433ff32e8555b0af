"""redis-py on three nodes of a cluster, whose ports are the arguments. Ends with an exception where a reply is wrong."""

import sys
import time

import redis


def refused(call, holds):
    """That a call is refused with an error that holds this text."""
    try:
        call()
    except redis.ResponseError as why:
        assert holds in str(why), why
    else:
        raise AssertionError(f"not refused: {holds}")


def expires(one, two):
    """Strings that expire, as seen through two nodes."""
    assert one.set("soon", "1", px=60) and one.setex("later", 100, "2") and one.set("never", "3")
    assert 98 <= two.ttl("later") <= 100 and 98_000 < two.pttl("later") <= 100_000 and two.ttl("never") == -1
    assert two.append("later", "!") == 2 and two.set("later", "4", keepttl=True) and one.ttl("later") > 90
    assert one.incr("later") == 5 and two.ttl("later") > 90 and two.mget("later", "never") == [b"5", b"3"]
    assert not two.expire("later", 10, gt=True) and two.expire("later", 200, gt=True) and one.ttl("later") > 190
    assert two.persist("later") and not one.persist("later") and one.ttl("later") == -1
    assert one.set("later", "6", ex=50) and two.set("later", "7") and one.ttl("later") == -1
    assert one.expireat("later", 1) and two.get("later") is None and not one.expire("later", 10)
    while two.get("soon") is not None:
        pass
    assert one.ttl("soon") == -2 and one.strlen("soon") == 0 and two.exists("soon") == 0
    assert two.set("soon", "8", px=1, nx=True)
    while two.get("soon") is not None:
        pass
    assert two.setnx("soon", "9") and one.get("soon") == b"9" and one.ttl("soon") == -1
    # What nobody reads is removed, too.
    assert one.psetex("unread", 1, "x")
    while one.dbsize() > 3:
        time.sleep(0.1)
    assert sorted(one.keys()) == [b"created", b"never", b"soon"] and one.flushdb()
    refused(lambda: one.setex("a", 0, "1"), "invalid expire time")


def check(clients):
    """Every kind of command: what is written through one node is read through another."""
    one, two, three = clients
    one.flushdb()
    expires(one, two)
    assert two.set("film:1", "Citizen Kane") and three.get("film:1") == b"Citizen Kane"
    assert one.set("film:1", "x", nx=True) is None and two.set("film:9", "x", xx=True) is None
    assert three.set("film:1", "Kane", get=True) == b"Citizen Kane" and one.getdel("film:1") == b"Kane"
    assert two.mset({f"film:{i:04}": f"name {i}" for i in range(2000)})
    assert three.mget("film:0007", "none", "film:1999") == [b"name 7", None, b"name 1999"]
    assert one.append("film:0007", "!") == 7 and two.strlen("film:0007") == 7
    for client in clients:
        assert client.incrby("counter", 5)
    assert one.get("counter") == b"15" and two.decr("counter") == 14
    refused(lambda: one.incr("film:0007"), "not an integer")
    assert three.exists("counter", "none") == 1 and one.type("counter") == b"string" and one.ttl("counter") == -1
    assert two.delete("counter", "none") == 1 and one.ttl("counter") == -2
    assert sorted(one.scan_iter("film:000?")) == [b"film:000%d" % i for i in range(10)]
    assert len(two.keys("film:*")) == 2000 and three.dbsize() == 2001
    with one.pipeline(transaction=False) as pipe:
        for i in range(100):
            pipe.get(f"film:{i:04}")
        assert pipe.execute()[99] == b"name 99"

    assert one.hset("years", mapping={f"f{i:04}": i for i in range(1000)}) == 1000
    assert two.hset("years", mapping={"f0000": "zero", "new": "1"}) == 1
    assert three.hget("years", "f0000") == b"zero" and three.hmget("years", "new", "none") == [b"1", None]
    assert one.hlen("years") == 1001 and len(two.hgetall("years")) == 1001 and len(dict(three.hscan_iter("years"))) == 1001
    assert one.hincrby("years", "f0001", 4) == 5 and not two.hsetnx("years", "new", "2") and three.hexists("years", "new")
    assert one.hdel("years", "new", "none") == 1 and two.hkeys("years")[:2] == [b"f0000", b"f0001"]
    assert three.zrange("years", "[f0998", "+", bylex=True) == [b"f0998", b"f0999"]
    assert one.zadd("names", {"a": 1, "b": 1, "c": 1}) == 3 and two.zadd("names", {"a": 1, "d": 1}) == 1
    assert one.zrange("names", 0, -1) == [b"a", b"b", b"c", b"d"] and two.zrange("names", -2, -1) == [b"c", b"d"]
    assert one.zrange("names", 0, 1, desc=True) == [b"d", b"c"] and two.zrange("names", 2, 2, desc=True) == [b"b"]
    assert one.zrange("names", 4, 9) == [] and two.zrange("years", 998, 998) == [b"f0998"]
    refused(lambda: one.expire("names", 10), "not possible on the tables of a cluster")
    assert three.zcard("names") == 4 and one.zscore("names", "b") == 1.0 and one.type("names") == b"zset"
    assert two.zrevrangebylex("names", "(d", "-", 1, 2) == [b"b", b"a"] and three.zlexcount("names", "[b", "+") == 3
    refused(lambda: one.zadd("names", {"x": 2}), "one score")
    refused(lambda: one.zadd("names", {"x": 2}, xx=True), "one score")
    assert one.zadd("names", {"a": 1, "e": 1}, nx=True) == 1 and two.zadd("names", {"x": 1}, xx=True) == 0
    assert three.zadd("names", {"a": 1, "f": 1}, ch=True) == 1 and one.zrem("names", "e", "f", "x") == 2
    assert two.zadd("nothing", {"x": 1}, xx=True) == 0 and three.exists("nothing") == 0
    refused(lambda: two.hget("names", "a"), "another type")
    assert three.zremrangebylex("names", "-", "(c") == 2 and one.zrem("names", "c", "none") == 1

    refused(lambda: one.pipeline().set("a", "1").get("a").execute(), "MULTI is not possible")
    assert two.get("a") is None
    refused(lambda: one.execute_command("WATCH", "a"), "watch is not possible")
    refused(lambda: one.hset("no/name", "a", "b"), "is no name for a table")
    refused(lambda: one.set("k" * 2048, "v"), "2047")
    # The table with the strings is none of the hashes.
    refused(lambda: one.hset("redis-strings", "counter", "1"), "choose another name")
    refused(lambda: one.zadd("redis-strings", {"counter": 1}), "choose another name")
    assert two.hgetall("redis-strings") == {} and two.hdel("redis-strings", "film:0007") == 0
    assert one.get("film:0007") == b"name 7!"

    # Requests and replies may be as long as without a cluster, and a scan ends after some MiB whatever its COUNT.
    assert len(one.echo("x" * 30_000_000)) == 30_000_000
    assert two.hset("long", mapping={f"f{i:02}": "x" * 1_000_000 for i in range(20)}) == 20
    cursor, some = three.hscan("long", count=20)
    assert cursor != 0 and 0 < len(some) < 10 and len(dict(one.hscan_iter("long", count=20))) == 20
    assert one.exists("long", "film:0001", "none", "film:0001") == 3
    assert two.delete("long", "film:0001", "none", "film:0001", "created") == 2 and one.exists("long", "film:0001") == 0
    assert two.set("film:0001", "name 1")

    # A table that `table create` made is a hash, and no Redis client removes it.
    assert two.hset("created", "a", "1") == 1 and three.delete("created") == 0
    assert one.flushdb() and two.hget("created", "a") == b"1" and three.dbsize() == 1
    assert one.get("film:0007") is None and two.exists("years") == 0
    assert two.hdel("created", "a") == 1


def main():
    """Both versions of the protocol, and a wrong password."""
    password, *ports = sys.argv[1:]
    for version in (2, 3):
        clients = [redis.Redis(port=int(port), protocol=version, password=password or None) for port in ports]
        check(clients)
    if password:
        try:
            redis.Redis(port=int(ports[0]), password="wrong").get("a")
            raise AssertionError("a wrong password was accepted")
        except redis.AuthenticationError:
            pass
    print("redis-py", redis.__version__)


main()
