# SPDX-License-Identifier: MIT
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["lint", "types", "tests"]
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True

ROOT = Path(__file__).parent
ADAPTERS = sorted(contract.parent.name for contract in ROOT.glob("packages/*/contract.json"))
DISTRIBUTIONS = ["shared/distributed", *[f"packages/{name}" for name in ADAPTERS], "tools"]
MODULES = ["shared_distributed", *[f"{name.replace('-', '_')}_distributed" for name in ADAPTERS]]
DEVELOPMENT = ["matplotlib", "nox", "numpy", "pdoc", "pytest", "hypothesis", "ruff", "mypy", "hatchling"]
EMULATED = ["torch==2.15.0", "nvidia-cuda-crt==13.2.*"]  # a CUDA build, and a header that it does not bring
COMPARED = ["torchmetrics", "accelerate"]  # what the benchmark compares with
CONSTRAINTS = "tests/constraints.txt"
RELEASED = "tools/src/shared_distributed_tools/render/released"
EDITABLE = [word for folder in DISTRIBUTIONS for word in ("-e", f"./{folder}")]

SUITES = [
    *[(suite, backend) for suite in ["core", *ADAPTERS] for backend in ["gloo", "nccl-rules", "nccl"]],
    ("vendored", "gloo"),
    ("vendored", "nccl-rules"),
    ("tools", ""),
]


def python(session: nox.Session) -> str:
    """The interpreter of the one environment that the sessions share."""
    home = session.cache_dir.parent / "env"
    return str(home / ("Scripts/python.exe" if (home / "Scripts").exists() else "bin/python"))


@cache
def gpu_count(interpreter: str) -> int:
    """How many CUDA devices torch sees; asked once."""
    code = "import torch; print(torch.cuda.device_count())"
    return int(subprocess.run([interpreter, "-c", code], capture_output=True, text=True, check=True).stdout)


def run(session: nox.Session, *args: str) -> None:
    """Run a module in the shared environment."""
    session.run(python(session), "-m", *args, external=True)


@nox.session(default=False)
def env(session: nox.Session) -> None:
    """The environment that the other sessions share; installs only when what it is made from has changed."""
    if sys.version_info < (3, 11):  # of which pip would only say that it finds no versions that fit together
        session.error("development wants Python 3.11 or later: run nox with it")
    sources = [ROOT / CONSTRAINTS, Path(__file__), *[ROOT / folder / "pyproject.toml" for folder in DISTRIBUTIONS]]
    wanted = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    stamp = Path(session.virtualenv.location) / "installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    stamp.unlink(missing_ok=True)
    session.log("installing, once; a minute or more, in silence: torch is large")
    session.install("--no-compile", "-c", CONSTRAINTS, *DEVELOPMENT, *EDITABLE, "torch", "einops")
    # pip would do this on one core; 1: some packages carry files that are not meant to compile
    compile_all = ("python", "-m", "compileall", "-q", "-j", "0", session.virtualenv.location)
    session.run(*compile_all, silent=True, success_codes=[0, 1])
    stamp.write_text(wanted)


@nox.session(requires=["env"], venv_backend="none")
def tests(session: nox.Session) -> None:
    """Every suite over every backend that is here, side by side. Arguments of pytest's after --."""
    reason = nccl_missing(session)
    session.log(f"without NCCL: {reason}" if reason else "with NCCL")
    runs = {"gloo": ["--ignore=tests/tools"], "tools": ["--suite=tools"]}  # the longest first
    runs["nccl-rules"] = ["--backend=nccl-rules"]
    runs |= {f"vendored {name}": ["--vendored", f"--backend={name}"] for name in ("gloo", "nccl-rules")}
    side_by_side(session, runs)
    if not reason:  # one after the other: both take every GPU
        side_by_side(session, {"nccl": ["--backend=nccl"]})
        side_by_side(session, {"vendored nccl": ["--vendored", "--backend=nccl"]})


def side_by_side(session: nox.Session, runs: dict[str, list[str]]) -> None:
    """Run pytest with each of these arguments, as many at once as there are cores; lines begin with a run's name."""
    given = pytest_arguments(session)
    good = (0, 5) if given else (0,)  # 5: what was asked for is not in this run

    def passes(name: str) -> bool:
        command = [python(session), "-m", "pytest", "-q", *runs[name], *given]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            for line in process.stdout or ():
                print(f"{name} | {line}", end="", flush=True)
        return process.returncode in good

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        failed = [name for name, passed in zip(runs, pool.map(passes, runs), strict=True) if not passed]
    if failed:
        session.error(f"failed: {', '.join(failed)}")


@nox.session(requires=["env"], venv_backend="none", default=False)
@nox.parametrize("name, backend", SUITES, ids=[f"{name}, {backend}" if backend else name for name, backend in SUITES])
def suite(session: nox.Session, name: str, backend: str) -> None:
    """One suite over one backend: nox -s "suite(musiclm, gloo)". Arguments of pytest's after --."""
    reason = nccl_missing(session) if backend == "nccl" else ""
    if reason:
        session.skip(reason)
    chosen = "--vendored" if name == "vendored" else f"--suite={name}"
    over = [f"--backend={backend}"] if backend else []
    run(session, "pytest", "-q", chosen, *over, *pytest_arguments(session))


def nccl_missing(session: nox.Session) -> str:
    """What NCCL lacks here, empty if nothing; an error with --require-nccl."""
    found = gpu_count(python(session))
    reason = "" if found >= 2 else f"needs 2 CUDA devices, found {found}"
    if reason and "--require-nccl" in session.posargs:
        session.error(reason)
    return reason


def pytest_arguments(session: nox.Session) -> list[str]:
    """What was given after --, but for what is nox's."""
    return [argument for argument in session.posargs if argument != "--require-nccl"]


@nox.session(requires=["env"], venv_backend="none")
def lint(session: nox.Session) -> None:
    """Ruff: the linter, and the formatter in check mode."""
    run(session, "ruff", "check", ".")
    run(session, "ruff", "format", "--check", ".")


@nox.session(requires=["env"], venv_backend="none")
def types(session: nox.Session) -> None:
    """Mypy, strict, over the core, the adapters, the tools and the test harness."""
    run(session, "mypy")


APART = ["unshare", "--map-root-user", "--net"]  # a network of its own: nothing of the machine's is touched


def hosts_refused(interpreter: str) -> str:
    """Why there can be no hosts in network namespaces here; empty if there can."""
    missing = [tool for tool in (APART[0], "nsenter", "ip", "ss") if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)} (of util-linux and iproute2)"
    tried = subprocess.run([*APART, interpreter, "-m", "tests.hosts.network"], capture_output=True, text=True)
    return "" if tried.returncode == 0 else f"no hosts in network namespaces: {tried.stderr.strip()}"


@nox.session(requires=["env"], venv_backend="none", default=False)
def multihost(session: nox.Session) -> None:
    """The core's tests on two hosts and on three, launched by torchrun; bytes on the links, and a cut one."""
    reason = hosts_refused(python(session))
    if reason:
        session.skip(reason)
    for hosts, size in ((2, 4), (3, 3)):
        words = ["-m", "pytest", "-q", "-p", "tests.hosts.plugin", f"--hosts={hosts}", "--suite=core"]
        words += [f"--world-size={size}", *session.posargs]
        session.run(*APART, python(session), *words, external=True)


@nox.session(requires=["env"], venv_backend="none", default=False)
def soak(session: nox.Session) -> None:
    """20,000 ragged calls, forward and backward, on four ranks: memory and open files flat, results exact."""
    session.env["SOAK_CALLS"] = "20000"
    run(session, "pytest", "-q", "tests/core/test_soak.py", *session.posargs)


@nox.session(requires=["env"], venv_backend="none", default=False)
def generated(session: nox.Session) -> None:
    """500 downstream projects made by chance, with the adapter before and the core after; every change runs 50."""
    session.env["GENERATED"] = "500"
    run(session, "pytest", "-q", "tests/tools/test_to_core.py", "-k", "by_chance", *session.posargs)


@nox.session(requires=["env"], venv_backend="none", default=False)
def mutants(session: nox.Session) -> None:
    """Plant defects by chance, one at a time: does a test fail? nox -s mutants -- --count 40 --seed 7 _agree."""
    session.run(python(session), "tests/house/mutants.py", *session.posargs, external=True)


@nox.session(python="3.10", default=False)
def floor(session: nox.Session) -> None:
    """The tests on the oldest Python and torch that are supported, in an environment of its own (4 GB); eager only."""
    test_with(session, "torch==2.0.1", "numpy<2")


@nox.session(default=False)
def newest(session: nox.Session) -> None:
    """The same on the newest torch there is, whatever that brings, in a separate environment (5 GB)."""
    test_with(session, "torch", "numpy")


@nox.session(default=False)
@nox.parametrize("version", ["==2.4.1", "==2.10.0", ""], ids=["2.4.1", "2.10.0", "newest"])
def compiled(session: nox.Session, version: str) -> None:
    """torch.compile on an old, a middle and the newest torch, each in an environment of its own (5 GB each)."""
    session.install(f"torch{version}", "numpy", "setuptools", "einops", "pytest", "hypothesis", *EDITABLE)
    files = ["tests/core/test_compile.py", "tests/core/test_compiled_like_eager.py"]
    session.run("pytest", "-q", *files, *session.posargs)
    session.run("pytest", "-q", "--vendored", "tests/adapters/test_sound.py", "-k", "compiled", *session.posargs)


def test_with(session: nox.Session, *requirements: str) -> None:
    """The core, the adapters and the vendored files, with another torch than the one that is pinned."""
    session.install(*requirements, "einops", "pytest", "hypothesis", *EDITABLE)
    for suite in ("core", *ADAPTERS):
        session.run("pytest", "-q", f"--suite={suite}", *session.posargs)
    session.run("pytest", "-q", "--vendored", *session.posargs)


@nox.session(default=False)
def emulated(session: nox.Session) -> None:
    """The NCCL code of torch itself, on emulated GPUs, with random delays too; in a separate environment (5 GB)."""
    missing = [compiler for compiler in ("g++", "gcc") if shutil.which(compiler) is None]
    if missing:
        session.skip(f"needs a C++ compiler: {' and '.join(missing)} not found")
    session.install(*EMULATED, "numpy", "einops", "pytest", "hypothesis", "matplotlib", *EDITABLE)
    on_gpus = ("python", "-m", "tests.emulated", "--devices=4")
    over_nccl = ("pytest", "-q", "--backend=nccl")
    if session.posargs:
        session.run(*on_gpus, *over_nccl, *session.posargs)
        return
    session.run(*on_gpus, *over_nccl, "--ignore=tests/tools")
    session.run(*on_gpus, *over_nccl, "--vendored")
    session.run(*on_gpus, "--late=300", *over_nccl, "--vendored", "tests/adapters/test_matrix.py")
    session.run(*on_gpus, "tests.emulated.counts")


@nox.session(default=False)
def gpu(session: nox.Session) -> None:
    """What only two or more GPUs show, and a report of it, in a separate environment (5 GB).

    Arguments after -- go to pip, such as --index-url URL for another build of torch: no constraints, which may pin one
    without CUDA.
    """
    session.install("torch", *session.posargs)
    session.install("numpy", "einops", "pytest", "hypothesis", "matplotlib", *COMPARED, *EDITABLE)
    session.run("python", "-m", "tests.gpu")


@nox.session(requires=["env"], venv_backend="none", default=False)
def released(session: nox.Session) -> None:
    """Download the released packages that adapters are for; scan, plan, vendor, migrate and compare each of them."""
    # what their files import, into the shared environment
    session.run(python(session), "-m", "pip", "install", "-q", "-c", CONSTRAINTS, "einx", external=True)
    run(session, "pytest", "-q", "tests/downstream/released.py", *session.posargs)


@nox.session(default=False)
def frameworks(session: nox.Session) -> None:
    """The framework pages in shared/distributed/docs, saved and run as they are, in a separate environment."""
    used = ["lightning", "transformers", "sentence-transformers", "datasets", "pytorch-metric-learning", *COMPARED]
    session.install("-c", CONSTRAINTS, "torch", "numpy", "pytest", *used, *EDITABLE)
    session.run("pytest", "-q", "tests/frameworks/pages.py", *session.posargs)


@nox.session(requires=["env"], venv_backend="none", default=False)
def demo(session: nox.Session) -> None:
    """The main job on one screen: ragged batches through the core and four adapters, against one process."""
    session.run(python(session), "tools/demo.py", external=True)


@nox.session(requires=["env"], venv_backend="none", default=False)
@nox.parametrize("name", ["contrastive", "experts"], ids=["contrastive", "experts"])
def example(session: nox.Session, name: str) -> None:
    """Contrastive training beside one process, with both loss curves; experts on ranks, in two ways, with a plot."""
    script = f"shared/distributed/examples/{name}.py"
    arguments = session.posargs or ["--plot", f"{name}.svg"]
    session.env.setdefault("OMP_NUM_THREADS", "1")
    if name == "experts":  # starts its ranks itself
        session.run(python(session), script, *arguments, external=True)
    else:
        run(session, "torch.distributed.run", "--standalone", "--nproc-per-node=3", script, *arguments)


@nox.session(requires=["env"], venv_backend="none", default=False)
def docs(session: nox.Session) -> None:
    """The pages and the API reference, into site/. Fails on a missing docstring, and on code that does not run."""
    run(session, "pytest", "-q", *[f"tests/house/test_{name}.py" for name in ("docs", "recipes", "maintainers")])
    session.run(python(session), "tools/website.py", "site", *MODULES, external=True)
    session.log("open site/index.html")


@nox.session(requires=["env"], venv_backend="none", default=False)
def bench(session: nox.Session) -> None:
    """Measure the core and others, 20 minutes; --quick: 90 s; --only exchange: 4 minutes; --publish: the page."""
    session.run(python(session), "-m", "pip", "install", "-q", "-c", CONSTRAINTS, *COMPARED, external=True)
    session.env["PYTHONPATH"] = "tools"
    run(session, "bench", *session.posargs)


@nox.session(requires=["env"], venv_backend="none", default=False)
def vendor(session: nox.Session) -> None:
    """The command line: nox -s vendor -- vendor musiclm ../musiclm-pytorch."""
    run(session, "shared_distributed_tools", *session.posargs)


@nox.session(requires=["env"], venv_backend="none", default=False)
def downstream(session: nox.Session) -> None:
    """Try the vendored file in a temporary copy of a checkout, with its own tests: nox -s downstream -- REPO..."""
    session.run(python(session), "tools/try_downstream.py", *session.posargs, external=True)


@nox.session(default=False)
def build(session: nox.Session) -> None:
    """Wheels and sdists of every distribution, installed into a clean environment and imported."""
    session.install("build", "twine")
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    for folder in DISTRIBUTIONS:
        session.run("python", "-m", "build", "--outdir", "dist", folder, silent=True)
    built = sorted(path for path in (ROOT / "dist").iterdir() if path.suffix in (".whl", ".gz"))
    session.run("twine", "check", "--strict", *map(str, built))
    session.log("built %s", ", ".join(path.name for path in built))

    session.env["PYTHONWARNINGS"] = "ignore:Failed to initialize NumPy"  # torch's; nothing here asks for NumPy
    with tempfile.TemporaryDirectory() as folder:
        session.run("python", "-m", "venv", folder)
        clean = str(Path(folder) / "bin" / "python")
        wheels = [str(path) for path in built if path.suffix == ".whl"]
        session.run(clean, "-m", "pip", "install", "-q", "-c", CONSTRAINTS, *wheels, external=True)
        session.chdir(folder)
        session.run(clean, "-c", f"import {', '.join(MODULES)}, shared_distributed_tools", external=True)
        package = Path(folder) / "project" / "spear_tts_pytorch"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        words = ("-m", "shared_distributed_tools", "render", "spear-tts")
        rendered = session.run(clean, *words, silent=True, external=True)
        (package / "distributed.py").write_text(str(rendered))
        session.chdir(package.parent)
        session.run(clean, "-c", VENDORED_FILE_ALONE, external=True)


VENDORED_FILE_ALONE = """
import sys
sys.modules["shared_distributed"] = None  # installed here, and not to be used
import torch
from spear_tts_pytorch.distributed import all_gather
x = torch.ones(3, 2)
assert all_gather(x, 0, None)[0].equal(x)
print("the vendored file runs without the core:", all_gather)
"""


@nox.session(venv_backend="none", default=False)
def release(session: nox.Session) -> None:
    """Set the version of the whole workspace, and keep what it renders: nox -s release -- 0.2.0. After nox -s env."""
    (version,) = session.posargs
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        session.error(f"{version} is no version of the form 1.2.3")
    # what this release renders goes into later ones: an edited file is merged from it
    keep = f"from shared_distributed_tools.render.released import keep; keep({RELEASED!r})"
    session.run(python(session), "-c", keep, external=True)
    for file in [ROOT / folder / "pyproject.toml" for folder in DISTRIBUTIONS]:
        text = re.sub(r'^version = ".+"$', f'version = "{version}"', file.read_text(), flags=re.MULTILINE)
        file.write_text(re.sub(r"(shared-distributed(?:-tools)?[>=]=)[\d.]+", rf"\g<1>{version}", text))
    changes = ROOT / "CHANGELOG.md"
    changes.write_text(changes.read_text().replace("## [Unreleased]", f"## [Unreleased]\n\n## [{version}]", 1))
    session.log("version %s: look at the diff, run nox -s tests build, commit and tag", version)
