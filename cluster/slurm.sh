#!/bin/bash
# Runs a chain or a job on SLURM: starts Ray on the nodes of the allocation, submits the work, and follows it. Before the time
# limit, training runs save a checkpoint, and the job is requeued and continues. From the project's folder:
#
#   make node                                                                      # once, on a login node
#   sbatch cluster/slurm.sh my_chain.yaml --storage.root /scratch/me/runs
#   sbatch --nodes 4 --time 8:00:00 cluster/slurm.sh --job dapt --config my.yaml --storage.root /scratch/me/runs
#
# The arguments are those of `dontstop chain submit`. Options of sbatch before the file replace the lines below. All nodes must
# mount the project's folder, your home (for Ray's token) and the storage root at the same path. If the site preempts jobs,
# its PreemptParameters must contain send_user_signal, so that a preempted job also gets the notice.
#
#SBATCH --job-name=dontstop
#SBATCH --output=dontstop-%j.log
#SBATCH --open-mode=append
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=1
#SBATCH --mem=64G
#SBATCH --time=24:00:00
# SLURM sends a signal, the notice, 240 s before the end. In this time, training runs save their last checkpoints.
#SBATCH --signal=B:USR1@240
#SBATCH --requeue
# If a node fails, the job continues on the other nodes (see resources.workers).
#SBATCH --no-kill
set -u

MOST_REQUEUES="${DONTSTOP_REQUEUES:-50}" # a chain that needs more time limits than this ends with an error
KEEP_S=20 # time for the requeue itself [s]
JOIN_S=300 # longest time to wait until all nodes have joined [s]

cd "${SLURM_SUBMIT_DIR:?start this file with sbatch}" || exit 1
export PATH="$PWD/.venv/bin:$PATH" RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0 RAY_worker_niceness=0
export RAY_TMPDIR="/tmp/ray-$SLURM_JOB_ID" # a short path, because names of sockets contain it
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}" # srun does not take this from sbatch

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head="${nodes[0]}" # this script runs there too
port=$((20000 + SLURM_JOB_ID % 1000 * 10)) # jobs that share a node need different ports
address="$head:$port"
dashboard="http://127.0.0.1:$((port + 1))"
[ -s ~/.ray/auth_token ] || (umask 077; ray get-auth-token --generate > /dev/null) || exit 1

say() { echo "$(date +%FT%T) $*"; }

# Runs a command on nodes. Call it in the background: srun takes the place of the shell, so that signals reach it.
step() { exec srun --overlap --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=0 --wait=0 "$@"; }

# Ray on one node. It ends with the step, and then its files are removed. Its output is only shown if it ends by itself.
ray_node='mkdir -p -m 700 "$RAY_TMPDIR" && [ -O "$RAY_TMPDIR" ] || exit 1
said="$RAY_TMPDIR/start-$SLURMD_NODENAME.log" stopped=""
ray start --block --num-cpus "$SLURM_CPUS_ON_NODE" --min-worker-port 0 --max-worker-port 0 "$@" > "$said" 2>&1 &
trap "stopped=yes; kill $! 2> /dev/null" TERM
wait $!; wait $! # the signal ends the first wait
[ -n "$stopped" ] || cat "$said"
rm -rf "$RAY_TMPDIR"'

started=() steps=() # process ids
stop_all() {
    trap - EXIT
    ((${#started[@]})) && kill "${started[@]}" 2> /dev/null
    # Ray ends by itself after this signal. A signal to srun would kill it.
    scancel --signal=TERM "$SLURM_JOB_ID" 2> /dev/null || kill "${steps[@]}" 2> /dev/null
    wait
}
trap stop_all EXIT
runs() { kill -0 "$1" 2> /dev/null; }

joined() {
    ray list nodes --address "$dashboard" --filter state=ALIVE --limit 10000 --format json 2> /dev/null |
        grep -o '"node_id"' | wc -l
}

# Waits until this many nodes have joined. Fails if the step with this process id ends, or after JOIN_S.
wait_for() {
    local end=$((SECONDS + JOIN_S))
    until [ "$(joined)" -ge "$1" ]; do
        runs "$2" && [ $SECONDS -lt $end ] || return 1
        sleep 2
    done
}

noticed=""
trap noticed=yes USR1
timer="" # waits until the requeue
drain_nodes() {
    local end left
    end="$(scontrol show job "$SLURM_JOB_ID" | sed -n 's/.*EndTime=\([^ ]*\).*/\1/p')"
    # If SLURM's controller does not answer, the end is as far away as --signal says.
    left=$(($(date -d "${end:-240 seconds}" +%s) - $(date +%s) - KEEP_S))
    ((left > 0)) || left=0
    say "the time limit is near: trainings save a checkpoint, and the job is requeued in $left s"
    RAY_ADDRESS="$address" step --nodes=${#nodes[@]} --ntasks=${#nodes[@]} \
        python cluster/preemption.py stop --seconds "$left" --why "SLURM: the time limit of job $SLURM_JOB_ID" &
    steps+=($!)
    sleep "$left" &
    timer=$!
    started+=("$timer")
}

say "Ray starts on ${#nodes[@]} nodes; the head is $address"
step --nodes=1 --ntasks=1 --nodelist="$head" bash -c "$ray_node" ray --head --port "$port" --dashboard-host 127.0.0.1 \
    --dashboard-port $((port + 1)) --ray-client-server-port $((port + 2)) --dashboard-agent-listen-port $((port + 3)) &
steps+=($!)
wait_for 1 "${steps[0]}" || { say "the head does not start"; exit 7; }
if [ ${#nodes[@]} -gt 1 ]; then
    others="$(IFS=,; echo "${nodes[*]:1}")"
    step --nodes=$((${#nodes[@]} - 1)) --ntasks=$((${#nodes[@]} - 1)) --nodelist="$others" \
        bash -c "$ray_node" ray --address "$address" --dashboard-agent-listen-port $((port + 3)) &
    steps+=($!)
    wait_for ${#nodes[@]} "${steps[1]}" || say "only $(joined) of ${#nodes[@]} nodes have joined"
fi

python jobs/chain.py submit "$@" --address "$dashboard" &
submit=$!
started+=("$submit")
while runs "$submit" && runs "${steps[0]}" && { [ -z "$timer" ] || runs "$timer"; }; do
    if [ -n "$noticed" ] && [ -z "$timer" ]; then
        drain_nodes
    fi
    sleep 2 &
    wait $! # unlike sleep, it returns at once for the notice
done
if runs "$submit"; then
    code=7 # the head has ended, or the time is over
    [ -n "$noticed" ] || say "the head has ended"
else
    wait "$submit"
    code=$?
fi

if [ "$code" = 0 ] || [ -z "$noticed" ]; then
    exit "$code"
fi
if [ "${SLURM_RESTART_COUNT:-0}" -ge "$MOST_REQUEUES" ]; then
    say "the job was requeued $MOST_REQUEUES times (DONTSTOP_REQUEUES) and is not finished"
    exit 1
fi
say "requeue"
scontrol requeue "$SLURM_JOB_ID" || exit 1
sleep 600 & # SLURM ends this script
wait $!
