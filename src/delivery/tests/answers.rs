//! Answers, honest and otherwise, as bytes on the wire.

use super::{
    receiver::{Receiver, Step::*, answer, send},
    *,
};
use crate::domain::attempt::{Advice, RESPONSE_KEPT};

/// Larger than all socket buffers in between.
fn large_body() -> bytes::Bytes {
    vec![b' '; 5 << 20].into()
}

async fn outcome_of(bytes: &'static str) -> Report {
    let receiver = Receiver::always(vec![Request, send(bytes)]);
    delivery().call(call(&receiver.url())).await
}

#[tokio::test]
async fn each_row_of_the_table_on_the_wire() {
    use Outcome::{Delivered, Rejected};
    let wait = Advice::RetryAfter(Duration::from_secs(7));
    for (bytes, outcome, status, advice) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", Delivered, 200, Advice::None),
        ("HTTP/1.1 204 No Content\r\n\r\n", Delivered, 204, Advice::None),
        ("HTTP/1.0 200 OK\r\n\r\nuntil close", Delivered, 200, Advice::None),
        ("HTTP/1.1 299 \r\ncontent-length: 0\r\n\r\n", Delivered, 299, Advice::None),
        ("HTTP/1.1 429 X\r\nRetry-After: 7\r\ncontent-length: 0\r\n\r\n", Rejected, 429, wait),
        ("HTTP/1.1 503 X\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n", Rejected, 503, wait),
        // the call began at 17:25:00.123
        (
            "HTTP/1.1 503 X\r\nretry-after: Mon, 30 Nov 2020 17:25:07 GMT\r\n\r\n",
            Rejected,
            503,
            Advice::RetryAfter(Duration::ZERO),
        ),
        ("HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n", Rejected, 410, Advice::Gone),
        ("HTTP/1.1 422 X\r\nDuepost-Retry: false\r\n\r\n", Rejected, 422, Advice::Refused),
        ("HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n", Rejected, 500, Advice::None),
        ("HTTP/1.1 404 X\r\ncontent-length: 0\r\n\r\n", Rejected, 404, Advice::None),
        ("HTTP/1.1 304 X\r\n\r\n", Rejected, 304, Advice::None),
        (
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
            Rejected,
            101,
            Advice::None,
        ),
    ] {
        let report = outcome_of(bytes).await;
        assert_eq!((report.outcome, report.status, report.advice), (outcome, Some(status), advice), "{bytes}");
        assert_eq!(report.error.is_none(), outcome == Delivered, "{bytes}");
    }
}

#[tokio::test]
async fn the_first_kib_of_an_answer_is_kept_whatever_its_status() {
    let long = "ü".repeat(3000);
    for (status, outcome) in [(200, Outcome::Delivered), (500, Outcome::Rejected)] {
        let receiver = Receiver::always(vec![Request, answer(status, &long)]);
        let report = delivery().call(call(&receiver.url())).await;
        assert_eq!((report.outcome, report.response.unwrap()), (outcome, "ü".repeat(RESPONSE_KEPT / 2)));
    }
}

#[tokio::test]
async fn a_success_stays_one_however_its_body_ends() {
    for end in [Reset, Shut] {
        for head in ["content-length: 100", "transfer-encoding: chunked"] {
            let head = format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n5\r\nab");
            let receiver = Receiver::always(vec![Request, send(head), end.clone()]);
            let report = delivery().call(call(&receiver.url())).await;
            assert_eq!((report.outcome, report.status), (Outcome::Delivered, Some(200)));
        }
    }
}

#[tokio::test]
async fn s8_an_endless_body_is_read_to_64_kib_and_its_connection_cut() {
    let delivery = delivery(); // kept, so that only a cut closes
    let receiver = Receiver::always(vec![
        Request,
        send("HTTP/1.1 200 OK\r\ncontent-length: 10000000000\r\n\r\n"),
        Drip("0123456789abcdef0123456789abcdef", Duration::ZERO),
    ]);
    let begun = std::time::Instant::now();
    let report = delivery.call(call(&receiver.url())).await;
    assert_eq!((report.outcome, report.response.unwrap().len()), (Outcome::Delivered, RESPONSE_KEPT));
    assert!(begun.elapsed() < Duration::from_secs(20), "read on until the deadline");
    receiver.until(|seen| seen.ended == 1).await;
}

#[tokio::test]
async fn s8_heads_beyond_the_caps_are_no_answer() {
    let fields = |n: usize| "x: y\r\n".repeat(n);
    let value = |n: usize| format!("x: {}\r\n", "y".repeat(n));
    for (fields, outcome) in [
        (fields(99), Outcome::Delivered),
        (fields(101), Outcome::Unreachable),
        (value(15 << 10), Outcome::Delivered),
        (value(17 << 10), Outcome::Unreachable),
        (value(1 << 20), Outcome::Unreachable),
    ] {
        let head = format!("HTTP/1.1 200 OK\r\n{fields}content-length: 0\r\n\r\n");
        let receiver = Receiver::always(vec![Request, send(head), Rest]);
        let report = delivery().call(call(&receiver.url())).await;
        assert_eq!(report.outcome, outcome, "{} {}", fields.len(), error(&report));
        if outcome == Outcome::Unreachable {
            assert_eq!(error(&report), "the answer's head is larger than 16 KiB or 100 headers");
            receiver.until(|seen| seen.ended == 1).await;
        }
    }
}

#[tokio::test]
async fn what_says_it_is_compressed_is_kept_as_it_came() {
    let receiver = Receiver::always(vec![
        Request,
        send("HTTP/1.1 500 X\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\nbomb"),
    ]);
    assert_eq!(delivery().call(call(&receiver.url())).await.response.as_deref(), Some("bomb"));
}

#[tokio::test]
async fn c103_an_answer_before_the_body_was_taken_counts() {
    let delivery = delivery();
    for (status, outcome) in
        [(401, Outcome::Rejected), (200, Outcome::Delivered), (429, Outcome::Rejected), (204, Outcome::Delivered)]
    {
        // closes with unread bytes, which resets; closes its side and drains; answers and closes in one breath
        for end in [vec![], vec![Shut, Rest], vec![Reset]] {
            let head = send(format!("HTTP/1.1 {status} X\r\nretry-after: 5\r\n\r\n"));
            let script = [vec![Head, head], end].concat();
            let receiver = Receiver::always(script.clone());
            let report = delivery.call(Call { body: large_body(), ..call(&receiver.url()) }).await;
            let lost = matches!(script.last(), Some(Reset)) && report.outcome == Outcome::Unreachable;
            assert!(lost || (report.outcome, report.status) == (outcome, Some(status)), "{status} {report:?}");
        }
    }
}

#[tokio::test]
async fn c103_a_reset_without_an_answer_can_be_tried_again() {
    let receiver = Receiver::always(vec![Head, Reset]);
    let report = delivery().call(Call { body: large_body(), ..call(&receiver.url()) }).await;
    assert_eq!((report.outcome, report.status), (Outcome::Unreachable, None));
    assert!(["connection reset", "connection closed before an answer"].contains(&error(&report)), "{report:?}");
}

#[tokio::test]
async fn c103_who_answers_but_never_takes_the_body_loses_the_connection() {
    let delivery = delivery(); // kept, so that only a cut closes
    let go = Arc::new(tokio::sync::Notify::new());
    let receiver = Receiver::always(vec![Head, answer(200, "ok"), Until(Arc::clone(&go)), Rest]);
    let body = bytes::Bytes::from(vec![b' '; 8 << 20]);
    let report = delivery.call(Call { body: body.clone(), ..call(&receiver.url()) }).await;
    assert_eq!((report.outcome, report.response.as_deref()), (Outcome::Delivered, Some("ok")));

    go.notify_one();

    let seen = receiver.until(|seen| seen.ended == 1).await;
    assert!(seen.rest < body.len() - (1 << 20), "the rest was still sent: {}", seen.rest);
}

#[tokio::test]
async fn c104_interim_answers_are_skipped() {
    let interim =
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n";
    let last = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    let receiver = Receiver::always(vec![Request, send(interim.repeat(500)), send(last)]);
    let report = delivery().call(call(&receiver.url())).await;
    assert_eq!((report.outcome, report.response.as_deref()), (Outcome::Delivered, Some("ok")), "{:?}", report.error);

    let report = outcome_of("HTTP/1.1 100 Continue\r\n\r\n").await;
    assert_eq!((report.outcome, report.status), (Outcome::Unreachable, None));
}

#[tokio::test]
async fn c105_stray_bytes_are_not_the_next_answer() {
    let stray = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    for first in [
        "HTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 204 No Content\r\ncontent-length: 38\r\n\r\n",
        "HTTP/1.1 304 Not Modified\r\n\r\n",
        "HTTP/1.1 500 X\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.1 500 X\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ] {
        let bad = vec![Request, send(format!("{first}{stray}")), Rest];
        let receiver = Receiver::start(vec![bad, vec![Request, answer(503, "")]]);
        let delivery = delivery();
        let before = delivery.call(call(&receiver.url())).await;
        let next = delivery.call(call(&receiver.url())).await;
        assert_eq!(before.status, first[9..12].parse().ok(), "{first}");
        assert_eq!(next.status, Some(503), "{first}: {next:?}");
        receiver.until(|seen| seen.ended == 2).await;
    }
}

#[tokio::test]
async fn c105_bad_framing_is_a_failed_attempt_and_a_closed_connection() {
    for head in [
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2",
        "HTTP/1.1 200 OK\r\ncontent-length: 2, 3",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked",
        "HTTP/1.1 200 OK\r\ncontent-length: -2",
        "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999",
        "HTTP/1.1 2000 OK",
        "HTTP/1.1 20",
        "HTTP/3.1 200 OK",
        "HTTP/1.1 200 OK\r\nno colon",
        "HTTP/1.1 200 OK\r\nname : v",
        "HTTP/1.1 200 OK\r\nfolded: a\r\n b",
        "ICY 200 OK",
        "\0\0\0\0",
        "SSH-2.0-OpenSSH_9.2",
    ] {
        let bad = vec![Request, send(format!("{head}\r\n\r\n2\r\nok\r\n0\r\n\r\n")), Rest];
        let receiver = Receiver::start(vec![bad, vec![Request, answer(503, "")]]);
        let delivery = delivery();
        let report = delivery.call(call(&receiver.url())).await;
        assert_eq!((report.outcome, report.status), (Outcome::Unreachable, None), "{head:?}: {report:?}");
        assert!(error(&report).starts_with("not a valid HTTP answer: "), "{head:?}: {report:?}");
        receiver.until(|seen| seen.ended == 1).await;
        assert_eq!(delivery.call(call(&receiver.url())).await.status, Some(503), "{head:?}");
    }
}
