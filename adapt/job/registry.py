"""All jobs. Parsing, help, chain files, plans, summaries and reports read this table, and nothing else knows names."""

from adapt.errors import ConfigError
from adapt.job import advise, dapt, evaluate, finetune, merge, select, sequence, similarity, tapt, vocabulary
from adapt.job.job import Job
from adapt.nearest import nearest
from adapt.plugin import imported

JOBS: dict[str, Job] = {
    module.JOB.name: module.JOB
    for module in (dapt, tapt, select, sequence, merge, finetune, evaluate, similarity, vocabulary, advise)
}
"""All jobs, by name."""


def job_of(name: str) -> Job:
    """The job of a name, or a user's own by `package.module:JOB`.

    Raises:
        ConfigError: there is none; names the nearest.
    """
    if ":" in name:
        job = imported("job", name)
        if not isinstance(job, Job):
            raise ConfigError(f"job: {name} is no Job", f"make it an instance of {Job.__module__}.Job")
        return job
    if name not in JOBS:
        raise ConfigError(f"there is no job {name or '(none)'}", nearest(name, JOBS))
    return JOBS[name]
