#!/bin/bash
# What `make demo` shows: three services on free ports, a streamed answer with its rounds, and
# plain against speculative decoding. Fails when any of it does, and leaves no process behind.
set -euo pipefail

run_dir=$(mktemp -d)
up=
finish() {
  status=$?
  trap - EXIT
  if [[ -n $up ]]; then
    # Without a ready line it may not yet listen to `paceline down`.
    kill -TERM "$up" 2>/dev/null || true
    wait "$up" || true
  fi
  rm -rf "$run_dir"
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

echo "== starting gateway, verifier and drafter (the first start converts the model: about 20 s)"
: >"$run_dir/ready"
paceline up --run-dir "$run_dir" --gateway-port 0 --verifier-port 0 --drafter-port 0 --metrics-port 0 \
  >"$run_dir/ready" &
up=$!
until grep -q '^READY ' "$run_dir/ready"; do
  if ! kill -0 "$up" 2>/dev/null; then
    echo "the services did not start" >&2
    exit 1
  fi
  sleep 0.2
done
cat "$run_dir/ready"
PACELINE_GATEWAY=$(sed -E 's/.*gateway=([^ ]+).*/\1/' "$run_dir/ready")
export PACELINE_GATEWAY
http=$(sed -E 's/.*http=([^ ]+).*/\1/' "$run_dir/ready")

prompt='Write this function again, with type hints.

def total_price(items):
    total = 0
    for item in items:
        total = total + item.price * item.quantity
    return total'

echo
echo "== a streamed answer: $prompt"
paceline generate "$prompt" --temperature 0 --max-tokens 64 --rounds

echo
echo "== the same gateway for OpenAI clients, while this runs (\`paceline up\`: port 8000)"
echo "curl -N $http/v1/chat/completions -H 'Content-Type: application/json' \\"
echo "  -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}], \"stream\": true}'"

echo
echo "== the same answers plain and speculative, interleaved"
paceline compare --limit 3 --max-tokens 64

echo
echo "== stopping"
paceline down --run-dir "$run_dir"
wait "$up"
up=
