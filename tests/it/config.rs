//! Settings, keys and the small commands, through the binary: no variable of the machine gets in.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    process::{Command, Output, Stdio},
    time::Duration,
};

/// Runs the binary in an empty directory with exactly these variables.
fn duepost(args: &[&str], env: &[(&str, &str)], toml: &str) -> Output {
    let cwd = tempfile::tempdir().unwrap();
    if !toml.is_empty() {
        std::fs::write(cwd.path().join("duepost.toml"), toml).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_duepost"));
    command.args(args).env_clear().envs(env.iter().copied()).current_dir(cwd.path()).output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn config_show_names_origins_and_masks_secrets() {
    let env = [("DUEPOST_REDIS", "redis://me:s3cret@redis.example:1/2"), ("DUEPOST_DRAIN", "3s")];
    let shown = duepost(&["config", "show", "--slots", "7"], &env, "lease = \"20s\"");
    let text = out(&shown);
    for (line, origin) in [
        ("redis = \"redis://me:***@redis.example:1/2\"", "variable DUEPOST_REDIS"),
        ("drain = \"3s\"", "variable DUEPOST_DRAIN"),
        ("slots = 7", "flag --slots"),
        ("lease = \"20s\"", "lease in duepost.toml"),
        ("allow_private_targets = false", "default"),
    ] {
        assert!(text.lines().any(|l| l.starts_with(line) && l.ends_with(&format!("# {origin}"))), "{line}\n{text}");
    }
    assert!(!text.contains("s3cret") && shown.status.code() == Some(0));
    let dev = duepost(&["config", "show", "--mode", "dev"], &[], "");
    assert!(out(&dev).contains("allow_private_targets = true"));
}

#[test]
fn a_wrong_setting_ends_with_78_and_one_line() {
    for (args, env, toml, told) in [
        (&["serve"][..], &[("DUEPOST_LISTN", "127.0.0.1:1")][..], "", "did you mean DUEPOST_LISTEN?"),
        (&["dev"], &[], "lisen = \"127.0.0.1:1\"", "unknown setting lisen in duepost.toml; did you mean listen?"),
        (&["serve", "--lease", "abc"], &[], "", "setting lease (flag --lease): \"abc\" is not a duration"),
        (&["config", "show"], &[("DUEPOST_SLOTS", "0")], "", "setting slots (variable DUEPOST_SLOTS): \"0\" is not"),
        (&["serve", "--listen", "0.0.0.0:0"], &[], "", "without API keys"),
        (&["serve", "--config", "gone.toml"], &[], "", "gone.toml"),
    ] {
        let output = duepost(args, env, toml);
        assert_eq!(output.status.code(), Some(78), "{args:?}");
        assert!(err(&output).starts_with("error: ") && err(&output).contains(told), "{}", err(&output));
        assert_eq!((err(&output).lines().count(), out(&output).as_str()), (1, ""));
    }
}

#[test]
fn a_wrong_command_line_ends_with_2() {
    for args in
        [&["serve", "--no-such-flag"][..], &["no-such-command"], &[], &["key", "new"], &["key", "new", "--name", "a b"]]
    {
        assert_eq!(duepost(args, &[], "").status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn help_lists_every_flag_with_its_variable_and_default() {
    let help = out(&duepost(&["serve", "--help"], &[], ""));
    let text = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for wanted in
        ["--max-payload <SIZE>", "[env: DUEPOST_MAX_PAYLOAD] [default: 256KiB]", "--redis <TEXT>", "--no-auth"]
    {
        assert!(text.contains(wanted), "{wanted}\n{help}");
    }
    assert!(!text.contains("--keys ") && text.contains("--keys-file"), "hashes on a command line are seen in ps");
}

#[test]
fn c190_no_secret_in_the_output_of_failures() {
    for (args, env, toml) in [
        (&["serve"][..], &[("DUEPOST_REDIS", "redis://:s3cret@h/x")][..], ""),
        (&["serve"], &[("DUEPOST_REDIS", "redis://:s3cret@h\n")], ""),
        (&["serve"], &[("DUEPOST_REDIS_URL", "redis://:s3cret@h")], ""),
        (&["serve"], &[("DUEPOST_KEYS", "[{\"sha256\": \"s3cret\"}]")], ""),
        (&["serve"], &[], "redis = redis://:s3cret@h"),
        (&["serve", "--redis", "http://:s3cret@h"], &[], ""),
        (&["serve", "redis://:s3cret@h"], &[], ""),
        (&["serve", "--rediss=redis://:s3cret@h"], &[], ""),
        (&["redis://:s3cret@h"], &[], ""),
    ] {
        let output = duepost(args, env, toml);
        let all = out(&output) + &err(&output);
        assert!(!output.status.success() && !all.is_empty(), "{args:?} {env:?}");
        assert!(!all.contains("s3cret"), "{args:?} {env:?}\n{all}");
    }
}

#[test]
fn a_new_key_is_let_in_by_its_entry() {
    let made = |name: &str| -> serde_json::Value {
        serde_json::from_str(&out(&duepost(&["key", "new", "--name", name], &[], ""))).unwrap()
    };
    let (one, two) = (made("ci"), made("ci"));
    assert_ne!(one["key"], two["key"]);
    let keys = duepost::keys::Keys::from_json(&format!("[{}]", one["entry"])).unwrap();
    assert_eq!(keys.verify(one["key"].as_str().unwrap()).map(|key| key.name.as_str()), Some("ci"));
    assert!(keys.verify(two["key"].as_str().unwrap()).is_none());

    let shown = duepost(
        &["config", "show", "--listen", "0.0.0.0:8710"],
        &[("DUEPOST_KEYS", &format!("[{}]", one["entry"]))],
        "",
    );
    assert_eq!(shown.status.code(), Some(0), "the entry opens the port: {}", err(&shown));
    assert!(!out(&shown).contains(one["entry"]["sha256"].as_str().unwrap()));
}

/// What the service logs until half a second after its first line, or nothing if no line comes within `patience`; then
/// it is killed.
fn log_of(args: &[&str], patience: Duration) -> String {
    let cwd = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_duepost"));
    command.args(args).env_clear().current_dir(cwd.path()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (lines, log) = (BufReader::new(child.stderr.take().unwrap()).lines(), std::sync::mpsc::channel());
    let reading = std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| log.0.send(line).unwrap()));
    let first = log.1.recv_timeout(patience).unwrap_or_default();
    std::thread::sleep(Duration::from_millis(500));
    child.kill().unwrap();
    child.wait().unwrap();
    reading.join().unwrap();
    std::iter::once(first).chain(log.1.try_iter()).collect::<Vec<_>>().join("\n")
}

const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn c190_no_secret_in_the_log_of_a_start_without_redis() {
    let log = log_of(&["serve", "--log", "trace", "--redis", "redis://me:s3cret@127.0.0.1:1"], PATIENCE);
    assert!(!log.is_empty() && !log.contains("s3cret"), "{log}");
}

#[test]
fn the_log_is_json_when_asked_for_and_opened_doors_are_in_it() {
    // nothing listens on port 1, so the service is still waiting for its Redis
    let open = ["serve", "--listen", "0.0.0.0:0", "--no-auth", "--redis", "redis://127.0.0.1:1"];
    let log = log_of(&[&open[..], &["--log-format", "json"]].concat(), PATIENCE);
    let line: serde_json::Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    assert_eq!(line["level"], "WARN");
    assert!(line["message"].as_str().unwrap().starts_with("NO AUTHENTICATION"), "{line}");
    assert!(line["timestamp"].is_string());
    assert!(log_of(&open, PATIENCE).lines().next().unwrap().contains("WARN duepost: NO AUTHENTICATION"));
    let quiet = log_of(&[&open[..], &["--log", "error"]].concat(), Duration::from_secs(1));
    assert!(!quiet.contains("NO AUTHENTICATION"), "the filter holds");
}

/// Answers one request with `answer` and gives back its address and, later, its first line.
fn answering(answer: &'static str) -> (String, std::thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let asked = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(&stream).lines().map(Result::unwrap);
        let first = lines.next().unwrap();
        lines.find(String::is_empty);
        (&stream).write_all(answer.as_bytes()).unwrap();
        first
    });
    (address, asked)
}

#[test]
fn healthcheck_is_0_when_ready_and_1_when_not() {
    let (address, asked) = answering("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    let port = address.rsplit(':').next().unwrap();
    // settings that would keep a service from starting do not matter here
    let env = [("DUEPOST_LISTEN", &*format!("0.0.0.0:{port}")), ("DUEPOST_SLOTS", "0")];
    assert_eq!(duepost(&["healthcheck"], &env, "").status.code(), Some(0));
    assert_eq!(asked.join().unwrap(), "GET /readyz HTTP/1.1");

    let (address, asked) = answering("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n");
    let url = format!("http://{address}/livez?x=1");
    let output = duepost(&["healthcheck", "--url", &url], &[], "");
    assert_eq!((output.status.code(), err(&output).contains("503")), (Some(1), true));
    assert_eq!(asked.join().unwrap(), "GET /livez?x=1 HTTP/1.1");

    for (answer, code) in [("", 1), ("nonsense\r\n", 1), ("HTTP/1.1 2\r\n", 1), ("HTTP/1.0 204 No Content\r\n\r\n", 0)]
    {
        let (address, _asked) = answering(answer);
        let output = duepost(&["healthcheck", "--url", &format!("http://{address}/")], &[], "");
        assert_eq!(output.status.code(), Some(code), "{answer:?}");
    }
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert_eq!(duepost(&["healthcheck", "--listen", &gone.to_string()], &[], "").status.code(), Some(1));
    assert_eq!(duepost(&["healthcheck", "--url", "https://127.0.0.1/"], &[], "").status.code(), Some(2));
}
