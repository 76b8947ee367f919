//! What any call may meet at the door: a request that is not valid, has no key or not the right one, is too large, of the
//! wrong type or too slow.

use futures_util::future::join_all;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{Case, call, call_lawfully, cases_of};
use crate::support::{ApiAnswer, RedisServer, Service, World, secs};

const JSON: (&str, &str) = ("content-type", "application/json");

#[tokio::test]
async fn every_operation_refuses_what_is_not_valid_with_400() {
    let it = World::start().await;
    for case in cases_of(&[400]) {
        let operation = &case.operation;
        let target = operation.path_to("q", "t");
        let mut answers = vec![call_lawfully(&it.api, operation, &format!("{target}?no-such=1"), "").await];
        if operation.path.contains("{queue}") {
            answers.push(call_lawfully(&it.api, operation, &operation.path_to("-q", "t"), "").await);
        }
        if operation.path.contains("{id}") {
            answers.push(call_lawfully(&it.api, operation, &operation.path_to("q", ".t"), "").await);
        }
        if operation.takes_a_body() {
            for body in [r#"{"no-such-field":1}"#, "[]", "{"] {
                answers.push(call(&it.api, operation, &target, &[JSON], Some(body.to_owned())).await);
            }
        }
        answers.iter().for_each(|answer| case.check(answer));
    }
    let queues = it.api.get("/queues").await.expect(200).json();
    assert_eq!(queues["items"], Value::Array(Vec::new()), "what is refused makes nothing");
}

#[tokio::test]
async fn every_guarded_operation_refuses_without_the_right_key_with_401_and_403() {
    let redis = RedisServer::start().await;
    let made = std::process::Command::new(env!("CARGO_BIN_EXE_duepost"))
        .args(["key", "new", "--name", "elsewhere", "--role", "produce", "--queues", "elsewhere"])
        .output()
        .expect("the binary");
    let made: Value = serde_json::from_slice(&made.stdout).expect("JSON");
    let keys = Value::from(vec![made["entry"].clone()]).to_string();
    let service = Service::builder(&redis).env("DUEPOST_KEYS", &keys).start().await;
    let api = service.client();
    let known = format!("Bearer {}", made["key"].as_str().expect("a key"));
    for case in cases_of(&[401, 403]) {
        let target = case.operation.path_to("q", "t");
        let headers: &[&[(&str, &str)]] = match case.status {
            401 => &[&[], &[("authorization", "Bearer dp_unknown")], &[("authorization", "Basic eDp5")]],
            _ => &[&[("authorization", &known)]],
        };
        for headers in headers {
            case.check(&call(&api, &case.operation, &target, headers, None).await);
        }
    }
}

#[tokio::test]
async fn every_operation_with_a_body_has_its_limits_413_and_415() {
    let redis = RedisServer::start().await;
    let service = Service::builder(&redis).flag("--max-payload", "1KiB").flag("--max-batch", "80KiB").start().await;
    let api = service.client();
    let large = format!(r#"{{"payload":"{}"}}"#, "x".repeat(100 << 10));
    for case in cases_of(&[413, 415]) {
        let target = case.operation.path_to("q", "t");
        let sent: &[(&[(&str, &str)], &str)] = match case.status {
            413 => &[(&[JSON], &large)],
            _ => {
                &[(&[("content-type", "text/plain")], "{}"), (&[], "{}"), (&[JSON, ("content-encoding", "gzip")], "{}")]
            }
        };
        for (headers, body) in sent {
            case.check(&call(&api, &case.operation, &target, headers, Some((*body).to_owned())).await);
        }
    }
}

/// Sends a request that stops in the middle of its body, and gives what comes back until the service closes.
async fn half_a_body(api: &str, case: &Case) -> ApiAnswer {
    let mut stream = TcpStream::connect(api).await.expect("the service listens");
    let head = format!(
        "{} {} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{{",
        case.operation.method,
        case.operation.path_to("q", "t")
    );
    stream.write_all(head.as_bytes()).await.expect("the service reads");
    let mut answer = Vec::new();
    let read = tokio::time::timeout(secs(90), stream.read_to_end(&mut answer)).await;
    read.unwrap_or_else(|_| panic!("{}: still open", case.name())).expect("an answer");
    ApiAnswer::parse(&answer)
}

/// Takes the half minute that a body may take, for all of them at once.
#[tokio::test]
async fn every_operation_with_a_body_gives_up_a_slow_one_with_408() {
    let it = World::start().await;
    let cases = cases_of(&[408]);
    let answers = join_all(cases.iter().map(|case| half_a_body(it.service.address(), case))).await;
    cases.iter().zip(&answers).for_each(|(case, answer)| case.check(answer));
}
