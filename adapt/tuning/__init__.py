"""Search for good values of fields, by trials.

- `search_run`: a search from the command line to its report.
- `space`: the searched fields with their domains.
- `search_checks`: checks of a search, of its space against the schema, and of objectives.
- `search_forecast`: what a search will take.
- `search_stage`: the stage that holds all trials.
- `job_trial`: a job with some values, measured on dev; the values in names and files.
- `proposals`: which values a trial has.
- `trial_scheduler`: when a trial is judged, and continues.
- `run_trials`: runs the stages of all trials, and shows them.
- `ray_tune`: Ray Tune, which asks for trials.
- `search_trackers`: trials in MLflow and TensorBoard.
- `confirm`: the stage that runs the best trial with fresh seeds, and tests it.
"""
