"""Imitates the client for jobs on a cluster, without a cluster."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ray.job_submission import JobStatus


@dataclass
class FakeJob:
    submission_id: str
    entrypoint: str
    metadata: dict[str, str]
    status: JobStatus = JobStatus.RUNNING
    message: str = ""
    driver_exit_code: int | None = None
    start_time: int = 0
    end_time: int | None = None
    driver_node_id: str | None = None
    runtime_env: dict[str, Any] = field(default_factory=dict)
    entrypoint_resources: dict[str, float] = field(default_factory=dict)

    def model_copy(self, update: dict[str, Any]) -> "FakeJob":
        return replace(self, **update)

    def end(self, status: str, code: int | None = None, message: str = "") -> None:
        self.status, self.driver_exit_code, self.message = JobStatus(status), code, message


@dataclass
class FakeClient:
    """Imitates a client. Each time the jobs are listed, the client calls `happens`, which may change the jobs."""

    happens: Callable[["FakeClient"], None] = lambda client: None
    found: list[FakeJob] = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=dict)
    tails: list[Any] = field(default_factory=list)
    """Parts of the log that each successive connection yields. An exception among them ends the connection."""
    stopped: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    looks: int = 0

    def job(self, part: str) -> FakeJob:
        """Returns the newest job whose submission id contains `part`."""
        return [job for job in self.found if part in job.submission_id][-1]

    def get_address(self) -> str:
        return "http://127.0.0.1:8265"

    def list_jobs(self) -> list[FakeJob]:
        self.looks += 1
        assert self.looks < 200, "it waits without end"
        self.happens(self)
        return list(self.found)

    def submit_job(
        self, entrypoint: str, submission_id: str, runtime_env: Any, metadata: dict[str, str], **where: Any
    ) -> str:
        if any(job.submission_id == submission_id for job in self.found):
            raise RuntimeError(f"Request failed with status code 500: job {submission_id} already exists")
        self.found.append(FakeJob(submission_id, entrypoint, metadata, start_time=len(self.found), **where))
        return submission_id

    def get_job_logs(self, name: str) -> str:
        return self.logs.get(name, "")

    async def tail_job_logs(self, name: str) -> AsyncIterator[str]:
        for text in self.tails.pop(0) if self.tails else [self.logs.get(name, "")]:
            if isinstance(text, BaseException):
                raise text
            yield text

    def stop_job(self, name: str) -> bool:
        self.stopped.append(name)
        return True

    def delete_job(self, name: str) -> bool:
        self.deleted.append(name)
        return True
