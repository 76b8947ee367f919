//! The specification: what the handlers declare, made into what generators of clients need.
//!
//! Answers come from the structs that are written. Requests are drawn by hand in `requests.json`, because their rules
//! (closed, exclusive, limits) are more than a struct says; a test compares them with what the readers know.

use serde_json::{Map, Value, json};
use utoipa::OpenApi;

use super::{
    durability,
    problem::{Kind, ProblemOut},
};

/// Every operation: method, path, `operationId`. For the metrics; a test compares it with the routes.
pub const OPERATIONS: &[(&str, &str, &str)] = &[
    ("POST", "/queues/{queue}/tasks", "create_task"),
    ("GET", "/queues/{queue}/tasks", "list_tasks"),
    ("GET", "/queues/{queue}/tasks/{id}", "get_task"),
    ("DELETE", "/queues/{queue}/tasks/{id}", "cancel_task"),
    ("PUT", "/queues/{queue}/tasks/{id}", "put_task"),
    ("PATCH", "/queues/{queue}/tasks/{id}", "patch_task"),
    ("POST", "/queues/{queue}/tasks/{id}/run", "run_task"),
    ("POST", "/queues/{queue}/batch", "create_tasks"),
    ("POST", "/queues/{queue}/claim", "claim_tasks"),
    ("POST", "/queues/{queue}/tasks/{id}/ack", "ack_task"),
    ("POST", "/queues/{queue}/tasks/{id}/nack", "nack_task"),
    ("POST", "/queues/{queue}/tasks/{id}/extend", "extend_task"),
    ("GET", "/queues", "list_queues"),
    ("GET", "/queues/{queue}", "get_queue"),
    ("PUT", "/queues/{queue}", "put_queue"),
    ("PATCH", "/queues/{queue}", "patch_queue"),
    ("DELETE", "/queues/{queue}", "delete_queue"),
    ("POST", "/queues/{queue}/pause", "pause_queue"),
    ("POST", "/queues/{queue}/resume", "resume_queue"),
    ("POST", "/queues/{queue}/purge", "purge_queue"),
    ("POST", "/queues/{queue}/replay", "replay_queue"),
    ("GET", "/queues/{queue}/stats", "get_queue_stats"),
    ("POST", "/queues/{queue}/webhooks", "create_webhook"),
    ("GET", "/queues/{queue}/webhooks", "list_webhooks"),
    ("GET", "/queues/{queue}/webhooks/{id}", "get_webhook"),
    ("PUT", "/queues/{queue}/webhooks/{id}", "put_webhook"),
    ("PATCH", "/queues/{queue}/webhooks/{id}", "patch_webhook"),
    ("DELETE", "/queues/{queue}/webhooks/{id}", "delete_webhook"),
    ("POST", "/queues/{queue}/webhooks/{id}/rotate-secret", "rotate_webhook_secret"),
    ("POST", "/queues/{queue}/webhooks/{id}/test", "test_webhook"),
    ("GET", "/metrics", "get_metrics"),
    ("GET", "/livez", "get_livez"),
    ("GET", "/readyz", "get_readyz"),
    ("GET", "/version", "get_version"),
    ("GET", "/openapi.json", "get_openapi"),
    ("GET", "/docs", "get_docs"),
];

/// Fields of answers that may be missing; all others are always there.
const MAY_BE_MISSING: &[(&str, &[&str])] = &[
    ("Task", &["headers", "payload", "attempts", "webhooks"]),
    ("Webhook", &["secret"]),
    ("Problem", &["errors", "state", "task", "task_id", "task_ids"]),
    ("Retry", &["max_attempts", "backoff"]),
];

/// Pages of lists, and what is on them.
const PAGES: [(&str, &str); 3] = [("TaskPage", "Task"), ("QueuePage", "QueueSummary"), ("WebhookPage", "Webhook")];

/// Answered from what the process knows, or with whatever Redis says: there is no fault of ours to answer with.
const CANNOT_FAIL: [&str; 7] =
    ["get_livez", "get_readyz", "get_version", "get_openapi", "get_docs", "get_metrics", "list_queues"];

/// Those that read a task that was there before, and may fail to.
const SHOW_A_TASK: [&str; 8] =
    ["create_task", "get_task", "cancel_task", "patch_task", "run_task", "ack_task", "nack_task", "extend_task"];
/// Need room in Redis: refused when it is full, while all that drains goes on.
const GROW: [&str; 6] = ["create_task", "create_tasks", "put_task", "patch_task", "run_task", "replay_queue"];

const REQUESTS: &str = include_str!("requests.json");

/// What `"pattern": "<duration>"` of a request means. A little more than the readers take: `P` and `PT` fit too.
const DURATION: &str = "^(([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?\
    |P([0-9]+D)?(T([0-9]+H)?([0-9]+M)?([0-9]+S)?)?)$";

#[derive(OpenApi)]
#[openapi(
    info(title = "Duepost", description = "Tasks, POSTed when due: a delay queue on Redis. Deliveries are signed by Standard Webhooks."),
    tags(
        (name = "tasks", description = "Schedule, read, move, run and cancel"),
        (name = "consumers", description = "Pull due tasks instead of being called"),
        (name = "queues", description = "Settings and figures"),
        (name = "webhooks", description = "Where due tasks are POSTed"),
        (name = "service", description = "The service itself"),
    ),
    components(schemas(ProblemOut))
)]
struct Document;

/// The specification as text: the same for every build of this version; needs no running service.
#[must_use]
pub fn openapi_json() -> String {
    let mut text = serde_json::to_string_pretty(&document()).unwrap_or_default();
    text.push('\n');
    text
}

fn document() -> Value {
    let (guarded, open) = super::operations();
    let mut api = Document::openapi();
    api.merge(guarded.into_openapi());
    api.merge(open.into_openapi());
    let mut document = renamed(&api);
    let answers = document["components"]["schemas"].take();
    let mut schemas = Map::new();
    if let Value::Object(answers) = answers {
        schemas.extend(answers.into_iter().map(|(name, schema)| {
            let schema = open_answer(&name, schema);
            (name, schema)
        }));
    }
    lease_tasks(&mut schemas);
    if let Ok(Value::Object(requests)) = serde_json::from_str(&REQUESTS.replace("<duration>", DURATION)) {
        schemas.extend(requests);
    }
    let info = &mut document["info"];
    info["version"] = env!("CARGO_PKG_VERSION").into();
    info["license"] = json!({"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"});
    document["servers"] = json!([{"url": "/"}]);
    document["security"] = json!([{"key": []}]);
    document["components"]["schemas"] = schemas.into();
    document["components"]["securitySchemes"] = json!({"key": {
        "type": "http", "scheme": "bearer",
        "description": "An API key, where the service has some; made by `duepost key new`.",
    }});
    let header = |description: &str, schema: Value| json!({"description": description, "schema": schema});
    document["components"]["headers"] = json!({
        "x-request-id": header("The client's own if it is 1 to 128 of A-Z a-z 0-9 . _ -", json!({"type": "string"})),
        "retry-after": header("Seconds", json!({"type": "integer"})),
        "www-authenticate": header("`Bearer`", json!({"type": "string"})),
        durability::HEADER.as_str(): header("What the change survives: `none`, `memory`, `disk` or `replica`", json!({"type": "string"})),
    });
    if let Some(paths) = document["paths"].as_object_mut() {
        for (method, operation) in paths.values_mut().filter_map(Value::as_object_mut).flat_map(|item| item.iter_mut())
        {
            complete(operation);
            if durability::is_told(&method.to_uppercase(), operation["operationId"].as_str().unwrap_or_default()) {
                tell_durability(operation);
            }
        }
    }
    document.sort_all_objects();
    document
}

/// With names that read well in a client.
fn renamed(api: &utoipa::openapi::OpenApi) -> Value {
    let mut text = serde_json::to_string(api).unwrap_or_default();
    for (page, item) in PAGES {
        text = text.replace(&format!("ListOut_{item}"), page);
    }
    serde_json::from_str(&text).unwrap_or_default()
}

/// Answers may grow, and a field without a value is there as `null`.
fn open_answer(name: &str, mut schema: Value) -> Value {
    if name == "Backoff" {
        let of = |kind| format!("#/components/schemas/{kind}Backoff");
        let kinds = ["Exponential", "Fixed", "Schedule"].map(of);
        return json!({
            "description": "The pauses between attempts.",
            "oneOf": kinds.each_ref().map(|r| json!({"$ref": r})),
            "discriminator": {"propertyName": "kind", "mapping": {
                "exponential": kinds[0], "fixed": kinds[1], "schedule": kinds[2],
            }},
        });
    }
    flatten(&mut schema);
    for field in schema["properties"].as_object_mut().into_iter().flat_map(|fields| fields.values_mut()) {
        let null = |one: &Value| one["type"] == "null";
        if field.get("oneOf").and_then(Value::as_array).is_some_and(|of| of.iter().any(null)) {
            // "or null" is no choice that needs a discriminator
            field["anyOf"] = field["oneOf"].take();
            field.as_object_mut().map(|f| f.remove("oneOf"));
        }
    }
    let missing = MAY_BE_MISSING.iter().find(|(of, _)| *of == name).map_or(&[][..], |(_, fields)| fields);
    if let Some(properties) = schema["properties"].as_object() {
        let always = properties.keys().filter(|field| !missing.contains(&field.as_str()));
        let always: Vec<Value> = always.map(|field| field.as_str().into()).collect();
        if let Some(kind) = name.strip_suffix("Backoff") {
            schema["properties"]["kind"] = json!({"type": "string", "enum": [kind.to_lowercase()]});
        }
        if always.is_empty() {
            schema.as_object_mut().map(|s| s.remove("required"));
        } else {
            schema["required"] = always.into();
        }
        schema["additionalProperties"] = true.into();
    }
    if let Some((_, item)) = PAGES.iter().find(|(page, _)| *page == name) {
        schema["properties"]["items"]["items"] = json!({"$ref": format!("#/components/schemas/{item}")});
    }
    schema
}

/// A task in a consumer's hands is a task and its lease.
fn lease_tasks(schemas: &mut Map<String, Value>) {
    let Some(task) = schemas.get("Task").cloned() else { return };
    let Some(leased) = schemas.get_mut("LeasedTask") else { return };
    let lease = leased["properties"]["lease"].take();
    let description = leased["description"].take();
    *leased = task;
    leased["description"] = description;
    leased["properties"]["lease"] = lease;
    if let Some(required) = leased["required"].as_array_mut() {
        required.push("lease".into());
    }
}

/// A flattened part becomes fields like the others: generators do not take `allOf` well.
fn flatten(schema: &mut Value) {
    let Some(parts) = schema.as_object_mut().and_then(|s| s.remove("allOf")) else { return };
    let (mut properties, mut description) = (Map::new(), Value::Null);
    for part in parts.as_array().into_iter().flatten() {
        // the part with the description of the whole comes last
        if let Some(text) = part.get("description").filter(|_| part.get("required").is_some() || description.is_null())
        {
            description = text.clone();
        }
        for inner in part.get("oneOf").and_then(Value::as_array).into_iter().flatten().chain([part]) {
            if let Some(fields) = inner.get("properties").and_then(Value::as_object) {
                properties.extend(fields.clone());
            }
        }
    }
    schema["type"] = "object".into();
    if schema.get("description").is_none() {
        schema["description"] = description;
    }
    schema["properties"] = properties.into();
}

/// What every operation has beside what its handler says: the errors of what surrounds it, and the request's id.
fn complete(operation: &mut Value) {
    let open = operation.get("security").is_some();
    let has_body = operation.get("requestBody").is_some();
    let id = operation["operationId"].as_str().unwrap_or_default().to_owned();
    if open {
        operation["security"] = json!([]);
    }
    let mut errors = vec![(400, Kind::InvalidRequest)];
    if !CANNOT_FAIL.contains(&id.as_str()) {
        errors.push((500, Kind::Internal));
    }
    if !open {
        errors.extend([(401, Kind::Unauthorized), (403, Kind::Forbidden)]);
    }
    if has_body {
        errors.extend([(408, Kind::RequestTimeout), (413, Kind::TooLarge), (415, Kind::UnsupportedMediaType)]);
        let all_optional = [
            "put_queue",
            "patch_queue",
            "patch_webhook",
            "pause_queue",
            "replay_queue",
            "claim_tasks",
            "rotate_webhook_secret",
            "test_webhook",
        ];
        let optional = all_optional.contains(&id.as_str());
        operation["requestBody"]["required"] = (!optional).into();
    }
    let unavailable = unavailable(&id);
    if !unavailable.is_empty() {
        errors.push((503, Kind::Unavailable));
    }
    let Some(responses) = operation["responses"].as_object_mut() else { return };
    for (status, kind) in errors {
        let description = match kind {
            Kind::Unavailable => {
                unavailable.iter().map(|kind| format!("`{}`", kind.slug())).collect::<Vec<_>>().join(", ")
            }
            Kind::Internal if SHOW_A_TASK.contains(&id.as_str()) => {
                format!("`{}`, `{}`", Kind::Internal.slug(), Kind::Unreadable.slug())
            }
            kind => format!("`{}`", kind.slug()),
        };
        responses.entry(status.to_string()).or_insert_with(|| json!({"description": description}));
    }
    for (status, response) in responses.iter_mut() {
        if status.as_str() >= "400" {
            let schema = json!({"schema": {"$ref": "#/components/schemas/Problem"}});
            response["content"] = json!({"application/problem+json": schema});
        }
        let more = match status.as_str() {
            "401" => Some("www-authenticate"),
            "503" => Some("retry-after"),
            _ => None,
        };
        for header in more.into_iter().chain(["x-request-id"]) {
            response["headers"][header] = json!({"$ref": format!("#/components/headers/{header}")});
        }
    }
}

/// What a 503 of the operation may be: those that only read have done nothing, whatever became of them.
fn unavailable(id: &str) -> &'static [Kind] {
    use Kind::{OutcomeUnknown, Overloaded, StorageFull, Unavailable};
    match id {
        "list_queues" => &[Unavailable, Overloaded],
        id if CANNOT_FAIL.contains(&id) => &[],
        id if GROW.contains(&id) => &[Unavailable, StorageFull, Overloaded, OutcomeUnknown],
        id if id.starts_with("get_") || id.starts_with("list_") || id == "test_webhook" => &[Unavailable, Overloaded],
        _ => &[Unavailable, Overloaded, OutcomeUnknown],
    }
}

/// Answers to calls that change something say what the change survives.
fn tell_durability(operation: &mut Value) {
    for (status, response) in operation["responses"].as_object_mut().into_iter().flatten() {
        if status.starts_with('2') {
            response["headers"][durability::HEADER.as_str()] =
                json!({"$ref": format!("#/components/headers/{}", durability::HEADER)});
        }
    }
}

#[cfg(test)]
mod tests;
