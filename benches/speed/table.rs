//! The table: what was measured, its goal, whether it is kept, and how it changed since the last run.

use std::{collections::BTreeMap, fmt::Write as _, path::PathBuf, process::Command};

/// What a figure should be.
#[derive(Clone, Copy)]
pub enum Goal {
    AtLeast(f64),
    AtMost(f64),
    /// Told for comparison.
    None,
}

/// What a task took of a core, and the rate that follows by the model of docs/scaling.md.
#[derive(Clone, Copy)]
pub struct Costs {
    /// Seconds in the service, in Redis, and on our side.
    pub parts: [f64; 3],
    /// Tasks a second by these costs.
    pub model: f64,
    /// The same by the costs with another number of cores.
    pub by_the_other: f64,
    /// What was reached.
    pub rate: f64,
}

/// One line of the table.
pub struct Row {
    what: String,
    unit: &'static str,
    goal: Goal,
    rounds: Vec<f64>,
    /// How it came about, a line a round.
    told: Vec<String>,
    /// One a round, in rows about the model.
    costs: Vec<Costs>,
}

impl Row {
    pub fn new(what: &str, unit: &'static str, goal: Goal) -> Self {
        Self { what: what.to_owned(), unit, goal, rounds: Vec::new(), told: Vec::new(), costs: Vec::new() }
    }

    pub fn round(&mut self, figure: f64) {
        self.rounds.push(figure);
    }

    /// A round about the model.
    pub fn costs(&mut self, figure: f64, costs: Costs) {
        self.rounds.push(figure);
        self.costs.push(costs);
    }

    pub fn tell(&mut self, how: String) {
        self.told.push(how);
    }

    /// Which of its rounds is the median.
    fn median(&self) -> usize {
        let mut sorted: Vec<usize> = (0..self.rounds.len()).collect();
        sorted.sort_by(|a, b| self.rounds[*a].total_cmp(&self.rounds[*b]));
        sorted.get(sorted.len() / 2).copied().unwrap_or(0)
    }

    fn figure(&self) -> f64 {
        self.rounds.get(self.median()).copied().unwrap_or(f64::NAN)
    }

    fn shown(&self) -> String {
        if self.rounds.is_empty() { "failed".to_owned() } else { number(self.figure()) }
    }

    fn verdict(&self) -> &'static str {
        let figure = self.figure();
        match self.goal {
            Goal::AtLeast(goal) if figure >= goal => "ok",
            Goal::AtMost(goal) if figure <= goal => "ok",
            Goal::None => "",
            _ => "short",
        }
    }

    fn goal(&self) -> String {
        match self.goal {
            Goal::AtLeast(goal) => format!("≥ {}", number(goal)),
            Goal::AtMost(goal) => format!("≤ {}", number(goal)),
            Goal::None => String::new(),
        }
    }
}

/// Three digits that matter, thousands apart.
pub fn number(n: f64) -> String {
    match n.abs() {
        x if x >= 1000.0 => {
            let digits = format!("{n:.0}");
            let head = digits.len() % 3;
            let groups = digits.as_bytes()[head..].chunks(3).map(|g| String::from_utf8_lossy(g).into_owned());
            let first = (head > 0).then(|| digits[..head].to_owned());
            first.into_iter().chain(groups).collect::<Vec<_>>().join(",")
        }
        x if x >= 100.0 => format!("{n:.0}"),
        x if x >= 10.0 => format!("{n:.1}"),
        x if x >= 0.01 || x == 0.0 => format!("{n:.2}"),
        _ => format!("{n:.4}"),
    }
}

/// All rows of a run.
pub struct Report {
    rows: Vec<Row>,
    is_full: bool,
    last: BTreeMap<String, f64>,
}

impl Report {
    pub fn new(is_full: bool) -> Self {
        let text = std::fs::read(kept(is_full)).unwrap_or_default();
        Self { rows: Vec::new(), is_full, last: serde_json::from_slice(&text).unwrap_or_default() }
    }

    /// Prints a row as soon as it is known.
    pub fn add(&mut self, row: Row) {
        let change = self.last.get(&row.what).map(|last| format!("{:+.0} %", 100.0 * (row.figure() / last - 1.0)));
        let (figure, goal, change) = (row.shown(), row.goal(), change.unwrap_or_default());
        println!("{:<58} {figure:>9} {:<30} {goal:<10} {:<6} {change}", row.what, row.unit, row.verdict());
        for how in &row.told {
            println!("    {how}");
        }
        self.rows.push(row);
    }

    /// Keeps the figures for the next run to compare with.
    pub fn keep(mut self) {
        for row in self.rows.iter().filter(|row| row.figure().is_finite()) {
            self.last.insert(row.what.clone(), row.figure());
        }
        let text = serde_json::to_string_pretty(&self.last).unwrap_or_default();
        if let Err(error) = std::fs::write(kept(self.is_full), text) {
            eprintln!("the result is not kept: {error}");
        }
    }

    /// Writes docs/benchmarks.md between its marks; what people wrote around them stays.
    pub fn write_page(&self, counts: &[(String, u64)]) {
        const MARKS: [&str; 2] = ["<!-- measured: begin -->\n", "<!-- measured: end -->"];
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/benchmarks.md");
        let page = std::fs::read_to_string(&path).unwrap_or_else(|_| MARKS.concat());
        let (before, rest) = page.split_once(MARKS[0]).expect("the page has its first mark");
        let (_, after) = rest.split_once(MARKS[1]).expect("the page has its second mark");
        let measured = self.page(counts);
        std::fs::write(&path, [before, MARKS[0], &measured, MARKS[1], after].concat())
            .expect("the page can be written");
    }

    /// The table that shows whether the model holds.
    fn model(&self) -> String {
        let mut text = String::new();
        for (row, costs) in self.rows.iter().filter_map(|row| Some((row, row.costs.get(row.median())?))) {
            if text.is_empty() {
                text.push_str(
                    "\nThe model of [scaling.md](scaling.md): µs that a task took of a core in the service, in Redis, and in load \
                     generator and receiver, and tasks a second: by these costs, by the costs on the other number of cores, and as \
                     measured.\n\n| what | service | Redis | our side | model | by the other's | measured |\n|---|---:|---:|---:|---:|---:|---:|\n",
                );
            }
            let [service, redis, ours] = costs.parts.map(|seconds| number(seconds * 1e6));
            let [model, other, rate] = [costs.model, costs.by_the_other, costs.rate].map(number);
            let _ = writeln!(text, "| {} | {service} | {redis} | {ours} | {model} | {other} | {rate} |", row.what);
        }
        text
    }

    fn page(&self, counts: &[(String, u64)]) -> String {
        let mut text = format!("\n{}\n\n| what | median | | goal | |\n|---|---:|---|---|---|\n", surroundings());
        for row in &self.rows {
            let (figure, goal) = (row.shown(), row.goal());
            let _ = writeln!(text, "| {} | {figure} | {} | {goal} | {} |", row.what, row.unit, row.verdict());
        }
        text.push_str(&self.model());
        text.push_str("\nInstructions a task (callgrind; these do not depend on what else the machine does):\n\n| path | instructions |\n|---|---:|\n");
        for (path, count) in counts {
            let _ = writeln!(text, "| {path} | {} |", number(*count as f64));
        }
        text.push_str("\n<details><summary>All rounds</summary>\n\n```text\n");
        for row in &self.rows {
            let rounds: Vec<String> = row.rounds.iter().map(|r| number(*r)).collect();
            let _ = writeln!(text, "{}: {}", row.what, rounds.join("  "));
            for how in &row.told {
                let _ = writeln!(text, "    {how}");
            }
        }
        text.push_str("```\n\n</details>\n\n");
        text
    }
}

fn kept(is_full: bool) -> PathBuf {
    let name = if is_full { "bench-full.json" } else { "bench.json" };
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target").join(name)
}

/// Machine, versions and commit.
fn surroundings() -> String {
    let say = |program: &str, arguments: &[&str]| {
        let said = Command::new(program).args(arguments).output().map(|o| o.stdout).unwrap_or_default();
        String::from_utf8_lossy(&said).trim().to_owned()
    };
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu =
        cpu.lines().find_map(|l| l.strip_prefix("model name")).map_or("", |l| l.trim_start_matches([' ', '\t', ':']));
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let redis = say("redis-server", &["--version"]).split(" sha").next().unwrap_or_default().to_owned();
    let commit = say("git", &["describe", "--always", "--dirty"]);
    format!(
        "{cores} cores of {cpu}, {} {}; {redis}; {}; Duepost {} at {commit}.",
        say("uname", &["-s"]),
        say("uname", &["-r"]),
        say("rustc", &["--version"]),
        env!("CARGO_PKG_VERSION"),
    )
}
