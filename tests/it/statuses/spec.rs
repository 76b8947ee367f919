//! The specification as a list of what must be shown, and as the judge of what was answered.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::support::ApiAnswer;

/// One operation of the specification.
pub struct Operation {
    pub id: String,
    pub method: String,
    pub path: String,
    spec: Arc<Value>,
}

/// One answer that the specification names: a status and, for an error, one of its problem types (else "").
pub struct Case {
    pub operation: Arc<Operation>,
    pub status: u16,
    pub problem: String,
}

/// Every answer that openapi/openapi.json names.
pub fn cases() -> Vec<Case> {
    let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/openapi/openapi.json"));
    let spec: Arc<Value> = Arc::new(serde_json::from_str(text).expect("JSON"));
    let mut cases = Vec::new();
    for (path, item) in object(&spec["paths"]) {
        for (method, operation) in object(item) {
            let id = operation["operationId"].as_str().expect("an operationId").to_owned();
            let (method, path) = (method.to_uppercase(), path.clone());
            let operation = Arc::new(Operation { id, method, path, spec: Arc::clone(&spec) });
            for status in object(&operation.it()["responses"]).keys() {
                let status = status.parse().expect("a status");
                let problems = if status < 400 { vec![String::new()] } else { operation.problems(status) };
                let case = |problem| Case { operation: Arc::clone(&operation), status, problem };
                cases.extend(problems.into_iter().map(case));
            }
        }
    }
    cases
}

impl Operation {
    fn it(&self) -> &Value {
        &self.spec["paths"][&self.path][self.method.to_lowercase()]
    }

    pub fn takes_a_body(&self) -> bool {
        self.it().get("requestBody").is_some()
    }

    /// Its path in this queue, with this id where it has one.
    pub fn path_to(&self, queue: &str, id: &str) -> String {
        self.path.replace("{queue}", queue).replace("{id}", id)
    }

    /// The types that the description of an error names before its colon: `` `a`, `b`: what they mean ``.
    fn problems(&self, status: u16) -> Vec<String> {
        let description = self.it()["responses"][status.to_string()]["description"].as_str().expect("a description");
        let names = description.split(':').next().unwrap_or_default();
        let problems: Vec<String> = names.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        assert!(!problems.is_empty(), "{} {status} names no problem type: {description}", self.id);
        problems
    }
}

impl Case {
    /// `create_task 409 task-exists`.
    pub fn name(&self) -> String {
        format!("{} {} {}", self.operation.id, self.status, self.problem).trim_end().to_owned()
    }

    /// Goes on only with the answer that the specification describes: status, problem type, content type, headers, and
    /// a body of that schema.
    pub fn check(&self, answer: &ApiAnswer) {
        let (name, text) = (self.name(), answer.text());
        assert_eq!(answer.status, self.status, "{name}: {text}");
        let described = &self.operation.it()["responses"][self.status.to_string()];
        for header in object(&described["headers"]).keys() {
            assert!(answer.header(header).is_some_and(|value| !value.is_empty()), "{name}: no {header}");
        }
        assert_eq!(answer.header("retry-after").is_some(), self.status == 503, "{name}: retry-after");
        assert_eq!(answer.header("www-authenticate").is_some(), self.status == 401, "{name}: www-authenticate");
        if self.status >= 400 {
            let problem = answer.json();
            assert_eq!(problem["type"], format!("/problems/{}", self.problem), "{name}: {text}");
            answer.problem(self.status, &self.problem);
        }
        let Some((media_type, content)) = described["content"].as_object().and_then(|c| c.iter().next()) else {
            assert_eq!((answer.header("content-type"), text.as_str()), (None, ""), "{name}");
            return;
        };
        let given = answer.header("content-type").unwrap_or_default();
        assert_eq!(given.split(';').next(), Some(media_type.as_str()), "{name}");
        if media_type.ends_with("json") {
            conforms(&self.operation.spec, &content["schema"], &answer.json(), &name);
        }
    }
}

/// As far as our answers go: `$ref`, `type`, `enum`, `required`, `properties`, `items`, and one that fits of several.
fn conforms(spec: &Value, schema: &Value, value: &Value, at: &str) {
    if let Err(why) = fits(spec, schema, value) {
        panic!("{at}: {why} in {value}");
    }
}

fn fits(spec: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    if let Some(target) = schema["$ref"].as_str() {
        let target = spec.pointer(target.trim_start_matches('#')).ok_or(format!("{target} leads nowhere"))?;
        return fits(spec, target, value);
    }
    if let Some(several) = schema.get("anyOf").or(schema.get("oneOf")).and_then(Value::as_array) {
        let one = several.iter().any(|schema| fits(spec, schema, value).is_ok());
        return if one { Ok(()) } else { Err(format!("nothing of {schema} fits")) };
    }
    let types = schema["type"].as_array().map_or(std::slice::from_ref(&schema["type"]), Vec::as_slice);
    if !types.iter().filter_map(Value::as_str).any(|name| is_a(name, value)) && schema.get("type").is_some() {
        return Err(format!("{value} is no {}", schema["type"]));
    }
    if schema["enum"].as_array().is_some_and(|values| !values.contains(value)) {
        return Err(format!("{value} is not in {}", schema["enum"]));
    }
    for (n, item) in value.as_array().into_iter().flatten().enumerate() {
        fits(spec, &schema["items"], item).map_err(|why| format!("[{n}]: {why}"))?;
    }
    let Some(fields) = value.as_object() else { return Ok(()) };
    for required in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        fields.get(required).ok_or(format!("{required} is missing"))?;
    }
    for (field, schema) in schema["properties"].as_object().into_iter().flatten() {
        fields.get(field).map_or(Ok(()), |value| fits(spec, schema, value)).map_err(|why| format!("{field}: {why}"))?;
    }
    Ok(())
}

fn is_a(name: &str, value: &Value) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("the specification has a type {other}"),
    }
}

fn object(value: &Value) -> &Map<String, Value> {
    value.as_object().unwrap_or_else(|| panic!("no object: {value}"))
}
