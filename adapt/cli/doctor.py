"""Implements `dontstop doctor`, which checks that this machine can run jobs. Each failed check shows a fix."""

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from packaging.requirements import Requirement as Parsed
from packaging.specifiers import SpecifierSet

from adapt.config import Config
from adapt.config.job_config import DAPT, without_corpus
from adapt.parse import parse
from adapt.ray.connection import access_at, endpoint, private_folder, remove
from adapt.ray.runtime import address_of
from adapt.stage.context import root_of
from adapt.stage.preflight import check_compile, check_writable
from adapt.support.errors import AdaptError, ConfigError
from adapt.support.redact import TOKEN_FORM
from adapt.support.versions import untried
from adapt.train.capacity.device import has_gpu, machine_memory

HELP = """\
dontstop doctor [--config my.yaml] [--section.field VALUE ...]

Checks this machine: Python and packages, GPUs, cores, memory, disk, shared memory, folders, compiler, cluster and
token, optional extras. Each line begins with "ok" or "fix". A line with "fix" says what to do. The exit code is 0 if
all checks pass, and 1 otherwise. The command starts neither Ray nor a job.

With a configuration it also checks the fields storage.root and resources.address, and whether the compiler that some
fields need is installed."""
MAIN = ("torch", "ray", "deepspeed", "transformers")
"""Packages that are listed on separate lines with their versions. All other packages share one line."""
_LIMIT_S = 7.0
"""Maximum time for loading torch [s]."""
_ANSWER_S = 3.0
"""Maximum time for a cluster to answer [s]."""
_GB = 10**9
_FEWEST_MEMORY, _FEWEST_DISK, _FEWEST_SHARED = 3 * _GB, 2 * _GB, 512 * 1024**2
_FULL = 0.95
"""Ray stops writing to a disk when this share of the disk is in use."""
_TRY_TORCH = "import torch; print(torch.cuda.is_available(), torch.cuda.device_count(), torch.version.cuda or '')"


@dataclass(frozen=True)
class CheckLine:
    """The result of one check."""

    what: str
    fix: str = ""
    """What the user should do. The text is empty if the check passes."""

    def __str__(self) -> str:
        return f"fix  {self.what}: {self.fix}" if self.fix else f"ok   {self.what}"


class MachineError(AdaptError):
    """The error that ends the command if at least one check failed."""


def main(arguments: Sequence[str]) -> None:
    """Prints a line for each check.

    Args:
        arguments: arguments of `dontstop doctor`.

    Raises:
        ConfigError: the configuration is wrong.
        MachineError: at least one check failed.
    """
    if {"-h", "--help"} & {*arguments}:
        print(HELP)
        return
    if arguments and not arguments[0].startswith("-"):
        raise ConfigError(f"dontstop doctor takes no argument {arguments[0]}", "see dontstop doctor --help")
    given = [argument for argument in arguments if argument != "--debug"]
    config = parse(given, "dontstop doctor", without_corpus(DAPT)) if given else Config()
    fixes = 0
    for finding in examine(config):
        print(finding, flush=True)
        fixes += bool(finding.fix)
    if fixes:
        raise MachineError(f"failed checks: {fixes}", "follow the lines above that begin with `fix`")


def examine(config: Config) -> Iterator[CheckLine]:
    """Yields one line per check. All checks together take at most about 10 s.

    Args:
        config: the configuration whose storage, address and devices are checked.
    """
    with ThreadPoolExecutor(2) as threads:
        torch = threads.submit(try_torch)
        cluster = threads.submit(lambda: list(cluster_checks(config)))
        yield from package_findings()
        yield from torch.result()
        yield from machine_findings()
        yield from folder_findings(config)
        yield compiler_finding(config)
        yield from cluster.result()
        yield from extra_findings()


@dataclass(frozen=True)
class Requirement:
    """A package that dontstop needs, with the versions that are supported."""

    name: str
    versions: str
    extra: str = ""
    """Name of the optional extra that needs the package; empty if every job needs the package."""

    @property
    def text(self) -> str:
        """The requirement in the syntax of pip."""
        return f"'{self.name}{self.versions}'"

    @property
    def installed(self) -> str | None:
        """The installed version of the package, or None if the package is not installed."""
        try:
            return importlib.metadata.version(self.name)
        except importlib.metadata.PackageNotFoundError:
            return None

    def finding(self) -> CheckLine:
        """Checks that a supported version of the package is installed."""
        if (version := self.installed) is None:
            return CheckLine(f"{self.name} is not installed", f"pip install {self.text}")
        if others := untried(self.name):
            return CheckLine(others[0], f"pip install {self.text}")
        if not SpecifierSet(self.versions).contains(version, prereleases=True):
            return CheckLine(f"{self.name} {version} is not {self.versions}", f"pip install {self.text}")
        return CheckLine(f"{self.name} {version}")


def requirements() -> tuple[str, list[Requirement]]:
    """Reads the required versions of Python and packages from pyproject.toml or, if installed, the package metadata."""
    project = Path(__file__).parents[2] / "pyproject.toml"
    if project.is_file():
        about = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        lines = {"": about["dependencies"], **about["optional-dependencies"]}
        return about["requires-python"], [_requirement(line, extra) for extra in lines for line in lines[extra]]
    metadata = importlib.metadata.metadata("dontstop")
    named = [
        (line.partition(";")[0].strip(), re.search(r"""extra\s*==\s*['"](.*?)['"]""", line))
        for line in importlib.metadata.requires("dontstop") or []
    ]
    return metadata["Requires-Python"], [_requirement(line, extra[1] if extra else "") for line, extra in named]


def _requirement(line: str, extra: str) -> Requirement:
    parsed = Parsed(line.partition(";")[0])
    return Requirement(parsed.name, str(parsed.specifier), extra)


def package_findings() -> Iterator[CheckLine]:
    """Checks that Python and the required packages have supported versions."""
    wanted, packages = requirements()
    version = ".".join(map(str, sys.version_info[:3]))
    fits = SpecifierSet(wanted).contains(version)
    yield CheckLine(
        f"Python {version} ({sys.prefix})",
        "" if fits else f"this version is not supported: create an environment with Python {wanted}",
    )
    needed = [package for package in packages if not package.extra]
    others = []
    for package in needed:
        finding = package.finding()
        if package.name in MAIN or finding.fix:
            yield finding
        else:
            others.append(package)
    yield CheckLine(f"{len(others)} other required packages have supported versions")


def try_torch() -> list[CheckLine]:
    """Loads torch in another process, to check that torch works and sees the GPUs of this machine."""
    if importlib.util.find_spec("torch") is None:
        return []  # prints no line, because the check of packages already reports that torch is missing
    command = [sys.executable, "-c", _TRY_TORCH]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        gpu = "a GPU" if has_gpu() else "no GPU"
        return [
            CheckLine(
                f"{gpu} according to the device files; torch was not asked, because loading it took over"
                f" {_LIMIT_S:.0f} s"
            )
        ]
    if ran.returncode:
        lines = ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"]
        return [
            CheckLine(
                f"torch cannot be loaded ({lines[-1][:200]})", "install it again: pip install --force-reinstall torch"
            )
        ]
    works, count, built = [*ran.stdout.split(), ""][:3]
    if works == "True":
        return [CheckLine(f"{count} GPU{'s' if count != '1' else ''} (torch for CUDA {built})")]
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return [CheckLine("no GPU is visible, because CUDA_VISIBLE_DEVICES hides all GPUs; jobs run on the CPUs")]
    if has_gpu():
        what = f"torch {'for CUDA ' + built if built else 'without CUDA'} does not see this machine's GPU"
        fix = (
            "update the NVIDIA driver (nvidia-smi shows its version)"
            if built
            else "install torch with CUDA, from PyPI's default index"
        )
        return [CheckLine(what, f"{fix}, or set CUDA_VISIBLE_DEVICES='' to run on the CPUs")]
    return [CheckLine("no GPU; jobs run on the CPUs")]


def machine_findings() -> Iterator[CheckLine]:
    """Checks cores, memory and shared memory."""
    cores, memory = len(os.sched_getaffinity(0)), machine_memory()
    little = "use a machine or container with 4 GB or more" if memory < _FEWEST_MEMORY else ""
    yield CheckLine(f"{cores} CPU core{'s' if cores > 1 else ''}, {memory / _GB:.1f} GB of memory", little)
    shared = Path("/dev/shm")
    if not shared.is_dir() or not os.access(shared, os.W_OK):
        yield CheckLine("/dev/shm cannot be written", "mount it: mount -t tmpfs shm /dev/shm; in docker: --shm-size=2g")
        return
    free = shutil.disk_usage(shared).free
    small = "in docker: run with --shm-size=2g; in Kubernetes: mount an emptyDir of medium Memory there"
    yield CheckLine(f"{free / _GB:.1f} GB free in /dev/shm", small if free < _FEWEST_SHARED else "")


def folder_findings(config: Config) -> Iterator[CheckLine]:
    """Checks free space and permissions of the storage root, the temporary folder and HOME."""
    where, is_bucket = f"storage.root {config.storage.root}", "://" in config.storage.root
    if wrong := _tried(lambda: check_root(config), where):
        yield wrong
    else:
        yield _room(root_of(config), "storage.cache" if is_bucket else "storage.root", False)
    temporary = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp")
    if not temporary.is_dir() or not os.access(temporary, os.W_OK):
        yield CheckLine(
            f"temporary folder {temporary} cannot be written", "set TMPDIR to a folder that you may write to"
        )
    else:
        yield _tried(_try_private, "Ray's folder") or _room(temporary, "temporary folder", True)
    home = Path("~").expanduser()
    if str(home) == "~" or not home.is_dir() or not os.access(home, os.W_OK):
        yield CheckLine(
            f"HOME {home} cannot be written", "set HOME to a folder of yours; models are kept in its .cache"
        )
    else:
        yield CheckLine(f"HOME {home} can be written")


def check_root(config: Config) -> None:
    """Checks that the storage root is writable. If its folder does not exist, checks the nearest existing parent.

    Raises:
        ConfigError, StorageError: the folder or the bucket cannot be written (see `check_writable`).
    """
    root = root_of(config)
    if "://" in config.storage.root:
        check_writable(root)
        return
    check_writable(next(folder for folder in (root, *root.absolute().parents) if folder.exists()))


def _try_private() -> None:
    remove(private_folder())


def _tried(check: Callable[[], object], where: str) -> CheckLine | None:
    """Runs a check. Returns a line with the check's error, or None if the check passes."""
    try:
        check()
    except AdaptError as error:
        return CheckLine(f"{where}: {error.what}", error.fix or "fix it")
    except OSError as error:  # for example in kernel folders such as /proc, no file can be created
        return CheckLine(f"{where} cannot be used ({error.strerror})", "name another folder")
    return None


def _room(folder: Path, name: str, for_ray: bool) -> CheckLine:
    exists = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    usage = shutil.disk_usage(exists)
    what = f"{usage.free / _GB:.0f} GB free in {name} {folder}"
    if usage.free < _FEWEST_DISK:
        return CheckLine(what, f"free some space, or point {'TMPDIR' if for_ray else name} elsewhere")
    if for_ray and 1 - usage.free / usage.total > _FULL:
        return CheckLine(
            f"{what}, but Ray stops writing to this disk, because it is over {_FULL:.0%} full",
            "free some space, or set TMPDIR to a folder on another disk",
        )
    return CheckLine(what)


def compiler_finding(config: Config) -> CheckLine:
    """Checks for a C++ compiler and ninja if the configuration needs them."""
    if config.training.compile and (found := _tried(lambda: check_compile(config), "compiler")):
        return found
    absent = [
        name for name, path in (("g++", shutil.which(os.environ.get("CXX", "g++"))), ("ninja", _ninja())) if not path
    ]
    if config.resources.offload != "none" and absent:
        fix = {"g++": "install g++ (apt-get install g++)", "ninja": "pip install ninja"}
        what = f"resources.offload needs {' and '.join(absent)}"
        return CheckLine(what, "; ".join(fix[name] for name in absent) + "; or set resources.offload to none")
    if absent:
        return CheckLine(f"no {' and no '.join(absent)}; only training.compile and resources.offload need them")
    return CheckLine("g++ and ninja (only training.compile and resources.offload need them)")


def _ninja() -> str | None:
    return shutil.which("ninja") or shutil.which("ninja", path=str(Path(sys.executable).parent))


def cluster_checks(config: Config) -> Iterator[CheckLine]:
    """Checks that the configured cluster answers, and that this machine has a token for the cluster."""
    api = os.environ.get("RAY_API_SERVER_ADDRESS", "")
    address = address_of(config.resources)
    if not address and not api:
        yield CheckLine("RAY_ADDRESS is not set; jobs start Ray on this machine")
        return
    field = "resources.address" if config.resources.address else "RAY_ADDRESS"
    if address and address.partition("://")[0].lower() in ("http", "https"):
        address, api = "", api or address
    token, finding = _token()
    yield finding
    if address:
        found = _tried(lambda: access_at(*endpoint(address, field), field, _ANSWER_S), "cluster")
        yield found or CheckLine(f"a Ray cluster answers at {address} ({field})")
    if api:
        yield _dashboard(api, token)


def _token() -> tuple[str, CheckLine]:
    """Searches for the cluster token where Ray looks for it. Returns the token and the line of this check."""
    if os.environ.get("RAY_AUTH_MODE") != "token":
        fix = "if the cluster requires a token, as clusters do by default, export RAY_AUTH_MODE=token"
        mode = os.environ.get("RAY_AUTH_MODE", "not set")
        if mode == "disabled":
            return "", CheckLine("RAY_AUTH_MODE is disabled: no token is sent to the cluster")
        return "", CheckLine(f"RAY_AUTH_MODE is {mode}, so no token is sent to the cluster", fix)
    if token := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        if not TOKEN_FORM.fullmatch(token):
            return "", _malformed("RAY_AUTH_TOKEN")
        return token, CheckLine("a token for the cluster is in RAY_AUTH_TOKEN")
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path("~/.ray/auth_token").expanduser())
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        return "", CheckLine(
            f"there is no token for the cluster in {file} ({getattr(error, 'strerror', None) or error})",
            "put the cluster's token there (`ray get-auth-token` prints it on the head node), or set"
            " RAY_AUTH_TOKEN_PATH",
        )
    if not token:
        fix = "put the cluster's token there (`ray get-auth-token` prints it on the head node)"
        return "", CheckLine(f"{file} is empty", fix)
    if not TOKEN_FORM.fullmatch(token):
        return "", _malformed(str(file))
    if file.stat().st_mode & 0o077:
        return token, CheckLine(f"others can read the cluster's token in {file}", f"chmod 600 {file}")
    return token, CheckLine(f"a token for the cluster is in {file}")


def _malformed(where: str) -> CheckLine:
    """Returns the line about a token that no request can contain. It does not show the token."""
    return CheckLine(
        f"{where} has spaces, line breaks or other characters that a token cannot have",
        "copy the token again (`ray get-auth-token` prints it on the head node)",
    )


def _dashboard(address: str, token: str) -> CheckLine:
    """Checks that a cluster's dashboard answers and accepts the token."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urlopen(Request(f"{address.rstrip('/')}/api/version", headers=headers), timeout=_ANSWER_S) as answer:
            there = json.load(answer)["ray_version"]
    except HTTPError as error:
        fix = "export RAY_AUTH_MODE=token, and put the cluster's token into ~/.ray/auth_token"
        return CheckLine(f"the cluster at {address} refuses access (HTTP status {error.code})", fix)
    except (URLError, OSError, HTTPException, ValueError, KeyError, TypeError) as error:
        fix = "check that the cluster runs and that the tunnel to its dashboard is open (ray dashboard FILE)"
        return CheckLine(f"no Ray dashboard answers at {address} ({getattr(error, 'reason', error)})", fix)
    here = importlib.metadata.version("ray")
    if there != here:
        return CheckLine(
            f"this machine has Ray {here}, but the cluster at {address} has Ray {there}",
            f"pip install 'ray[default]=={there}'",
        )
    return CheckLine(f"the cluster at {address} grants access and has the same version of Ray ({there})")


def extra_findings() -> Iterator[CheckLine]:
    """Checks which optional extras are installed in supported versions."""
    by_extra: dict[str, list[Requirement]] = {}
    for package in requirements()[1]:
        if package.extra and package.extra != "dev" and package.name != "dontstop":
            by_extra.setdefault(package.extra, []).append(package)
    absent = []
    for extra, packages in by_extra.items():
        findings = [package.finding() for package in packages]
        if not all(package.installed for package in packages):
            absent.append(extra)
        elif wrong := next((finding for finding in findings if finding.fix), None):
            yield CheckLine(f"extra {extra}: {wrong.what}", wrong.fix)
        else:
            yield CheckLine(f"extra {extra}: {', '.join(finding.what for finding in findings)}")
    if absent:
        yield CheckLine(f"extras that are not installed: {', '.join(absent)} (pip install 'dontstop[{absent[0]}]')")
