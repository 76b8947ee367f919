use clap::Parser as _;

use super::{settings::Kind, *};
use crate::{
    cli::{Cli, Command},
    keys::{Glob, Role},
};

/// Loads what the arguments, the variables and `duepost.toml` (if not empty) say.
fn load(mode: Mode, args: &[&str], env: &[(&str, &str)], toml: &str) -> Result<Loaded, ConfigError> {
    let cwd = tempfile::tempdir().unwrap();
    if !toml.is_empty() {
        std::fs::write(cwd.path().join("duepost.toml"), toml).unwrap();
    }
    let Command::Serve(cli) = Cli::parse_from(["duepost", "serve"].iter().chain(args)).command else { unreachable!() };
    Config::load(mode, &cli, env.iter().map(|(n, t)| ((*n).to_owned(), (*t).to_owned())), cwd.path())
}

fn serve(args: &[&str], env: &[(&str, &str)], toml: &str) -> Result<Loaded, ConfigError> {
    load(Mode::Serve, args, env, toml)
}

fn refused(args: &[&str], env: &[(&str, &str)], toml: &str) -> String {
    match serve(args, env, toml) {
        Err(e) => e.to_string(),
        Ok(_) => panic!("accepted: {args:?} {env:?} {toml}"),
    }
}

/// A JSON list with one entry.
fn keys_json() -> String {
    format!("[{}]", crate::keys::create("a", &[Role::Admin], &[Glob::every()], [1; 32]).unwrap()["entry"])
}

#[test]
fn without_anything_the_defaults_hold() {
    let config = serve(&[], &[], "").unwrap().config;
    assert_eq!(config.listen.to_string(), "127.0.0.1:8710");
    assert!(config.redis.is_none() && config.keys.is_none() && config.data_dir.ends_with(".duepost"));
    assert_eq!((config.max_payload, config.max_batch), (256 << 10, 4 << 20));
    assert_eq!((config.slots_per_webhook, config.slots, config.metrics_queue_labels), (64, 1024, 1000));
    assert_eq!((config.lease, config.drain), (seconds(10), seconds(25)));
    assert!(!config.allow_private_targets && !config.no_auth && !config.no_auto_create);
    assert_eq!((config.durability, config.log_format, config.log.as_str()), (None, LogFormat::Text, "info"));
}

#[test]
fn at_a_desk_loopback_may_be_called_and_the_disk_may_lag() {
    let dev = |args: &[&str]| load(Mode::Dev, args, &[], "").unwrap().config;
    assert!(dev(&[]).allow_private_targets && dev(&[]).private_durability(Mode::Dev) == Durability::Memory);
    assert!(!dev(&["--allow-private-targets=false"]).allow_private_targets);
    assert_eq!(dev(&["--durability", "disk"]).private_durability(Mode::Dev), Durability::Disk);
    let at_work = |args: &[&str]| serve(args, &[], "").unwrap().config.private_durability(Mode::Serve);
    assert_eq!((at_work(&[]), at_work(&["--durability", "memory"])), (Durability::Disk, Durability::Memory));
}

#[test]
fn replicas_may_be_asked_for_wherever_there_can_be_some() {
    let sentinel = ["--redis-sentinel", "a:26379", "--redis-sentinel-master", "m"];
    for redis in [&["--redis", "redis://a"][..], &["--redis-cluster", "a:6379"], &sentinel] {
        let args = [redis, &["--durability", "replica"]].concat();
        assert_eq!(serve(&args, &[], "").unwrap().config.durability, Some(Durability::Replica), "{args:?}");
    }
}

#[test]
fn flags_win_over_variables_over_the_file() {
    let (env, toml) = ([("DUEPOST_SLOTS", "300")], "slots = 400\nlease = \"20s\"");
    let slots = |args: &[&str], env: &[(&str, &str)]| serve(args, env, toml).unwrap().config.slots;
    assert_eq!(slots(&["--slots", "200"], &env), 200);
    assert_eq!(slots(&[], &env), 300);
    assert_eq!(slots(&[], &[]), 400);
    assert_eq!(serve(&["--slots", "200"], &env, toml).unwrap().config.lease, seconds(20), "the file still counts");
    assert!(!serve(&["--no-auth=false"], &[("DUEPOST_NO_AUTH", "true")], "").unwrap().config.no_auth);
}

#[test]
fn the_file_is_the_one_named_and_must_be_there_then() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("other.toml");
    std::fs::write(&path, "slots = 99").unwrap();
    let path = path.to_str().unwrap();
    let slots = |loaded: Result<Loaded, ConfigError>| loaded.unwrap().config.slots;
    assert_eq!(slots(serve(&["--config", path], &[], "slots = 77")), 99);
    assert_eq!(slots(serve(&[], &[("DUEPOST_CONFIG", path)], "slots = 77")), 99);
    assert_eq!(slots(serve(&["--config", path], &[("DUEPOST_CONFIG", "/none")], "")), 99);

    assert!(refused(&["--config", "/no/such.toml"], &[], "").contains("/no/such.toml"));
    assert!(refused(&[], &[("DUEPOST_CONFIG", "")], "").contains("DUEPOST_CONFIG is empty"));
}

#[test]
fn toml_takes_numbers_switches_and_lists_as_they_are() {
    let toml = "slots = 70\nno_auto_create = true\nallowed_targets = [\"10.0.0.0/8\", \"::1\"]\nmax_payload = 2048";
    let config = serve(&[], &[], toml).unwrap().config;
    assert_eq!((config.slots, config.no_auto_create, config.max_payload), (70, true, 2048));
    assert_eq!(config.allowed_targets.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.0.0.0/8", "::1/128"]);
}

#[test]
fn a_typo_is_an_error_that_names_it_and_what_was_meant() {
    let told = refused(&[], &[("DUEPOST_MAX_PAYLAOD", "1MiB")], "");
    assert!(told.contains("DUEPOST_MAX_PAYLAOD") && told.contains("did you mean DUEPOST_MAX_PAYLOAD"), "{told}");
    let told = refused(&[], &[], "max-payload = \"1MiB\"");
    assert!(told.contains("max-payload in duepost.toml; did you mean max_payload"), "{told}");
    assert!(refused(&[], &[("DUEPOST_XYZZY", "1")], "").contains("DUEPOST_XYZZY"));
    assert!(refused(&[], &[("DUEPOST_listen", "1")], "").contains("DUEPOST_listen"));
    assert!(refused(&[], &[("Duepost_Listen", "1")], "").contains("Duepost_Listen"));
    assert!(refused(&[], &[], "[redis]\nurl = \"redis://h\"").contains("redis in duepost.toml"));
    assert!(refused(&[], &[], "slots = 1\nslots = 2").contains("duepost.toml is not TOML, see line 2"));
}

#[test]
fn variables_that_are_no_settings_are_let_be() {
    let pod = [
        ("KUBERNETES_SERVICE_HOST", "10.0.0.1"),
        ("DUEPOST_SERVICE_HOST", "10.0.0.2"),
        ("DUEPOST_SERVICE_PORT", "8710"),
        ("DUEPOST_SERVICE_PORT_HTTP", "8710"),
        ("DUEPOST_PORT", "tcp://10.0.0.2:8710"),
        ("DUEPOST_PORT_8710_TCP_ADDR", "10.0.0.2"),
        ("DUEPOST_REDIS_SERVICE_HOST", "10.0.0.3"),
        ("DUEPOST_REDIS_PORT", "tcp://10.0.0.3:6379"),
        ("DUEPOST_NO_INSTALL", "1"),
        ("PATH", "/bin"),
        ("SSL_CERT_FILE", ""),
    ];
    serve(&[], &pod, "").unwrap();
    assert!(refused(&[], &pod[1..], "").contains("DUEPOST_"), "outside Kubernetes they are typos");
    assert!(refused(&[], &[pod[0], pod[4]], "").contains("DUEPOST_PORT"), "without such a service too");
    assert!(refused(&[], &[pod[0], pod[1], ("DUEPOST_PORTS", "1")], "").contains("DUEPOST_PORTS"));
}

#[test]
fn c183_a_wrong_value_names_setting_and_origin() {
    let numbers =
        ["0", "-1", "", "abc", "1.5", "1.0", "100000000000000000000", "10s", "64KiB", "1e3", "+5", " 5", "0x10"];
    let others = ["-1", "abc", "1.5", "100000000000000000000", "5", "5 s", "", "1w", "yes", "TRUE", "1"];
    for setting in SETTINGS {
        let values: &[&str] = match setting.kind {
            Kind::Number => &numbers,
            Kind::Duration => &others,
            Kind::Switch => &["yes", "1", "TRUE", "on", "", "0", "abc", "-1"],
            Kind::Size => &["-1", "abc", "1.5", "100000000000000000000", "", "0", "1KB", "5s", "1.5MiB", "99GiB"],
            Kind::Text | Kind::List | Kind::Path => &[""],
        };
        for value in values {
            let (variable, flag) = (setting.variable(), format!("--{}={value}", setting.flag_name()));
            let (name, quoted) = (setting.name, toml::Value::from(*value));
            if setting.name != "ssl_cert_file" {
                let told = refused(&[], &[(&variable, value)], "");
                assert!(told.contains(&variable), "{told}");
            }
            if setting.flag {
                let told = refused(&[&flag], &[], "");
                assert!(told.contains(&format!("--{}", setting.flag_name())), "{told}");
            }
            let told = refused(&[], &[], &format!("{name} = {quoted}"));
            assert!(told.contains(&format!("{name} in duepost.toml")), "{told}");
        }
    }
    for toml in
        ["slots = 1.0", "slots = -1", "slots = 0", "slots = true", "slots = [1]", "slots = 2026-11-30", "lease = 10"]
    {
        assert!(refused(&[], &[], toml).contains("in duepost.toml"), "{toml}");
    }
    assert!(refused(&["--slots", "-1"], &[], "").contains("--slots"), "not taken for a flag");
}

#[test]
fn c183_values_have_ranges_and_forms_that_are_told() {
    for (name, value, told) in [
        ("DUEPOST_LEASE", "2999ms", "\"2999ms\" is not between 3s and 1m"),
        ("DUEPOST_LEASE", "61s", "3s and 1m"),
        ("DUEPOST_DRAIN", "601s", "0s and 10m"),
        ("DUEPOST_MAX_DELAY", "36526d", "1m and 36525d"),
        ("DUEPOST_MAX_PAYLOAD", "33MiB", "1024 and 33554432"),
        ("DUEPOST_MAX_BATCH", "65MiB", "1024 and 67108864"),
        ("DUEPOST_SLOTS", "100001", "from 1 to 100000"),
        ("DUEPOST_LISTEN", "8710", "an address with a port"),
        ("DUEPOST_LISTEN", "127.0.0.1", "an address with a port"),
        ("DUEPOST_LISTEN", "127.0.0.1:65536", "an address with a port"),
        ("DUEPOST_PREFIX", "a{b}", "1 to 32"),
        ("DUEPOST_PREFIX", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "1 to 32"),
        ("DUEPOST_DURABILITY", "none", "auto, memory, disk, replica"),
        ("DUEPOST_DURABILITY", "replica", "the private Redis has none"),
        ("DUEPOST_REPLICAS", "0", "from 1 to 10"),
        ("DUEPOST_REPLICA_TIMEOUT", "5s", "100ms and 4s"),
        ("DUEPOST_LOG_FORMAT", "JSON", "text nor json"),
        ("DUEPOST_LOG", "loud", "not a filter"),
        ("DUEPOST_ALLOWED_TARGETS", "10.1.2.3/8", "did you mean 10.0.0.0/8"),
        ("DUEPOST_REDIS_SERVER_BIN", "/no/such/file", "is not a file"),
        ("SSL_CERT_FILE", "/no/such/file", "is not a file"),
        ("DUEPOST_KEYS_FILE", "/no/such/file", "cannot be read"),
    ] {
        let text = refused(&[], &[(name, value)], "");
        assert!(text.contains(told) && text.contains(name), "{text}");
    }
    for (name, value) in
        [("DUEPOST_LEASE", "1m"), ("DUEPOST_DRAIN", "0s"), ("DUEPOST_LISTEN", "[::1]:0"), ("DUEPOST_SLOTS", "1")]
    {
        serve(&[], &[(name, value)], "").unwrap();
    }
}

#[test]
fn beyond_loopback_it_takes_keys_or_a_loud_word() {
    for open in ["0.0.0.0:8710", "[::]:8710", "192.168.1.5:80", "[::ffff:10.0.0.1]:80"] {
        for mode in [Mode::Dev, Mode::Serve] {
            let told = load(mode, &["--listen", open], &[], "").unwrap_err().to_string();
            assert!(told.contains("without API keys") && told.contains("--listen"), "{told}");
        }
        let loaded = serve(&["--listen", open, "--no-auth"], &[], "").unwrap();
        assert!(loaded.warnings.iter().any(|w| w.contains("NO AUTHENTICATION")), "{:?}", loaded.warnings);
        let loaded = serve(&["--listen", open], &[("DUEPOST_KEYS", &keys_json())], "").unwrap();
        assert!(loaded.config.keys.is_some() && loaded.warnings.is_empty());
    }
    for closed in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        assert!(serve(&["--listen", closed], &[], "").unwrap().warnings.is_empty());
    }
    for wrong in ["[]", "{}", "no json"] {
        let told = refused(&["--listen", "0.0.0.0:1"], &[("DUEPOST_KEYS", wrong)], "");
        assert!(told.contains("DUEPOST_KEYS"), "no keys is not no authentication: {told}");
    }
}

#[test]
fn what_excludes_each_other_is_refused_by_name() {
    let told = refused(&["--no-auth"], &[("DUEPOST_KEYS", &keys_json())], "");
    assert!(told.contains("--no-auth") && told.contains("DUEPOST_KEYS"), "{told}");
    let told = refused(&["--max-payload", "4MiB"], &[], "");
    assert!(told.contains("max_batch (default)") && told.contains("--max-payload"), "{told}");
    serve(&["--max-payload", "4MiB", "--max-batch", "4160KiB"], &[], "").unwrap();
    let told = refused(&["--slots", "10", "--slots-per-webhook", "11"], &[], "");
    assert!(told.contains("--slots-per-webhook") && told.contains("--slots"), "{told}");
    let loaded = serve(&["--slots", "10"], &[], "").unwrap();
    assert_eq!(loaded.config.slots_per_webhook, 10);
    assert!(loaded.show().contains("slots_per_webhook = 10 "), "what is shown is what holds");
}

#[test]
fn a_private_redis_has_a_core_for_itself() {
    for (beside_redis, cores, threads) in [(true, 1, 1), (true, 2, 1), (true, 8, 7), (false, 1, 1), (false, 2, 2)] {
        assert_eq!(threads_for(beside_redis, cores), threads, "{beside_redis} {cores}");
    }
    let loaded = serve(&["--threads", "3"], &[], "").unwrap();
    assert_eq!(loaded.config.threads, 3);
    let (with, without) = (serve(&["--redis", "redis://h"], &[], "").unwrap(), serve(&[], &[], "").unwrap());
    let cores = std::thread::available_parallelism().unwrap().get();
    assert_eq!((with.config.threads, without.config.threads), (cores, threads_for(true, cores)));
    assert!(with.show().contains(&format!("threads = {cores} ")), "what is shown is what holds");
    assert!(refused(&["--threads", "0"], &[], "").contains("--threads"));
}

#[test]
fn c180_one_kind_of_redis_with_all_that_it_needs() {
    let sentinel = &["--redis-sentinel", "redis://:s3cret@a,b:2/8", "--redis-sentinel-master", "m"][..];
    let env = [("DUEPOST_REDIS_SENTINEL_USER", "u"), ("DUEPOST_REDIS_SENTINEL_PASSWORD", "s3cret2")];
    let loaded = serve(sentinel, &env, "").unwrap();
    let given = loaded.config.redis_sentinel.clone().unwrap();
    let urls = given.nodes.expose_with(given.user.as_deref(), given.password.as_deref());
    assert_eq!(urls, ["redis://u:s3cret2@a:26379", "redis://u:s3cret2@b:2"]);
    assert_eq!(given.nodes.expose()[0], "redis://:s3cret@a:26379/8");
    let told = format!("{} {:?}", loaded.show(), loaded.config);
    assert!(told.contains("redis://:***@a:26379,b:2/8") && !told.contains("s3cret"), "{told}");
    let toml = "redis_cluster = [\"a:1\", \"b\"]";
    assert_eq!(
        serve(&[], &[], toml).unwrap().config.redis_cluster.unwrap().expose(),
        ["redis://a:1", "redis://b:6379"]
    );
    for (args, env, told) in [
        (&["--redis", "redis://a", "--redis-cluster", "b"][..], &[][..], "redis (flag --redis) and redis_cluster"),
        (&["--redis-cluster", "a,b/1"], &[], "a Redis Cluster has none but 0"),
        (&["--redis-cluster", "a,,b"], &[], "setting redis_cluster (flag --redis-cluster): has a part that"),
        (&["--redis-sentinel", "a"], &[], "needs redis_sentinel_master"),
        (&["--redis-sentinel-master", "m"], &[], "means nothing without redis_sentinel"),
        (&[], &[("DUEPOST_REDIS_SENTINEL_PASSWORD", "x")], "means nothing without redis_sentinel"),
        (sentinel, &[("DUEPOST_REDIS_SENTINEL_USER", "x")], "needs redis_sentinel_password"),
        (sentinel, &[("DUEPOST_REDIS_CLUSTER", "x")], "exclude each other"),
    ] {
        let refusal = refused(args, env, "");
        assert!(refusal.contains(told), "{told}\n{refusal}");
    }
}

#[test]
fn opened_targets_are_told_in_production() {
    let warnings = |mode, args: &[&str]| load(mode, args, &[], "").unwrap().warnings;
    assert_eq!(warnings(Mode::Serve, &["--allow-private-targets"]).len(), 1);
    assert_eq!(warnings(Mode::Serve, &["--allowed-targets", "10.0.0.0/8"]).len(), 1);
    assert_eq!(warnings(Mode::Dev, &[]).len(), 0);
}

#[test]
fn keys_of_file_and_environment_come_together() {
    let dir = tempfile::tempdir().unwrap();
    let made = crate::keys::create("file", &[Role::Admin], &[Glob::every()], [2; 32]).unwrap();
    let entry = format!("[[key]]\nname = \"file\"\nsha256 = {}\nroles = [\"admin\"]\n", made["entry"]["sha256"]);
    std::fs::write(dir.path().join("keys.toml"), entry).unwrap();
    let path = dir.path().join("keys.toml");

    let loaded = serve(&["--keys-file", path.to_str().unwrap()], &[("DUEPOST_KEYS", &keys_json())], "").unwrap();

    let keys = loaded.config.keys.unwrap();
    assert_eq!(keys.count(), 2);
    assert!(keys.verify(made["key"].as_str().unwrap()).is_some());
}

#[test]
fn what_is_shown_is_toml_that_gives_the_same_again() {
    let (args, env) = (["--slots", "200"], [("DUEPOST_LOG_FORMAT", "json"), ("DUEPOST_REDIS", "redis://h:1/2")]);
    let loaded = serve(&args, &env, "lease = \"20s\"").unwrap();
    let shown = loaded.show();
    for (line, origin) in [
        ("slots = 200", "# flag --slots"),
        ("log_format = \"json\"", "# variable DUEPOST_LOG_FORMAT"),
        ("lease = \"20s\"", "# lease in duepost.toml"),
        ("drain = \"25s\"", "# default"),
        ("# keys_file =", "# default"),
        ("no_auth = false", "# default"),
    ] {
        assert!(shown.lines().any(|l| l.starts_with(line) && l.ends_with(origin)), "{line} {origin}\n{shown}");
    }
    let names = shown.lines().map(|l| l.trim_start_matches("# ").split(' ').next().unwrap());
    assert!(names.eq(SETTINGS.iter().map(|s| s.name)), "every setting, in the order of the table");

    let (first, mut again) = (loaded.config, serve(&[], &[], &shown).unwrap().config);
    again.data_dir.clone_from(&first.data_dir); // each test has its own working directory
    assert_eq!(format!("{again:?}"), format!("{first:?}"));
}

#[test]
fn c190_secrets_are_in_no_debug_no_table_and_no_error() {
    let (keys, secret) = (keys_json(), "s3cret%2Fpw");
    let hash = keys.split('"').find(|w| w.len() == 64).unwrap();
    let url = format!("redis://me:{secret}@h:1/2");
    let loaded = serve(&[], &[("DUEPOST_REDIS", &url), ("DUEPOST_KEYS", &keys)], "").unwrap();
    let all = format!("{loaded:?}\n{}", loaded.show());
    assert!(!all.contains("s3cret") && !all.contains(hash), "{all}");
    assert!(loaded.show().contains("redis://me:***@h:1/2") && loaded.show().contains("keys = \"***\""));

    for (env, toml) in [
        ([("DUEPOST_REDIS", "redis://:s3cret@h/x")], ""),
        ([("DUEPOST_REDIS", "s3cret")], ""),
        ([("DUEPOST_REDIS", "redis://:s3/cret@h")], ""),
        ([("DUEPOST_REDIS_URL", "redis://:s3cret@h")], ""),
        ([("DUEPOST_LISTEN", "redis://:s3cret@h")], ""),
        ([("DUEPOST_KEYS", "s3cret")], ""),
        ([("DUEPOST_KEYS", "[\"s3cret\"]")], ""),
        ([("A", "")], "redis = redis://:s3cret@h"),
        ([("A", "")], "redis = [\"s3cret\"]"),
        ([("A", "")], "redis_url = \"redis://:s3cret@h\""),
        ([("A", "")], "redis = \"s3cret\""),
        ([("A", "")], "keys = \"s3cret\""),
        ([("A", "")], "[[keys]]\nname = \"s3cret!\""),
    ] {
        let told = refused(&[], &env, toml);
        let debug = format!("{:?}", serve(&[], &env, toml).unwrap_err());
        assert!(!told.contains("s3") && !debug.contains("s3"), "{told}\n{debug}");
    }
}
