# SPDX-License-Identifier: MIT
"""Ranks on several hosts: a rank steps into its host's network namespace before it joins the others."""

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

HOSTS = "RANK_HOSTS"  # the environment variable: a network namespace a host, as paths, separated by colons
INTERFACE = "eth0"  # of every host
_CLONE_NEWNET, _SIOCGIFADDR = 0x40000000, 0x8915


def host_by_rank(size: int, hosts: int) -> list[int]:
    """Ranks in blocks, as evenly as they go: 4 ranks on 2 hosts are [0, 0, 1, 1]."""
    used = min(size, hosts)
    return [rank * used // size for rank in range(size)]


def enter_host(rank: int, size: int) -> None:
    """Step onto this rank's host, where there are any: from here on, this process has that host's network alone."""
    namespaces = [path for path in os.environ.get(HOSTS, "").split(":") if path]
    if not namespaces:
        return
    with Path(namespaces[host_by_rank(size, len(namespaces))[rank]]).open() as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), namespace.name)
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE


def address() -> str:
    """Where other ranks reach this one: its host's address, or the loopback's."""
    interface = os.environ["GLOO_SOCKET_IFNAME"].encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", interface))
    return socket.inet_ntoa(answer[20:24])
