#!/bin/bash
# Prefect on this machine: a server, a process worker, the deployments of prefect.yaml, and a run of terrine/try.
# DEPLOYMENT=terrine/default runs another one. Ctrl-C ends server and worker.
set -euo pipefail
port=${PORT:-4200}
export PREFECT_API_URL=http://127.0.0.1:$port/api PREFECT_HOME=$PWD/.prefect/home TERRINE_ROOT=$PWD
mkdir -p "$PREFECT_HOME"
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
prefect server start --host 127.0.0.1 --port "$port" > .prefect/server.log 2>&1 &
until curl --silent --fail --output /dev/null "$PREFECT_API_URL/health"; do
  kill -0 $! || { tail .prefect/server.log; exit 1; }
  sleep 0.5
done
prefect --no-prompt work-pool create terrine --type process --overwrite
prefect --no-prompt deploy --all > .prefect/deploy.log
prefect worker start --pool terrine --type process > .prefect/worker.log 2>&1 &
overrides=()
# The run would already be complete: another seed.
test -n "${DEPLOYMENT:-}" || overrides=(--param "overrides=[\"queries.count=1000\", \"seed=$(date +%s)\"]")
prefect --no-prompt deployment run "${DEPLOYMENT:-terrine/try}" --watch "${overrides[@]}"
grep -o ' - Run .*' .prefect/worker.log | tail -n 1 || true # the result
echo "Server: http://127.0.0.1:$port. Logs: .prefect/. Ctrl-C ends server and worker."
test -n "${ONCE:-}" || wait
