//! One deadline for the whole attempt, in every way to be slow; and what becomes of connections.

use std::time::Instant;

use tokio::sync::Notify;

use super::{
    receiver::{Receiver, Step, Step::*, answer, send},
    *,
};

/// The timeout of these calls; and how much later they may end on a busy machine.
const LIMIT: Duration = Duration::from_millis(400);
const SLACK: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(20);

/// Calls a slow receiver; the call ends with its deadline, and the connection with the call.
async fn slow(script: Vec<Step>, body: bytes::Bytes) -> Report {
    let delivery = delivery(); // kept, so that only a cut closes
    let receiver = Receiver::always(script);
    let begun = Instant::now();
    let report = delivery.call(Call { timeout: LIMIT, body, ..call(&receiver.url()) }).await;
    let took = begun.elapsed();
    assert!(took >= LIMIT && took < LIMIT + SLACK, "{took:?} {report:?}");
    receiver.until(|seen| seen.ended == 1).await;
    report
}

#[tokio::test]
async fn c100_no_head_within_the_deadline_is_a_timeout() {
    for script in [
        vec![Rest],
        vec![Request, Rest],
        vec![Request, Drip("H", PAUSE)],
        vec![Request, send("HTTP/1.1 200 OK"), Rest],
        vec![Request, send("HTTP/1.1 200 OK\r\n"), Drip("x: y\r\n", PAUSE)],
        vec![Request, send("HTTP/1.1 200 OK\r\nx: "), Drip("y", PAUSE)],
        vec![Request, Drip("HTTP/1.1 103 Early Hints\r\n\r\n", PAUSE)],
    ] {
        // "HHHH" is no status line: that one fails at once, so let it begin rightly
        let script = match script.as_slice() {
            [Request, Drip("H", pause)] => vec![Request, send("HTTP/1.1 200 "), Drip("O", *pause)],
            _ => script,
        };
        let report = slow(script, "{}".into()).await;
        assert_eq!((report.outcome, error(&report)), (Outcome::Timeout, "no answer within 400ms"));
        assert_eq!((report.status, report.response.as_deref()), (None, None));
        assert!(report.duration >= LIMIT);
    }
}

#[tokio::test]
async fn c104_a_flood_of_interim_answers_ends_at_the_limit_and_not_only_at_the_deadline() {
    let early = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n";
    let receiver = Receiver::always(vec![Request, send(early.repeat(20_000)), Rest]);
    let report = delivery().call(Call { timeout: Duration::from_secs(60), ..call(&receiver.url()) }).await;
    assert_eq!((report.outcome, error(&report)), (Outcome::Unreachable, "more than 256 KiB came before an answer"));
}

#[tokio::test]
async fn c100_a_request_that_nobody_takes_is_a_timeout_and_not_sent_later() {
    let delivery = delivery(); // kept, so that only a cut closes
    let go = Arc::new(Notify::new());
    let receiver = Receiver::always(vec![Head, Until(Arc::clone(&go)), Rest]);
    let body = bytes::Bytes::from(vec![b' '; 8 << 20]);
    let report = delivery.call(Call { timeout: LIMIT, body: body.clone(), ..call(&receiver.url()) }).await;
    assert_eq!((report.outcome, error(&report)), (Outcome::Timeout, "no answer within 400ms"));

    go.notify_one();

    let seen = receiver.until(|seen| seen.ended == 1).await;
    assert!(seen.rest < body.len() - (1 << 20), "the rest was still sent: {}", seen.rest);
}

#[tokio::test]
async fn c100_after_a_2xx_a_slow_body_takes_what_is_left_and_changes_nothing() {
    for (head, drip) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n", "x"),
        ("HTTP/1.1 200 OK\r\n\r\n", "x"),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "1\r\nx\r\n"),
    ] {
        let report = slow(vec![Request, send(head), Drip(drip, PAUSE)], "{}".into()).await;
        assert_eq!((report.outcome, report.status, report.error), (Outcome::Delivered, Some(200), None));
        assert!(report.response.is_some_and(|text| text.starts_with('x')));
        assert!(report.duration < LIMIT, "the time of the body counts: {:?}", report.duration);
    }
}

#[tokio::test]
async fn a_call_that_is_dropped_takes_its_connection_along() {
    let receiver = Receiver::always(vec![Request, Rest]);
    let delivery = delivery();
    let under_way = tokio::spawn({
        let call = call(&receiver.url());
        async move { delivery.call(call).await }
    });
    receiver.until(|seen| seen.requests.len() == 1).await;

    under_way.abort();

    receiver.until(|seen| seen.ended == 1).await;
}

#[tokio::test]
async fn clean_exchanges_share_a_connection() {
    let script = (0..20).flat_map(|_| [Request, answer(200, "ok")]).collect();
    let receiver = Receiver::always(script);
    let delivery = delivery();
    for _ in 0..20 {
        assert_eq!(delivery.call(call(&receiver.url())).await.outcome, Outcome::Delivered);
    }
    assert!(receiver.seen().accepted < 10, "{} connections for 20 calls", receiver.seen().accepted);
}

/// Neither its own request nor what its connection hands over wakes a call: that would double the work of each.
#[tokio::test]
async fn a_call_is_woken_by_its_answer_alone() {
    let [go, answered, end] = [(); 3].map(|()| Arc::new(Notify::new()));
    let script = vec![Request, answer(200, ""), Request, Until(Arc::clone(&go)), answer(200, "")];
    let (delivery, receiver) = (delivery(), Receiver::always(script));
    assert_eq!(delivery.call(call(&receiver.url())).await.outcome, Outcome::Delivered);
    let under_way = tokio::spawn({
        let (call, answered, end) = (call(&receiver.url()), Arc::clone(&answered), Arc::clone(&end));
        let mut whole = Box::pin(async move {
            let report = delivery.call(call).await;
            answered.notify_one();
            end.notified().await;
            report
        });
        let mut polls = 0;
        std::future::poll_fn(move |cx| {
            polls += 1;
            whole.as_mut().poll(cx).map(|report| (report.outcome, polls))
        })
    });
    receiver.until(|seen| seen.requests.len() == 2).await;
    go.notify_one();
    answered.notified().await;
    tokio::task::yield_now().await; // what it would be woken for comes first
    end.notify_one();

    assert_eq!(under_way.await.unwrap(), (Outcome::Delivered, 3), "the start, the answer, and our end");
    assert_eq!(receiver.seen().accepted, 1);
}

#[tokio::test]
async fn a_connection_older_than_a_minute_is_not_used_again() {
    let go = Arc::new(Notify::new());
    let first = vec![Request, Until(Arc::clone(&go)), answer(200, ""), Request, answer(500, "used again")];
    let receiver = Receiver::start(vec![first, vec![Request, answer(204, "")]]);
    let delivery = delivery();
    let under_way = tokio::spawn({
        let (delivery, call) = (delivery.clone(), Call { timeout: Duration::from_secs(3600), ..call(&receiver.url()) });
        async move { delivery.call(call).await }
    });
    receiver.until(|seen| seen.requests.len() == 1).await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(61)).await;
    tokio::time::resume();
    go.notify_one();

    assert_eq!(under_way.await.unwrap().status, Some(200));
    assert_eq!(delivery.call(call(&receiver.url())).await.status, Some(204));
}

#[tokio::test]
async fn c091_a_receiver_that_reads_and_closes_can_be_tried_again() {
    let receiver = Receiver::start(vec![vec![Request], vec![Request, answer(200, "")]]);
    let delivery = delivery();
    let report = delivery.call(call(&receiver.url())).await;
    assert_eq!((report.outcome, error(&report)), (Outcome::Unreachable, "connection closed before an answer"));
    assert_eq!(delivery.call(call(&receiver.url())).await.outcome, Outcome::Delivered);
    assert_eq!(receiver.seen().requests.len(), 2, "a request went out twice by itself");
}
