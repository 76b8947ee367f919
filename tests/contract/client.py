"""A client of openapi-python-client, generated from the specification as the package `duepost`."""

import os

from duepost.api.consumers import ack_task, claim_tasks
from duepost.api.queues import pause_queue, resume_queue
from duepost.api.tasks import cancel_task, create_task, get_task, patch_task
from duepost.client import AuthenticatedClient
from duepost.models import ClaimedTasks, Problem, Queue, Task, TaskAck, TaskClaim, TaskCreate, TaskPatch

QUEUE = "python"
api = AuthenticatedClient(base_url=os.environ["DUEPOST_URL"], token=os.environ["DUEPOST_KEY"])

created = create_task.sync_detailed(
    QUEUE, client=api, body=TaskCreate(id="later", payload={"order_id": 1042}, delay="1h")
)
scheduled = created.parsed
assert created.status_code == 201 and isinstance(scheduled, Task) and scheduled.state == "scheduled", created

moved = patch_task.sync(QUEUE, "later", client=api, body=TaskPatch(delay="2h"))
assert isinstance(moved, Task) and moved.run_at > scheduled.run_at, moved

paused = pause_queue.sync(QUEUE, client=api)
assert isinstance(paused, Queue) and paused.paused, paused
resumed = resume_queue.sync(QUEUE, client=api)
assert isinstance(resumed, Queue) and not resumed.paused, resumed

due = create_task.sync(QUEUE, client=api, body=TaskCreate(id="now", payload=[1.5, None]))
assert isinstance(due, Task), due
claimed = claim_tasks.sync(QUEUE, client=api, body=TaskClaim(wait="5s"))
assert isinstance(claimed, ClaimedTasks), claimed
(task,) = claimed.tasks
assert (task.id, task.payload) == ("now", [1.5, None]), task
acked = ack_task.sync(QUEUE, "now", client=api, body=TaskAck(token=task.lease.token))
assert isinstance(acked, Task) and acked.state == "completed", acked

cancelled = cancel_task.sync(QUEUE, "later", client=api)
assert isinstance(cancelled, Task) and cancelled.state == "cancelled", cancelled

refused = get_task.sync(QUEUE, "none", client=api)
assert isinstance(refused, Problem) and refused.type_ == "/problems/task-not-found", refused
print("python: scheduled, moved, paused, claimed, acked and cancelled")
