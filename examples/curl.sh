#!/usr/bin/env bash
# Headway by curl: what it serves, an answer, routing parameters in headers, a stream.
set -euo pipefail
url=${HEADWAY_URL:-http://127.0.0.1:8080}

ask() {  # PATH, then curl's options
  curl --silent --show-error --fail-with-body "$url$1" "${@:2}" \
    -H "authorization: Bearer ${HEADWAY_KEY:-none}" -H "content-type: application/json"
  echo
}

ask /v1/models
ask /v1/chat/completions \
  -d '{"model": "auto", "max_tokens": 16, "messages": [{"role": "user", "content": "Hello"}]}'
# The answer's headers say who answered. The policy and the target may also stand in the body's "routing".
ask /v1/chat/completions --include -H "x-headway-policy: price" -H "x-headway-ttft-ms: 5000" \
  -d '{"model": "auto", "max_tokens": 16, "messages": [{"role": "user", "content": "Hello"}]}'
ask /v1/chat/completions --no-buffer \
  -d '{"model": "auto", "max_tokens": 16, "stream": true, "messages": [{"role": "user", "content": "Hello"}]}'
