//! Pages of one state: by score, then id, whatever moves between two of them.

use duepost::{
    domain::{
        id::TaskId,
        round::Verdict,
        task::{NewTask, TaskState},
        time::UnixMs,
    },
    store::{ClaimKind, Page, PageRequest, Settled, keys::raw_id},
};

use crate::store_kit::{Kit, anonymous, at, payload, task};

async fn page(kit: &Kit, after: Option<(UnixMs, TaskId)>, limit: usize) -> Page {
    let request = PageRequest { state: TaskState::Scheduled, after, limit, full: false };
    kit.store.list(&kit.queue, &request).await.unwrap().unwrap()
}

fn ids(page: &Page) -> Vec<&str> {
    page.tasks.iter().map(|t| t.id.as_str()).collect()
}

async fn given_ties(kit: &Kit) -> i64 {
    let when = kit.now().await + 1_000_000;
    for name in ["b", "B", "a", "ab", "~", "1"] {
        kit.given(NewTask { when: at(when), ..task(name) }).await;
    }
    kit.given(NewTask { when: at(when - 1), ..task("zz") }).await;
    kit.given(NewTask { when: at(when + 1), ..task("0") }).await;
    when
}

#[tokio::test]
async fn pages_go_by_score_and_then_by_bytes_of_the_id() {
    let kit = Kit::start().await;
    given_ties(&kit).await;
    let all = ["zz", "1", "B", "a", "ab", "b", "~", "0"];
    assert_eq!(ids(&page(&kit, None, 100).await), all);
    for size in 1..=all.len() {
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = page(&kit, after, size).await;
            seen.extend(page.tasks.iter().map(|t| t.id.to_string()));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen, all, "in pages of {size}");
    }
}

#[tokio::test]
async fn a_cursor_goes_on_where_its_member_has_moved_or_gone() {
    let kit = Kit::start().await;
    given_ties(&kit).await;
    let first = page(&kit, None, 3).await;
    assert_eq!(ids(&first), ["zz", "1", "B"]);
    kit.cancel(&first.tasks[2].id).await;
    kit.cancel(&first.tasks[1].id).await;
    assert_eq!(ids(&page(&kit, first.next.clone(), 2).await), ["a", "ab"], "the member it points at is gone");
    let _: i64 = kit.on("ZADD", "due", &[b"0", b"ab"]).await;
    assert_eq!(ids(&page(&kit, first.next, 2).await), ["a", "b"], "one that was moved to the front is not shown");
}

#[tokio::test]
async fn service_made_ids_are_ordered_and_gone_on_after() {
    let kit = Kit::start().await;
    let when = kit.now().await + 1_000_000;
    let mut made = Vec::new();
    for _ in 0..5 {
        made.push(kit.given(NewTask { when: at(when), ..anonymous() }).await.id);
    }
    made.sort_by_key(raw_id);
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = page(&kit, after, 2).await;
        seen.extend(page.tasks.iter().map(|t| t.id.clone()));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen, made);
}

#[tokio::test]
async fn each_state_has_its_list_and_payloads_only_where_asked_for() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let (_, claim) = kit.given_claimed("done").await;
    assert_eq!(kit.end(&claim, Verdict::Done).await, Settled::Completed);
    kit.given_claimed("active").await;
    let list = async |state, full| {
        let request = PageRequest { state, after: None, limit: 10, full };
        kit.store.list(&kit.queue, &request).await.unwrap().unwrap().tasks
    };
    for state in TaskState::ALL {
        let tasks = list(state, false).await;
        match state {
            TaskState::Completed | TaskState::Active => assert_eq!((tasks.len(), tasks[0].state), (1, state)),
            _ => assert!(tasks.is_empty(), "{state:?}"),
        }
    }
    assert_eq!(list(TaskState::Completed, false).await[0].payload, None);
    assert_eq!(list(TaskState::Completed, true).await[0].payload, Some(payload("1")));
    let whole = kit.get(&claim.id).await.unwrap();
    assert_eq!(list(TaskState::Completed, true).await[0], whole);
}

#[tokio::test]
async fn a_page_ends_at_its_bytes() {
    let kit = Kit::start().await;
    let when = kit.now().await + 1_000_000;
    for n in 0..20 {
        let payload = payload(&format!("\"{}\"", "x".repeat(300_000)));
        kit.given(NewTask { when: at(when), payload, ..task(&format!("t{n:02}")) }).await;
    }
    let request = |after| PageRequest { state: TaskState::Scheduled, after, limit: 100, full: true };
    let first = kit.store.list(&kit.queue, &request(None)).await.unwrap().unwrap();
    assert_eq!((first.tasks.len(), first.next.is_some()), (13, true));
    let rest = kit.store.list(&kit.queue, &request(first.next)).await.unwrap().unwrap();
    assert_eq!((rest.tasks.len(), rest.next), (7, None));
    assert_eq!(ids(&page(&kit, None, 100).await).len(), 20, "heads are small");
    kit.visit(0, ClaimKind::Push).await;
}
