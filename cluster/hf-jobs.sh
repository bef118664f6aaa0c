#!/bin/bash
# Runs a chain on Hugging Face Jobs: uploads this folder, installs the pinned packages, and runs the chain in one container.
# Results go to a bucket, because the container's disk is lost at the end. The same command continues the chain: finished
# stages are kept, and training continues from its last checkpoint. From the project's folder, after `hf auth login`:
#
#   export AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=... DONTSTOP_KEY="$(openssl rand -hex 32)"   # keep the key
#   cluster/hf-jobs.sh my_chain.yaml s3://BUCKET/runs
#   FLAVOR=a100-large TIMEOUT=2d cluster/hf-jobs.sh my_chain.yaml s3://BUCKET/runs --dry-run
#
# AWS_DEFAULT_REGION, AWS_ENDPOINT_URL and AWS_SESSION_TOKEN are passed on if they are set. Keys with a session token must
# be valid until the job ends. Options after the bucket are those of `hf jobs run`. `hf jobs hardware` lists flavors.
set -euo pipefail
chain="${1:?name the chain file}" root="${2:?name the storage root, such as s3://BUCKET/runs}"
shift 2
case "$root" in
    *://*) ;;
    *) echo "hf-jobs.sh: the storage root $root is not in a bucket, and the container's disk is lost at its end" >&2; exit 2 ;;
esac
[ -f "$chain" ] || { echo "hf-jobs.sh: $chain does not exist" >&2; exit 2; }
for name in AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY DONTSTOP_KEY; do
    [ -n "${!name:-}" ] || { echo "hf-jobs.sh: set and export $name" >&2; exit 2; }
done

# The project without ignored files, so that no results and no virtual environment are uploaded.
files="$(mktemp -d)"
trap 'rm -rf "$files"' EXIT
git ls-files -z --cached --others --exclude-standard -- . ':!docs' ':!tests' |
    while IFS= read -r -d '' file; do if [ -f "$file" ]; then printf '%s\0' "$file"; fi; done | # omits deleted files
    xargs -0 cp --parents -t "$files" --
case "$chain" in
    /* | ../* | */../*) uploaded="" ;;
    *) uploaded="$files/$chain" ;;
esac
[ -f "$uploaded" ] || {
    echo "hf-jobs.sh: $chain is not uploaded: move it into this folder, but not into docs, tests or an ignored folder" >&2
    exit 2
}

hf jobs run --flavor "${FLAVOR:-a10g-large}" --timeout "${TIMEOUT:-1d}" --attempts "${ATTEMPTS:-3}" \
    --label project=dontstop --secrets HF_TOKEN --secrets AWS_ACCESS_KEY_ID --secrets AWS_SECRET_ACCESS_KEY \
    --secrets DONTSTOP_KEY ${AWS_SESSION_TOKEN:+--secrets AWS_SESSION_TOKEN} \
    ${AWS_DEFAULT_REGION:+--env "AWS_DEFAULT_REGION=$AWS_DEFAULT_REGION"} \
    ${AWS_ENDPOINT_URL:+--env "AWS_ENDPOINT_URL=$AWS_ENDPOINT_URL"} \
    --volume "$files:/project:ro" "$@" python:3.11.13-bookworm \
    bash -c 'cp -r /project /tmp/project && cd /tmp/project && make node &&
        exec .venv/bin/python jobs/chain.py run "$0" --storage.root "$1"' "$chain" "$root"
