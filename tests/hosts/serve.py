# SPDX-License-Identifier: MIT
"""One rank under torchrun: joins the group that torchrun describes, then serves the world that waits for it."""

import os
import sys
from datetime import timedelta
from multiprocessing.connection import Client
from pathlib import Path

import torch.distributed as dist

from shared_distributed_tools.ranks.rank import Place, serve
from tests.support.hosts import INTERFACE

if __name__ == "__main__":
    folder, timeout = Path(sys.argv[1]), float(sys.argv[2])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    os.environ.pop("RANK_HOSTS")  # torchrun's agent is on this rank's host already
    requests = Client(str(folder / "parent"), "AF_UNIX")
    requests.send((rank, os.getpid()))
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    serve(Place(rank, size, "gloo", str(folder), timeout), requests)
