//! What an operation answers for its own reasons: success in each form, and each refusal.

use serde_json::{Value, json};

use super::{COMMON, Case, TROUBLE, body_for, call_lawfully, cases};
use crate::support::{ApiAnswer, Client, Service, World};

/// In which state the call finds the task `t` (and, where there is a queue, a disabled webhook `t` beside it).
#[derive(Clone, Copy)]
enum Given {
    /// There is not even a queue.
    Nothing,
    /// A queue without tasks and webhooks.
    Empty,
    /// Due in an hour.
    Scheduled,
    /// Due now.
    Due,
    /// In the hands of a consumer.
    Claimed,
    /// The same, and cancelled meanwhile.
    Cancelling,
    /// Claimed, given back and claimed anew.
    ClaimedAgain,
    Acked,
    /// Cancelled, and another task has taken the only place of the queue.
    Full,
    /// Scheduled; the queue has a second webhook.
    TwoWebhooks,
}

/// A second service makes queues by PUT only.
struct It {
    world: World,
    strict: Service,
}

/// A queue of its own for a case, and the call to be made on it.
struct Stage<'a> {
    api: &'a Client,
    queue: String,
    hook: String,
    other_hook: String,
}

impl Stage<'_> {
    fn path(&self, rest: &str) -> String {
        format!("/queues/{}{rest}", self.queue)
    }

    async fn schedule(&self, task: Value) {
        self.api.post(&self.path("/tasks"), task).await.expect(201);
    }

    async fn claim(&self) -> String {
        let claimed =
            self.api.post(&self.path("/claim"), json!({"wait": "5s", "lease": "1h"})).await.expect(200).json();
        claimed["tasks"][0]["lease"]["token"].as_str().expect("a task was due").to_owned()
    }

    async fn register(&self, id: &str, url: &str) {
        let hook = json!({"id": id, "url": url, "enabled": false});
        self.api.post(&self.path("/webhooks"), hook).await.expect(201);
    }

    /// Sets the stage; gives the token of the first claim, if there was one.
    async fn set(&self, given: Given) -> String {
        match given {
            Given::Nothing => return String::new(),
            Given::Empty => {
                self.api.put(&self.path(""), json!({})).await.expect(201);
                return String::new();
            }
            _ => self.register("t", &self.hook).await,
        }
        let due_now = json!({"id": "t", "payload": 1});
        let later = json!({"id": "t", "payload": 1, "delay": "1h"});
        match given {
            Given::Nothing | Given::Empty => {}
            Given::Scheduled => self.schedule(later).await,
            Given::TwoWebhooks => {
                self.schedule(later).await;
                self.register("other", &self.other_hook).await;
            }
            Given::Full => {
                self.api.put(&self.path(""), json!({"max_size": 1})).await.expect(200);
                self.schedule(later).await;
                self.api.delete(&self.path("/tasks/t")).await.expect(200);
                self.schedule(json!({"id": "other", "payload": 1, "delay": "1h"})).await;
            }
            Given::Due => self.schedule(due_now).await,
            Given::Claimed | Given::Cancelling | Given::ClaimedAgain | Given::Acked => {
                self.schedule(due_now).await;
                let token = self.claim().await;
                match given {
                    Given::Cancelling => _ = self.api.delete(&self.path("/tasks/t")).await.expect(202),
                    Given::Acked => {
                        self.api.post(&self.path("/tasks/t/ack"), json!({"token": token})).await.expect(200);
                    }
                    Given::ClaimedAgain => {
                        let back = json!({"token": token, "failed": false});
                        self.api.post(&self.path("/tasks/t/nack"), back).await.expect(200);
                        self.claim().await;
                    }
                    _ => {}
                }
                return token;
            }
        }
        String::new()
    }
}

/// What must be there, so that the lawful call on task or webhook `t` is answered so.
fn given(case: &Case) -> Given {
    let (operation, problem) = (case.operation.id.as_str(), case.problem.as_str());
    match (operation, case.status, problem) {
        ("put_queue", 201, "")
        | ("get_livez" | "get_readyz" | "get_version" | "get_openapi" | "get_docs" | "get_metrics", 200, "") => {
            Given::Nothing
        }
        ("delete_queue", 204, "") | ("put_task" | "put_webhook" | "create_webhook" | "create_task", 201, "") => {
            Given::Empty
        }
        ("claim_tasks", 200, "") => Given::Due,
        ("ack_task" | "nack_task" | "extend_task", 200, "") | ("cancel_task", 202, "") => Given::Claimed,
        (
            "create_task"
            | "create_tasks"
            | "get_task"
            | "list_tasks"
            | "put_task"
            | "patch_task"
            | "cancel_task"
            | "run_task"
            | "list_queues"
            | "get_queue"
            | "put_queue"
            | "patch_queue"
            | "get_queue_stats"
            | "pause_queue"
            | "resume_queue"
            | "purge_queue"
            | "replay_queue"
            | "list_webhooks"
            | "get_webhook"
            | "put_webhook"
            | "patch_webhook"
            | "rotate_webhook_secret"
            | "test_webhook",
            200,
            "",
        )
        | ("delete_webhook", 204, "")
        | ("delete_queue", 409, "queue-not-empty")
        | ("create_task", 409, "task-exists")
        | ("create_tasks", 409, "batch-refused")
        | ("put_task", 412, "precondition-failed") => Given::Scheduled,
        ("create_task", 409, "task-active") => Given::Cancelling,
        ("patch_task" | "run_task", 409, "task-active") => Given::Claimed,
        ("patch_task" | "run_task" | "cancel_task", 409, "task-finished") => Given::Acked,
        ("ack_task" | "nack_task" | "extend_task", 409, "lease-lost") => Given::ClaimedAgain,
        ("create_task" | "put_task" | "run_task", 429, "queue-full") => Given::Full,
        ("create_webhook" | "put_webhook" | "patch_webhook", 409, "webhook-exists") => Given::TwoWebhooks,
        (_, 404, "task-not-found") => Given::Claimed,
        (_, 404, "webhook-not-found") => Given::Scheduled,
        (_, 404, "queue-not-found") => Given::Nothing,
        _ => panic!("nothing is known that provokes {}", case.name()),
    }
}

/// The body, where it is another than the lawful one.
fn body(case: &Case, stage: &Stage<'_>) -> Option<Value> {
    Some(match (case.operation.id.as_str(), case.status, case.problem.as_str()) {
        ("create_task", 200, _) => json!({"id": "t", "payload": 1, "delay": "1h"}),
        ("create_task", 409, _) => json!({"id": "t", "payload": 2}),
        ("create_tasks", 409, _) => {
            json!({"tasks": [{"payload": 1}, {"payload": 1, "delay": "never"}], "atomic": true})
        }
        (_, 409, "webhook-exists") => json!({"url": stage.other_hook}),
        ("patch_task", 409, _) => json!({"payload": 2}),
        _ => return None,
    })
}

async fn provoke(it: &It, n: usize, case: &Case) -> ApiAnswer {
    let hook = |side: &str| it.world.receiver.url(&format!("/{n}/{side}"));
    let stage = Stage { api: &it.world.api, queue: format!("q{n}"), hook: hook("hook"), other_hook: hook("other") };
    let token = stage.set(given(case)).await;
    let (operation, missing) = (&case.operation, case.status == 404 && case.problem != "queue-not-found");
    let target = operation.path_to(&stage.queue, if missing { "none" } else { "t" });
    if case.status == 404 && case.problem == "queue-not-found" {
        // A token of the right form, which no claim on this queue gave.
        let elsewhere = Stage { queue: format!("elsewhere{n}"), ..stage };
        let token = elsewhere.set(Given::Claimed).await;
        return call_lawfully(&it.strict.client(), operation, &target, &token).await;
    }
    let text = body(case, &stage).or_else(|| body_for(operation, &token)).map(|body| body.to_string());
    let mut headers = Vec::from(text.is_some().then_some(("content-type", "application/json")).as_slice());
    if case.status == 412 {
        headers.push(("if-none-match", "*"));
    }
    super::call(stage.api, operation, &target, &headers, text).await
}

#[tokio::test]
async fn every_outcome_of_every_operation_can_be_had() {
    let world = World::start().await;
    let strict = Service::builder(&world.redis).switch("--no-auto-create").start().await;
    let it = It { world, strict };
    let own = cases().into_iter().filter(|case| !COMMON.contains(&case.status) && !TROUBLE.contains(&case.status));
    for (n, case) in own.enumerate() {
        case.check(&provoke(&it, n, &case).await);
    }
}
