//! PURE: the files that users have: KubeOS's `configs` array, a whole OS resource, or the message of the old wire format.

use super::Model;
use os_proto::v1;
use serde_json::{Map, Value};

/// Which part of an OS resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// What counts before the slots change places.
    Upgradeconfigs,
    /// What counts afterwards.
    Sysconfigs,
}

impl std::str::FromStr for Part {
    type Err = String;
    fn from_str(s: &str) -> Result<Part, String> {
        match s {
            "upgradeconfigs" => Ok(Part::Upgradeconfigs),
            "sysconfigs" => Ok(Part::Sysconfigs),
            other => Err(format!("{other:?}: expected upgradeconfigs or sysconfigs")),
        }
    }
}

/// Most bytes of a file.
pub const MAX_BYTES: usize = 1 << 20;

/// Reads a file's text, YAML (several documents allowed) or JSON. Of an OS resource `part` alone, or what its `opstype`
/// calls for: `config` the sysconfigs, otherwise the upgradeconfigs and then the sysconfigs.
///
/// # Errors
/// A message that names the place.
pub fn parse(text: &str, part: Option<Part>) -> Result<Vec<v1::Config>, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("{} bytes, at most {MAX_BYTES}", text.len()));
    }
    let documents: Vec<Value> = if text.trim_start().starts_with(['{', '[']) {
        vec![serde_json::from_str(text).or_else(|json| {
            serde_saphyr::from_str(text).map_err(|_| format!("neither JSON nor YAML: {json}"))
        })?]
    } else {
        serde_saphyr::from_multiple(text).map_err(|e| format!("not valid YAML: {e}"))?
    };
    let mut out = Vec::new();
    for d in &documents {
        document(d, part, &mut out)?;
    }
    if out.is_empty() {
        return Err("no configs in it: expected KubeOS's configs array, or an OS resource with sysconfigs or upgradeconfigs".into());
    }
    Ok(out)
}

fn document(d: &Value, part: Option<Part>, out: &mut Vec<v1::Config>) -> Result<(), String> {
    let map = match d {
        Value::Null => return Ok(()),
        Value::Array(list) => return configs(list, "configs", out),
        Value::Object(m) => m,
        _ => return Err("expected a list or a map".into()),
    };
    let text = |key: &str| map.get(key).and_then(Value::as_str);
    match text("kind") {
        Some("OS" | "OSInstance") => return resource(map, part, out),
        Some("List" | "OSList") => {
            let items = map.get("items").and_then(Value::as_array);
            return items
                .into_iter()
                .flatten()
                .try_for_each(|i| document(i, part, out));
        }
        Some(other) => return Err(format!("kind {other:?}: expected OS")),
        None => {}
    }
    if map.contains_key("model") {
        out.push(config(d, "configs[0]")?);
        return Ok(());
    }
    if let Some(Value::Array(params)) = map.get("params") {
        return params.iter().try_for_each(|p| document(p, part, out));
    }
    match map.get("configs") {
        Some(Value::Array(list)) => configs(list, "configs", out),
        Some(Value::Null) => Ok(()),
        Some(_) => Err("configs: expected a list".into()),
        None => Err(format!(
            "expected a key configs or kind: OS, found {}",
            map.keys().cloned().collect::<Vec<_>>().join(", ")
        )),
    }
}

fn resource(map: &Map<String, Value>, part: Option<Part>, out: &mut Vec<v1::Config>) -> Result<(), String> {
    let spec = map
        .get("spec")
        .and_then(Value::as_object)
        .ok_or("the resource has no spec")?;
    let only_config = spec.get("opstype").and_then(Value::as_str) == Some("config");
    for (p, name) in [
        (Part::Upgradeconfigs, "upgradeconfigs"),
        (Part::Sysconfigs, "sysconfigs"),
    ] {
        let wanted = match part {
            Some(w) => w == p,
            None => p == Part::Sysconfigs || !only_config,
        };
        if let (true, Some(set)) = (wanted, spec.get(name)) {
            match set.get("configs") {
                Some(Value::Array(list)) => configs(list, &format!("spec.{name}.configs"), out)?,
                None | Some(Value::Null) => {}
                Some(_) => return Err(format!("spec.{name}.configs: expected a list")),
            }
        }
    }
    Ok(())
}

fn configs(list: &[Value], at: &str, out: &mut Vec<v1::Config>) -> Result<(), String> {
    for (i, c) in list.iter().enumerate() {
        out.push(config(c, &format!("{at}[{i}]"))?);
    }
    Ok(())
}

/// The only keys that a map may have.
fn known(map: &Map<String, Value>, keys: &[&str], at: &str) -> Result<(), String> {
    match map.keys().find(|k| !keys.contains(&k.as_str())) {
        Some(k) => Err(format!(
            "{at}: key {k:?} is not known; expected {}",
            keys.join(", ")
        )),
        None => Ok(()),
    }
}

fn string(map: &Map<String, Value>, key: &str, at: &str) -> Result<String, String> {
    match map.get(key) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(s)) => Ok(s.clone()),
        Some(Value::Number(n)) => Ok(n.to_string()),
        Some(Value::Bool(b)) => Ok(b.to_string()),
        Some(_) => Err(format!("{at}.{key}: expected a string")),
    }
}

fn config(value: &Value, at: &str) -> Result<v1::Config, String> {
    let map = value.as_object().ok_or(format!("{at}: expected a map"))?;
    known(map, &["model", "configpath", "config_path", "contents"], at)?;
    let model = string(map, "model", at)?;
    if Model::parse(&model).is_none() {
        return Err(format!(
            "{at}: model {model:?} is not known; expected one of {}",
            Model::ALL.map(Model::as_str).join(", ")
        ));
    }
    let mut configpath = string(map, "configpath", at)?;
    if configpath.is_empty() {
        configpath = string(map, "config_path", at)?;
    }
    let contents = match map.get("contents") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(list)) => list
            .iter()
            .enumerate()
            .map(|(i, c)| {
                let at = format!("{at}.contents[{i}]");
                let m = c.as_object().ok_or(format!("{at}: expected a map"))?;
                known(m, &["key", "value", "operation"], &at)?;
                content(string(m, "key", &at)?, m, &at)
            })
            .collect::<Result<_, _>>()?,
        // The wire's form: entries by key.
        Some(Value::Object(m)) => m
            .iter()
            .map(|(key, c)| {
                let at = format!("{at}.contents[{key:?}]");
                let m = c.as_object().ok_or(format!("{at}: expected a map"))?;
                known(m, &["value", "operation"], &at)?;
                content(key.clone(), m, &at)
            })
            .collect::<Result<_, _>>()?,
        Some(_) => return Err(format!("{at}.contents: expected a list")),
    };
    Ok(v1::Config {
        model,
        configpath,
        contents,
    })
}

fn content(key: String, map: &Map<String, Value>, at: &str) -> Result<v1::ConfigContent, String> {
    Ok(v1::ConfigContent {
        key,
        value_json: map.get("value").map(Value::to_string).unwrap_or_default(),
        operation: string(map, "operation", at)?,
    })
}
