"""Shows how often schemathesis called each operation, with which answers; fails when one was called too seldom.

    count.py REPORT.ndjson LEAST
"""

import collections
import json
import sys

answers = collections.defaultdict(collections.Counter)
with open(sys.argv[1], encoding="utf-8") as report:
    for line in report:
        scenario = json.loads(line).get("ScenarioFinished")
        if scenario and scenario["phase"] != "stateful":
            recorder = scenario["recorder"]
            for call in recorder.get("interactions", {}).values():
                answers[recorder["label"]][(call["response"] or {}).get("status_code")] += 1
seldom = []
for operation, statuses in sorted(answers.items()):
    cases = sum(statuses.values())
    print(f"{cases:5} {operation:52}", *(f"{status}:{n}" for status, n in sorted(statuses.items())))
    # One without a parameter is the same call each time.
    if "{" in operation and cases < int(sys.argv[2]):
        seldom.append(operation)
print(f"{sum(sum(statuses.values()) for statuses in answers.values())} calls of {len(answers)} operations")
if seldom:
    sys.exit(f"error: called less than {sys.argv[2]} times: {', '.join(seldom)}")
