//! The commands, one function each; every one returns the errors to print.

use crate::ui;
use camino::{Utf8Path, Utf8PathBuf};
use imgbuild::cmd::sandbox::{self, Ended, Entered};
use imgbuild::error::{BuildError, Kind};
use imgbuild::outputs::{Lock, Paths};
use imgbuild::pipeline::{self, Options};
use imgbuild::plan::Plan;
use imgbuild::recipe::{Loader, Recipe, Rootfs};
use imgbuild::{cmd, epoch, files, preflight, report, url};

/// Errors of a command; never empty.
pub(crate) type Errors = Vec<BuildError>;

/// Options of `build`.
#[derive(Debug)]
pub(crate) struct Build {
    pub(crate) recipe: Utf8PathBuf,
    pub(crate) out: Option<Utf8PathBuf>,
    pub(crate) base_url: Option<String>,
    pub(crate) json: bool,
    pub(crate) quiet: bool,
}

/// Everything that can be known about a recipe and the environment before a build; every error of it.
fn load(file: &Utf8Path, base_url: Option<&str>) -> Result<(Recipe, Plan), Errors> {
    let mut errors = Errors::new();
    let epoch = epoch::from_environment().map_err(|e| errors.push(e)).ok();
    if let Some(url) = base_url
        && let Err(why) = url::check_base(url)
    {
        errors.push(BuildError::new(
            Kind::Input,
            "CFG019",
            format!("--base-url {url:?}: {why}"),
        ));
    }
    let recipe = Recipe::load(file).map_err(|e| errors.extend(e)).ok();
    if let Some(recipe) = &recipe
        && !sandbox::is_worker()
    {
        errors.extend(preflight::agent(recipe).err());
        errors.extend(preflight::files(recipe));
        errors.extend(preflight::kernel(recipe).err());
    }
    let (Some(recipe), Some(epoch), true) = (recipe, epoch, errors.is_empty()) else {
        return Err(errors);
    };
    let plan = Plan::new(&recipe, epoch).map_err(one)?;
    if !sandbox::is_worker() {
        for w in &recipe.warnings {
            ui::say(&format!("warning[{}] {}", w.code, w.message));
        }
    }
    Ok((recipe, plan))
}

/// Prints a document; the program's answer with `--json`.
fn print_json(value: &impl serde::Serialize) -> Result<(), Errors> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| one(BuildError::new(Kind::Bug, "BUG001", e.to_string())))?;
    ui::print(&format!("{text}\n")).map_err(one)
}

/// `imgbuild check`.
pub(crate) fn check(file: &Utf8Path, json: bool) -> Result<(), Errors> {
    let (recipe, plan) = load(file, None)?;
    if json {
        let warnings: Vec<_> = recipe
            .warnings
            .iter()
            .map(|w| serde_json::json!({"code": w.code, "message": w.message}))
            .collect();
        return print_json(&serde_json::json!({
            "recipe": recipe.file, "pretty_name": plan.pretty_name, "warnings": warnings}));
    }
    ui::print(&format!("{}: {}, no errors\n", recipe.file, plan.pretty_name)).map_err(one)
}

/// `imgbuild plan`.
pub(crate) fn plan(file: &Utf8Path, json: bool) -> Result<(), Errors> {
    let (_, plan) = load(file, None)?;
    if json {
        return print_json(&plan);
    }
    ui::print(&plan.to_string()).map_err(one)
}

/// `imgbuild verify`.
pub(crate) fn verify(dir: &Utf8Path, json: bool) -> Result<(), Errors> {
    let list = dir.join("SHA256SUMS");
    let text = fs_err::read_to_string(&list).map_err(|e| {
        vec![BuildError {
            kind: Kind::Input,
            ..BuildError::io(format!("reading {list}"), &e)
        }]
    })?;
    let sums = report::parse_sums(&text)
        .map_err(|e| vec![BuildError::new(Kind::Trust, "SUM001", format!("{list}: {e}"))])?;
    let mut errors = Vec::new();
    for (name, wanted) in &sums {
        let path = dir.join(name);
        match files::sha256(&path) {
            Ok(found) if found == *wanted => {}
            Ok(found) => {
                let m = format!(
                    "{path}: SHA-256 expected {wanted}, found {found}; build it again or copy it again"
                );
                errors.push(BuildError::new(Kind::Trust, "SUM001", m));
            }
            Err(e) => errors.push(BuildError::new(Kind::Trust, "SUM001", e.message)),
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    if json {
        let names: Vec<&String> = sums.iter().map(|(name, _)| name).collect();
        return print_json(&serde_json::json!({"dir": dir, "verified": names}));
    }
    ui::print(&format!("{dir}: {} files are as they were built\n", sums.len())).map_err(one)
}

/// `imgbuild build`: checks, takes the lock, lets a worker build, gives the results their names.
pub(crate) fn build(options: &Build) -> Result<(), Errors> {
    let (recipe, plan) = load(&options.recipe, options.base_url.as_deref())?;
    let default = Utf8Path::new("out").join(&recipe.version);
    let paths = Paths::new(options.out.as_deref().unwrap_or(&default)).map_err(one)?;
    let from_packages = matches!(recipe.rootfs, Rootfs::Packages { .. });
    let root = rustix::process::geteuid().is_root();
    if sandbox::is_worker() {
        return work(options, &recipe, &plan, &paths).map_err(one);
    }
    preflight::output(&recipe, &paths).map_err(one)?;
    if !root && (from_packages || recipe.boot.loader == Loader::Grub) {
        let m = "a build from packages or with a boot loader needs root (it runs programs inside the image in private \
                 namespaces); run it with sudo, or set [boot] loader = \"none\" for a tree";
        return Err(one(BuildError::new(Kind::Input, "CFG017", m)));
    }
    cmd::need_tools(&pipeline::tools(&recipe)).map_err(one)?;
    let lock = Lock::take(&paths).map_err(one)?;
    let entered = sandbox::enter(root && (from_packages || pipeline::changes_root(&recipe)));
    let result = match entered {
        Ok(Entered::Inside) => Err(one(BuildError::new(Kind::Bug, "BUG001", "two workers"))),
        Ok(Entered::Finished(ended)) => finished(ended, &lock),
        Err(e) => Err(one(e)),
    };
    let summary = result.map(|()| report_done(options, &paths));
    match (summary, lock.release()) {
        (Ok(text), Ok(())) => ui::print(&text).map_err(|e| {
            let m = format!(
                "{}; the build itself is done and lies in {}",
                e.message, paths.out
            );
            one(BuildError { message: m, ..e })
        }),
        (Ok(_), Err(e)) => Err(one(e)),
        (Err(errors), _) => Err(errors),
    }
}

fn one(e: BuildError) -> Errors {
    vec![e]
}

/// The worker's part.
fn work(options: &Build, recipe: &Recipe, plan: &Plan, paths: &Paths) -> Result<(), BuildError> {
    match sandbox::enter(false)? {
        Entered::Inside => {}
        Entered::Finished(_) => {
            return Err(BuildError::new(Kind::Bug, "BUG001", "a worker started a worker"));
        }
    }
    let progress = ui::progress(options.quiet);
    let pipeline_options = Options {
        base_url: options.base_url.clone(),
    };
    pipeline::build(recipe, plan, paths, &pipeline_options, progress.as_ref())
}

/// The supervisor's part after the worker's end. The worker has printed its own error.
fn finished(ended: Ended, lock: &Lock) -> Result<(), Errors> {
    match ended {
        Ended::Exited(0) => lock.publish().map_err(one),
        Ended::Exited(code) => Err(vec![BuildError::already_said(code)]),
        Ended::Signal(n) => Err(one(BuildError::new(
            Kind::Signal(n),
            "SIG000",
            "interrupted; nothing was changed",
        ))),
        Ended::Killed(n) => {
            let m =
                format!("the build process was killed by signal {n}; nothing was changed (out of memory?)");
            Err(one(BuildError::new(Kind::Bug, "BUG002", m)))
        }
    }
}

/// What to print after a build that worked.
fn report_done(options: &Build, paths: &Paths) -> String {
    let json = fs_err::read_to_string(paths.out.join("build.json")).unwrap_or_default();
    if options.json {
        return json;
    }
    if options.quiet {
        return String::new();
    }
    let value: serde_json::Value = serde_json::from_str(&json).unwrap_or_default();
    let text = |key: &str| value[key].as_str().unwrap_or("?").to_owned();
    format!(
        "{} is in {}\n  update.img {} MiB, a slot is {} % full, {} packages\n  sha256 {}\n",
        text("pretty_name"),
        paths.out,
        value["image_size"].as_u64().unwrap_or(0) >> 20,
        value["slot_fill_percent"].as_u64().unwrap_or(0),
        value["packages"].as_u64().unwrap_or(0),
        text("image_sha256"),
    )
}
