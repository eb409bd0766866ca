# SPDX-License-Identifier: MIT
"""Where the ranks are, what crosses the links between them, and what happens when one is cut."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.transfers import transfer, until_it_fails, where
from tests.support import Deadlines, World, Worlds
from tests.support.hosts import host_by_rank

from .network import Network
from .torchrun import TorchrunWorld

# rows by rank; the first are few, and go through the first rank; in a sum of rows as uneven as the second, even shares
# travel instead, of which no host's part is exactly its rows'
SMALL, SKEWED, MILD = (40, 3, 0, 9), (6000, 30, 0, 900), (3000, 2000, 0, 3000)
WIDTH, ROW = 256, 256 * 4  # columns, and bytes

HEADER = 48  # bytes that gloo puts before a message, or sends as one
MESSAGES = 3  # for each block, in one direction or the other: one that it may come, one that it will, and the block
# Bytes on the link over bytes of data: 66 of Ethernet, IP and TCP in every frame of at most 1514, as many in the
# acknowledgement of every other frame that went the other way; and what is not counted with the data (ARP, closing).
FRAME, STRAY = 66 / 1448, 8192


@pytest.fixture
def ranks(network: Network) -> Iterator[World]:
    """Four ranks on two hosts, three on three; without torchrun, whose own messages would be counted too."""
    with World(4 if len(network.hosts) == 2 else len(network.hosts)) as world:
        world.run(where)
        yield world


def test_ranks_are_on_hosts_of_their_own(network: Network, worlds: Worlds, ranks: World) -> None:
    """In blocks, each with its host's address and network; torchrun's store in one case, a file in the other."""
    expected = [network.hosts[host].address for host in host_by_rank(ranks.size, len(network.hosts))]
    for world, kind in ((worlds.get("gloo", ranks.size), "TCPStore"), (ranks, "FileStore")):
        answers = world.run(where)
        assert [address for address, _, _ in answers] == expected
        assert len({namespace for _, namespace, _ in answers}) == len(network.hosts)
        assert {store for _, _, store in answers} == {kind}


class Crossing:
    """What came into one host."""

    def __init__(self, data: int, link: int, necessary: int, blocks: int, sent: int) -> None:
        self.data, self.link, self.necessary, self.blocks, self.sent = data, link, necessary, blocks, sent

    def complaint(self) -> str:
        """What is too much or too little; empty if nothing is."""
        over = self.data - self.necessary
        if over % HEADER or not 0 <= over <= HEADER * MESSAGES * self.blocks:
            return f"{self.data} bytes of data, {self.necessary} are necessary"
        if not self.data <= self.link <= self.data * (1 + FRAME) + self.sent * FRAME / 2 + STRAY:
            return f"{self.link} bytes on the link for {self.data} of data"
        return ""


def sent(what: str, sizes: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Who sends to whom, and how many rows: every row once to each of the other ranks, or through the first."""
    world = len(sizes)
    if sizes == SMALL[:world]:
        for rank in range(1, world):
            yield rank, 0, sum(sizes) if what == "sum" else sizes[rank]
            yield rank & (rank - 1), rank, sum(sizes)
        return
    for root in range(world):
        for step in range(1, world):
            to = (root + step) % world
            # gloo broadcasts in a tree, in which the other ranks pass rows on, back to the root's host too
            tree = (root + step - (1 << step.bit_length() - 1)) % world
            yield root if what == "sum" else tree, to, sizes[to if what == "sum" else root]


def crossings(network: Network, world: World, what: str, sizes: tuple[int, ...]) -> list[Crossing]:
    """One transfer, host by host, less what the ranks' meeting at its end takes."""
    pids = [process.pid for process in world.processes if process.pid]

    def count(what: str) -> list[tuple[int, int]]:
        before = [(host.bytes_of_data(pids), host.bytes_on_link()) for host in network.hosts]
        assert all(world.run(transfer, what, sizes, WIDTH))
        time.sleep(0.2)  # the last acknowledgements
        after = [(host.bytes_of_data(pids), host.bytes_on_link()) for host in network.hosts]
        return [(b[0] - a[0], b[1] - a[1]) for a, b in zip(before, after, strict=True)]

    meeting, counted = count("nothing"), count(what)
    places = host_by_rank(world.size, len(network.hosts))
    found = []
    for host in network.hosts:
        rows = [n for a, b, n in sent(what, sizes) if places[a] != host.number == places[b]]
        blocks = sum((places[a] == host.number) != (places[b] == host.number) for a, b, _ in sent(what, sizes))
        data, link = counted[host.number]
        others = sum(counted[other.number][0] for other in network.hosts if other is not host)
        found.append(Crossing(data - meeting[host.number][0], link, sum(rows) * ROW, blocks, others))
    return found


@pytest.mark.parametrize(
    ("what", "sizes"), [("gather", SMALL), ("gather", SKEWED), ("gather", MILD), ("sum", SMALL), ("sum", MILD)]
)
def test_only_what_is_necessary_crosses_the_link(
    what: str, sizes: tuple[int, ...], network: Network, ranks: World
) -> None:
    """To the byte, and gloo's headers; on the link, frames around it."""
    for crossing in crossings(network, ranks, what, sizes[: ranks.size]):
        assert crossing.complaint() == ""


@pytest.mark.parametrize("sizes", [SMALL, SKEWED, MILD])
def test_padding_would_be_seen(sizes: tuple[int, ...], network: Network, ranks: World) -> None:
    """A gather that pads to the longest fails the same check, on every host."""
    for crossing in crossings(network, ranks, "pad to longest", sizes[: ranks.size]):
        assert "are necessary" in crossing.complaint()


TIMEOUT = 5.0  # of the process group
# every rank waits 2 seconds for the others' reports, and 3 more for a store that does not answer
REPORTS = 5.0


@pytest.mark.parametrize("kind", [World, TorchrunWorld], ids=["store in a file", "store of torchrun"])
@pytest.mark.parametrize("rows", [8, 4096], ids=["small", "large"])
def test_a_cut_link_ends_in_an_error_on_every_rank(
    kind: type[World], rows: int, network: Network, tmp_path: Path
) -> None:
    """Within the group's timeout and the time for reports; where the store is out of reach, the error says so."""
    size = 4 if len(network.hosts) == 2 else len(network.hosts)
    cut_off, marker, cut_at = network.hosts[-1], tmp_path / "under-way", []

    def cut_when_under_way() -> None:
        for _ in range(1200):
            if marker.exists():
                cut_off.cut()
                cut_at.append(time.time())
                return
            time.sleep(0.05)

    with kind(size, deadlines=Deadlines(collective=TIMEOUT, case=95)) as world:
        world.run(where)
        cutting = threading.Thread(target=cut_when_under_way)
        cutting.start()
        try:
            answers = world.run(until_it_fails, str(marker), rows, 60.0)
        finally:
            cutting.join()
            cut_off.mend()
    assert [error for error, _, _ in answers] == ["TransportError"] * size
    assert all(at - cut_at[0] < TIMEOUT + REPORTS + 5 for _, _, at in answers)
    for rank, (_, message, _) in enumerate(answers):
        away = host_by_rank(size, len(network.hosts))[rank] == cut_off.number
        assert ("could not be asked" in message) == (away and kind is TorchrunWorld), message
