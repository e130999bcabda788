//! The engine: gotmpl, with our own functions, printing and checks around it.

use super::{Engine, RenderError, Text, format, funcs, tree, value};
use gotmpl::parse::{DefineNode, ListNode, Parser};
use gotmpl::{Template, TemplateError, Value};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Passes through all loops of one template.
const MAX_PASSES: u64 = 200_000;
/// Largest output of one template, bytes.
const MAX_OUTPUT: usize = 4 << 20;
/// Deepest `tpl` within `tpl`.
const MAX_TPL: usize = 10;
/// Stack of the thread that renders: templates may recurse up to the engine's own limit.
const STACK: usize = 32 << 20;
/// Most warnings that are kept of one template.
const MAX_WARNINGS: usize = 50;
/// Name under which the template itself is kept.
const MAIN: &str = "__main";

/// Go's text/template with the functions of bashible.
#[derive(Debug, Clone, Default)]
pub struct GoTemplates {
    /// What `.Files.Get` finds; absent files are empty.
    pub files: BTreeMap<String, String>,
}

type Parsed = (ListNode, Vec<DefineNode>);

fn parse(file: &str, text: &str) -> Result<Parsed, RenderError> {
    tree::balance(file, text)?;
    let source = tree::prepare(text);
    Parser::with_name(None, &source, "{{", "}}")
        .and_then(Parser::parse)
        .map_err(|e| fault(file, 0, &e))
}

fn fault(file: &str, line: usize, e: &TemplateError) -> RenderError {
    let (line, message) = match e {
        TemplateError::Parse { line, message, .. } | TemplateError::Lex { line, message, .. } => {
            (*line, message.clone())
        }
        TemplateError::Exec(m) => (line, m.clone()),
        TemplateError::RecursionLimit => (line, "templates call each other without end".to_owned()),
        TemplateError::RangeIterLimit => (line, format!("more than {MAX_PASSES} passes through loops")),
        TemplateError::Write => (line, format!("becomes more than {MAX_OUTPUT} bytes")),
        other => (line, other.to_string()),
    };
    RenderError {
        file: file.to_owned(),
        line,
        message,
    }
}

/// Output with an end.
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        if self.0.len() + s.len() > MAX_OUTPUT {
            return Err(std::fmt::Error);
        }
        self.0.push_str(s);
        Ok(())
    }
}

struct Scene {
    engine: GoTemplates,
    root: Value,
    tpl_depth: AtomicUsize,
    warnings: Mutex<Vec<RenderError>>,
}

impl Scene {
    /// What is printed holds Go's mark of a value that was not there. A loop says it once.
    fn warn(&self, file: &str, line: usize, what: &str, mark: &str) {
        // The template within was asked itself.
        if what.starts_with("tpl ") {
            return;
        }
        let message = if mark == "%!" {
            format!("{what}: a value does not fit its verb, and the output says so with {mark:?}")
        } else {
            format!("{what} is missing in the context, or null, and became {mark:?}")
        };
        let w = RenderError {
            file: file.to_owned(),
            line,
            message,
        };
        let mut all = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < MAX_WARNINGS && !all.contains(&w) {
            all.push(w);
        }
    }
}

/// What Go prints in place of a value that is not there, or that does not fit its `printf` verb.
fn mark(text: &str) -> Option<&'static str> {
    ["<no value>", "<nil>", "%!"]
        .into_iter()
        .find(|m| text.contains(m) && (*m != "%!" || bad_verb(text)))
}

/// `%!d(float64=10)` and the like.
fn bad_verb(text: &str) -> bool {
    text.match_indices("%!").any(|(i, _)| {
        let mut rest = text.get(i + 2..).unwrap_or_default().chars();
        rest.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '(') && rest.as_str().contains(')')
    })
}

impl Engine for GoTemplates {
    fn lint(&self, name: &str, text: &str) -> Result<(), Vec<RenderError>> {
        let (main, defines) = parse(name, text).map_err(|e| vec![e])?;
        let faults = tree::lint(name, &main, &defines, &known, true);
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    fn render(&self, name: &str, text: &str, context: &serde_json::Value) -> Result<Text, RenderError> {
        let broken = |message: String| RenderError {
            file: name.to_owned(),
            line: 0,
            message,
        };
        std::thread::scope(|s| {
            std::thread::Builder::new()
                .stack_size(STACK)
                .spawn_scoped(s, || {
                    let scene = Arc::new(Scene {
                        engine: self.clone(),
                        root: value::from_json(context),
                        tpl_depth: AtomicUsize::new(0),
                        warnings: Mutex::default(),
                    });
                    let text = run(name, text, &scene)?;
                    let warnings =
                        std::mem::take(&mut *scene.warnings.lock().unwrap_or_else(PoisonError::into_inner));
                    Ok(Text { text, warnings })
                })
                .map_err(|e| broken(format!("no thread: {e}")))?
                .join()
                .unwrap_or_else(|_| Err(broken("the engine broke off".to_owned())))
        })
    }
}

fn known(name: &str) -> bool {
    const BUILT_IN: [&str; 19] = [
        "and", "or", "not", "eq", "ne", "lt", "le", "gt", "ge", "index", "slice", "len", "print", "printf",
        "println", "call", "html", "js", "urlquery",
    ];
    BUILT_IN.contains(&name) || ["tpl", "filesGet"].contains(&name) || funcs::table().contains_key(name)
}

fn run(file: &str, text: &str, scene: &Arc<Scene>) -> Result<String, RenderError> {
    let (mut main, mut defines) = parse(file, text)?;
    if let Some(first) = tree::lint(file, &main, &defines, &known, false)
        .into_iter()
        .next()
    {
        return Err(first);
    }
    tree::transform(&mut main);
    let at = Arc::new(AtomicUsize::new(0));
    let mut t = Template::new("")
        .max_range_iters(MAX_PASSES)
        .add_parse_tree(MAIN, main);
    for d in &mut defines {
        tree::transform(&mut d.body);
        t = t.add_parse_tree(&d.name, d.body.clone());
    }
    t = with_functions(t, file, scene, &at);
    let mut out = Bounded(String::new());
    t.execute_template_fmt(&mut out, MAIN, &scene.root)
        .map_err(|e| fault(file, at.load(Ordering::Relaxed), &e))?;
    Ok(out.0)
}

fn with_functions(mut t: Template, file: &str, scene: &Arc<Scene>, at: &Arc<AtomicUsize>) -> Template {
    for (name, f) in funcs::table() {
        t = t.func(name, move |args| {
            f.call(args)
                .map_err(|m| TemplateError::Exec(format!("{name}: {m}")))
        });
    }
    let line = at.clone();
    t = t.func(tree::AT, move |args| {
        if let Some(Value::Int(n)) = args.first() {
            line.store(usize::try_from(*n).unwrap_or(0), Ordering::Relaxed);
        }
        Ok(text(""))
    });
    let (s, name, line) = (scene.clone(), file.to_owned(), at.clone());
    t = t.func(tree::PRINT, move |args| {
        // What the action says, and what it gives.
        let said = match args.first() {
            Some(Value::String(s)) => s.clone(),
            _ => Arc::from(""),
        };
        let out = match args.get(1) {
            None | Some(Value::Nil) => "<no value>".to_owned(),
            Some(v) => format::plain(v),
        };
        if let Some(m) = mark(&out) {
            s.warn(&name, line.load(Ordering::Relaxed), &said, m);
        }
        Ok(text(&out))
    });
    t = t.func(tree::GET, get);
    let (s, name) = (scene.clone(), file.to_owned());
    t = t.func("tpl", move |args| {
        let Some(Value::String(source)) = args.first() else {
            return Err(TemplateError::Exec("tpl: expected a string".into()));
        };
        if s.tpl_depth.fetch_add(1, Ordering::Relaxed) >= MAX_TPL {
            return Err(TemplateError::Exec(format!(
                "tpl: nested more than {MAX_TPL} deep"
            )));
        }
        let out = run(&format!("{name} (tpl)"), source, &s);
        s.tpl_depth.fetch_sub(1, Ordering::Relaxed);
        out.map(|o| text(&o))
            .map_err(|e| TemplateError::Exec(e.to_string()))
    });
    let s = scene.clone();
    t.func("filesGet", move |args| {
        let found = match args.first() {
            Some(Value::String(n)) => s.engine.files.get(n.as_ref()).cloned(),
            _ => None,
        };
        Ok(text(&found.unwrap_or_default()))
    })
}

fn text(s: &str) -> Value {
    Value::String(Arc::from(s))
}

/// Fields one after the other: a missing key ends in nothing, a field of an explicit null is an error, as in Go.
fn get(args: &[Value]) -> Result<Value, TemplateError> {
    let Some((from, names)) = args.split_first() else {
        return Ok(Value::Nil);
    };
    let mut at = from.clone();
    for (i, n) in names.iter().enumerate() {
        let Value::String(n) = n else {
            return Ok(Value::Nil);
        };
        at = match &at {
            Value::Map(m) => match m.get(n.as_ref()) {
                Some(v) => v.clone(),
                None => return Ok(Value::Nil),
            },
            Value::Nil if i > 0 => {
                return Err(TemplateError::Exec(format!(
                    "nil pointer evaluating interface {{}}.{n}"
                )));
            }
            Value::Nil => return Ok(Value::Nil),
            other => {
                return Err(TemplateError::Exec(format!(
                    "can't evaluate field {n} in type {}: {}",
                    other.type_name(),
                    format::plain(other).chars().take(80).collect::<String>()
                )));
            }
        };
    }
    Ok(at)
}
