"""Nodes made of Linux namespaces: each ends with one process, and all of them with the test's process.

Nothing has a name outside: the bridge is in a network namespace of its own, and mounts are private. So two clusters
never meet, and the kernel removes everything when the processes end, also after a kill.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.cluster.cluster import TestCluster, wait_until

PORT = 6379
START_TIMEOUT_S = 240.0
TOOLS = ("ip", "unshare", "nsenter", "setpriv", "bash", "hostname", "mount")

# The first process of a node adopts its orphans; bash waits for them.
_NODE = """
set -e
hostname "$1"
mkdir -p /tmp/ray "$2"
for folder in /dev/shm /tmp/ray "$2"; do mount -t tmpfs -o size=2g node "$folder"; done
# As on Debian the name of the host is that of the loopback interface.
printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$1" > "$2/hosts"
mount --bind "$2/hosts" /etc/hosts
ip link set lo up
echo ready
while :; do sleep 3600 & wait $!; done
"""
_BRIDGE = """
set -e
ip link set lo up
ip link add br0 type bridge
ip addr add 10.77.0.254/24 dev br0
ip link set br0 up
echo ready
exec sleep 100000
"""
_OWN = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net"]
_OWN_ALL = [*_OWN, "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]


def why_no_namespaces() -> str | None:
    """Return why this machine cannot make such nodes; None if it can."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    links = "ip link add br0 type bridge && ip link add ve1 type veth peer name ve2"
    script = f"mount -t tmpfs x /dev/shm && hostname x && {links}"
    try:
        done = subprocess.run([*_OWN_ALL, "bash", "-c", script], capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return "making one takes more than a minute"
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no permission"])[0]


@dataclass
class _Namespaces:
    """The process that holds them, and the one by which they are entered."""

    holder: subprocess.Popen[bytes]
    first: psutil.Process
    ray: subprocess.Popen[bytes] | None = None
    log: Path = Path()

    def enter(self, *flags: str) -> list[str]:
        return ["nsenter", "--target", str(self.first.pid), *flags, "--"]

    def end(self) -> None:
        """Kill every process in them."""
        if self.first.is_running():
            self.first.kill()
        # The holder waits for it: killed as well, it would leave a zombie.
        self.holder.wait(timeout=30)
        assert self.holder.stdout is not None
        self.holder.stdout.close()
        if self.ray is not None:
            self.ray.wait(timeout=30)


def _held(command: Sequence[str], is_forked: bool) -> _Namespaces:
    holder = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert holder.stdout is not None
    ready = holder.stdout.readline()
    assert ready == b"ready\n", f"{command}: {ready!r}"
    process = psutil.Process(holder.pid)
    return _Namespaces(holder, process.children()[0] if is_forked else process)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)


class NamespaceNodes(TestCluster):
    """Nodes 10.77.0.1, 10.77.0.2, … on a bridge; node 1 has the head of Ray."""

    has_own_disks = True
    address = f"10.77.0.1:{PORT}"

    def __init__(self, folder: Path, cpus: float, environment: Mapping[str, str]) -> None:
        super().__init__(folder, cpus, environment)
        self._bridge = _held([*_OWN, "bash", "-c", _BRIDGE], is_forked=False)
        self._nodes: list[_Namespaces] = []

    def add(self) -> int:
        number = len(self._nodes) + 1
        node = _held([*_OWN_ALL, "bash", "-c", _NODE, "bash", f"node{number}", str(self.disk)], is_forked=True)
        self._nodes.append(node)
        peer = f"ip link add ve{number} type veth peer name eth0 netns {node.first.pid} && "
        _run(*self._bridge.enter("--net"), "sh", "-c", f"{peer} ip link set ve{number} master br0 up")
        own = (
            f"ip addr add {self.ip(number)}/24 dev eth0 && ip link set eth0 up && ip route add default via 10.77.0.254"
        )
        _run(*node.enter("--net"), "sh", "-c", own)
        return number

    def start(self, node: int, cpus: float) -> None:
        if node > 1:
            # A node that comes before the head is whole waits ten seconds before it tries again.
            self._wait_for_ray(self._nodes[0])
        place = (
            ["--head", f"--port={PORT}", "--include-dashboard=false"] if node == 1 else [f"--address={self.address}"]
        )
        options = [f"--node-ip-address={self.ip(node)}", "--object-store-memory=300000000", "--disable-usage-stats"]
        options.append(f"--num-cpus={cpus:g}")
        namespaces = self._nodes[node - 1]
        namespaces.log = self._folder / f"ray-{node}.log"
        with namespaces.log.open("wb") as log:
            namespaces.ray = subprocess.Popen(
                self.wrapped(node, ["ray", "start", *place, *options, "--block"], self._folder),
                env=dict(self._environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_for_all(self) -> None:
        for node in self._nodes:
            if node.ray is not None and node.ray.poll() is None:
                self._wait_for_ray(node)

    def wrapped(self, node: int, command: Sequence[str], folder: Path) -> list[str]:
        # The current folder is found anew, as the mounts there are others.
        inside = ["sh", "-c", 'cd "$0" && exec "$@"', str(folder), *command]
        return [*self._nodes[node - 1].enter("--net", "--mount", "--uts", "--pid"), *inside]

    def kill_node(self, node: int) -> None:
        self._set_link(node, "down")
        self._nodes[node - 1].end()

    def cut_link(self, node: int, cut_s: float) -> None:
        self._set_link(node, "down")
        time.sleep(cut_s)
        self._set_link(node, "up")

    def ip(self, node: int) -> str:
        return f"10.77.0.{node}"

    def path(self, node: int, path: Path) -> Path:
        return Path(f"/proc/{self._nodes[node - 1].first.pid}/root") / path.relative_to("/")

    def processes(self, node: int) -> list[psutil.Process]:
        own = _pid_namespace(self._nodes[node - 1].first.pid)
        return [process for process in psutil.process_iter() if own and _pid_namespace(process.pid) == own]

    def end_nodes(self) -> None:
        for node in self._nodes:
            node.end()
        self._bridge.end()

    def _set_link(self, node: int, state: str) -> None:
        _run(*self._bridge.enter("--net"), "ip", "link", "set", f"ve{node}", state)

    def _wait_for_ray(self, node: _Namespaces) -> None:
        def is_started() -> bool:
            assert node.ray is not None, "its Ray was not started"
            assert node.ray.poll() is None, node.log.read_text()
            return "Ray runtime started" in node.log.read_text()

        wait_until(is_started, START_TIMEOUT_S, f"Ray of {node.log.name}")


def _pid_namespace(pid: int) -> int | None:
    """Return the number of the namespace that a process is in; None if it has ended."""
    try:
        return Path(f"/proc/{pid}/ns/pid").stat().st_ino
    except OSError:
        return None
