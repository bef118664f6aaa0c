"""`dontstop doctor` prints one line per check, adds a fix to each failed check, and starts nothing."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import StreamRequestHandler, TCPServer
from threading import Thread

import pytest

from adapt.cli import doctor
from adapt.cli.doctor import CheckLine, MachineError, Requirement
from adapt.cli.main import run_command
from adapt.config import Config, ResourcesConfig, StorageConfig
from adapt.support.errors import ConfigError

CLUSTER = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in CLUSTER:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(doctor, "try_torch", lambda: [CheckLine("no GPU; jobs run on the CPUs")])
    monkeypatch.setattr(doctor, "machine_memory", lambda: 10**11)
    usage = doctor.shutil.disk_usage("/")
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage._replace(total=10**13, free=5 * 10**12))


def fixes(config: Config | None = None) -> list[str]:
    return [str(finding) for finding in doctor.examine(config or Config()) if finding.fix]


def test_a_suitable_machine_passes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run_command(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("ok   ") for line in lines)
    for named in ("Python", "torch", "ray", "deepspeed", "transformers", "core", "/dev/shm", "storage.root", "HOME"):
        assert any(named in line for line in lines), named
    assert not list(tmp_path.iterdir())


def test_the_exit_code_is_1_if_a_check_fails(tmp_path: Path) -> None:
    """Checks the exit code, and that the command loads neither torch nor Ray in this process."""
    command = "from adapt.cli import doctor, main; doctor.try_torch = lambda: []; main.main(['doctor'])"
    environment = {**os.environ, "RAY_ADDRESS": "127.0.0.1:9", "RAY_AUTH_MODE": "token", "HOME": str(tmp_path)}
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", command], cwd=root, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 1, ran.stderr
    wrong = [line for line in ran.stdout.splitlines() if line.startswith("fix")]
    assert any("no Ray cluster answers at 127.0.0.1:9" in line and "ray start --head" in line for line in wrong)
    assert any(f"no token for the cluster in {tmp_path}" in line for line in wrong)
    assert "failed checks: " in ran.stderr
    assert not {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()} & {"torch", "ray", "transformers"}


@pytest.mark.parametrize(
    ("package", "said"),
    [
        (Requirement("numpy", ">=1"), "ok   numpy "),
        (Requirement("numpy", ">=999"), "is not >=999: pip install 'numpy>=999'"),
        (Requirement("no-such-package", ">=1"), "no-such-package is not installed: pip install 'no-such-package>=1'"),
    ],
)
def test_versions_are_compared_with_the_requirements(package: Requirement, said: str) -> None:
    assert said in str(package.finding())


def test_the_checked_packages_are_those_of_the_project() -> None:
    python, packages = doctor.requirements()
    assert python == ">=3.11"
    by_name = {package.name: package for package in packages}
    assert by_name["torch"].versions
    assert by_name["s3fs"].extra == "s3"
    assert not by_name["torch"].extra


def test_a_wrong_version_of_an_optional_extra_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    packages = [Requirement("numpy", ">=999", "one"), Requirement("no-such-package", "", "two")]
    monkeypatch.setattr(doctor, "requirements", lambda: (">=3", packages))
    found = [str(finding) for finding in doctor.extra_findings()]
    assert found[0].startswith("fix  extra one: numpy")
    assert found[1].startswith("ok   extras that are not installed: two")


def test_little_space_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = doctor.shutil.disk_usage("/")
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage._replace(free=10**8))
    monkeypatch.setattr(doctor, "machine_memory", lambda: 10**9)
    found = fixes()
    assert len(found) == 4
    assert "--shm-size" in found[1]


def test_a_disk_that_is_almost_full_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = doctor.shutil.disk_usage("/")._replace(total=10**15, free=10**13)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage)
    (found,) = fixes()
    assert "Ray stops writing to this disk, because it is over 95% full" in found


def test_folders_that_cannot_be_written_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    config = replace(Config(), storage=StorageConfig(str(tmp_path / "file" / "runs")))
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nothing"))
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    assert "storage.root /proc/runs" in fixes(replace(config, storage=StorageConfig("/proc/runs")))[0]
    found = fixes(config)
    assert ["storage.root" in found[0], "temporary folder" in found[1], "HOME" in found[2]] == [True] * 3


def test_a_configuration_adds_requirements(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("my.yaml").write_text("corpus: {paths: a.jsonl}\nresources: {offload: optimizer, zero_stage: 2}\n")
    monkeypatch.setattr(doctor.shutil, "which", lambda *_, **__: None)
    with pytest.raises(MachineError):
        run_command(["doctor", "--config", "my.yaml"])
    assert not fixes()
    with pytest.raises(ConfigError, match="takes no argument everything"):
        run_command(["doctor", "everything"])


@pytest.fixture
def dashboard():
    """Serves the responses of a cluster's dashboard to clients with the token."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = self.headers.get("Authorization") == "Bearer secret"
            self.send_response(200 if allowed else 401)
            self.end_headers()
            self.wfile.write(json.dumps({"ray_version": doctor.importlib.metadata.version("ray")}).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_the_token_of_a_cluster_is_checked(dashboard: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", dashboard)
    found = fixes()
    assert "RAY_AUTH_MODE is not set" in found[0]
    assert "refuses access (HTTP status 401)" in found[1]
    token = tmp_path / "token"
    token.write_text("secret\n")
    token.chmod(0o644)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    assert fixes() == [f"fix  others can read the cluster's token in {token}: chmod 600 {token}"]
    token.chmod(0o600)
    assert not fixes()
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:9")
    assert "no Ray dashboard answers at http://127.0.0.1:9" in fixes()[0]


def test_malformed_tokens_are_not_shown(dashboard: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", dashboard)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    file = tmp_path / "token"
    file.write_text("secret\nsecret\n")
    file.chmod(0o600)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(file))
    for name, value in ((str(file), ""), ("RAY_AUTH_TOKEN", "secret\nsecret")):
        monkeypatch.setenv("RAY_AUTH_TOKEN", value)
        found = fixes()
        assert found[0].startswith(f"fix  {name} has spaces, line breaks or other characters")
        assert "secret" not in "".join(found)


def test_wrong_addresses_of_a_dashboard_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")

    class NoHttp(StreamRequestHandler):
        def handle(self) -> None:
            self.rfile.readline()
            self.wfile.write(b"\x00\x00\x12\x04\r\n\r\n")

    with TCPServer(("127.0.0.1", 0), NoHttp) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        for address in (f"http://127.0.0.1:{server.server_address[1]}", "http://127.0.0.1:82x5", "http://[::1"):
            monkeypatch.setenv("RAY_API_SERVER_ADDRESS", address)
            assert f"no Ray dashboard answers at {address}" in fixes()[0]
        server.shutdown()
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS")
    found = fixes(Config(resources=ResourcesConfig(address="http://[::1")))
    assert "no Ray dashboard answers at http://[::1" in found[0]


def test_torch_is_loaded_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for program, said in (
        ("print('True 2 12.8')", "2 GPUs (torch for CUDA 12.8)"),
        ("print('False 0 ')", "no GPU"),
        ("raise ImportError('libc10.so: not found')", "torch cannot be loaded (ImportError: libc10.so: not found)"),
        ("import time; time.sleep(60)", "torch was not asked"),
    ):
        monkeypatch.setattr(doctor, "_TRY_TORCH", program)
        monkeypatch.setattr(doctor, "_LIMIT_S", 3.0 if "sleep" in program else 60.0)
        monkeypatch.setattr(doctor, "has_gpu", lambda: False)
        (found,) = doctor.try_torch()
        assert said in found.what
    monkeypatch.setattr(doctor, "_TRY_TORCH", "print('False 0 12.8')")
    monkeypatch.setattr(doctor, "_LIMIT_S", 60.0)
    monkeypatch.setattr(doctor, "has_gpu", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (found,) = doctor.try_torch()
    assert "update the NVIDIA driver" in found.fix
