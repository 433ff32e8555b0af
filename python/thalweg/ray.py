"""Clusters that Ray hosts: nodes of Thalweg on machines of Ray, by reservation.

Model: a detached actor, the *keeper*, makes a cluster and ends it. Its placement group reserves a bundle on as many
machines as the cluster has nodes. In each bundle a detached actor, a *supervisor*, runs ``thalweg node run`` and
restarts it. The keeper has the authority of the cluster: it signs the identities of nodes and that of clients. What it
has is also in Ray's own store, so it may be restarted anywhere. Whoever may use the Ray cluster can therefore use the
cluster of Thalweg.

Data and jobs never pass through Ray: after the first look-up the identity, with the addresses in it, is in a directory
of this user, and only Thalweg's own links are used.

This is the only module that imports Ray, when it first needs it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from thalweg._hosted import ADDRESS, ADDRESS_FILE, directory
from thalweg._objects import counted
from thalweg._names import Size, path, seconds, size, whole
from thalweg.cluster import Cluster
from thalweg.errors import Error, NotEnoughResources, RayError, TooLittleMemory, UsageError

RAY_MIN = "2.40"
"""The oldest version of Ray that this module is written for."""

_NAMESPACE = "thalweg"
_CLIENT = "ray"
_FAST_ENDS_MAX = 3
"""A node that ends so often within :data:`_FAST_SECONDS` gets a new identity and another port."""
_FAST_SECONDS = 5.0
_AGAIN_SECONDS = 1.0
_STOP_SECONDS = 10.0
_LOOK_SECONDS = 0.5
_POLL_SECONDS = 0.02
_TIMEOUT_SECONDS_MAX = 24 * 60 * 60
_IDLE_SECONDS_MAX = 365 * 24 * 60 * 60
_IDLE_LOOKS = 4
"""How often within the time limit for idle clusters a keeper looks whether its cluster is idle."""
_OTHER_CALLS = 8
"""Calls of programs that a keeper carries out at a time, beside one of each supervisor."""
_ANSWER_SECONDS = 5.0
_END_SECONDS = 60.0
"""How long a cluster may take to end. A keeper whose machine is lost ends it when Ray has restarted the keeper."""

_PORT_MAX = 65535
_MEMORY_MIN = 40 << 20
"""The least memory of a node, about: no verb runs with less."""
_PLACEHOLDER = "placeholder"
"""The host that a cluster of one node has while its node is replaced."""
_NOWHERE = "127.0.0.1:1"
"""An address where no node listens, so that the attempt to reach one fails at once."""

_REMOVE = """
cd /
exec 3<&0
{ cat <&3; for attempt in 1 2 3 4 5; do rm -rf "$0" && break; sleep 1; done; } >/dev/null 2>&1 &
"""
"""Removes a directory at the end of what is read, in the background. A node that still ends may write there once."""

_OPTIONS = {"namespace": _NAMESPACE, "lifetime": "detached", "max_restarts": -1}
"""How Ray runs the actors."""

_log = logging.getLogger("thalweg")

_Files: TypeAlias = dict[str, bytes]


def _ray() -> Any:
    """Ray, connected: to the cluster that it finds as usual."""
    try:
        import ray
    except ImportError as why:
        raise ModuleNotFoundError(f"thalweg.ray needs Ray: pip install 'ray>={RAY_MIN}'", name="ray") from why
    library: Any = ray
    if not library.is_initialized():
        try:
            address = os.environ.get(ADDRESS, "auto")
            _answers(address)
            library.init(address=address, namespace=_NAMESPACE, log_to_driver=False, logging_level="warning")
        except ConnectionError as why:
            raise RayError(
                "no Ray cluster was found, or it wants a token: start one with ray start --head, name one by"
                " RAY_ADDRESS, or set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
            ) from why
        except (RuntimeError, ValueError, library.exceptions.RayError) as why:
            raise RayError(f"Ray cannot be used: {str(why).strip().splitlines()[0]}") from why
    return library


def _answers(address: str) -> None:
    """Checks that something listens at an address ``HOST:PORT``: Ray itself would try again for minutes."""
    named = re.fullmatch(r"\[?([^/\[\]]+)\]?:([0-9]{1,5})", address)
    if named is None:
        return
    try:
        socket.create_connection((named[1], int(named[2])), timeout=_ANSWER_SECONDS).close()
    except (OSError, OverflowError) as why:
        raise RayError(f"Ray cannot be reached at {address}, which RAY_ADDRESS names: {why}") from why


def cluster(
    nodes: int,
    *,
    cpus: int = 1,
    memory: Size = "1GiB",
    name: str = "river",
    data: str | os.PathLike[str] | None = None,
    timeout: float = 10.0,
    ports: Iterable[int] | None = None,
    idle_timeout: float | None = None,
) -> RayCluster:
    """Makes a cluster of so many nodes, each on another machine of Ray, with ``cpus`` and ``memory`` reserved there.

    ``data`` is the directory of the ``nodes:`` files on each machine, with ``{}`` for the node's name; the home
    directory if it is not given. ``timeout`` is in seconds: how long to wait for the machines, longer where they have
    to be started first. ``ports`` are those that a node may listen at, as ``range(7000, 7010)``: each takes the first
    that is free on its machine, or any if they are not given.

    The cluster lives until :meth:`RayCluster.down`, or until the end of a ``with`` block, however this program ends, or
    until no job has run for ``idle_timeout`` seconds, if that is given. :func:`connect` finds it again, and
    :func:`list` lists all.

    Raises :class:`thalweg.NotEnoughResources` if Ray does not have the machines within ``timeout``, and leaves nothing;
    :class:`thalweg.RayError` if there is a cluster of this name, or no directory ``data`` on a machine;
    :class:`thalweg.UsageError` if an argument is not what it should be.
    """
    directory(name)
    whole("nodes", nodes)
    whole("cpus", cpus)
    place = _data(data)
    bytes_each = size("memory", memory)
    if bytes_each < _MEMORY_MIN:
        needed = f"a node needs at least {_MEMORY_MIN >> 20} MiB"
        small = TooLittleMemory(f"memory={memory!r} is too small: {needed}")
        small.given, small.needed = bytes_each, _MEMORY_MIN
        raise small
    seconds("timeout", timeout, _TIMEOUT_SECONDS_MAX)
    if idle_timeout is not None and seconds("idle_timeout", idle_timeout, _IDLE_SECONDS_MAX) < 1:
        raise UsageError(f"idle_timeout={idle_timeout!r}: give at least 1 s")
    asked = _Asked(nodes, cpus, bytes_each, place, _ports(ports), timeout, idle_timeout)
    ray = _ray()
    taken = RayError(
        f"Ray hosts a cluster '{name}' already; thalweg.ray.connect('{name}') finds it, thalweg.ray.down('{name}') ends"
        " it, and another one needs another name"
    )
    before = _actor(ray, name)
    if before is not None:
        if _got(ray, before.is_taken.remote()):
            if not _got(ray, before.is_made.remote()):
                raise RayError(_unfinished(name))
            raise taken
        # The program that began it was killed before it had asked for nodes.
        _ended(name, _id(before))
    options: dict[str, Any] = {**_OPTIONS, "num_cpus": 0, "max_concurrency": nodes + _OTHER_CALLS}
    try:
        # A call waits while it is restarted.
        keeper = ray.remote(Keeper).options(name=_of(name), max_task_retries=-1, **options).remote(name)
    except ValueError as why:  # Another program was faster.
        raise taken from why
    # Once only: a keeper that was restarted meanwhile does not know what it had begun.
    making = keeper.make.options(max_task_retries=0).remote(asked)
    try:
        _got(ray, making)
    except BaseException:
        _ended(name, _id(keeper))
        # Ray prints an error that nobody has taken.
        with contextlib.suppress(Exception):
            ray.get(making, timeout=_ANSWER_SECONDS)
        raise
    return connect(name)


@dataclass(frozen=True)
class _Asked:
    """What :func:`cluster` asks a keeper for."""

    nodes: int
    cpus: int
    memory: int
    data: str | None
    ports: tuple[int, ...]
    timeout: float
    idle_timeout: float | None


@dataclass(frozen=True)
class Hosted:
    """A cluster that Ray hosts."""

    name: str
    """Its name, for :func:`connect` and :func:`down`."""
    nodes: int
    """How many nodes it has."""
    cpus: int
    """The CPUs that are reserved for each node."""
    memory: int
    """The bytes of memory that are reserved for each node."""
    is_placed: bool
    """Whether Ray has the machines for all nodes; those of a lost machine may be waiting for another."""


def list() -> Sequence[Hosted]:
    """The clusters that Ray hosts, by name, those included that are being made or ended."""
    ray = _ray()
    actors = ray.util.list_named_actors(all_namespaces=True)
    names = {actor["name"] for actor in actors if actor["namespace"] == _NAMESPACE}
    groups = ray.util.placement_group_table().values()
    own = [group for group in groups if group["state"] != "REMOVED" and group["name"] in names]
    found: dict[str, Hosted] = {}
    for group in own:
        name = group["name"].removeprefix(_of(""))
        each, is_placed = group["bundles"][0], group["state"] == "CREATED"
        found[name] = Hosted(name, len(group["bundles"]), int(each["CPU"]), int(each["memory"]), is_placed)
    return tuple(found[name] for name in sorted(found))


def connect(name: str = "river") -> RayCluster:
    """A cluster that Ray hosts, by its name: gets a certificate and the addresses of the nodes anew.

    Waits for a cluster that is being made, and logs that it does.

    Raises :class:`thalweg.RayError` if there is none of this name.
    """
    place = directory(name)
    ray = _ray()
    keeper = _actor(ray, name)
    if keeper is None:
        raise RayError(f"Ray hosts no cluster '{name}'")
    if _got(ray, keeper.is_taken.remote()) and not _got(ray, keeper.is_made.remote()):
        _log.warning(_unfinished(name))
    files = {**_got(ray, keeper.client.remote()), ADDRESS_FILE: os.environ.get(ADDRESS, "").encode()}
    _written(Path(place), files)
    return RayCluster(name, _keeper=_id(keeper))


def _unfinished(name: str) -> str:
    return (
        f"the cluster '{name}' is being made or ended: thalweg.ray.connect('{name}') waits for it,"
        f" thalweg.ray.down('{name}') ends it"
    )


def down(name: str = "river") -> None:
    """Ends a cluster that Ray hosts: its jobs, nodes and actors, its reservation and its files.

    Raises :class:`thalweg.RayError` if there is none of this name.
    """
    if not _ended(name):
        raise RayError(f"Ray hosts no cluster '{name}'")


class RayCluster(Cluster):
    """A cluster that Ray hosts; a ``with`` block brings it down at its end."""

    def __init__(self, name: str, *, on: Iterable[str] = (), _keeper: str | None = None) -> None:
        super().__init__(f"ray:{name}", on=on)
        self._hosted = name
        self._keeper = _keeper

    def down(self) -> None:
        """Ends it, and leaves nothing: no process, no file, no placement group.

        Raises :class:`thalweg.RayError` if it has been ended, even if there is another one of its name now.
        """
        if not _ended(self._hosted, self._keeper):
            raise RayError(f"the cluster '{self._hosted}' has been ended")

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, why: BaseException | None, trace: TracebackType | None
    ) -> None:
        _ended(self._hosted, self._keeper)


class Keeper:
    """The actor that has the authority of a cluster. What it has is in Ray's store, too, for its successor.

    It alone makes the cluster and ends it, so the program that asked for it may be killed at any time.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._place = _directory()
        self._owner = self._place / "owner"
        self._changes = threading.Lock()
        self._stopping = threading.Event()
        self._key = f"thalweg-{_library().get_runtime_context().get_actor_id()}".encode()
        self._idle_timeout: float | None = None
        stored = self._store()._internal_kv_get(self._key)
        self._made = stored is not None
        if stored is not None:
            files, self._idle_timeout = pickle.loads(stored)
            _written(self._owner, files)
            self._end_when_idle()

    def is_taken(self) -> bool:
        """Whether the cluster has been made, or is being made or ended."""
        return self._made or self._changes.locked()

    def is_made(self) -> bool:
        """Whether the cluster has been made."""
        return self._made

    def make(self, asked: _Asked) -> None:
        """Reserves the machines and starts the nodes there, or leaves nothing."""
        with self._changes:
            try:
                self._make(asked)
            except BaseException:
                self._end()
                raise
        self._end_when_idle()

    def _make(self, asked: _Asked) -> None:
        ray = _library()
        from ray.util.placement_group import placement_group  # pyright: ignore
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # pyright: ignore

        bundle: dict[str, float] = {"CPU": asked.cpus, "memory": asked.memory}
        bundles = [bundle] * asked.nodes
        group: Any = placement_group(bundles, "STRICT_SPREAD", name=_of(self._name), lifetime="detached")
        end = time.monotonic() + asked.timeout
        while not group.wait(_LOOK_SECONDS):
            if self._stopping.is_set() or time.monotonic() >= end:
                raise _not_enough(ray, asked.nodes, bundle)
        supervisors: Any = []
        # Ray warns that such an actor ends with its placement group, as it should.
        with _quiet("ray.actor"):
            for index in range(asked.nodes):
                supervisor = ray.remote(Supervisor).options(
                    name=_of(self._name, index),
                    num_cpus=asked.cpus,
                    memory=asked.memory,
                    max_concurrency=2,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(group, index),
                    **_OPTIONS,
                )
                supervisors.append(supervisor.remote(self._name, index, asked))
        hosts = self._all([supervisor.place.remote() for supervisor in supervisors])
        self._cluster("init", self._name, *hosts)
        self._cluster("client", _CLIENT)
        identities = [_read(self._owner / "hosts" / host.partition("=")[0]) for host in hosts]
        self._all([supervisor.start.remote(files) for supervisor, files in zip(supervisors, identities, strict=True)])
        self._idle_timeout = asked.idle_timeout
        self._store_owner()
        self._made = True

    def _end_when_idle(self) -> None:
        """Ends the cluster, from another thread, when no job has run for long enough, if there is a limit."""
        if self._idle_timeout is not None:
            threading.Thread(target=self._watch, args=(self._idle_timeout,), daemon=True).start()

    def _watch(self, limit: float) -> None:
        used, before = time.monotonic(), None
        while not self._stopping.wait(limit / _IDLE_LOOKS):
            jobs = self._jobs()
            # What cannot be asked may be at work.
            if jobs is None or jobs[0] > 0 or jobs != before:
                used, before = time.monotonic(), jobs
            elif time.monotonic() - used >= limit:
                print(f"the cluster '{self._name}' has been idle for {limit:.0f} s and ends", flush=True)
                # A call, for only in a call can an actor end itself.
                # Once only: Ray would repeat it, because it has no answer.
                _actor(_library(), self._name).stop.options(max_task_retries=0).remote()
                return

    def _jobs(self) -> tuple[int, int] | None:
        """How many jobs run on all nodes, and how many have ended; ``None`` if a node does not answer."""
        command = [_script(self._place), "cluster", "status", "--identity", str(self._owner), "--json"]
        with contextlib.suppress(ValueError, LookupError, TypeError):
            said = json.loads(subprocess.run(command, capture_output=True).stdout)
            every = [host["status"] for host in said["hosts"]]
            return sum(node["jobs_running"] for node in every), sum(node["jobs_ended"] for node in every)
        return None

    def _all(self, calls: Sequence[Any]) -> Sequence[Any]:
        """The results of all calls, unless the cluster is to end."""
        ray = _library()
        left = calls
        while left:
            done, left = ray.wait(left, num_returns=len(left), timeout=_LOOK_SECONDS)
            # One that failed is enough.
            _got(ray, done)
            if self._stopping.is_set():
                raise RayError(f"the cluster '{self._name}' was ended while it was made")
        return _got(ray, calls)

    def _end(self) -> None:
        """Ends the nodes with their supervisors, and gives the machines back."""
        ray = _library()
        from ray.util.placement_group import get_placement_group, remove_placement_group  # pyright: ignore

        try:
            group: Any = get_placement_group(_of(self._name))
        except ValueError:
            return  # There is none.
        found = [_actor(ray, self._name, index) for index in range(group.bundle_count)]
        supervisors = [supervisor for supervisor in found if supervisor is not None]
        stopping = [supervisor.stop.remote() for supervisor in supervisors]
        ray.wait(stopping, num_returns=len(stopping), timeout=2 * _STOP_SECONDS)
        end = time.monotonic() + _ANSWER_SECONDS
        for index in range(group.bundle_count):
            _wait_for_end(ray, end, self._name, index)
        for supervisor in supervisors:
            # One whose machine is lost has not ended.
            ray.kill(supervisor)
        # After its actors: Ray 2.60 has been seen to lose a machine whose bundle was removed while its actor ended.
        remove_placement_group(group)
        shutil.rmtree(self._owner, ignore_errors=True)
        self._made = False

    def replace(self, host: str) -> _Files:
        """Puts a host in the place of the one that had its name: with a new key and address, in the next epoch."""
        name = host.partition("=")[0]
        if self._stopping.is_set():
            raise RayError(f"the cluster '{self._name}' is being ended")
        with self._changes:
            hosts = self._hosts()
            if hosts == [name]:
                # A cluster has at least one host: another one, which does not exist, keeps the place of the only one.
                self._cluster("add", f"{_PLACEHOLDER}={_NOWHERE}")
            # What an earlier attempt has done is not done again.
            if name in hosts:
                self._cluster("drop", name)
            self._cluster("add", host)
            if _PLACEHOLDER in self._hosts():
                self._cluster("drop", _PLACEHOLDER)
            self._store_owner()
            return _read(self._owner / "hosts" / name)

    def _hosts(self) -> Sequence[str]:
        """The names of the hosts in the cluster file."""
        return [host["name"] for host in json.loads((self._owner / "cluster.json").read_bytes())["hosts"]]

    def client(self) -> _Files:
        """The identity of clients."""
        with self._changes:
            if not self._made:
                raise RayError(
                    f"the cluster '{self._name}' was not made, for Ray lacks the machines or its program was killed:"
                    f" thalweg.ray.down('{self._name}') removes the rest of it"
                )
            file = (self._owner / "cluster.json").read_bytes()
            return {**_read(self._owner / "clients" / _CLIENT), "cluster.json": file}

    def stop(self) -> None:
        """Ends the cluster and this actor."""
        self._stopping.set()
        with self._changes:
            self._end()
            self._store()._internal_kv_del(self._key)
            shutil.rmtree(self._place)
        _library().actor.exit_actor()

    def _cluster(self, *words: str) -> None:
        command = [_script(self._place), "cluster", *words, "--identity", str(self._owner), "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True)
        # Hosts that cannot be told of a change learn of it from the others.
        if done.returncode != 0:
            raise RayError(done.stderr.strip())

    def _store_owner(self) -> None:
        self._store()._internal_kv_put(self._key, pickle.dumps((_read(self._owner), self._idle_timeout)))

    @staticmethod
    def _store() -> Any:
        """Ray's own store of small values, which outlives actors."""
        from ray.experimental import internal_kv  # pyright: ignore

        return internal_kv


class Supervisor:
    """The actor of a bundle, which runs a node and restarts it. The node ends with it."""

    def __init__(self, name: str, index: int, asked: _Asked) -> None:
        self._name = name
        self._node = f"n{index + 1}"
        self._asked = asked
        self._data = None if asked.data is None else asked.data.replace("{}", self._node)
        self._place = _directory()
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._runner: threading.Thread | None = None
        # An actor that Ray has restarted finds the cluster made, and takes the place of the node that it had.
        if _library().get(self._keeper().is_made.remote()):
            self._run(None)

    def place(self) -> str:
        """The host, as ``cluster init`` takes it, at a port that is free."""
        address = str(_library().util.get_node_ip_address())
        if self._data is not None and not Path(self._data).is_dir():
            raise RayError(
                f"{self._node} on {address} has no directory {self._data}: create it on every machine of Ray, or give"
                " another data"
            )
        port = next(filter(None, (_free(address, port) for port in self._asked.ports)), None)
        if port is None:
            tried = f"{self._asked.ports[0]} to {self._asked.ports[-1]}"
            raise RayError(f"{self._node} finds no port free on {address} of those from {tried}: give more ports")
        words = [] if self._data is None else [f"data={self._data}"]
        return f"{self._node}={address}:{port}@{','.join([*words, f'memory={self._asked.memory}'])}"

    def start(self, files: _Files) -> None:
        """Runs the node with this identity, and returns when it listens."""
        ready = self._run(files)
        if not ready.wait(_STOP_SECONDS):
            raise RayError(f"{self._node} does not listen after {_STOP_SECONDS:.0f} s")

    def stop(self) -> None:
        """Ends the node and what it runs, removes its files, and ends this actor."""
        self._stopping.set()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        if self._runner is not None:
            self._runner.join(_STOP_SECONDS)
        shutil.rmtree(self._place, ignore_errors=True)
        _library().actor.exit_actor()

    def _run(self, files: _Files | None) -> threading.Event:
        ready = threading.Event()
        self._runner = threading.Thread(target=self._keep_running, args=(files, ready), daemon=True)
        self._runner.start()
        return ready

    def _keep_running(self, files: _Files | None, ready: threading.Event) -> None:
        fast = 0
        while not self._stopping.is_set():
            if files is None:
                try:
                    files = self._replaced()
                except Exception as why:  # Whatever it is, the node is wanted, and the reason is in Ray's log.
                    print(f"{self._node}: {why}", file=sys.stderr, flush=True)
                    self._stopping.wait(_AGAIN_SECONDS)
                    continue
            began = os.times().elapsed
            self._process = process = self._started(files)
            assert process.stdout is not None
            # The line that says that it listens.
            if process.stdout.readline():
                ready.set()
            process.wait()
            fast = fast + 1 if os.times().elapsed - began < _FAST_SECONDS else 0
            if fast >= _FAST_ENDS_MAX:
                files, fast = None, 0
            self._stopping.wait(_AGAIN_SECONDS)

    def _replaced(self) -> _Files:
        return _library().get(self._keeper().replace.remote(self.place()))

    def _keeper(self) -> Any:
        return _library().get_actor(_of(self._name), namespace=_NAMESPACE)

    def _started(self, files: _Files) -> subprocess.Popen[bytes]:
        own = self._place / "node"
        _written(own, files)
        cores = sorted(os.sched_getaffinity(0))
        # Which ones is left to chance, so that several clusters do not meet on the first.
        mine = random.sample(cores, min(self._asked.cpus, len(cores)))
        command = [sys.executable, "-m", "thalweg._node", _script(own), str(own), ",".join(map(str, mine))]
        where = Path.home() if self._data is None else Path(self._data)
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=where, env=_environment(), process_group=0
        )


def _library() -> Any:
    """Ray, in an actor, which is connected."""
    import ray

    return ray


def _got(ray: Any, calls: Any) -> Any:
    """The results of calls. What a call has raised is raised as it was."""
    try:
        return ray.get(calls)
    except ray.exceptions.RayTaskError as why:
        raise (why.cause if isinstance(why.cause, Error) else why) from None
    except ray.exceptions.RayActorError as why:
        if "No module named 'thalweg" in str(why):
            raise RayError(
                "a machine of Ray lacks the package thalweg: install it there, or have the program send it by"
                " ray.init(runtime_env={'py_modules': [thalweg]})"
            ) from None
        line = re.sub(r"\x1b\[[0-9;]*m", "", str(why)).strip().splitlines()[0]
        raise RayError(f"an actor of the cluster has ended: {line}") from why


def _ended(name: str, its: str | None = None) -> bool:
    """Ends a cluster, or what has been made of it; only the one with this keeper, if one is given. False if there is
    none."""
    place = directory(name)
    ray = _ray()
    keeper = _actor(ray, name)
    if keeper is not None and its is not None and _id(keeper) != its:
        return False
    shutil.rmtree(place, ignore_errors=True)
    if keeper is None:
        return False
    end = time.monotonic() + _END_SECONDS
    its = _id(keeper)
    while keeper is not None and _id(keeper) == its:
        if time.monotonic() > end:
            raise RayError(
                f"the cluster '{name}' has not ended within {_END_SECONDS:.0f} s: the actor 'thalweg:{name}' does not"
                f" answer, or Ray has no machine to restart it on; end it when Ray has one: thalweg.ray.down('{name}')"
            )
        # It does not answer, but ends. Nor does one whose machine is lost: that one has to be asked again.
        with contextlib.suppress(ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
            ray.get(keeper.stop.options(max_task_retries=0).remote(), timeout=_END_SECONDS)
        _wait_for_end(ray, time.monotonic() + _AGAIN_SECONDS, name)
        keeper = _actor(ray, name)
    return True


def _id(actor: Any) -> str:
    """What tells an actor from a later one of its name."""
    return actor._actor_id.hex()


def _wait_for_end(ray: Any, end: float, name: str, index: int | None = None) -> None:
    """Waits until an actor has ended, and its name is free; at most until this time."""
    while _actor(ray, name, index) is not None and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)


def _directory() -> Path:
    """A new directory of this process, for keys among others, which is removed however the process ends."""
    actor = _library().get_runtime_context().get_actor_id()
    place = tempfile.mkdtemp(prefix=f"thalweg-{actor}-{os.getpid()}-")
    # The other end is open as long as this process is there; no other process has it.
    read, _ = os.pipe()
    # Not a child of this process, and in a session of its own, for Ray kills the children of an actor that has ended.
    subprocess.run(["sh", "-c", _REMOVE, place], stdin=read, start_new_session=True, check=True)
    os.close(read)
    return Path(place)


def _of(name: str, index: int | None = None) -> str:
    """The name of an actor: of the keeper, or of a supervisor."""
    return f"thalweg:{name}" if index is None else f"thalweg:{name}:n{index + 1}"


def _actor(ray: Any, name: str, index: int | None = None) -> Any:
    try:
        return ray.get_actor(_of(name, index), namespace=_NAMESPACE)
    except ValueError:
        return None


@contextlib.contextmanager
def _quiet(logger: str) -> Generator[None]:
    """Without the warnings of a logger."""
    log = logging.getLogger(logger)
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _not_enough(ray: Any, nodes: int, bundle: dict[str, float]) -> NotEnoughResources:
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    large = [has for has in machines if all(has.get(what, 0) >= needed for what, needed in bundle.items())]
    free = ray.available_resources()

    def described(has: dict[str, float]) -> str:
        return f"{counted(has.get('CPU', 0), 'CPU')} and {has.get('memory', 0) / (1 << 30):.2f} GiB"

    why = (
        f"no room for {counted(nodes, 'node')} of {described(bundle)}, each on a machine of its own: Ray has"
        f" {counted(len(machines), 'machine')}, {len(large)} of them large enough, and {described(free)} free in all;"
        " add machines, or ask for less"
    )
    error = NotEnoughResources(why)
    error.nodes, error.machines, error.large = nodes, len(machines), len(large)
    return error


def _data(data: str | os.PathLike[str] | None) -> str | None:
    """The directory of the files of nodes, as text."""
    if data is None:
        return None
    place = path("data", data)
    if not os.path.isabs(place) or "," in place or not place.isprintable():
        raise UsageError(f"data={place!r}: give an absolute path without commas, which each machine has")
    return place


def _ports(ports: Iterable[int] | None) -> tuple[int, ...]:
    """The ports to try in turn; 0 is any that is free."""
    if ports is None:
        return (0,)
    found = tuple(whole("ports", port) for port in ports)
    if not found or max(found) > _PORT_MAX:
        raise UsageError(f"ports={ports!r}: give at least one from 1 to {_PORT_MAX}, as in range(7000, 7010)")
    return found


def _free(address: str, port: int) -> int | None:
    """A port of this machine at which nobody listens: this one, or any if it is 0."""
    with socket.socket() as free, contextlib.suppress(OSError):
        # As the node does: a connection that has ended takes no port from it.
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind((address, port))
        return free.getsockname()[1]
    return None


def _read(place: Path) -> _Files:
    """All files below a directory."""
    return {str(path.relative_to(place)): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


def _written(place: Path, files: _Files) -> None:
    """Makes a directory of these files, which nobody else may read, in the place of one that is there. It appears when
    it is complete."""
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    for name, contents in files.items():
        path = new / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(contents)
    old = new.with_name(f"{new.name}-old")
    with contextlib.suppress(FileNotFoundError):
        place.rename(old)
    try:
        new.rename(place)
    except OSError:
        # Another process may have put its own there meanwhile, which is as good.
        if not place.is_dir():
            raise
    for left in (old, new):
        shutil.rmtree(left, ignore_errors=True)


def _script(place: Path) -> str:
    """A script in this directory that is the command, wherever the package has come from."""
    script = place / "thalweg"
    if not script.exists():
        script.write_text(f"#!{sys.executable}\nfrom thalweg._command import main\nmain()\n")
        script.chmod(0o700)
    return str(script)


def _environment() -> dict[str, str]:
    """The environment in which this package is found."""
    package = str(Path(__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])}
