#!/usr/bin/env bash
# Steers an answer in the middle of it, and reads what comes of it, with curl and Python's json. Needs a server:
#
#     examples/clients/steer.sh            # http://127.0.0.1:8080, or MIDSTREAM_URL
set -euo pipefail
url="${MIDSTREAM_URL:-http://127.0.0.1:8080}"
key="${MIDSTREAM_API_KEY:-none}"
ask() { curl --silent --show-error --fail-with-body --no-buffer -H "Authorization: Bearer $key" "$@"; }
field() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }
# The text of a stream's events, as it comes.
text() { python3 -uc 'import json, sys
for line in sys.stdin:
    if line.startswith("data: {"): print(json.loads(line[6:]).get("delta", ""), end="")
print()'; }

# In the background it goes on whoever reads.
id="$(ask "$url/v1/responses" -H 'Content-Type: application/json' \
    -d '{"input": "Write a long story about a ship.", "background": true, "max_output_tokens": 2000}' | field id)"
ask "$url/v1/responses/$id?stream=true" | text &
reader=$!
# The head of the stream, as far as the first text: then there is something to steer.
ask "$url/v1/responses/$id?stream=true" | grep -m 1 --quiet output_text.delta || true
# The receipt says that the instruction is on disk. Sent again with the same key it is not a second one.
successor="$(ask "$url/v1/responses/$id/interventions" -H 'Content-Type: application/json' \
    -H "Idempotency-Key: steer-$id" -d '{"input": "Make it about a train instead.", "when": "now"}' | field successor_id)"
wait "$reader"
echo "--- steered: $successor answers both"
# What was said stays; the successor goes on behind it.
ask "$url/v1/responses/$successor?stream=true" | text
echo "--- $(ask "$url/v1/responses/$id" | field status), $(ask "$url/v1/responses/$successor" | field status)"
