//! The renderer: templates and one context per node group in, steps out. Our own trait over the engine, so that it can be
//! replaced; the engine's differences from Go's text/template are handled here and proven by the conformance cases.

mod engine;
pub mod explain;
mod format;
mod funcs;
mod tree;
mod value;

pub use engine::GoTemplates;
pub use value::context;

use crate::bundle::{self, Bundle, Files};
use crate::error::{Result, StepsError};
use camino::Utf8Path;
use os_proto::codes::Code;
use std::collections::BTreeMap;

/// Largest rendered group as JSON, bytes; half of it is warned about.
pub const MAX_GROUP_BYTES: usize = 1 << 20;
/// Largest text of one template or step.
const MAX_TEXT: u64 = 1 << 20;

/// Why a template did not become a step: names file, line and what was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderError {
    /// Template file.
    pub file: String,
    /// Line from 1; 0 = unknown.
    pub line: usize,
    /// What is wrong.
    pub message: String,
}

impl std::fmt::Display for RenderError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.line == 0 {
            write!(f, "{}: {}", self.file, self.message)
        } else {
            write!(f, "{}:{}: {}", self.file, self.line, self.message)
        }
    }
}

/// A template engine: Go's text/template and the functions of section 7.2 of the specification.
pub trait Engine: Send + Sync {
    /// Parses and checks a template without running it: syntax, unknown functions, variables and templates.
    ///
    /// # Errors
    /// All faults.
    fn lint(&self, name: &str, text: &str) -> std::result::Result<(), Vec<RenderError>>;
    /// Renders a template over a context (a JSON object).
    ///
    /// # Errors
    /// The first fault, with its line.
    fn render(
        &self,
        name: &str,
        text: &str,
        context: &serde_json::Value,
    ) -> std::result::Result<Text, RenderError>;
}

/// What a template became.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Text {
    /// The step.
    pub text: String,
    /// What is as Go's text/template does it, and hardly what was meant: a value that is not there and became `<no value>`.
    pub warnings: Vec<RenderError>,
}

/// Every step of a group: its text, or why there is none.
pub type Rendered = BTreeMap<String, std::result::Result<Text, RenderError>>;

/// What failed, and what was rendered and is hardly what was meant: one line each.
pub fn faults(rendered: &Rendered) -> (Vec<String>, Vec<String>) {
    let errors = rendered.values().filter_map(|t| t.as_ref().err());
    let warnings = rendered.values().flatten().flat_map(|t| &t.warnings);
    (
        errors.map(ToString::to_string).collect(),
        warnings.map(ToString::to_string).collect(),
    )
}

/// A template's file and the name of the step that it becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// File as given.
    pub file: String,
    /// Name of the step: the file's name without `.tpl`.
    pub step: String,
    /// Text.
    pub text: String,
}

/// Reads the templates of a directory: `NAME.sh.tpl` and plain `NAME.sh`.
///
/// # Errors
/// `InvalidArgument` when it cannot be read, a name is unsafe or double, or a file is not text.
pub fn templates(dir: &Utf8Path) -> Result<Vec<Template>> {
    let fail = |what: String| StepsError::new(Code::InvalidArgument, what);
    let mut out: BTreeMap<String, Template> = BTreeMap::new();
    let list = dir
        .read_dir_utf8()
        .map_err(|e| StepsError::named(dir, "a directory with NAME.sh.tpl and NAME.sh", &e))?;
    for e in list {
        let e = e.map_err(|e| fail(format!("{dir}: {e}")))?;
        let file = e.file_name();
        let step = file.strip_suffix(".tpl").unwrap_or(file);
        if !step.ends_with(".sh") || !e.file_type().is_ok_and(|t| t.is_file()) {
            continue;
        }
        os_proto::bundle::check_name(step)?;
        if e.metadata().is_ok_and(|m| m.len() > MAX_TEXT) {
            return Err(fail(format!("{}: larger than {MAX_TEXT} bytes", e.path())));
        }
        let text = std::fs::read_to_string(e.path()).map_err(|x| fail(format!("{}: {x}", e.path())))?;
        let t = Template {
            file: file.to_owned(),
            step: step.to_owned(),
            text,
        };
        if let Some(other) = out.insert(step.to_owned(), t) {
            return Err(fail(format!(
                "{dir}: {file} and {} become the same step {step}",
                other.file
            )));
        }
    }
    if out.is_empty() {
        return Err(fail(format!("{dir}: holds no NAME.sh.tpl and no NAME.sh")));
    }
    Ok(out.into_values().collect())
}

/// Renders all templates over one context. One bad template costs one step.
pub fn render(engine: &dyn Engine, all: &[Template], context: &serde_json::Value) -> Rendered {
    all.iter()
        .map(|t| {
            let text = if t.file.ends_with(".tpl") {
                engine.render(&t.file, &t.text, context).and_then(|out| {
                    if out.text.len() as u64 > MAX_TEXT {
                        return Err(RenderError {
                            file: t.file.clone(),
                            line: 0,
                            message: format!("becomes {} bytes: expected at most {MAX_TEXT}", out.text.len()),
                        });
                    }
                    Ok(out)
                })
            } else {
                Ok(Text {
                    text: t.text.clone(),
                    warnings: Vec::new(),
                })
            };
            (t.step.clone(), text)
        })
        .collect()
}

/// A bundle of the steps that came out well. Deterministic: the same templates and context give the same bytes.
///
/// # Errors
/// `BundleInvalid` from the checks of a bundle; a group above [`MAX_GROUP_BYTES`].
pub fn to_bundle(rendered: &Rendered, inputs_hash: String, node_group: &str) -> Result<Bundle> {
    let mut files = Files::default();
    for (name, text) in rendered.iter().filter_map(|(n, t)| Some((n, t.as_ref().ok()?))) {
        files.add(&format!("steps/{name}"), text.text.clone().into_bytes())?;
    }
    let size = serde_json::to_vec(&files_as_map(&files)).map_or(0, |v| v.len());
    if size > MAX_GROUP_BYTES {
        return Err(StepsError::bundle(format!(
            "the group is {size} bytes as JSON: expected at most {MAX_GROUP_BYTES}"
        )));
    }
    if size > MAX_GROUP_BYTES / 2 {
        tracing::warn!("the group is {size} bytes as JSON; above {MAX_GROUP_BYTES} it is refused");
    }
    let mut b = files.check(None)?;
    b.manifest.renderer.name = "os-agent".to_owned();
    b.manifest.renderer.version = env!("CARGO_PKG_VERSION").to_owned();
    b.manifest.inputs_hash = inputs_hash;
    node_group.clone_into(&mut b.manifest.node_group);
    Ok(b)
}

fn files_as_map(f: &Files) -> BTreeMap<&str, std::borrow::Cow<'_, str>> {
    f.steps
        .iter()
        .map(|(k, v)| (k.as_str(), String::from_utf8_lossy(v)))
        .collect()
}

/// Hash of everything that went in: templates and context, in sorted order.
pub fn inputs_hash(all: &[Template], context: &serde_json::Value) -> String {
    let mut text = value::canonical(context);
    for t in all {
        text.push_str(&format!("\n{}\n{}", t.file, bundle::sha256(t.text.as_bytes())));
    }
    bundle::sha256(text.as_bytes())
}

#[cfg(test)]
mod tests;
