"""Sends messages to a webhook when a job, a chain or a search ends. Sends them in threads, so that runs do not wait."""

import atexit
import json
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from html import escape
from http.client import HTTPException, responses
from pathlib import Path
from typing import Any

from adapt.config.job_sections import Event, NotifyConfig
from adapt.support.errors import AdaptError, BudgetError, ConfigError
from adapt.support.redact import redact, redacted
from adapt.terminal.console import duration, log

TRIES, PAUSE_S = 3, 1.0
"""Number of attempts to send a message, and the pause before the second attempt [s]. Each further pause is four times
as long as the pause before."""
ANSWER_S = 10.0
"""Time that the receiver has to answer an attempt [s]."""
AT_THE_END_S = 20.0
"""Maximum time that a process waits, when it ends, for messages that are not sent yet [s]."""
WORDS: Mapping[Event, str] = {
    "finish": "finished",
    "failure": "failed",
    "stall": "made no progress",
    "budget": "stopped at its budget",
}
_sending: list[threading.Thread] = []
_working: list[tuple[NotifyConfig, str]] = []
"""Settings and name of each job or chain that runs in this process, in the order in which they started."""


def check_webhook(settings: NotifyConfig) -> None:
    """Checks that `notify.webhook` is the name of an environment variable, not an address."""
    if settings.webhook and "://" in settings.webhook:
        raise ConfigError(
            "notify.webhook holds an address, which would be written into records",
            "put the address into an environment variable, and give its name: notify.webhook MY_WEBHOOK",
        )


def check_webhook_address(settings: NotifyConfig) -> None:
    """Checks that the environment variable of `notify.webhook` has an address. Only jobs that run need the address."""
    if settings.webhook is None:
        return
    address = os.environ.get(settings.webhook)
    if not address:
        raise ConfigError(
            f"notify.webhook names the environment variable {settings.webhook}, which is not set",
            f"set it where the job runs: export {settings.webhook}=https://...",
        )
    if not address.lower().startswith(("https://", "http://")):
        raise ConfigError(
            f"the environment variable {settings.webhook} holds no address that begins with https:// or http://",
            "copy the whole address of the webhook",
        )


def notify(settings: NotifyConfig, event: Event, about: str, text: str, **facts: Any) -> None:
    """Sends a message in a new thread, if `notify.events` contains the event. Does not wait for the thread.

    Args:
        settings: the section `notify`.
        event: kind of event.
        about: the job or chain, such as `dapt papers`.
        text: what happened, in a sentence.
        **facts: further values for programs, left out of messages in Slack's form.
    """
    if settings.webhook is None or event not in settings.events:
        return
    if not _sending:
        atexit.register(wait_until_sent)
    content = body(settings, event, about, text, facts)
    thread = threading.Thread(target=send_message, args=(os.environ.get(settings.webhook, ""), content), daemon=True)
    _sending.append(thread)
    thread.start()


def announce(event: Event, text: str, **facts: Any) -> None:
    """Sends a message about the job or chain that runs in this process, such as a stalled task. Returns at once.

    Sends nothing if no job or chain runs, or if its section `notify` does not list the event.

    Args:
        event: kind of event.
        text: what happened, in a sentence.
        **facts: further values for programs, left out of messages in Slack's form.
    """
    for settings, about in _working[-1:]:
        notify(settings, event, about, text, **facts)


def body(settings: NotifyConfig, event: Event, about: str, text: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of a message, without passwords and tokens."""
    if settings.form == "slack":
        said = redact(f"*dontstop {about}* {WORDS[event]}. {text}".rstrip())
        return {"text": escape(said, quote=False)}  # otherwise, a text such as <!channel> would notify everybody
    made = {"event": event, "about": about, "text": text, "host": socket.gethostname(), "time": time.time(), **facts}
    return dict(redacted(made))


def wait_until_sent(seconds: float = AT_THE_END_S) -> None:
    """Waits for a limited time until every message is sent or has finally failed."""
    end = time.monotonic() + seconds
    while _sending:
        thread = _sending.pop()
        thread.join(max(0.0, end - time.monotonic()))
        if thread.is_alive():
            log("notify: the process ends before the webhook has answered")


def send_message(address: str, content: Mapping[str, Any]) -> None:
    """Sends a message, and tries again if the receiver fails. The last failure is logged, without the address."""
    headers = {"Content-Type": "application/json", "User-Agent": "dontstop"}
    fault, pause = "", PAUSE_S
    for number in range(TRIES):
        if number:
            time.sleep(pause)
            pause *= 4
        try:
            request = urllib.request.Request(address, json.dumps(content).encode(), headers, method="POST")
            with urllib.request.urlopen(request, timeout=ANSWER_S):
                return
        except urllib.error.HTTPError as error:
            # leaves out the reason in the answer, because it may repeat the address
            fault = f"the webhook answered {error.code} {responses.get(error.code, '')}".rstrip()
            if error.code < 500 and error.code != 429:  # not sent again, because the receiver would refuse it again
                break
        except (OSError, ValueError, HTTPException) as error:
            fault = f"the webhook cannot be reached ({type(error).__name__})"
    log(f"notify: {fault}, so a message was not sent. The job is not affected.")


@contextmanager
def notifying(settings: NotifyConfig, about: str) -> Iterator[Callable[[str, Path], None]]:
    """Checks the webhook's address. When the block ends, sends a message about each result, or about the error.

    Args:
        settings: the section `notify`.
        about: the job or chain that the block runs.

    Yields:
        A function with two arguments: a sentence about a result, and the result's path. The block calls this function
        if something ran. Without a call, no message is sent when the block ends without an error.

    Raises:
        ConfigError: see `check_webhook_address`.
    """
    check_webhook_address(settings)
    began, results, own = time.monotonic(), list[tuple[str, Path]](), (settings, about)
    _working.append(own)
    try:
        yield lambda text, path: results.append((text, path))
    except (AdaptError, KeyboardInterrupt) as error:
        text = str(error) if isinstance(error, AdaptError) else "It was stopped by Ctrl-C or a signal."
        event: Event = "budget" if isinstance(error, BudgetError) else "failure"
        notify(settings, event, about, text, error=type(error).__name__, seconds=time.monotonic() - began)
        raise
    except Exception as error:
        notify(settings, "failure", about, f"{type(error).__name__}: {error}", error=type(error).__name__)
        raise
    finally:
        _working.remove(own)
    for text, path in results:
        seconds = time.monotonic() - began
        said = f"{text} It took {duration(seconds)}. Result: {path}".lstrip()
        notify(settings, "finish", about, said, seconds=seconds, path=str(path))
