//! Functions over text.

use super::{MANY, Row, arg, int_arg, list_arg, str_arg, string, strval};
use crate::render::format;
use gotmpl::Value;
use std::fmt::Write;

pub(super) const ROWS: &[Row] = &[
    ("quote", 0, MANY, |a| {
        Ok(quoted(a, |v| format::quote(&format::plain(v))))
    }),
    ("squote", 0, MANY, |a| {
        Ok(quoted(a, |v| format!("'{}'", format::plain(v))))
    }),
    ("toString", 1, 1, |a| Ok(string(strval(a, 0)))),
    ("lower", 1, 1, |a| Ok(string(str_arg(a, 0)?.to_lowercase()))),
    ("upper", 1, 1, |a| Ok(string(str_arg(a, 0)?.to_uppercase()))),
    ("title", 1, 1, |a| Ok(string(title(str_arg(a, 0)?)))),
    ("untitle", 1, 1, |a| {
        let s = str_arg(a, 0)?;
        let mut c = s.chars();
        Ok(string(c.next().map_or_else(String::new, |f| {
            f.to_lowercase().chain(c).collect()
        })))
    }),
    ("replace", 3, 3, |a| {
        Ok(string(str_arg(a, 2)?.replace(str_arg(a, 0)?, str_arg(a, 1)?)))
    }),
    ("contains", 2, 2, |a| {
        Ok(Value::Bool(str_arg(a, 1)?.contains(str_arg(a, 0)?)))
    }),
    ("hasPrefix", 2, 2, |a| {
        Ok(Value::Bool(str_arg(a, 1)?.starts_with(str_arg(a, 0)?)))
    }),
    ("hasSuffix", 2, 2, |a| {
        Ok(Value::Bool(str_arg(a, 1)?.ends_with(str_arg(a, 0)?)))
    }),
    ("trim", 1, 1, |a| Ok(string(str_arg(a, 0)?.trim()))),
    ("trimAll", 2, 2, |a| {
        let set = str_arg(a, 0)?;
        Ok(string(str_arg(a, 1)?.trim_matches(|c| set.contains(c))))
    }),
    ("trimPrefix", 2, 2, |a| {
        let s = str_arg(a, 1)?;
        Ok(string(s.strip_prefix(str_arg(a, 0)?).unwrap_or(s)))
    }),
    ("trimSuffix", 2, 2, |a| {
        let s = str_arg(a, 1)?;
        Ok(string(s.strip_suffix(str_arg(a, 0)?).unwrap_or(s)))
    }),
    ("nospace", 1, 1, |a| {
        Ok(string(str_arg(a, 0)?.replace(char::is_whitespace, "")))
    }),
    ("repeat", 2, 2, |a| {
        let n = usize::try_from(int_arg(a, 0)).unwrap_or(0);
        let s = str_arg(a, 1)?;
        if n.saturating_mul(s.len()) > 1 << 20 {
            return Err(format!("{n} times {} bytes are too many", s.len()));
        }
        Ok(string(s.repeat(n)))
    }),
    ("trunc", 2, 2, |a| {
        let (n, s) = (int_arg(a, 0), str_arg(a, 1)?);
        let len = i64::try_from(s.len()).unwrap_or(0);
        let cut = usize::try_from(n.abs()).unwrap_or(0);
        let out = if n < 0 && len + n > 0 {
            s.get(s.len() - cut..)
        } else if n >= 0 && len > n {
            s.get(..cut)
        } else {
            Some(s)
        };
        out.map(string)
            .ok_or_else(|| "the cut is within a character".to_owned())
    }),
    ("indent", 2, 2, |a| {
        Ok(string(indent(int_arg(a, 0), str_arg(a, 1)?)))
    }),
    ("nindent", 2, 2, |a| {
        Ok(string(format!("\n{}", indent(int_arg(a, 0), str_arg(a, 1)?))))
    }),
    ("splitList", 2, 2, |a| {
        let (sep, s) = (str_arg(a, 0)?, str_arg(a, 1)?);
        Ok(Value::List(if sep.is_empty() {
            s.chars().map(|c| string(c.to_string())).collect()
        } else {
            s.split(sep).map(string).collect()
        }))
    }),
    ("join", 2, 2, |a| {
        let sep = str_arg(a, 0)?;
        let parts: Vec<String> = match arg(a, 1) {
            Value::List(l) => l
                .iter()
                .filter(|v| !matches!(v, Value::Nil))
                .map(format::plain)
                .collect(),
            Value::Nil => Vec::new(),
            other => vec![format::plain(other)],
        };
        Ok(string(parts.join(sep)))
    }),
    ("cat", 0, MANY, |a| {
        let parts: Vec<String> = a
            .iter()
            .filter(|v| !matches!(v, Value::Nil))
            .map(format::plain)
            .collect();
        Ok(string(parts.join(" ")))
    }),
    ("kebabcase", 1, 1, |a| {
        Ok(string(words(str_arg(a, 0)?).join("-").to_lowercase()))
    }),
    ("snakecase", 1, 1, |a| {
        Ok(string(words(str_arg(a, 0)?).join("_").to_lowercase()))
    }),
    ("regexMatch", 2, 2, |a| {
        Ok(Value::Bool(regex(str_arg(a, 0)?)?.is_match(str_arg(a, 1)?)))
    }),
    ("regexFind", 2, 2, |a| {
        let r = regex(str_arg(a, 0)?)?;
        Ok(string(r.find(str_arg(a, 1)?).map_or("", |m| m.as_str())))
    }),
    ("regexReplaceAll", 3, 3, |a| {
        let r = regex(str_arg(a, 0)?)?;
        Ok(string(r.replace_all(str_arg(a, 1)?, str_arg(a, 2)?)))
    }),
    ("b64enc", 1, 1, |a| Ok(string(b64enc(str_arg(a, 0)?.as_bytes())))),
    ("b64dec", 1, 1, |a| {
        // sprig gives the error's text as the result.
        Ok(string(b64dec(str_arg(a, 0)?).unwrap_or_else(|at| {
            format!("illegal base64 data at input byte {at}")
        })))
    }),
    ("sha256sum", 1, 1, |a| {
        Ok(string(crate::bundle::sha256(str_arg(a, 0)?.as_bytes())))
    }),
    ("print", 0, MANY, |a| {
        let mut out = String::new();
        for (i, v) in a.iter().enumerate() {
            // Go puts a blank between two operands of which neither is a string.
            let before = i.checked_sub(1).and_then(|p| a.get(p));
            if before.is_some_and(|b| !matches!(b, Value::String(_)) && !matches!(v, Value::String(_))) {
                out.push(' ');
            }
            out.push_str(&format::plain(v));
        }
        Ok(string(out))
    }),
    ("println", 0, MANY, |a| {
        let parts: Vec<String> = a.iter().map(format::plain).collect();
        Ok(string(parts.join(" ") + "\n"))
    }),
    ("printf", 1, MANY, |a| {
        Ok(string(printf(str_arg(a, 0)?, a.get(1..).unwrap_or_default())))
    }),
    ("toStrings", 1, 1, |a| {
        Ok(Value::List(
            list_arg(a, 0)?.iter().map(|v| string(format::plain(v))).collect(),
        ))
    }),
];

fn quoted(args: &[Value], how: impl Fn(&Value) -> String) -> Value {
    let parts: Vec<String> = args
        .iter()
        .filter(|v| !matches!(v, Value::Nil))
        .map(how)
        .collect();
    string(parts.join(" "))
}

fn title(s: &str) -> String {
    let mut start = true;
    let mut out = String::new();
    for c in s.chars() {
        if start {
            out.extend(c.to_uppercase());
        } else {
            out.push(c);
        }
        // A word goes on over letters, digits, underscores and apostrophes.
        start = !(c.is_alphanumeric() || c == '_' || c == '\'');
    }
    out
}

fn indent(n: i64, s: &str) -> String {
    let pad = " ".repeat(usize::try_from(n).unwrap_or(0).min(1000));
    format!("{pad}{}", s.replace('\n', &format!("\n{pad}")))
}

/// Words of an identifier: at separators, and where lower case meets upper case or an abbreviation ends.
fn words(s: &str) -> Vec<String> {
    let chars: Vec<char> = s.chars().collect();
    let mut out: Vec<String> = vec![String::new()];
    for (i, c) in chars.iter().enumerate() {
        if matches!(c, '-' | '_' | ' ' | '.') {
            out.push(String::new());
            continue;
        }
        let before = i.checked_sub(1).and_then(|p| chars.get(p));
        let after = chars.get(i + 1);
        let begins = c.is_uppercase()
            && before.is_some_and(|b| {
                b.is_lowercase()
                    || b.is_ascii_digit()
                    || (b.is_uppercase() && after.is_some_and(|a| a.is_lowercase()))
            });
        if begins {
            out.push(String::new());
        }
        if let Some(w) = out.last_mut() {
            w.push(*c);
        }
    }
    out.retain(|w| !w.is_empty());
    out
}

fn regex(text: &str) -> Result<regex::Regex, String> {
    regex::RegexBuilder::new(text)
        .size_limit(1 << 20)
        .build()
        .map_err(|e| format!("{text:?} is not a regular expression: {e}"))
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn b64enc(data: &[u8]) -> String {
    let mut out = String::new();
    for c in data.chunks(3) {
        let byte = |i: usize| u32::from(c.get(i).copied().unwrap_or(0));
        let n = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            let six = (n >> (18 - 6 * i) & 63) as usize;
            let letter = ALPHABET.get(six).copied().unwrap_or(b'=');
            out.push(if i > c.len() { '=' } else { char::from(letter) });
        }
    }
    out
}

fn b64dec(s: &str) -> Result<String, usize> {
    let bytes: Vec<u8> = s.bytes().filter(|b| !matches!(b, b'\n' | b'\r')).collect();
    if !bytes.len().is_multiple_of(4) {
        return Err(bytes.len() / 4 * 4);
    }
    let mut out = Vec::new();
    for (at, c) in bytes.chunks(4).enumerate() {
        let pad = c.iter().rev().take_while(|b| **b == b'=').count().min(2);
        let mut n = 0u32;
        for (i, b) in c.iter().enumerate() {
            let six = if i >= 4 - pad {
                0
            } else {
                ALPHABET.iter().position(|a| a == b).ok_or(at * 4 + i)?
            };
            n = n << 6 | u32::try_from(six).unwrap_or(0);
        }
        let [_, a, b, c] = n.to_be_bytes();
        out.extend([a, b, c].iter().take(3 - pad));
    }
    Ok(String::from_utf8_lossy(&out).into_owned())
}

/// Go's fmt for the verbs that templates use: %v %s %q %d %x %t %f %%, with flags `-`, `0`, width and precision.
pub(super) fn printf(text: &str, args: &[Value]) -> String {
    let mut out = String::new();
    let mut rest = args.iter();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let (mut left, mut zero, mut plus) = (false, false, false);
        while let Some(f) = chars.peek().copied().filter(|f| "-0+# ".contains(*f)) {
            left |= f == '-';
            zero |= f == '0';
            plus |= f == '+';
            chars.next();
        }
        let number = |chars: &mut std::iter::Peekable<std::str::Chars<'_>>| {
            let mut n: Option<usize> = None;
            while let Some(d) = chars.peek().and_then(|d| d.to_digit(10)) {
                n = Some((n.unwrap_or(0) * 10 + d as usize).min(1000));
                chars.next();
            }
            n
        };
        let width = number(&mut chars);
        let precision = if chars.peek() == Some(&'.') {
            chars.next();
            Some(number(&mut chars).unwrap_or(0))
        } else {
            None
        };
        let Some(verb) = chars.next() else {
            out.push_str("%!(NOVERB)");
            break;
        };
        if verb == '%' {
            out.push('%');
            continue;
        }
        let Some(v) = rest.next() else {
            let _ = write!(out, "%!{verb}(MISSING)");
            continue;
        };
        let body = one(verb, v, precision, plus);
        let len = body.chars().count();
        let fill = width.unwrap_or(0).saturating_sub(len);
        if left {
            out.push_str(&body);
            out.extend(std::iter::repeat_n(' ', fill));
        } else if zero && matches!(v, Value::Int(_) | Value::Uint(_) | Value::Float(_)) {
            let (sign, digits) = body.strip_prefix('-').map_or(("", body.as_str()), |d| ("-", d));
            out.push_str(sign);
            out.extend(std::iter::repeat_n('0', fill));
            out.push_str(digits);
        } else {
            out.extend(std::iter::repeat_n(' ', fill));
            out.push_str(&body);
        }
    }
    let extra: Vec<String> = rest
        .map(|v| format!("{}={}", go_type(v), format::plain(v)))
        .collect();
    if !extra.is_empty() {
        let _ = write!(out, "%!(EXTRA {})", extra.join(", "));
    }
    out
}

fn one(verb: char, v: &Value, precision: Option<usize>, plus: bool) -> String {
    let sign = |n: bool| if plus && n { "+" } else { "" };
    match (verb, v) {
        ('v', v) => format::plain(v),
        ('s', Value::String(s)) => precision.map_or_else(|| s.to_string(), |p| s.chars().take(p).collect()),
        ('s', Value::List(_) | Value::Map(_)) => format::plain(v),
        ('q', Value::String(s)) => format::quote(s),
        ('d', Value::Int(n)) => format!("{}{n}", sign(*n >= 0)),
        ('d', Value::Uint(n)) => format!("{}{n}", sign(true)),
        ('x', Value::Int(n)) => format!("{n:x}"),
        ('x', Value::Uint(n)) => format!("{n:x}"),
        ('x', Value::String(s)) => hex::encode(s.as_bytes()),
        ('t', Value::Bool(b)) => b.to_string(),
        ('f', Value::Float(f)) => format!("{}{f:.*}", sign(*f >= 0.0), precision.unwrap_or(6)),
        ('g', Value::Float(f)) => format::float(*f),
        (_, Value::Nil) => format!("%!{verb}(<nil>)"),
        _ => format!("%!{verb}({}={})", go_type(v), format::plain(v)),
    }
}

fn go_type(v: &Value) -> &'static str {
    match v {
        Value::Bool(_) => "bool",
        Value::Int(_) => "int",
        Value::Uint(_) => "uint",
        Value::Float(_) => "float64",
        Value::String(_) => "string",
        Value::List(_) => "[]interface {}",
        Value::Map(_) => "map[string]interface {}",
        _ => "<nil>",
    }
}
