//! Looks at and changes parsed templates: what the engine would notice too late (unknown functions, variables, templates),
//! and what it does differently from Go.

use super::RenderError;
use gotmpl::parse::{
    ActionNode, BranchNode, CommandNode, DefineNode, Expr, ListNode, Node, PipeNode, Pos, SmolStr,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Hidden functions of the engine.
pub(super) const AT: &str = "__at";
pub(super) const PRINT: &str = "__print";
pub(super) const GET: &str = "__get";

/// Source as Go understands it → source as the engine understands it, line by line the same:
/// * a comment with a left trim and without a right one also trims the text after it: an empty string ends that;
/// * `.Files.Get` becomes a function.
pub(super) fn prepare(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("{{") {
        let (before, action) = rest.split_at(at);
        out.push_str(before);
        let body = action.get(2..).unwrap_or_default();
        let inner = body.strip_prefix('-').unwrap_or(body).trim_start();
        let end = if inner.starts_with("/*") {
            body.find("*/").and_then(|c| {
                let tail = body.get(c + 2..)?;
                Some(c + 2 + tail.find("}}")? + 2)
            })
        } else {
            action_end(body)
        };
        let Some(end) = end else {
            out.push_str(action);
            return out;
        };
        let whole = action.get(..end + 2).unwrap_or_default();
        if inner.starts_with("/*") {
            out.push_str(whole);
            if body.starts_with('-') && !whole.ends_with("-}}") {
                out.push_str("{{\"\"}}");
            }
        } else {
            out.push_str(
                &whole
                    .replace("$.Files.Get ", "filesGet ")
                    .replace(".Files.Get ", "filesGet "),
            );
        }
        rest = action.get(end + 2..).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

/// Blocks that are not closed, or closed once too often: the engine takes both.
pub(super) fn balance(file: &str, text: &str) -> Result<(), RenderError> {
    let fault = |line: usize, message: &str| RenderError {
        file: file.to_owned(),
        line,
        message: message.to_owned(),
    };
    let mut open: Vec<usize> = Vec::new();
    let (mut rest, mut line) = (text, 1);
    while let Some(at) = rest.find("{{") {
        let (before, action) = rest.split_at(at);
        line += before.matches('\n').count();
        let body = action.get(2..).unwrap_or_default();
        let inner = body.strip_prefix('-').unwrap_or(body).trim_start();
        let end = if inner.starts_with("/*") {
            body.find("*/")
                .and_then(|c| Some(c + body.get(c..)?.find("}}")? + 2))
        } else {
            action_end(body)
        };
        let Some(end) = end else { return Ok(()) };
        let word: String = inner.chars().take_while(char::is_ascii_alphabetic).collect();
        match word.as_str() {
            "if" | "range" | "with" | "define" | "block" => open.push(line),
            "end" if open.pop().is_none() => return Err(fault(line, "unexpected {{end}}")),
            _ => {}
        }
        let whole = action.get(..end + 2).unwrap_or_default();
        line += whole.matches('\n').count();
        rest = action.get(end + 2..).unwrap_or_default();
    }
    match open.pop() {
        Some(line) => Err(fault(line, "this block has no {{end}}")),
        None => Ok(()),
    }
}

/// Offset after the `}}` that ends an action, past strings.
fn action_end(body: &str) -> Option<usize> {
    let bytes = body.as_bytes();
    let mut i = 0;
    while let Some(b) = bytes.get(i) {
        match b {
            b'"' => {
                i += 1;
                while *bytes.get(i)? != b'"' {
                    i += if bytes.get(i) == Some(&b'\\') { 2 } else { 1 };
                }
            }
            b'`' => {
                i += 1;
                while *bytes.get(i)? != b'`' {
                    i += 1;
                }
            }
            b'}' if bytes.get(i + 1) == Some(&b'}') => return Some(i + 2),
            _ => {}
        }
        i += 1;
    }
    None
}

/// Faults that Go finds when it parses.
pub(super) fn lint(
    file: &str,
    main: &ListNode,
    defines: &[DefineNode],
    known: &dyn Fn(&str) -> bool,
    also_templates: bool,
) -> Vec<RenderError> {
    let mut l = Lint {
        file,
        known,
        also_templates,
        templates: defines.iter().map(|d| d.name.to_string()).collect(),
        scope: vec![vec!["$".to_owned()]],
        faults: Vec::new(),
    };
    l.list(main);
    for d in defines {
        l.scope = vec![vec!["$".to_owned()]];
        l.list(&d.body);
    }
    l.faults
}

struct Lint<'a> {
    file: &'a str,
    known: &'a dyn Fn(&str) -> bool,
    /// Go notices these only when they are called.
    also_templates: bool,
    templates: BTreeSet<String>,
    scope: Vec<Vec<String>>,
    faults: Vec<RenderError>,
}

impl Lint<'_> {
    fn fault(&mut self, pos: Pos, message: String) {
        self.faults.push(RenderError {
            file: self.file.to_owned(),
            line: pos.line,
            message,
        });
    }

    fn list(&mut self, l: &ListNode) {
        for n in &l.nodes {
            match n {
                Node::List(l) => self.list(l),
                Node::Action(a) => self.pipe(&a.pipe),
                Node::If(b) | Node::With(b) | Node::Range(b) => self.branch(b),
                Node::Template(t) => {
                    if self.also_templates && !self.templates.contains(t.name.as_str()) {
                        self.fault(t.pos, format!("template {:?} is not defined", t.name.as_str()));
                    }
                    if let Some(p) = &t.pipe {
                        self.pipe(p);
                    }
                }
                Node::Define(d) => {
                    let outer = std::mem::replace(&mut self.scope, vec![vec!["$".to_owned()]]);
                    self.list(&d.body);
                    self.scope = outer;
                }
                Node::Text(_) | Node::Break(_) | Node::Continue(_) => {}
            }
        }
    }

    fn branch(&mut self, b: &BranchNode) {
        self.scope.push(Vec::new());
        self.pipe(&b.pipe);
        self.scope.push(Vec::new());
        self.list(&b.body);
        self.scope.pop();
        if let Some(e) = &b.else_body {
            self.scope.push(Vec::new());
            self.list(e);
            self.scope.pop();
        }
        self.scope.pop();
    }

    fn pipe(&mut self, p: &PipeNode) {
        for c in &p.commands {
            for a in &c.args {
                self.expr(a);
            }
        }
        for name in &p.decl {
            if p.is_assign {
                self.variable(p.pos, name);
            } else if let Some(s) = self.scope.last_mut() {
                s.push(dollar(name));
            }
        }
    }

    fn variable(&mut self, pos: Pos, name: &str) {
        let name = dollar(name);
        if !self.scope.iter().any(|s| s.contains(&name)) {
            self.fault(pos, format!("variable {name} is not defined"));
        }
    }

    fn expr(&mut self, e: &Expr) {
        match e {
            Expr::Variable(pos, name, _) => self.variable(*pos, name),
            Expr::Identifier(pos, name) if !(self.known)(name) => {
                self.fault(*pos, format!("function {:?} is not defined", name.as_str()));
            }
            Expr::Pipe(_, p) => self.pipe(p),
            Expr::Chain(_, inner, _) => self.expr(inner),
            _ => {}
        }
    }
}

/// Names with their `$`, whichever way the parser keeps them.
fn dollar(name: &str) -> String {
    if name.starts_with('$') {
        name.to_owned()
    } else {
        format!("${name}")
    }
}

/// Puts the hidden functions in: where we are (for messages), Go's printing, Go's error for a field of an explicit null, and
/// `set`, which changes a variable's map in place.
pub(super) fn transform(l: &mut ListNode) {
    let mut out = Vec::with_capacity(l.nodes.len() * 2);
    for mut n in std::mem::take(&mut l.nodes) {
        let pos = match &mut n {
            Node::List(inner) => {
                transform(inner);
                None
            }
            Node::Action(a) => {
                let said = source(&a.pipe);
                change_pipe(&mut a.pipe);
                set_in_place(&mut a.pipe);
                if a.pipe.decl.is_empty() {
                    let mut print = command(a.pos, PRINT);
                    print.args.push(Expr::String(a.pos, Arc::from(said)));
                    a.pipe.commands.push(print);
                }
                Some(a.pos)
            }
            Node::If(b) | Node::With(b) | Node::Range(b) => {
                change_pipe(&mut b.pipe);
                transform(&mut b.body);
                if let Some(e) = &mut b.else_body {
                    transform(e);
                }
                Some(b.pos)
            }
            Node::Template(t) => {
                if let Some(p) = &mut t.pipe {
                    change_pipe(p);
                }
                Some(t.pos)
            }
            Node::Define(d) => {
                transform(&mut d.body);
                None
            }
            Node::Text(_) | Node::Break(_) | Node::Continue(_) => None,
        };
        if let Some(pos) = pos {
            out.push(mark(pos));
        }
        out.push(n);
    }
    l.nodes = out;
}

/// What an action says, as far as messages need it.
fn source(p: &PipeNode) -> String {
    let commands: Vec<String> = p
        .commands
        .iter()
        .map(|c| c.args.iter().map(word).collect::<Vec<_>>().join(" "))
        .collect();
    let text = commands.join(" | ");
    if text.chars().count() > SOURCE {
        return format!("{} …", text.chars().take(SOURCE).collect::<String>());
    }
    text
}

/// Characters of an action that a message shows.
const SOURCE: usize = 120;

fn word(e: &Expr) -> String {
    let fields = |names: &[SmolStr]| names.iter().map(|n| format!(".{n}")).collect::<String>();
    match e {
        Expr::Dot(_) => ".".to_owned(),
        Expr::Field(_, names) => fields(names),
        Expr::Variable(_, name, names) => format!("{}{}", dollar(name), fields(names)),
        Expr::Identifier(_, name) => name.to_string(),
        Expr::String(_, s) => format!("{s:?}"),
        Expr::Bool(_, b) => b.to_string(),
        Expr::Nil(_) => "nil".to_owned(),
        Expr::Pipe(_, p) => format!("({})", source(p)),
        Expr::Chain(_, inner, names) => format!("{}{}", word(inner), fields(names)),
        Expr::Number(_, gotmpl::parse::Number::Int(n)) => n.to_string(),
        _ => "…".to_owned(),
    }
}

/// `{{ __at LINE }}`, which prints nothing.
fn mark(pos: Pos) -> Node {
    let mut c = command(pos, AT);
    let line = i64::try_from(pos.line).unwrap_or(0);
    c.args.push(Expr::Number(pos, gotmpl::parse::Number::Int(line)));
    Node::Action(ActionNode {
        pos,
        pipe: pipe(pos, c),
    })
}

fn command(pos: Pos, name: &str) -> CommandNode {
    CommandNode {
        pos,
        args: vec![Expr::Identifier(pos, SmolStr::from(name))],
    }
}

fn pipe(pos: Pos, c: CommandNode) -> PipeNode {
    PipeNode {
        pos,
        decl: Vec::new(),
        commands: vec![c],
        is_assign: false,
    }
}

fn change_pipe(p: &mut PipeNode) {
    for c in &mut p.commands {
        for a in &mut c.args {
            change_expr(a);
        }
    }
}

fn change_expr(e: &mut Expr) {
    match e {
        Expr::Field(pos, names) if names.len() > 1 => *e = get(*pos, Expr::Dot(*pos), names),
        Expr::Variable(pos, name, names) if names.len() > 1 => {
            *e = get(*pos, Expr::Variable(*pos, name.clone(), Vec::new()), names);
        }
        Expr::Pipe(_, p) => change_pipe(p),
        Expr::Chain(_, inner, _) => change_expr(inner),
        _ => {}
    }
}

/// `a.b.c` as a function, which can tell a missing key from an explicit null.
fn get(pos: Pos, from: Expr, names: &[SmolStr]) -> Expr {
    let mut c = command(pos, GET);
    c.args.push(from);
    c.args
        .extend(names.iter().map(|n| Expr::String(pos, Arc::from(n.as_str()))));
    Expr::Pipe(pos, pipe(pos, c))
}

/// `set $x k v`, alone or as `$_ := set $x k v`, assigns to `$x`: the engine's maps are values.
fn set_in_place(p: &mut PipeNode) {
    let [c] = p.commands.as_slice() else { return };
    let [Expr::Identifier(_, f), Expr::Variable(_, var, fields), ..] = c.args.as_slice() else {
        return;
    };
    let discarded = p.decl.iter().all(|d| d.trim_start_matches('$') == "_");
    if f.as_str() == "set" && fields.is_empty() && discarded && !p.decl.is_empty() {
        p.decl = vec![var.clone()];
        p.is_assign = true;
    }
}
