"""Puts a queue, tasks and webhooks there for schemathesis to meet; prints the token of a claim on `t1`."""

import os

from duepost.api.consumers import claim_tasks
from duepost.api.tasks import put_task
from duepost.api.webhooks import put_webhook
from duepost.client import AuthenticatedClient
from duepost.models import ClaimedTasks, Task, TaskClaim, TaskPut, Webhook, WebhookPut

api = AuthenticatedClient(base_url=os.environ["DUEPOST_URL"], token=os.environ["DUEPOST_KEY"])
tokens = []
for n in range(1, 5):
    # Nobody listens there.
    webhook = WebhookPut(url=f"http://127.0.0.1:{n}/", enabled=False)
    assert isinstance(put_webhook.sync("home", f"t{n}", client=api, body=webhook), Webhook)
    task = TaskPut(payload=n) if n == 1 else TaskPut(payload=n, delay="1h")
    assert isinstance(put_task.sync("home", f"t{n}", client=api, body=task), Task)
claimed = claim_tasks.sync("home", client=api, body=TaskClaim(wait="5s", lease="12h"))
assert isinstance(claimed, ClaimedTasks), claimed
print(claimed.tasks[0].lease.token)
