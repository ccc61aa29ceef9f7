"""A Slurm cluster of this machine alone, from Debian's packages: its daemons, their files in a folder of their own."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

_DAEMONS = ("munged", "slurmctld", "slurmd")
_WAIT_S = 60

# Without cgroups, systemd and a database of jobs, which a container need not have.
_CONF = """\
ClusterName=utaca
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
MinJobAge=600
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=64000 State=UNKNOWN
PartitionName=debug Nodes={host} Default=YES State=UP
"""


class Slurm:
    """The cluster: a node that claims four processors and 64 GB.

    ``variables`` are what its commands need in their environment. Skips where the cluster cannot be.
    """

    def __init__(self) -> None:
        if find_spec("snakemake_executor_plugin_slurm") is None:
            pytest.skip("the plugin is not installed: pip install -e '.[slurm]'")
        if os.geteuid() != 0:
            pytest.skip("Slurm's daemons start as root")
        if missing := [name for name in _DAEMONS if _found(name) is None]:
            packages = "apt-get install --no-install-recommends slurm-wlm munge"
            pytest.skip(f"no {', '.join(missing)} here; {packages}")
        self.folder = Path(tempfile.mkdtemp(prefix="utaca-slurm-", dir="/tmp"))
        search = f"{self.folder}/bin{os.pathsep}{os.environ['PATH']}"
        self.variables = {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": search}
        self._running: list[subprocess.Popen[bytes]] = []
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        host, munge = socket.gethostname().split(".")[0], self.folder / "munge"
        for name in ("bin", "munge", "state", "spool"):
            (self.folder / name).mkdir()
        # The plugin starts a job's step without Slurm's variables, in which the place of the configuration is.
        step = self.folder / "bin" / "srun"
        step.write_text(f'#!/bin/sh\nSLURM_CONF={self.folder}/slurm.conf exec {shutil.which("srun")} "$@"\n')
        step.chmod(0o755)
        # Slurm's processes must reach the socket, and nobody else the key.
        self.folder.chmod(0o755)
        munge.chmod(0o755)
        (munge / "key").write_bytes(os.urandom(1024))
        (munge / "key").chmod(0o400)
        conf = _CONF.format(host=host, folder=self.folder, ports=_free_ports(2))
        (self.folder / "slurm.conf").write_text(conf)
        paths = {f"--{name}-file": munge / name for name in ("key", "log", "pid", "seed")}
        options = [f"{option}={path}" for option, path in paths.items()]
        self._run("munged", "--foreground", "--force", f"--socket={munge}/socket", *options)
        self._await("munged", lambda: (munge / "socket").exists())
        self._run("slurmctld", "-D", "-i")
        self._run("slurmd", "-D")
        self._await("slurmd", lambda: self.say("sinfo", "--noheader", "--format=%t").strip() == "idle")

    def _run(self, daemon: str, *options: str) -> None:
        with (self.folder / f"{daemon}.out").open("wb") as log:
            command, environment = [_found(daemon) or daemon, *options], os.environ | self.variables
            self._running.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    def _await(self, daemon: str, ready: Callable[[], bool]) -> None:
        end = time.monotonic() + _WAIT_S
        while not ready():
            if time.monotonic() > end or any(process.poll() is not None for process in self._running):
                logs = [*self.folder.glob("*.out"), *self.folder.glob("*.log")]
                said = [f"{path.name}: {path.read_text(errors='replace')[-2000:]}" for path in sorted(logs)]
                raise RuntimeError("\n".join([f"{daemon} does not come up", *said]))
            time.sleep(0.2)

    def say(self, *command: str) -> str:
        """What a command of Slurm's prints."""
        done = subprocess.run(command, env=os.environ | self.variables, capture_output=True, text=True)
        return done.stdout

    def close(self) -> None:
        """End the jobs and the daemons, and remove their files."""
        if len(self._running) == len(_DAEMONS):
            self.say("scancel", "--user=root")
            deadline = time.monotonic() + _WAIT_S
            while self.say("squeue", "--noheader", "--states=running,completing") and time.monotonic() < deadline:
                time.sleep(0.2)
        for process in reversed(self._running):
            process.terminate()
            try:
                process.wait(_WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _found(daemon: str) -> str | None:
    return shutil.which(daemon, path=f"{os.environ['PATH']}:/usr/sbin")


def _free_ports(number: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports
