# SPDX-License-Identifier: MIT
"""Hosts on a switch: network namespaces with an address each, joined by veth pairs and a bridge.

    br0 ── link0 ┄┄ eth0 of host 0, 10.77.0.1
        ── link1 ┄┄ eth0 of host 1, 10.77.0.2

All of it lives in a network namespace of the caller's own (`unshare --map-root-user --net`), so that nothing of the
machine's network is touched. A host is a `cat` that waits for input: it ends with its pipe, whatever becomes of the
caller, and the kernel then takes its namespace and its link away.

Run as a program, this builds two hosts, and says what is in the way if that fails.
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path

from tests.support.hosts import INTERFACE


def run(*words: str) -> str:
    """A command's output; what it said, as an error, where it failed."""
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        msg = f"{' '.join(words)}: {ran.stderr.strip() or ran.returncode}"
        raise OSError(msg)
    return ran.stdout


class Host:
    """One host: a process that holds its network namespace open."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.address = f"10.77.0.{number + 1}"
        self._link = f"link{number}"
        self._process = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE)
        self.namespace = f"/proc/{self._process.pid}/ns/net"
        self._wait_for_namespace()
        pid = str(self._process.pid)
        run("ip", "link", "add", self._link, "type", "veth", "peer", "name", INTERFACE, "netns", pid)
        # no IPv6: what crosses the link is ours alone
        for word in (self._link, "br0"):
            run("ip", "link", "set", word, "addrgenmode", "none")
        run("ip", "link", "set", self._link, "master", "br0", "up")
        self.run("ip", "link", "set", INTERFACE, "addrgenmode", "none")
        self.run("ip", "address", "add", f"{self.address}/24", "dev", INTERFACE)
        self.run("ip", "link", "set", INTERFACE, "up")
        self.run("ip", "link", "set", "lo", "up")

    def _wait_for_namespace(self) -> None:
        ours, deadline = Path("/proc/self/ns/net").readlink(), time.monotonic() + 10
        while Path(self.namespace).readlink() == ours:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise OSError("unshare --net: no network namespace")
            time.sleep(0.01)

    def command(self, *words: str) -> list[str]:
        """A command line that runs on this host."""
        return ["nsenter", f"--net={self.namespace}", *words]

    def run(self, *words: str) -> str:
        """A command's output on this host."""
        return run(*self.command(*words))

    def cut(self) -> None:
        """Pull the cable."""
        run("ip", "link", "set", self._link, "down")

    def mend(self) -> None:
        """Put it back."""
        run("ip", "link", "set", self._link, "up")

    def bytes_on_link(self) -> int:
        """Bytes that arrived over the link since it came up: frames with their headers, as the card counts them."""
        (link,) = json.loads(self.run("ip", "-json", "-statistics", "link", "show", INTERFACE))
        return int(link["stats64"]["rx"]["bytes"])

    def bytes_of_data(self, pids: Collection[int]) -> int:
        """Bytes that TCP has handed over to these processes from other hosts, over the connections they have."""
        lines = self.run("ss", "--tcp", "--info", "--processes", "--numeric", "--oneline", "--no-header").splitlines()
        total = 0
        for line in lines:
            peer, owners = line.split()[4], {int(pid) for pid in re.findall(r"pid=(\d+)", line)}
            if owners & set(pids) and not peer.startswith(f"{self.address}:"):
                total += sum(int(n) for n in re.findall(r"bytes_received:(\d+)", line))
        return total

    def close(self) -> None:
        """End the host, and with it its namespace and its link."""
        self._process.kill()
        self._process.communicate()


class Network:
    """Some hosts on one switch."""

    def __init__(self, hosts: int) -> None:
        self._open = ExitStack()
        with self._open:  # closes what is there if anything fails on the way
            run("ip", "link", "set", "lo", "up")
            run("ip", "link", "add", "br0", "type", "bridge")
            self._open.callback(run, "ip", "link", "delete", "br0")
            run("ip", "link", "set", "br0", "up")
            self.hosts = [self._host(number) for number in range(hosts)]
            self._open = self._open.pop_all()

    def _host(self, number: int) -> Host:
        host = Host(number)
        self._open.callback(host.close)
        return host

    def close(self) -> None:
        """Take everything down."""
        self._open.close()


def main() -> int:
    """Whether hosts can be had here: 0, or 1 and the reason."""
    try:
        network = Network(2)
        network.hosts[0].run("ss", "--version")
        network.close()
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
