//! The private Redis: one test a pitfall, with real servers, real processes and real signals.

use std::{
    env,
    fs::{self, OpenOptions, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::PathBuf,
    time::Duration,
};

use duepost::store::embedded::{AppendFsync, Embedded, EmbeddedConfig, EmbeddedError};
use rustix::process::{Signal, getpgid};

use crate::embedded_kit::{HOLD, Parent, Place, ask, eventually, gone, hold, is_alive, launcher, pid, signal};

#[tokio::test]
async fn a_killed_parent_takes_its_server_along() {
    if let Some(dir) = env::var_os(HOLD) {
        return hold(dir.into()).await; // not the test, but its parent process
    }
    let place = Place::new();
    let mut parent = Parent::holding(&place, None);
    parent.ask::<()>("SET k acknowledged");

    parent.kill();

    gone(parent.server).await;
    let next = place.start().await.unwrap();
    assert_eq!(ask::<String>(next.url(), "GET k").unwrap(), "acknowledged");
    next.stop().await;
}

#[tokio::test]
async fn kill_9_of_parent_and_server_loses_nothing_acknowledged() {
    let place = Place::new();
    let mut parent = Parent::holding(&place, None);
    for n in 0..100 {
        parent.ask::<()>(&format!("SET k{n} v"));
    }

    signal(parent.server, Signal::KILL);
    parent.kill();

    let next = place.start().await.unwrap();
    assert_eq!(ask::<u32>(next.url(), "DBSIZE").unwrap(), 100);
    next.stop().await;
}

#[tokio::test]
async fn ctrl_c_in_the_terminal_is_not_for_the_server() {
    let place = Place::new();
    let it = place.start().await.unwrap();

    let group = getpgid(pid(it.pid())).unwrap();

    assert_eq!(group, pid(it.pid()).unwrap(), "a process group of its own");
    it.stop().await;
}

#[tokio::test]
async fn no_setting_of_ours_reaches_the_server() {
    let place = Place::new();
    let server = place.script("server", "env > \"$0.env\"; exec redis-server \"$@\"");
    let launcher = place.script("launcher", &format!("DUEPOST_TOKEN=s3cret exec {} \"$@\"", launcher().display()));
    // the settings are removed where the launcher is started, so what it sets itself shows that the file tells
    let it = Embedded::start(EmbeddedConfig { server_bin: Some(server.clone()), launcher, ..place.config() }).await;
    let shown = fs::read_to_string(server.with_extension("env")).unwrap();
    assert!(shown.contains("DUEPOST_TOKEN"), "the server's environment is what we look at");
    it.unwrap().stop().await;

    let parent = Parent::holding(&place, Some(server.clone())); // which has a DUEPOST_REDIS_SERVER_BIN
    let shown = fs::read_to_string(server.with_extension("env")).unwrap();
    assert!(shown.contains("PATH=") && !shown.contains("DUEPOST_"), "{shown}");
    drop(parent);
}

#[tokio::test]
async fn a_second_start_on_a_directory_is_refused_and_names_the_first() {
    let place = Place::new();
    let parent = Parent::holding(&place, None);

    let refused = place.start().await.unwrap_err();

    let holder = parent.process.id();
    assert!(matches!(refused, EmbeddedError::InUse { pid: Some(pid), .. } if pid == holder), "{refused}");
    assert_eq!(parent.ask::<String>("PING"), "PONG", "the first is not disturbed");
}

#[tokio::test]
async fn an_orphan_is_shut_down_and_its_data_taken_over() {
    let place = Place::new();
    let mut parent = Parent::holding(&place, Some(place.server_that_outlives_its_parent()));
    parent.ask::<()>("SET k from-the-orphan");
    parent.kill();
    assert!(is_alive(parent.server), "an orphan");

    let next = place.start().await.unwrap();

    assert_ne!(next.pid(), parent.server);
    assert!(!is_alive(parent.server));
    assert_eq!(ask::<String>(next.url(), "GET k").unwrap(), "from-the-orphan");
    next.stop().await;
}

#[tokio::test]
async fn an_orphan_that_does_not_answer_keeps_its_lock_and_is_named() {
    let place = Place::new();
    let mut parent = Parent::holding(&place, Some(place.server_that_outlives_its_parent()));
    parent.kill();
    signal(parent.server, Signal::STOP); // not before: a stopped process is woken when it becomes an orphan

    let refused = place.start().await.unwrap_err();

    assert!(matches!(refused, EmbeddedError::Orphan { pid: Some(pid), .. } if pid == parent.server), "{refused}");
    assert!(is_alive(parent.server));
}

#[tokio::test]
async fn a_foreign_server_on_the_recorded_socket_is_not_shut_down() {
    // given: run.json names a socket where by now another server listens
    let (foreign, place) = (Place::new(), Place::new());
    let other = foreign.start().await.unwrap();
    let listening = other.pid();
    place.start().await.unwrap().stop().await;
    let lock = OpenOptions::new().write(true).open(place.data().join("redis/lock")).unwrap();
    lock.lock().unwrap();
    let mut run: serde_json::Value = serde_json::from_slice(&fs::read(foreign.run_json()).unwrap()).unwrap();
    run["run_id"] = "0000".into();
    fs::write(place.run_json(), run.to_string()).unwrap();

    let refused = place.start().await.unwrap_err();

    assert!(matches!(refused, EmbeddedError::Orphan { .. }), "{refused}");
    assert_eq!(ask::<String>(other.url(), "PING").unwrap(), "PONG");
    assert_eq!(other.pid(), listening, "not even restarted");
    fs::remove_file(place.run_json()).unwrap();
    other.stop().await;
}

#[tokio::test]
async fn a_path_too_long_for_a_socket_gets_one_elsewhere() {
    let mut place = Place::new();
    place.data = place.data.join("a".repeat(60)).join("b".repeat(60));

    let it = place.start().await.unwrap();

    let socket = PathBuf::from(it.url().strip_prefix("redis+unix://").unwrap());
    assert!(!socket.starts_with(it.data_dir()) && socket.as_os_str().len() < 100, "{}", socket.display());
    assert_eq!(socket.parent().unwrap().metadata().unwrap().mode() & 0o777, 0o700);
    assert_eq!(ask::<String>(it.url(), "PING").unwrap(), "PONG");
    it.stop().await;
    assert!(!socket.parent().unwrap().exists());
}

#[tokio::test]
async fn a_path_with_special_characters_is_no_configuration() {
    let mut place = Place::new();
    place.data = place.data.join("it's \"100%\" #?\nappendonly no");

    let it = place.start().await.unwrap();

    assert_eq!(ask::<Vec<String>>(it.url(), "CONFIG GET appendonly").unwrap(), ["appendonly", "yes"]);
    assert_eq!(
        ask::<Vec<String>>(it.url(), "CONFIG GET dir").unwrap()[1],
        it.data_dir().join("redis").to_str().unwrap()
    );
    it.stop().await;
}

#[tokio::test]
async fn a_long_append_only_file_is_waited_for() {
    let place = Place::new();
    place.write_append_only_file(300_000, "");

    let it = place.start().await.unwrap();

    assert_eq!(ask::<u32>(it.url(), "DBSIZE").unwrap(), 300_000, "ready means loaded");
    it.stop().await;
}

#[tokio::test]
async fn a_start_given_up_while_it_loads_leaves_nothing_behind() {
    let place = Place::new();
    place.write_append_only_file(300_000, "");
    let mut start = Box::pin(place.start());
    let server = loop {
        tokio::select! {
            started = &mut start => panic!("too fast to be given up: {:?}", started.map(|it| it.pid())),
            () = tokio::time::sleep(Duration::from_millis(2)) => if let Some(pid) = place.recorded_pid() { break pid },
        }
    };

    drop(start);

    gone(server).await;
    eventually("the directory is free", || (!place.run_json().exists()).then_some(())).await;
}

#[tokio::test]
async fn a_broken_tail_of_the_append_only_file_costs_only_the_tail() {
    let place = Place::new();
    place.write_append_only_file(10, "*3\r\n$3\r\nSET\r\n$4\r\nhal");

    let it = place.start().await.unwrap();

    assert_eq!(ask::<u32>(it.url(), "DBSIZE").unwrap(), 10);
    it.stop().await;
}

#[tokio::test]
async fn a_damaged_append_only_file_is_told_with_the_repair() {
    let place = Place::new();
    place.write_append_only_file(10, "garbage\r\n*1\r\n$4\r\nPING\r\n");

    let refused = place.start().await.unwrap_err();

    let text = refused.to_string();
    assert!(text.contains("Bad file format"), "the server's last lines: {text}");
    let repair = text.lines().last().unwrap();
    assert!(repair.contains("redis-check-aof --fix ") && repair.contains("/redis/append"), "{text}");
    assert!(!place.run_json().exists());
}

#[tokio::test]
async fn a_missing_server_is_told_with_the_ways_out() {
    let place = Place::new();

    let missing = place.start_with("/nowhere/redis-server".into()).await.unwrap_err();

    assert!(matches!(missing, EmbeddedError::NotFound(_)));
    let text = missing.to_string();
    assert!(text.starts_with("no Redis configured and no redis-server (or valkey-server) >= 6.2 found\n"), "{text}");
    assert!(text.contains("\n  found: /nowhere/redis-server (cannot be run: "), "{text}");
    assert!(
        text.contains("\nfix one of:  make run  |  sudo apt-get install redis-server  |  --redis redis://"),
        "{text}"
    );
    assert!(!place.data().exists(), "nothing was made");
}

#[tokio::test]
async fn a_too_old_server_is_refused_with_its_version() {
    let place = Place::new();
    let old = place.script("old-redis", "echo 'Redis server v=6.0.16 sha=00000000:0 malloc=jemalloc-5.2.1 bits=64'");

    let refused = place.start_with(old.clone()).await.unwrap_err();

    let line = format!("  found: {} 6.0.16 (too old)", old.display());
    assert!(refused.to_string().lines().any(|it| it == line), "{refused}");
}

#[tokio::test]
async fn a_server_that_would_not_see_the_data_is_refused() {
    let place = Place::new();
    place.start().await.unwrap().stop().await; // Redis 7 makes a directory that 6.2 does not look at
    let older = place.script("older-redis", "echo 'Redis server v=6.2.14 sha=00000000:0'");

    let refused = place.start_with(older).await.unwrap_err();

    assert!(matches!(refused, EmbeddedError::Downgrade { .. }), "{refused}");
}

#[tokio::test]
async fn a_server_that_dies_is_restarted_with_its_data() {
    let place = Place::new();
    let it = place.start().await.unwrap();
    ask::<()>(it.url(), "SET k v").unwrap();
    let first = it.pid();

    signal(first, Signal::KILL);

    eventually("the server is back", || ask::<String>(it.url(), "GET k").ok().filter(|v| v == "v")).await;
    assert_ne!(it.pid(), first);
    it.stop().await;
}

#[tokio::test]
async fn restarts_in_vain_end_in_giving_up() {
    let place = Place::new();
    let server =
        place.script("server", "test -e \"$0.broken\" && echo out of order && exit 3; exec redis-server \"$@\"");
    let it = place.start_with(server.clone()).await.unwrap();
    let gave_up = it.gave_up();
    fs::write(server.with_extension("broken"), "").unwrap();

    signal(it.pid(), Signal::KILL);

    let reason = tokio::time::timeout(Duration::from_secs(10), gave_up).await.expect("gives up");
    assert!(reason.contains("out of order") && reason.contains("5 restarts within a minute"), "{reason}");
    assert!(!place.run_json().exists());
    it.stop().await;
}

#[tokio::test]
async fn a_directory_that_everyone_may_write_is_refused() {
    let place = Place::new();
    fs::create_dir(place.data()).unwrap();
    fs::set_permissions(place.data(), Permissions::from_mode(0o777)).unwrap();

    let refused = place.start().await.unwrap_err();

    assert!(matches!(refused, EmbeddedError::WorldWritable { mode: 0o777, .. }), "{refused}");
}

#[tokio::test]
async fn a_new_directory_is_ours_alone() {
    let place = Place::new();
    let it = place.start().await.unwrap();

    for path in [it.data_dir().to_owned(), it.data_dir().join("redis"), it.data_dir().join("redis.sock")] {
        assert_eq!(path.metadata().unwrap().mode() & 0o077, 0, "{}", path.display());
    }
    assert_eq!(place.run_json().metadata().unwrap().mode() & 0o077, 0);
    it.stop().await;
}

#[tokio::test]
async fn the_server_is_configured_not_to_lose_anything() {
    for (appendfsync, told) in [(AppendFsync::Always, "always"), (AppendFsync::EverySec, "everysec")] {
        let place = Place::new();
        let it = Embedded::start(EmbeddedConfig { appendfsync, ..place.config() }).await.unwrap();

        let config = |name: &str| ask::<Vec<String>>(it.url(), &format!("CONFIG GET {name}")).unwrap().remove(1);

        assert_eq!(config("appendonly"), "yes");
        assert_eq!(config("appendfsync"), told);
        assert_eq!(config("maxmemory-policy"), "noeviction");
        assert_eq!(config("port"), "0", "not reachable from the network");
        assert_eq!(config("save"), "");
        assert!(it.server().starts_with("redis-server ") || it.server().starts_with("valkey-server "));
        it.stop().await;
    }
}

/// The 41st word of a process's `stat` is its scheduling policy; the second, its name, may hold blanks.
#[cfg(target_os = "linux")]
fn stands_behind(process: &str) -> bool {
    const SCHED_IDLE: &str = "5";
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(38)) == Some(SCHED_IDLE)
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_rewriting_of_the_append_only_file_stands_behind_everybody() {
    let place = Place::new();
    let it = place.start().await.unwrap();
    ask::<()>(it.url(), "SET k v").unwrap();
    ask::<()>(it.url(), "CONFIG SET rdb-key-save-delay 60000000").unwrap(); // a minute a key
    ask::<()>(it.url(), "BGREWRITEAOF").unwrap();

    let server = it.pid();
    let children = || fs::read_to_string(format!("/proc/{server}/task/{server}/children")).ok();
    let idle =
        || children()?.split_whitespace().find(|child| stands_behind(child)).and_then(|child| child.parse().ok());
    let child = eventually("a child that stands behind", idle).await;
    assert!(!stands_behind(&server.to_string()), "only the child does");

    signal(child, Signal::USR1); // as for one that comes to no end
    let persistence = || ask::<String>(it.url(), "INFO persistence").ok();
    eventually("its end", || persistence()?.contains("aof_rewrite_in_progress:0").then_some(())).await;
    assert!(persistence().unwrap().contains("aof_last_bgrewrite_status:ok"), "no failure of Redis's");
    it.stop().await;
}

#[tokio::test]
async fn stop_leaves_only_the_data() {
    let place = Place::new();
    let it = place.start().await.unwrap();
    ask::<()>(it.url(), "SET k v").unwrap();
    let server = it.pid();

    it.stop().await;

    assert!(!is_alive(server));
    assert!(!place.run_json().exists() && !place.data().join("redis.sock").exists());
    let next = place.start().await.expect("the directory is free at once");
    assert_eq!(ask::<String>(next.url(), "GET k").unwrap(), "v");
    next.stop().await;
}

#[tokio::test]
async fn a_server_that_hangs_is_killed_at_stop() {
    let place = Place::new();
    let it = place.start().await.unwrap();
    let server = it.pid();
    signal(server, Signal::STOP);

    let stopped = tokio::time::timeout(Duration::from_secs(20), it.stop()).await;

    if stopped.is_err() {
        signal(server, Signal::KILL); // else the keeper waits for it, and the test for the keeper
        panic!("still waiting");
    }
    assert!(!is_alive(server));
}

#[tokio::test]
async fn a_dropped_handle_shuts_its_server_down() {
    let place = Place::new();
    let it = place.start().await.unwrap();
    let server = it.pid();

    drop(it);

    gone(server).await;
}
