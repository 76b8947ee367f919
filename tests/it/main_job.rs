//! The main job, end to end: ten thousand tasks in, each out once, on time, unchanged; and again with a process killed.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::http::Method;
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::{
    Answer, Client, Receiver, RedisServer, Request, Service, World, bare, ms, now_ms, parse_ms, secs,
    wait::sleep_until_ms,
    world::{assert_balanced, at_rest, figure},
};

const TASKS: usize = 10_000;
const QUEUES: usize = 5;
const CLIENTS: usize = 64;
/// One of ten tasks is cancelled.
const CANCELS: usize = TASKS / 10;
/// Delays are spread from 0 to here.
const LONGEST_DELAY_MS: usize = 3_000;
/// Calls at once per webhook and process, by default.
const SLOTS: usize = 64;
/// A task whose worker died is taken up again within this.
const TAKE_OVER_MS: i64 = 12_000;

/// A task as it was scheduled.
struct Job {
    queue: usize,
    id: String,
    uid: String,
    run_at: i64,
    payload: String,
    /// The status of its DELETE, if it was cancelled.
    cancel: Option<u16>,
}

fn queue_name(queue: usize) -> String {
    format!("queue-{queue}")
}

fn delay_ms(n: usize) -> usize {
    n * 7919 % (LONGEST_DELAY_MS + 1)
}

/// No two alike, and none as a JSON library would write it again.
fn payload(n: usize) -> String {
    format!(r#"{{ "n":{n}, "price":{n}.50,"text":"é\u00e9{}" ,"n":[ ] }}"#, "x".repeat(n % 200))
}

impl Job {
    fn new(n: usize, task: &Value) -> Self {
        let text = |name: &str| task[name].as_str().unwrap_or_else(|| panic!("no {name} in {task}")).to_owned();
        let (run_at, created_at) = (parse_ms(&text("run_at")), parse_ms(&text("created_at")));
        assert_eq!(run_at, created_at + delay_ms(n) as i64, "{task}");
        Self { queue: n % QUEUES, id: text("id"), uid: text("uid"), run_at, payload: payload(n), cancel: None }
    }
}

/// The queues' webhooks at this receiver, each with its own secret; gives the secrets.
async fn register(api: &Client, receiver: &Receiver) -> Vec<String> {
    let one = async |queue: usize| {
        let (path, body) =
            (format!("/queues/{}/webhooks", queue_name(queue)), json!({"url": receiver.url(&hook(queue))}));
        let webhook = api.post(&path, body).await.expect(201).json();
        webhook["secret"].as_str().expect("the secret is shown once").to_owned()
    };
    let secrets = join_all((0..QUEUES).map(one)).await;
    assert!((1..QUEUES).all(|n| !secrets[..n].contains(&secrets[n])), "each webhook has its own secret");
    secrets
}

fn hook(queue: usize) -> String {
    format!("/hook/{queue}")
}

/// Asserts what holds for each single delivery; gives the deliveries by task, in the order of arrival.
fn check_each<'a>(
    journal: &'a [Arc<Request>],
    jobs: &'a [Job],
    secrets: &[String],
) -> HashMap<&'a str, Vec<&'a Request>> {
    let by_id: HashMap<&str, &Job> = jobs.iter().map(|job| (job.id.as_str(), job)).collect();
    let mut arrivals: HashMap<&str, Vec<&Request>> = HashMap::new();
    for request in journal {
        let id = request.task();
        let job = by_id.get(id).unwrap_or_else(|| panic!("nobody scheduled {id}"));
        assert!(request.at_ms >= job.run_at, "{id} came {} ms early", job.run_at - request.at_ms);
        assert_eq!(request.path(), hook(job.queue), "{id}");
        assert_eq!(request.body, job.payload.as_bytes(), "{id} came changed: {}", request.text());
        assert_eq!(request.header("webhook-id"), Some(job.uid.as_str()), "{id}");
        assert_eq!(request.header("duepost-queue"), Some(queue_name(job.queue).as_str()), "{id}");
        assert_eq!(request.header("duepost-run-at").map(parse_ms), Some(job.run_at), "{id}");
        assert!(request.signature_ok(&secrets[job.queue]), "{id}: {}", request.head);
        arrivals.entry(id).or_default().push(request);
    }
    arrivals
}

/// Prints how late the first deliveries were; gives the 99th percentile in milliseconds.
fn print_lateness(title: &str, arrivals: &HashMap<&str, Vec<&Request>>, jobs: &[Job]) {
    let first = |job: &Job| arrivals.get(job.id.as_str()).map(|came| came[0].at_ms - job.run_at);
    let mut late: Vec<i64> = jobs.iter().filter_map(first).collect();
    late.sort_unstable();
    let at = |percent: usize| late[(late.len() * percent / 100).min(late.len() - 1)];
    println!("{title}: {} deliveries, late p50 {} p99 {} max {} ms", late.len(), at(50), at(99), at(100));
}

fn per_second(count: usize, span: Duration) -> f64 {
    count as f64 / span.as_secs_f64()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_tasks_arrive_once_on_time_and_unchanged() {
    let it = Arc::new(World::start().await);
    let secrets = register(&it.api, &it.receiver).await;

    let start = Instant::now();
    let clients: Vec<_> =
        (0..CLIENTS).map(|client| tokio::spawn(schedule_and_cancel(Arc::clone(&it), client))).collect();
    let (mut jobs, mut cancels, mut scheduled_in) = (Vec::new(), Vec::new(), Duration::ZERO);
    for client in clients {
        let (scheduled, cancelling) = client.await.expect("a client ends");
        scheduled_in = scheduled_in.max(start.elapsed());
        jobs.extend(scheduled);
        cancels.extend(cancelling);
    }
    let cancels: HashMap<String, u16> =
        join_all(cancels).await.into_iter().map(|cancel| cancel.expect("a cancel ends")).collect();
    let mut by_cancel: HashMap<u16, usize> = HashMap::new();
    for job in &mut jobs {
        job.cancel = cancels.get(&job.id).copied();
        job.cancel.into_iter().for_each(|status| *by_cancel.entry(status).or_default() += 1);
    }
    assert_eq!(jobs.len(), TASKS);
    assert_eq!(by_cancel.values().sum::<usize>(), CANCELS, "{by_cancel:?}");

    let sure = jobs.iter().filter(|job| matches!(job.cancel, None | Some(409))).count();
    it.receiver.wait_for(sure, secs(30)).await;
    let mut stats = Vec::new();
    for queue in 0..QUEUES {
        stats.push(it.at_rest(&queue_name(queue)).await);
    }

    let journal = it.receiver.journal();
    let arrivals = check_each(&journal, &jobs, &secrets);
    for job in &jobs {
        let arrived = arrivals.get(job.id.as_str()).map_or(0, Vec::len);
        let right = match job.cancel {
            None | Some(409) => arrived == 1,
            Some(200) => arrived == 0,
            Some(202) => arrived <= 1,
            Some(status) => panic!("DELETE of {} answered {status}", job.id),
        };
        assert!(right, "{} arrived {arrived} times; its DELETE answered {:?}", job.id, job.cancel);
    }
    let total = |name: &str| stats.iter().map(|queue| figure(queue, name)).sum::<i64>();
    assert_eq!(total("enqueued_total"), TASKS as i64);
    assert_eq!(total("delivered_total"), arrivals.len() as i64);
    assert_eq!(total("cancelled_total"), (TASKS - arrivals.len()) as i64);
    assert_eq!((total("completed"), total("cancelled")), (total("delivered_total"), total("cancelled_total")));
    assert_eq!((total("dead_total"), total("failed_attempts_total")), (0, 0));

    print_lateness("one process", &arrivals, &jobs);
    let (first, last) = (journal.first().expect("some").at_ms, journal.last().expect("some").at_ms);
    println!("enqueued {:.0}/s by {CLIENTS} clients, DELETE answers {by_cancel:?}", per_second(TASKS, scheduled_in));
    println!("delivered {:.0}/s over the whole run", per_second(journal.len(), ms((last - first) as u64)));
    println!("bare axum handler {:.0}/s", bare::handler_rate(CLIENTS, TASKS).await);
    println!("bare client loop {:.0}/s", bare::client_rate(CLIENTS, TASKS).await);
}

type Cancelling = tokio::task::JoinHandle<(String, u16)>;

/// One client's share. Half of the cancels follow at once, half come within 20 ms of the task's instant.
async fn schedule_and_cancel(it: Arc<World>, client: usize) -> (Vec<Job>, Vec<Cancelling>) {
    let (mut jobs, mut cancels) = (Vec::new(), Vec::new());
    for n in (client..TASKS).step_by(CLIENTS) {
        // Every second one has an id of its own.
        let own_id = if (n / QUEUES).is_multiple_of(2) { format!(r#""id":"job-{n}","#) } else { String::new() };
        let body = format!(r#"{{{own_id}"delay_ms":{},"payload":{}}}"#, delay_ms(n), payload(n));
        let path = format!("/queues/{}/tasks", queue_name(n % QUEUES));
        let job = Job::new(n, &it.api.post(&path, body).await.expect(201).json());
        if n % 10 == n / 10 % 10 {
            let (it, path, id) = (Arc::clone(&it), format!("{path}/{}", job.id), job.id.clone());
            let at = if (n / 10).is_multiple_of(2) { 0 } else { job.run_at + (n % 41) as i64 - 20 };
            cancels.push(tokio::spawn(async move {
                sleep_until_ms(at).await;
                (id, it.api.delete(&path).await.status)
            }));
        }
        jobs.push(job);
    }
    (jobs, cancels)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_loses_nothing_and_doubles_only_what_was_under_way() {
    let redis = RedisServer::start().await;
    let mut dies = Service::serve(&redis).await;
    let lives = Service::serve(&redis).await;
    let receiver = Receiver::start().await;
    let secrets = register(&lives.client(), &receiver).await;
    // Some calls are under way at any instant.
    receiver.by(|_| Some(Answer::status(200).after(ms(20))));

    let nodes = [dies.client(), lives.client()];
    let clients = (0..CLIENTS).map(|client| {
        let nodes = nodes.clone();
        tokio::spawn(async move {
            let mut jobs = Vec::new();
            for n in (client..TASKS).step_by(CLIENTS) {
                jobs.push(Job::new(n, &schedule_at_any(&nodes, n).await));
            }
            jobs
        })
    });
    let clients: Vec<_> = clients.collect();
    receiver.wait_for(TASKS / 3, secs(30)).await;
    let before_kill = now_ms();
    dies.kill9();
    let after_kill = now_ms();
    let jobs: Vec<Job> = join_all(clients).await.into_iter().flat_map(|jobs| jobs.expect("a client ends")).collect();

    let mut delivered = 0;
    for queue in 0..QUEUES {
        let stats = at_rest(&redis, &lives.client(), &queue_name(queue)).await;
        assert_balanced(&stats);
        assert_eq!(figure(&stats, "failed_attempts_total"), 0, "a lost attempt is no failed one: {stats}");
        delivered += figure(&stats, "delivered_total");
    }
    assert_eq!(delivered, TASKS as i64);
    let journal = receiver.journal();
    let arrivals = check_each(&journal, &jobs, &secrets);
    let missing: Vec<&str> = jobs.iter().map(|job| job.id.as_str()).filter(|id| !arrivals.contains_key(id)).collect();
    assert!(missing.is_empty(), "{} are lost, as {:?}", missing.len(), &missing[..missing.len().min(3)]);
    let mut doubles = [0; QUEUES];
    for job in &jobs {
        let came = &arrivals[job.id.as_str()];
        if came.len() > 1 {
            assert_eq!(came.len(), 2, "{} came more than twice", job.id);
            doubles[job.queue] += 1;
            let (first, second) = (came[0].at_ms, came[1].at_ms);
            assert!((before_kill - 1_000..=after_kill + 100).contains(&first), "{} was not under way", job.id);
            assert!(second <= after_kill + TAKE_OVER_MS + 1_000, "{} was taken up late", job.id);
        }
    }
    println!("killed after {} deliveries: {doubles:?} doubled, none lost", TASKS / 3);
    print_lateness("two processes, one killed", &arrivals, &jobs);
    assert!(doubles.iter().all(|&n| n <= SLOTS), "at most those under way: {doubles:?}");
    let last = journal.iter().map(|request| request.at_ms).max().expect("some");
    let due = jobs.iter().map(|job| job.run_at).max().expect("some").max(after_kill);
    assert!(last <= due + TAKE_OVER_MS + 1_000, "the last came {} ms after all were due", last - due);
}

/// Schedules at one of two processes, and at the other one when there is no answer: with an own id that is safe.
async fn schedule_at_any(nodes: &[Client; 2], n: usize) -> Value {
    let path = format!("/queues/{}/tasks", queue_name(n % QUEUES));
    let body = format!(r#"{{"id":"job-{n}","delay_ms":{},"payload":{}}}"#, delay_ms(n), payload(n));
    for attempt in 0..10 {
        let answer = nodes[(n / QUEUES + attempt) % 2].try_call(Method::POST, &path, Some(body.as_str().into())).await;
        match answer {
            Ok(answer) if [200, 201].contains(&answer.status) => return answer.json(),
            Ok(answer) if answer.status != 503 => panic!("{}: {}", answer.status, answer.text()),
            Ok(_) | Err(_) => tokio::time::sleep(ms(20)).await,
        }
    }
    panic!("job-{n} cannot be scheduled at either process")
}
