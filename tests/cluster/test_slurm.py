"""Tests `cluster/slurm.sh` with substitutes for SLURM, Ray and Python that record how they are called."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "cluster" / "slurm.sh"
NODES = ("n1", "n2", "n3")

# Programs that replace the real ones. Each appends its arguments to $CALLS. `srun` drops its options and runs the rest.
STUBS = {
    "srun": """
        echo "srun ${*//$'\\n'/; }" >> "$CALLS"
        count=1
        while [[ $1 == --* ]]; do [[ $1 == --ntasks=* ]] && count=${1#--ntasks=}; shift; done
        export SLURM_CPUS_ON_NODE=4 SLURMD_NODENAME=n
        for ((i = 0; i < count; i++)); do "$@" & tasks+=($!); done
        trap 'kill "${tasks[@]}"; wait; exit 143' TERM
        echo $$ >> "$CALLS.steps"
        wait
    """,
    "scontrol": """
        echo "scontrol $*" >> "$CALLS"
        case "$1 $2" in
            "show hostnames") printf '%s\\n' ${HOSTS:?} ;;
            "show job")
                [ "${LEFT_S:-21}" = unknown ] && exit 1
                echo "JobId=$3 StartTime=Unknown EndTime=$(date -d "${LEFT_S:-21} seconds" +%FT%T) Deadline=N/A" ;;
            "requeue 123") kill $PPID ;;
        esac
    """,
    "scancel": """
        [ "$*" = "--signal=TERM 123" ] && kill $(cat "$CALLS.steps") 2> /dev/null
    """,
    "ray": """
        echo "ray $*" >> "$CALLS"
        case "$1" in
            start)
                [ -z "${BROKEN:-}" ] || { echo "$BROKEN"; exit 1; }
                echo "Ray runtime started"
                echo "$$" >> "$CALLS.started"
                trap 'kill $!; exit 143' TERM; sleep 600 & wait ;;
            list) echo "[$(sed 's/.*/{"node_id": "&"},/' "$CALLS.started" | tr -d '\\n')]" ;;  # one line, like Ray
            get-auth-token) mkdir -p ~/.ray; echo secret > ~/.ray/auth_token ;;
        esac
    """,
    # shortens the pauses of 2 s between two checks of the script
    "sleep": """[ "$1" = 2 ] && set -- 0.1; exec /bin/sleep "$@" """,
    "python": """
        echo "python $* RAY_ADDRESS=${RAY_ADDRESS:-}" >> "$CALLS"
        if [ "$1" = jobs/chain.py ]; then eval "$WORK"; fi
    """,
}

Start = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Runs the script as SLURM's batch script. Returns its exit code, the recorded calls, and its output."""
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    for name, text in STUBS.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}")
        (folder / name).chmod(0o755)

    def run(*arguments: str, **variables: str) -> tuple[int, list[str], str]:
        calls = tmp_path / "calls"
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "CALLS": str(calls),
            "HOSTS": " ".join(NODES),
            "SLURM_SUBMIT_DIR": str(tmp_path),
            "SLURM_JOB_ID": "123",
            "SLURM_JOB_NODELIST": "n[1-3]",
            "SLURM_CPUS_PER_TASK": "4",
            **variables,
        }
        done = subprocess.run(
            ["bash", str(SCRIPT), *arguments], env=environment, capture_output=True, text=True, timeout=120
        )
        return done.returncode, calls.read_text().splitlines(), done.stdout + done.stderr

    return run


def test_ray_starts_on_all_nodes_and_the_work_is_submitted(start: Start, tmp_path: Path) -> None:
    code, calls, said = start("study.yaml", "--storage.root", "/scratch/runs", WORK="exit 0")
    assert code == 0, said
    starts = [call for call in calls if call.startswith("ray start")]
    assert len(starts) == len(NODES)
    assert all("--block --num-cpus 4" in call for call in starts)
    (head,) = (call for call in starts if "--head" in call)
    assert "--port 21230 --dashboard-host 127.0.0.1 --dashboard-port 21231" in head
    assert all("--address n1:21230" in call for call in starts if call != head)
    by_slurm = [call for call in calls if call.startswith("srun")]
    assert "--nodes=1 --ntasks=1 --nodelist=n1 " in by_slurm[0]
    assert "--nodes=2 --ntasks=2 --nodelist=n2,n3 " in by_slurm[1]
    submitted = "python jobs/chain.py submit study.yaml --storage.root /scratch/runs --address http://127.0.0.1:21231"
    assert calls[-1].startswith(submitted)
    assert "ray get-auth-token --generate" in calls
    assert not any("requeue" in call for call in calls)
    assert "Ray runtime started" not in said
    # Ray has ended on all nodes
    assert not [pid for pid in (tmp_path / "calls.started").read_text().split() if Path(f"/proc/{pid}").exists()]
    assert not Path("/tmp/ray-123").exists()


def test_the_time_limit_is_a_notice_and_the_job_is_requeued(start: Start) -> None:
    # The job's time limit ends in 21 s, and the script reserves 20 s for the requeue.
    code, calls, said = start("study.yaml", WORK="kill -USR1 $PPID; exec sleep 600", SLURM_RESTART_COUNT="3")
    notices = [call for call in calls if call.startswith("python cluster/")]
    assert len(notices) == len(NODES)
    for notice in notices:
        assert notice.startswith("python cluster/preemption.py stop --seconds ")
        assert re.search(r"--seconds [01] --why SLURM: the time limit of job 123 RAY_ADDRESS=n1:21230$", notice)
    assert calls[-1] == "scontrol requeue 123"
    assert "trainings save a checkpoint" in said
    assert code != 0


def test_work_that_ends_after_the_notice_is_not_requeued(start: Start) -> None:
    code, calls, _ = start("study.yaml", WORK="kill -USR1 $PPID; sleep 1; exit 0", LEFT_S="600")
    assert code == 0
    assert not any("requeue" in call for call in calls)


def test_a_controller_that_does_not_answer_leaves_the_time_of_the_notice(start: Start) -> None:
    code, calls, said = start("study.yaml", WORK="kill -USR1 $PPID; sleep 1; exit 0", LEFT_S="unknown")
    assert code == 0
    assert re.search(r"requeued in (219|220) s", said)
    assert not any("requeue" in call for call in calls)


def test_a_lost_cluster_after_the_notice_is_requeued(start: Start) -> None:
    _, calls, _ = start("study.yaml", WORK="kill -USR1 $PPID; sleep 1; exit 7", LEFT_S="600")
    assert calls[-1] == "scontrol requeue 123"


def test_an_error_ends_the_job_with_its_exit_code(start: Start) -> None:
    code, calls, _ = start("study.yaml", WORK="exit 2")
    assert code == 2
    assert not any("requeue" in call for call in calls)


def test_requeues_are_limited(start: Start) -> None:
    work = {"WORK": "kill -USR1 $PPID; exec sleep 600", "SLURM_RESTART_COUNT": "4", "DONTSTOP_REQUEUES": "4"}
    code, calls, said = start("study.yaml", **work)
    assert code == 1
    assert "requeued 4 times" in said
    assert not any("requeue" in call for call in calls)


def test_a_head_that_does_not_start_ends_the_job(start: Start) -> None:
    code, calls, said = start("study.yaml", WORK="exit 0", BROKEN="port 21230 is in use")
    assert code == 7
    assert "port 21230 is in use" in said
    assert "the head does not start" in said
    assert not any(call.startswith("python") for call in calls)


def test_one_node_is_enough(start: Start) -> None:
    code, calls, _ = start("study.yaml", WORK="exit 0", HOSTS="n1")
    assert code == 0
    assert len([call for call in calls if call.startswith("srun")]) == 1


def test_the_file_asks_slurm_for_the_notice_and_the_requeue() -> None:
    text = SCRIPT.read_text()
    options = re.findall(r"^#SBATCH (\S+)", text, re.MULTILINE)
    assert {"--signal=B:USR1@240", "--requeue", "--no-kill", "--open-mode=append", "--ntasks-per-node=1"} <= {*options}
    assert "trap noticed=yes USR1" in text
    # SLURM ignores options after the first command
    assert text.rindex("#SBATCH") < text.index("\nset -u")
