"""Clusters that Ray hosts: nodes of Thalweg on machines of Ray, by reservation.

Model: a detached placement group reserves a bundle on as many machines as the cluster has nodes. In each bundle a
detached actor, a *supervisor*, runs ``thalweg node run`` and restarts it. One more actor, the *keeper*, has the
authority of the cluster: it signs the identities of nodes and that of clients. What it has is also in Ray's own store,
so it may be restarted anywhere. Whoever may use the Ray cluster can therefore use the cluster of Thalweg.

Data and jobs never pass through Ray: after the first look-up the identity, with the addresses in it, is in a directory
of this user, and only Thalweg's own links are used.

This is the only module that imports Ray, when it first needs it.
"""

from __future__ import annotations

import contextlib
import logging
import operator
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
from collections.abc import Generator, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from thalweg import _native
from thalweg._words import Size
from thalweg.cluster import Cluster
from thalweg.errors import NotEnoughResources, RayError, UsageError

RAY_MIN = "2.40"
"""The oldest version of Ray that this module is written for."""

_NAMESPACE = "thalweg"
_CLIENT = "ray"
_FAST_ENDS_MAX = 3
"""A node that ends so often within :data:`_FAST_SECONDS` gets a new identity and another port."""
_FAST_SECONDS = 5.0
_AGAIN_SECONDS = 1.0
_STOP_SECONDS = 10.0
_ANSWER_SECONDS = 5.0

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
            address = os.environ.get("RAY_ADDRESS", "auto")
            _answers(address)
            library.init(address=address, namespace=_NAMESPACE, log_to_driver=False, logging_level="warning")
        except ConnectionError as why:
            raise RayError(
                "no Ray cluster was found, or it wants a token: start one with ray start --head, name one by RAY_ADDRESS,"
                " or set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
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
    data: str | None = None,
    timeout: float = 10.0,
) -> RayCluster:
    """Makes a cluster of so many nodes, each on another machine of Ray, with ``cpus`` and ``memory`` reserved there.

    ``data`` is the directory of the ``nodes:`` files on each machine, with ``{}`` for the node's name; the home
    directory if it is not given. ``timeout`` is in seconds: how long to wait for the machines, longer where they have
    to be started first.

    The cluster lives until :meth:`RayCluster.down`, or until the end of a ``with`` block, however this program ends.
    :func:`connect` finds it again.

    Raises :class:`thalweg.NotEnoughResources` if Ray does not have the machines within ``timeout``, and leaves nothing;
    :class:`thalweg.UsageError` if ``nodes`` or ``cpus`` is not a whole number from 1 on.
    """
    _identity(name)
    _whole("nodes", nodes)
    _whole("cpus", cpus)
    ray = _ray()
    bytes_each = _native.size(str(memory))
    if _actor(ray, name) is not None:
        raise RayError(f"Ray hosts a cluster '{name}' already; connect finds it, another one needs another name")
    from ray.util.placement_group import placement_group, remove_placement_group  # pyright: ignore
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # pyright: ignore

    bundle: dict[str, float] = {"CPU": cpus, "memory": bytes_each}
    group: Any = placement_group([bundle] * nodes, strategy="STRICT_SPREAD", name=_of(name), lifetime="detached")
    if not group.wait(timeout):
        remove_placement_group(group)
        raise _not_enough(ray, nodes, bundle)
    options: dict[str, Any] = {"namespace": _NAMESPACE, "lifetime": "detached", "max_restarts": -1}
    # Its methods may run twice. A call waits while it is restarted.
    keeper = ray.remote(Keeper).options(name=_of(name), num_cpus=0, max_task_retries=-1, **options).remote(name, group)
    supervisors: list[Any] = []
    # Ray warns that such an actor ends with its placement group, as it should.
    with _quiet("ray.actor"):
        for index in range(nodes):
            where = PlacementGroupSchedulingStrategy(group, index)
            supervisor = ray.remote(Supervisor).options(
                name=_of(name, index),
                num_cpus=cpus,
                memory=bytes_each,
                max_concurrency=2,
                scheduling_strategy=where,
                **options,
            )
            supervisors.append(supervisor.remote(name, index, group, cpus, bytes_each, data))
    try:
        hosts = ray.get([supervisor.place.remote() for supervisor in supervisors])
        identities = ray.get(keeper.init.remote(hosts))
        ray.get([supervisor.start.remote(files) for supervisor, files in zip(supervisors, identities, strict=True)])
    except BaseException:
        down(name)
        raise
    return connect(name)


def connect(name: str = "river") -> RayCluster:
    """A cluster that Ray hosts, by its name: gets a certificate and the addresses of the nodes anew.

    Raises :class:`thalweg.RayError` if there is none of this name.
    """
    place = _identity(name)
    ray = _ray()
    keeper = _actor(ray, name)
    if keeper is None:
        raise RayError(f"Ray hosts no cluster '{name}'")
    _written(place, ray.get(keeper.client.remote()))
    return RayCluster(name)


def identity(name: str) -> str:
    """The directory of the identity for a cluster that Ray hosts. Ray is only asked if it is not there yet."""
    place = _identity(name)
    if not place.is_dir():
        connect(name)
    return str(place)


def down(name: str = "river") -> None:
    """Ends a cluster that Ray hosts: its jobs, nodes and actors, its reservation and its files."""
    place = _identity(name)
    ray = _ray()
    keeper = _actor(ray, name)
    if keeper is not None:
        group = ray.get(keeper.group.remote())
        stopping: list[tuple[Any, Any]] = []
        for index in range(group.bundle_count):
            supervisor = _actor(ray, name, index)
            if supervisor is not None:
                stopping.append((supervisor, supervisor.stop.remote()))
        for supervisor, stopped in stopping:
            # One whose machine is lost cannot stop.
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(stopped, timeout=2 * _STOP_SECONDS)
            ray.kill(supervisor)
        ray.get(keeper.stop.remote())
        ray.kill(keeper)
        from ray.util.placement_group import remove_placement_group  # pyright: ignore

        remove_placement_group(group)
    shutil.rmtree(place, ignore_errors=True)


class RayCluster(Cluster):
    """A cluster that Ray hosts; a ``with`` block brings it down at its end."""

    def __init__(self, name: str, *, on: Iterable[str] = ()) -> None:
        super().__init__(f"ray:{name}", on=on)
        self._hosted = name

    def down(self) -> None:
        """Ends it, and leaves nothing: no process, no file, no placement group."""
        down(self._hosted)

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, why: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()


class Keeper:
    """The actor that has the authority of a cluster. What it has is in Ray's store, too, for its successor."""

    def __init__(self, name: str, group: Any) -> None:
        self._name = name
        self._group = group
        self._place = _directory(group, "keeper")
        self._owner = self._place / "owner"
        kept = self._store()._internal_kv_get(self._key)
        if kept is not None:
            _written(self._owner, pickle.loads(kept))

    def group(self) -> Any:
        """The placement group."""
        return self._group

    def made(self) -> bool:
        """Whether the cluster has been made."""
        return self._owner.exists()

    def init(self, hosts: list[str]) -> list[_Files]:
        """Makes the cluster, and returns the identity of each host."""
        self._cluster("init", self._name, *hosts)
        self._cluster("client", _CLIENT)
        self._keep()
        return [_read(self._owner / "hosts" / host.partition("=")[0]) for host in hosts]

    def replace(self, host: str) -> _Files:
        """Puts a host in the place of the one that had its name: with a new key and address, in the next epoch."""
        name = host.partition("=")[0]
        self._cluster("drop", name)
        self._cluster("add", host)
        self._keep()
        return _read(self._owner / "hosts" / name)

    def client(self) -> _Files:
        """The identity of clients."""
        return {**_read(self._owner / "clients" / _CLIENT), "cluster.json": (self._owner / "cluster.json").read_bytes()}

    def stop(self) -> None:
        """Forgets all."""
        self._store()._internal_kv_del(self._key)
        shutil.rmtree(self._place)

    def _cluster(self, *words: str) -> None:
        command = [_script(self._place), "cluster", *words, "--identity", str(self._owner), "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True)
        # Hosts that cannot be told of a change learn of it from the others.
        if done.returncode != 0:
            raise RayError(done.stderr.strip())

    @property
    def _key(self) -> bytes:
        return _of(self._name).encode()

    def _keep(self) -> None:
        self._store()._internal_kv_put(self._key, pickle.dumps(_read(self._owner)))

    @staticmethod
    def _store() -> Any:
        """Ray's own store of small values, which outlives actors."""
        from ray.experimental import internal_kv  # pyright: ignore

        return internal_kv


class Supervisor:
    """The actor of a bundle, which runs a node and restarts it. The node ends with it."""

    def __init__(self, name: str, index: int, group: Any, cpus: int, memory: int, data: str | None) -> None:
        import ray

        library: Any = ray
        self._name = name
        self._node = f"n{index + 1}"
        self._cpus = cpus
        self._memory = memory
        self._data = None if data is None else data.replace("{}", self._node)
        self._place = _directory(group, self._node)
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._runner: threading.Thread | None = None
        # An actor that Ray has restarted finds the cluster made, and takes the place of the node that it had.
        if library.get(self._keeper().made.remote()):
            self._run(None)

    def place(self) -> str:
        """The host, as ``cluster init`` takes it, at a port that is free."""
        import ray

        library: Any = ray
        address = str(library.util.get_node_ip_address())
        with socket.socket() as free:
            free.bind((address, 0))
            port = free.getsockname()[1]
        words = [] if self._data is None else [f"data={self._data}"]
        return f"{self._node}={address}:{port}@{','.join([*words, f'memory={self._memory}'])}"

    def start(self, files: _Files) -> None:
        """Runs the node with this identity, and returns when it listens."""
        ready = self._run(files)
        if not ready.wait(_STOP_SECONDS):
            raise RayError(f"{self._node} does not listen after {_STOP_SECONDS:.0f} s")

    def stop(self) -> None:
        """Ends the node and what it runs, and removes its files."""
        self._stopping.set()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        if self._runner is not None:
            self._runner.join(_STOP_SECONDS)
        shutil.rmtree(self._place, ignore_errors=True)

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
        import ray

        library: Any = ray
        return library.get(self._keeper().replace.remote(self.place()))

    def _keeper(self) -> Any:
        import ray

        library: Any = ray
        return library.get_actor(_of(self._name), namespace=_NAMESPACE)

    def _started(self, files: _Files) -> subprocess.Popen[bytes]:
        own = self._place / "identity"
        _written(own, files)
        cores = sorted(os.sched_getaffinity(0))
        # Which ones is left to chance, so that several clusters do not meet on the first.
        mine = random.sample(cores, min(self._cpus, len(cores)))
        command = [sys.executable, "-m", "thalweg._node", _script(self._place), str(own), ",".join(map(str, mine))]
        where = Path.home() if self._data is None else Path(self._data)
        where.mkdir(parents=True, exist_ok=True)
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=where, env=_environment(), process_group=0
        )


def _directory(group: Any, actor: str) -> Path:
    """A new directory for an actor, in the place of the one of an actor before it that was killed."""
    place = Path(tempfile.gettempdir(), f"thalweg-{group.id.hex()}-{actor}")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(mode=0o700)
    return place


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
    gib = 1 << 30
    needed = f"{bundle['CPU']} CPUs and {bundle['memory'] / gib:.2f} GiB"
    left = f"{free.get('CPU', 0):.0f} CPUs and {free.get('memory', 0) / gib:.2f} GiB"
    why = (
        f"{nodes} nodes need {nodes} machines of Ray with {needed} each; {len(machines)} are alive, {len(large)} are"
        f" as large, and in all {left} are free; add machines, or ask for less"
    )
    error = NotEnoughResources(why)
    error.nodes, error.machines, error.large = nodes, len(machines), len(large)
    return error


def _whole(what: str, count: int) -> None:
    """Checks that there is at least one, and no part of one."""
    try:
        is_sound = operator.index(count) >= 1
    except TypeError:
        is_sound = False
    if not is_sound:
        raise UsageError(f"{what}={count!r}: give a whole number from 1 on")


def _identity(name: str) -> Path:
    """Where this user has the identity for a cluster that Ray hosts."""
    if not re.fullmatch("[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?", name):
        raise RayError(f"'{name}' is not a name for a cluster: use up to 63 letters, digits, '-' and '.'")
    settings = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(settings, "thalweg", "ray", name)


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
