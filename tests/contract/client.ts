// A client of openapi-typescript and openapi-fetch: the types come from the specification alone.
import assert from "node:assert/strict";
import createClient from "openapi-fetch";
import type { paths } from "./schema.js";

const api = createClient<paths>({
  baseUrl: process.env.DUEPOST_URL!,
  headers: { authorization: `Bearer ${process.env.DUEPOST_KEY}` },
});
const queue = "typescript";

/** Goes on only with an answer that is none of the errors. */
function good<T>(answer: { data?: T; error?: { detail: string }; response: Response }): T {
  assert.ok(answer.data, `${answer.response.status} ${answer.error?.detail}`);
  return answer.data;
}

const path = { queue, id: "later" };
const created = await api.POST("/queues/{queue}/tasks", {
  params: { path: { queue } },
  body: { id: "later", payload: { order_id: 1042 }, delay: "1h" },
});
assert.equal(created.response.status, 201);
const scheduled = good(created);
assert.equal(scheduled.state, "scheduled");

const moved = good(await api.PATCH("/queues/{queue}/tasks/{id}", { params: { path }, body: { delay: "2h" } }));
assert.ok(Date.parse(moved.run_at) > Date.parse(scheduled.run_at));

assert.ok(good(await api.POST("/queues/{queue}/pause", { params: { path: { queue } } })).paused);
assert.ok(!good(await api.POST("/queues/{queue}/resume", { params: { path: { queue } } })).paused);

good(await api.POST("/queues/{queue}/tasks", { params: { path: { queue } }, body: { id: "now", payload: [1.5, null] } }));
const claimed = good(await api.POST("/queues/{queue}/claim", { params: { path: { queue } }, body: { wait: "5s" } }));
const [task] = claimed.tasks;
assert.deepEqual([task?.id, task?.payload], ["now", [1.5, null]]);
const acked = good(
  await api.POST("/queues/{queue}/tasks/{id}/ack", {
    params: { path: { queue, id: "now" } },
    body: { token: task!.lease.token },
  }),
);
assert.equal(acked.state, "completed");

assert.equal(good(await api.DELETE("/queues/{queue}/tasks/{id}", { params: { path } })).state, "cancelled");

const refused = await api.GET("/queues/{queue}/tasks/{id}", { params: { path: { queue, id: "none" } } });
assert.equal(refused.error?.type, "/problems/task-not-found");
console.log("typescript: scheduled, moved, paused, claimed, acked and cancelled");
