//! Go's formatting of values: `%v`, `%q`, and numbers.

use gotmpl::Value;
use std::fmt::Write;

/// `%v` of a float: the shortest digits, with an exponent below 1e-4 and from 1e6 on.
pub(super) fn float(f: f64) -> String {
    if f.is_nan() {
        return "NaN".to_owned();
    }
    if f.is_infinite() {
        return if f > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    if f == 0.0 {
        return if f.is_sign_negative() { "-0" } else { "0" }.to_owned();
    }
    // Rust's `{:e}` gives the shortest digits that read back: d.ddde±x
    let sci = format!("{f:e}");
    let (digits, exp) = sci.split_once('e').unwrap_or((&sci, "0"));
    let exp: i32 = exp.parse().unwrap_or(0);
    if (-4..6).contains(&exp) {
        return format!("{f}");
    }
    let sign = if exp < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exp.abs())
}

/// `%v` of any value.
pub(super) fn plain(v: &Value) -> String {
    match v {
        Value::Float(f) => float(*f),
        Value::List(l) => {
            let parts: Vec<String> = l.iter().map(plain).collect();
            format!("[{}]", parts.join(" "))
        }
        Value::Map(m) => {
            let parts: Vec<String> = m.iter().map(|(k, v)| format!("{k}:{}", plain(v))).collect();
            format!("map[{}]", parts.join(" "))
        }
        other => other.to_string(),
    }
}

/// Go's `%q` of a string.
pub(super) fn quote(s: &str) -> String {
    let mut out = String::with_capacity(s.len() + 2);
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            // Not printable in Go's sense: the ones that occur.
            '\u{ad}'
            | '\u{80}'..='\u{a0}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202f}'
            | '\u{feff}' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Go's `encoding/json`: HTML characters escaped.
pub(super) fn json(v: &Value) -> String {
    json_text(&super::value::to_json(v), true)
}

/// The same without the escapes of HTML.
pub(super) fn raw_json(v: &Value) -> String {
    json_text(&super::value::to_json(v), false)
}

fn json_text(v: &serde_json::Value, html: bool) -> String {
    let text = super::value::canonical(v);
    if !html {
        return text;
    }
    text.replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_as_go_prints_them() {
        for (f, want) in [
            (10.0, "10"),
            (1e6, "1e+06"),
            (1.5, "1.5"),
            (1e20, "1e+20"),
            (100_000.0, "100000"),
            (12_345.678, "12345.678"),
            (1e21, "1e+21"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (-2.5e30, "-2.5e+30"),
            (123_456_789.0, "1.23456789e+08"),
        ] {
            assert_eq!(float(f), want);
        }
    }

    #[test]
    fn quoting_as_go_does() {
        assert_eq!(quote("a\"b\\c\n\u{1}ü"), "\"a\\\"b\\\\c\\n\\x01ü\"");
    }
}
