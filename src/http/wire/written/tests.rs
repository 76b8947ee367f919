use std::{collections::BTreeMap, time::Duration};

use proptest::{prelude::*, sample::select};
use serde_json::value::RawValue;

use super::*;
use crate::{
    domain::{
        attempt::{Attempt, Outcome},
        id::{QueueName, TaskId, Uid},
        payload::Payload,
        retry::RetryPatch,
        round,
        task::{DeadReason, Task, TaskOptions, TaskState},
    },
    http::{
        batch::{BatchOut, ResultOut},
        wire::{ClaimedOut, LeasedOut, ListOut, Progress, TaskOut},
    },
    store::Token,
};

/// Written by hand it is what serde makes of it.
fn same<T: Written + Serialize>(value: &T) {
    let mut by_hand = b"before".to_vec();
    value.write(&mut by_hand).unwrap();
    assert_eq!(String::from_utf8(by_hand).unwrap(), format!("before{}", serde_json::to_string(value).unwrap()));
}

fn attempt() -> Attempt {
    Attempt {
        number: 2,
        webhook: Some("main".to_owned()),
        started_at: UnixMs(1_796_061_300_002),
        lateness_ms: 2,
        duration_ms: 31,
        outcome: Outcome::Rejected,
        status: Some(503),
        error: Some("a \"quoted\"\nline".to_owned()),
        response: Some("é\u{1}\u{2028}".to_owned()),
    }
}

fn task() -> impl Strategy<Value = Task> {
    let instant =
        select(vec![0, -1, 1_796_061_300_000, 1_796_061_300_001, 253_402_300_799_999, 253_402_300_800_000, i64::MAX]);
    let instant = instant.prop_map(UnixMs);
    let states = vec![
        TaskState::Scheduled,
        TaskState::Active,
        TaskState::Completed,
        TaskState::Dead,
        TaskState::Cancelled,
        TaskState::Expired,
    ];
    let id = select(vec!["order-1042", "01a22d7d-0de0-7c3a-9f00-1b2c3d4e5f60", "~:@-"]);
    let payload =
        select(vec![None, Some("null"), Some(r#"{"a" : [1, 2.50, "\u0000"]}"#), Some("{damaged"), Some("\u{e9}")]);
    let times = (instant.clone(), instant.clone(), instant.clone(), proptest::option::of(instant));
    let rest = (any::<u128>(), any::<bool>(), any::<bool>(), 0_u32..3, any::<bool>());
    (id, times, select(states), payload, rest).prop_map(
        |(id, (created_at, run_at, score, expires_at), state, payload, rest)| {
            let (uid, own, cancelling, lost, tried) = rest;
            let retry = RetryPatch { max_attempts: Some(5), backoff: None };
            let headers = vec![("x-tenant".to_owned(), "a \\ \"b\"".to_owned())];
            let own_options = TaskOptions {
                retry: Some(retry),
                timeout: Some(Duration::from_millis(1500)),
                headers,
                traceparent: None,
            };
            Task {
                id: TaskId::parse(id).unwrap(),
                uid: Uid(uuid::Uuid::from_u128(uid)),
                queue: QueueName::parse("orders").unwrap(),
                state,
                created_at,
                run_at,
                score,
                expires_at,
                cancelling,
                options: if own { own_options } else { TaskOptions::default() },
                lost,
                delivered_to: Vec::new(),
                progress: round::Progress {
                    attempts: if tried { vec![attempt(), attempt()] } else { Vec::new() },
                    reason: tried.then_some(DeadReason::Nack),
                    ..round::Progress::default()
                },
                payload: payload.map(|text| Payload::stored(text.into())),
            }
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_by_hand_is_what_serde_would_write(task in task(), which in 0..3_u8) {
        let each = BTreeMap::from([("main".to_owned(), "waiting"), ("audit".to_owned(), "delivered")]);
        let webhooks = [Progress::Unknown, Progress::Single, Progress::Each(each)].into_iter().nth(which.into()).unwrap();
        let token = Token::parse(&"A".repeat(48)).unwrap();
        let (lean, whole) = (|| TaskOut::lean(&task, 20), TaskOut::whole(task.clone(), 20, webhooks));
        same(&lean());
        same(&LeasedOut::new(lean(), token, task.score));
        same(&ListOut { items: vec![lean(), whole], next_cursor: Some("abc\"".to_owned()) });
        same(&ListOut::<TaskOut> { items: Vec::new(), next_cursor: None });
        same(&ClaimedOut { tasks: vec![LeasedOut::new(lean(), token, task.score)] });
        same(&ClaimedOut { tasks: Vec::new() });
        let problem = RawValue::from_string(r#"{"type": "conflict"}"#.to_owned()).ok();
        let made = ResultOut { status: 201, task: Some(lean()), problem: None };
        same(&BatchOut { results: vec![made, ResultOut { status: 409, task: None, problem }] });
    }
}
