"""Steers an answer in the middle of it, and reads what comes of it. Needs `pip install openai` and a server:

    python examples/clients/steer.py            # http://127.0.0.1:8080, or MIDSTREAM_URL
"""

import json
import os
import threading
import urllib.request
import uuid

from openai import OpenAI

url = os.environ.get("MIDSTREAM_URL", "http://127.0.0.1:8080")
key = os.environ.get("MIDSTREAM_API_KEY", "none")
client = OpenAI(base_url=f"{url}/v1", api_key=key)


def steer(response_id: str, text: str) -> dict:
    """The receipt: once it is here the instruction is on disk, and is not lost."""
    request = urllib.request.Request(
        f"{url}/v1/responses/{response_id}/interventions",
        json.dumps({"input": text, "when": "now"}).encode(),
        {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {key}",
            # Sent again with the same key, after a lost connection say, it is not a second one.
            "Idempotency-Key": str(uuid.uuid4()),
        },
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def read(stream, after: int = 0) -> None:
    """Prints text as it comes; calls for the steer once enough of it is there."""
    seen = ""
    for event in stream:
        if event.type == "response.output_text.delta":
            print(event.delta, end="", flush=True)
            seen += event.delta
            if after and len(seen) >= after:
                enough.set()
    enough.set()
    print()


# In the background it goes on whoever reads.
response = client.responses.create(input="Write a long story about a ship.", background=True, max_output_tokens=2000)
enough = threading.Event()
reader = threading.Thread(target=read, args=(client.responses.retrieve(response.id, stream=True), 20))
reader.start()
enough.wait()
receipt = steer(response.id, "Make it about a train instead.")
reader.join()
print(f"--- steered: {receipt['successor_id']} answers both")
# What was said stays; the successor goes on behind it.
read(client.responses.retrieve(receipt["successor_id"], stream=True))
ended = client.responses.retrieve(response.id)
print(f"--- {ended.status}, {client.responses.retrieve(receipt['successor_id']).status}")
