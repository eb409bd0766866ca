# SPDX-License-Identifier: MIT
"""The pytest option --hosts: ranks of every world on several hosts, and the tests' worlds launched by torchrun."""

import os

import pytest

from tests.support import world
from tests.support.hosts import HOSTS

from .network import Network
from .torchrun import TorchrunWorld

NETWORK = pytest.StashKey[Network]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("ranks").addoption("--hosts", type=int, required=True, help="how many hosts the ranks are on")


def pytest_configure(config: pytest.Config) -> None:
    network = Network(config.getoption("--hosts"))
    config.add_cleanup(network.close)
    config.stash[NETWORK] = network
    os.environ[HOSTS] = ":".join(host.namespace for host in network.hosts)  # for worlds that a test makes itself
    TorchrunWorld.hosts = network.hosts
    world.World = TorchrunWorld  # type: ignore[misc] # what `Worlds` makes


@pytest.fixture
def network(request: pytest.FixtureRequest) -> Network:
    """The hosts of this run."""
    return request.config.stash[NETWORK]
