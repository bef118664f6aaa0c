"""Defines JOBS, the table of the jobs that users can start. Each job builds its stages from a `Context`.

Parsing, help, chain files, plans, summaries and reports read this table.

- `job_run`: runs and plans jobs.
- `job_text`: prepares a job's text for training and for measuring, and shows its properties before anything runs.
- `generated_text`: generates text for replay, and rewrites documents.
- `training_jobs`: dapt, tapt, finetune; merge and distil, which make one model from several models, and ensemble, which
  averages predictions.
- `selection_job`: select, and the selection of documents for other jobs.
- `sequence_steps`, `sequence_job`: sequence, which adapts a model to one domain after another.
- `measuring_jobs`: evaluate, similarity, advise, which measure models and text; vocabulary, which measures how the
  tokenizer splits words, and changes the vocabulary.
"""

from adapt.config.kinds import imported
from adapt.job.job_run import Job
from adapt.job.measuring_jobs import ADVISE_JOB, EVALUATE_JOB, SIMILARITY_JOB, VOCABULARY_JOB
from adapt.job.selection_job import SELECT_JOB
from adapt.job.sequence_job import SEQUENCE_JOB
from adapt.job.training_jobs import DAPT_JOB, DISTIL_JOB, ENSEMBLE_JOB, FINETUNE_JOB, MERGE_JOB, TAPT_JOB
from adapt.support.errors import ConfigError, nearest

JOBS: dict[str, Job] = {
    job.name: job
    for job in (
        DAPT_JOB,
        TAPT_JOB,
        SELECT_JOB,
        SEQUENCE_JOB,
        MERGE_JOB,
        ENSEMBLE_JOB,
        DISTIL_JOB,
        FINETUNE_JOB,
        EVALUATE_JOB,
        SIMILARITY_JOB,
        VOCABULARY_JOB,
        ADVISE_JOB,
    )
}
"""All jobs, keyed by name."""


def job_of(name: str) -> Job:
    """Returns the job with a name, or a user-defined job given as `package.module:JOB`.

    Raises:
        ConfigError: the job does not exist. The message names the nearest job.
    """
    if ":" in name:
        job = imported("job", name)
        if not isinstance(job, Job):
            raise ConfigError(
                f"job: {name} is not an instance of {Job.__module__}.Job", f"make {name} an instance of this class"
            )
        return job
    if name not in JOBS:
        raise ConfigError(f"there is no job {name or '(none)'}", nearest(name, JOBS))
    return JOBS[name]
