"""Two hosts, simulated by two connected network namespaces: torchrun trains across both as on one host, only the host of rank 0
has the run folder, and when one host dies, the other ends soon and leaves an intact checkpoint."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from commands import SUPPORT, run, saved, wait_for
from ranks import CARTPOLE, assert_alike, finish

PORT = 29477  # free, since a new namespace has its own ports
FOLDER = Path("runs/CartPole-v1/ppo/seed1")
# Iterations of a few milliseconds with a checkpoint after each, so that a kill may interrupt anything.
ENDLESS = ("train", "CartPole-v1", "--num-envs", "4", "--rollout-steps", "16", "--num-minibatches", "4", "--epochs", "2")
ENDLESS += ("--hidden-sizes", "8", "--save-every", "64", "--vector", "inprocess", "--no-tensorboard", "--total-steps", "640000")
ENDLESS += ("--callback", "ranks:WritePid", "--callback-kwargs", "seconds=0.01")


@dataclass(frozen=True)
class Host:
    namespace: str
    interface: str
    address: str
    folder: Path

    def pids(self) -> list[int]:
        """Return the ids of all processes on this host."""
        listed = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=True)
        return [int(pid) for pid in listed.stdout.split()]

    def kill(self) -> None:
        for pid in self.pids():
            with suppress(ProcessLookupError):  # torchrun may have ended its rank in the meantime
                os.kill(pid, signal.SIGKILL)


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Host, Host]]:
    if shutil.which("ip") is None:
        pytest.skip("no ip command: install iproute2")
    # Names with the process id, since namespaces are global; names of interfaces have at most 15 characters.
    pair = tuple(
        Host(f"proxrl-{os.getpid()}-{letter}", f"px{os.getpid()}{letter}", f"10.77.0.{number}", tmp_path / letter)
        for number, letter in ((1, "a"), (2, "b"))
    )
    first, second = pair
    try:
        try:
            for host in pair:
                ip("netns", "add", host.namespace)
            # Created inside the first namespace, so that the network of this machine is not affected.
            ip("-n", first.namespace, "link", "add", first.interface, "type", "veth", "peer", "name", second.interface)
            ip("-n", first.namespace, "link", "set", second.interface, "netns", second.namespace)
            for host in pair:
                ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", host.interface)
                ip("-n", host.namespace, "link", "set", "lo", "up")
                ip("-n", host.namespace, "link", "set", host.interface, "up")
                ip("netns", "exec", host.namespace, "true")  # needs more permissions than creating it
        except OSError as error:
            pytest.skip(f"network namespaces are not permitted: {error}")
        for host in pair:
            host.folder.mkdir()
        yield first, second
    finally:
        for host in pair:
            with suppress(OSError, subprocess.CalledProcessError):  # those that were not created
                host.kill()
            with suppress(OSError):
                ip("netns", "delete", host.namespace)  # together with both ends of the connection


def start_on(host: Host, rendezvous: Host, *words: str, max_restarts: int = 0) -> subprocess.Popen[str]:
    """Start torchrun with one of two ranks; both connect to the address of `rendezvous`.

    The machine's name resolves to 127.0.0.1 on both hosts, which the other can't reach. So torchrun needs options for which host
    has the store and for its address, and gloo for the interface.
    """
    launcher = ["ip", "netns", "exec", host.namespace, sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
    launcher += ["--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{rendezvous.address}:{PORT}"]
    launcher += ["--rdzv-id", "test", "--rdzv-conf", f"is_host={str(host == rendezvous).lower()}", "--local-addr", host.address]
    launcher += ["--max-restarts", str(max_restarts)]
    return subprocess.Popen(
        [*launcher, "-m", "proxrl", *words],
        cwd=host.folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(SUPPORT), os.environ.get("PYTHONPATH", "")])),
            "GLOO_SOCKET_IFNAME": host.interface,
            # No name server can be reached, and torch looks up names for its log: do not wait 5 s for each.
            "RES_OPTIONS": "timeout:1 attempts:1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_two_hosts_train_like_one(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    assert run(*CARTPOLE, "--quiet", cwd=tmp_path).returncode == 0
    processes = [start_on(host, hosts[0], *CARTPOLE) for host in hosts]
    for process in processes:
        done = finish(process)
        assert done.returncode == 0, done.stderr
    # torchrun assigns ranks in any order.
    (writer,) = (host for host in hosts if (host.folder / "runs").exists())
    assert_alike(writer.folder / FOLDER, tmp_path / FOLDER)


def test_the_other_host_ends_when_one_dies(hosts: tuple[Host, Host]) -> None:
    survivor, victim = hosts
    process, lost = (start_on(host, survivor, *ENDLESS) for host in hosts)
    wait_for(lambda: any((host.folder / FOLDER / "checkpoints/latest.safetensors").exists() for host in hosts), 120)
    victim.kill()
    killed = time.monotonic()
    done = finish(process, 60)
    assert done.returncode != 0
    assert time.monotonic() - killed < 60
    assert finish(lost).returncode == -signal.SIGKILL
    wait_for(lambda: not survivor.pids())  # no process is left
    (writer,) = (host for host in hosts if (host.folder / "runs").exists())
    assert saved(writer.folder / FOLDER)[1]["step"] >= 64  # verifies the checksum


def test_ranks_on_both_hosts_restart_when_one_dies(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    """Only one torchrun has seen a failure, so both count restarts differently; the ranks connect nevertheless."""
    words = (*ENDLESS[: ENDLESS.index("--total-steps")], "--total-steps", "640", "--callback", "ranks:DieOnce")
    words += ("--runs-dir", str(tmp_path / "shared"))
    for process in [start_on(host, hosts[0], *words, max_restarts=3) for host in hosts]:
        done = finish(process, 180)
        assert done.returncode == 0, done.stderr
    assert any((host.folder / "died").exists() for host in hosts)
    assert saved(tmp_path / "shared/CartPole-v1/ppo/seed1")[1]["step"] == 640
