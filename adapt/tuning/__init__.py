"""Searches for good values of configuration fields by running trials.

- `search_run`: forecasts the cost of a search, runs it from the command line, and writes its report.
- `search_checks`: reads the search space, and checks the space and the objectives.
- `search_stage`: the stage that runs all trials.
- `job_trial`: runs a job with the values of a trial, measured on dev, and names the trial by its values.
- `proposals`: proposes the values of each trial and the numbers of steps after which trials are compared, and checks
  the bound that the best trial must meet.
- `run_trials`: runs the stages of all trials, and shows progress.
- `ray_tune`: connects to Ray Tune, which requests and stops trials.
- `search_trackers`: logs trials to MLflow and TensorBoard.
- `confirm`: the stage that runs the best trial with fresh seeds, and tests it.
"""
