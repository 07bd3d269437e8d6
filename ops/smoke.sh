#!/usr/bin/env bash
# Starts a server on a free port, waits until it is ready, asks for a completion in both forms, and stops it with SIGTERM.
# Exit code 0 if all of that worked; otherwise names the first step that failed and shows the server's log.
# usage: [MODEL=model.gguf (default: the bundled one)] [HEADRACE=.venv/bin/headrace] [PYTHON=.venv/bin/python] [READY_S=120] ops/smoke.sh
set -euo pipefail

repository=$(cd "$(dirname "$0")/.." && pwd)
headrace=${HEADRACE:-$repository/.venv/bin/headrace}
python=${PYTHON:-$repository/.venv/bin/python}
model=${MODEL:-}
ready_s=${READY_S:-120}

scratch=$(mktemp -d)
server=
cleanup() {
    [ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true
    rm -rf "$scratch"
}
trap cleanup EXIT

fail() {
    echo "smoke: $1" >&2
    sed 's/^/  | /' "$scratch/log" >&2
    exit 1
}

port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
url=http://127.0.0.1:$port
ask() { curl --silent --show-error --fail --max-time 60 "$@"; }

"$headrace" serve ${model:+"$model"} --port "$port" --log-format json >"$scratch/log" 2>&1 &
server=$!

deadline=$((SECONDS + ready_s))
until ask --output /dev/null "$url/readyz" 2>/dev/null; do
    kill -0 "$server" 2>/dev/null || { server=; fail "the server ended before it was ready"; }
    [ "$SECONDS" -lt "$deadline" ] || fail "the server was not ready after $ready_s s"
    sleep 0.2
done
echo "ready: $url"

chat='{"model": "smoke", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8'
ask --no-buffer "$url/v1/chat/completions" -H 'Content-Type: application/json' -d "$chat, \"stream\": true}" >"$scratch/stream" \
    || fail "no streamed answer"
grep -q '^data: {' "$scratch/stream" || fail "the stream has no chunk"
grep -q '^data: \[DONE\]' "$scratch/stream" || fail "the stream has no end"
echo "streamed: $(grep -c '^data: {' "$scratch/stream") chunks"

ask "$url/v1/completions" -H 'Content-Type: application/json' -d '{"prompt": "Hello", "max_tokens": 8}' >"$scratch/answer" \
    || fail "no answer"
grep -q '"finish_reason"' "$scratch/answer" || fail "the answer has no finish reason"
ask "$url/metrics" >"$scratch/metrics" || fail "no metrics"

kill -TERM "$server"
code=0
wait "$server" || code=$?
server=
[ "$code" -eq 0 ] || fail "the server ended with exit code $code after SIGTERM"
echo "stopped"
