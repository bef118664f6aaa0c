"""The page is served on loopback, to browsers that call this machine by its own name."""

import http.client
import shutil
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from adapt.errors import ConfigError
from adapt.show.blocks import Section, TextBlock
from adapt.show.html import render_html
from adapt.show.report.serving.server import is_own, serving

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(lambda: "<p>a page</p>", 0) as found:
        yield found


def ask(address: str, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=10)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    found = answer.status, answer.read().decode(), answer.headers
    connection.close()
    return found


def test_it_serves_the_page_and_its_script_and_nothing_else(address: str) -> None:
    assert address.startswith("http://127.0.0.1:")
    assert ask(address)[:2] == (200, "<p>a page</p>")
    assert "fetch(" in ask(address, "/follow.js")[1]
    assert ask(address, "/report.html.j2")[0] == ask(address, "/../style.css")[0] == 404
    assert ask(address, method="HEAD")[:2] == (200, "")
    assert ask(address, method="POST")[0] == 501


def test_a_page_that_has_not_changed_is_not_sent_again(address: str) -> None:
    tag = ask(address)[2]["ETag"]
    assert ask(address, If_None_Match=tag)[:2] == (304, "")
    assert ask(address, If_None_Match='"another"')[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8300", "127.0.0.1.evil.example", "localhost@evil", ""])
def test_another_name_for_this_machine_is_refused(address: str, host: str) -> None:
    status, said, _ = ask(address, Host=host)
    assert status == 421
    assert "a page</p>" not in said


def test_a_tunnel_has_a_port_of_its_own() -> None:
    assert all(map(is_own, ("localhost:9000", "127.0.0.1:1", "[::1]:8300", "localhost")))
    assert not any(map(is_own, ("localhost:x", "[::1", "::1", "localhost:8300:9", "10.0.0.1:8300")))


def test_no_other_site_may_load_or_frame_it(address: str) -> None:
    headers = ask(address)[2]
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_a_port_that_is_taken_is_named(address: str) -> None:
    with pytest.raises(ConfigError, match="cannot be used") as caught:
        serving(lambda: "", urlsplit(address).port or 0).__enter__()
    assert "--port" in caught.value.fix


@pytest.mark.skipif(not BROWSER, reason="there is no Chromium here")
def test_a_browser_shows_what_has_come_since_it_opened_the_page(tmp_path: Path) -> None:
    looks = count()

    def page() -> str:
        return render_html("study", "", [Section("Now", [TextBlock(f"look {min(next(looks), 2)}")])], follows=True)

    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    with serving(page, 0) as address:
        ran = subprocess.run(
            [str(BROWSER), *options, "--virtual-time-budget=9000", "--dump-dom", address],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    assert "<p>look 2</p>" in ran.stdout
    assert "follows the chain; looked at" in ran.stdout
