//! Which helper functions a step calls: a scanner of bash text that knows quotes, comments, here-documents, substitutions and
//! where a command begins. PURE.
//!
//! `bash -n` finds what is not bash; this finds calls of functions that do not exist, before the first step runs.

use std::collections::BTreeSet;

/// A call: line from 1, name.
pub type Call = (usize, String);

/// Calls of `bb-…` at command positions, in order.
pub fn calls(text: &str) -> Vec<Call> {
    let mut s = Scanner::new(text, 1);
    s.script();
    s.found
}

/// Calls of names that neither `known` answers nor the text defines itself; each name once.
pub fn unknown(text: &str, known: impl Fn(&str) -> bool) -> Vec<Call> {
    let own = crate::library::defined(text);
    let mut seen = BTreeSet::new();
    calls(text)
        .into_iter()
        .filter(|(_, n)| !known(n) && !own.contains(n) && seen.insert(n.clone()))
        .collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    /// `$( … )` and `<( … )`: what encloses it goes on afterwards.
    Substitution,
    /// `( … )`.
    Subshell,
    /// `name=( … )`: words, not commands.
    Array,
}

struct Scanner {
    text: Vec<char>,
    at: usize,
    line: usize,
    /// The next word is a command.
    command: bool,
    levels: Vec<Level>,
    /// Here-documents that begin at the next line: delimiter, quoted, tabs cut.
    documents: Vec<(String, bool, bool)>,
    found: Vec<Call>,
}

const KEYWORDS: [&str; 12] = [
    "if", "then", "else", "elif", "do", "while", "until", "!", "{", "time", "coproc", "exec",
];

impl Scanner {
    fn new(text: &str, line: usize) -> Scanner {
        Scanner {
            text: text.chars().collect(),
            at: 0,
            line,
            command: true,
            levels: Vec::new(),
            documents: Vec::new(),
            found: Vec::new(),
        }
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.text.get(self.at + ahead).copied()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek(0)?;
        self.at += 1;
        if c == '\n' {
            self.line += 1;
        }
        Some(c)
    }

    fn array(&self) -> bool {
        self.levels.last() == Some(&Level::Array)
    }

    /// Until the end, or the `)` of the substitution that began at this depth.
    fn script(&mut self) {
        let depth = self.levels.len();
        while let Some(c) = self.peek(0) {
            match c {
                '\n' => {
                    self.next();
                    self.command = !self.array();
                    self.bodies();
                }
                ' ' | '\t' | '\r' => {
                    self.next();
                }
                '#' => self.rest_of_line(),
                ';' | '&' | '|' => {
                    self.next();
                    self.command = !self.array();
                }
                '(' if self.peek(1) == Some('(') && self.command => self.arithmetic(),
                '(' => {
                    self.next();
                    self.levels.push(Level::Subshell);
                    self.command = true;
                }
                ')' => {
                    self.next();
                    match self.levels.last() {
                        Some(Level::Substitution) => {
                            self.levels.pop();
                            if self.levels.len() < depth {
                                return;
                            }
                            self.command = false;
                        }
                        Some(_) => {
                            self.levels.pop();
                            self.command = false;
                        }
                        // The end of a pattern in `case`.
                        None => self.command = true,
                    }
                }
                '<' | '>' => self.redirection(),
                _ => self.word(),
            }
        }
    }

    fn rest_of_line(&mut self) {
        while self.peek(0).is_some_and(|c| c != '\n') {
            self.next();
        }
    }

    /// `$((…))` and `((…))`.
    fn arithmetic(&mut self) {
        let mut depth = 0usize;
        while let Some(c) = self.next() {
            match c {
                '(' => depth += 1,
                ')' => {
                    depth -= 1;
                    if depth == 0 {
                        break;
                    }
                }
                _ => {}
            }
        }
        self.command = false;
    }

    fn redirection(&mut self) {
        let first = self.next();
        if first == Some('<') && self.peek(0) == Some('<') && self.peek(1) != Some('<') {
            self.next();
            let tabs = self.peek(0) == Some('-');
            if tabs {
                self.next();
            }
            while matches!(self.peek(0), Some(' ' | '\t')) {
                self.next();
            }
            let mut end = String::new();
            let mut quoted = false;
            while let Some(c) = self.peek(0) {
                match c {
                    '\'' | '"' | '\\' => quoted = true,
                    c if c.is_whitespace() || ";&|<>()".contains(c) => break,
                    c => end.push(c),
                }
                self.next();
            }
            self.documents.push((end, quoted, tabs));
            return;
        }
        if self.peek(0) == Some('(') {
            self.substitution();
            return;
        }
        while matches!(self.peek(0), Some('<' | '>' | '&' | '|')) {
            self.next();
        }
        // Its target is a word, not a command.
        let command = self.command;
        while matches!(self.peek(0), Some(' ' | '\t')) {
            self.next();
        }
        if self.peek(0).is_some_and(|c| !"\n;&|()".contains(c)) {
            self.command = false;
            self.word();
        }
        self.command = command;
    }

    /// At the `(` of `$(`, `<(` or `>(`.
    fn substitution(&mut self) {
        self.next();
        let command = std::mem::replace(&mut self.command, true);
        self.levels.push(Level::Substitution);
        self.script();
        self.command = command;
    }

    /// Bodies of the here-documents that were announced on the line before.
    fn bodies(&mut self) {
        for (end, quoted, tabs) in std::mem::take(&mut self.documents) {
            let start = self.line;
            let mut body = String::new();
            loop {
                let mut line = String::new();
                let mut more = false;
                while let Some(c) = self.next() {
                    if c == '\n' {
                        more = true;
                        break;
                    }
                    line.push(c);
                }
                let bare = if tabs {
                    line.trim_start_matches('\t')
                } else {
                    &line
                };
                if bare == end || !more {
                    break;
                }
                body.push_str(&line);
                body.push('\n');
            }
            if !quoted {
                let mut inner = Scanner::new(&body, start);
                inner.text_with_substitutions(None);
                self.found.append(&mut inner.found);
            }
        }
    }

    /// Text in which only substitutions count: a double-quoted string (up to `end`) or a here-document.
    fn text_with_substitutions(&mut self, end: Option<char>) {
        while let Some(c) = self.peek(0) {
            match c {
                '\\' => {
                    self.next();
                    self.next();
                }
                '$' => self.dollar(),
                '`' => self.backtick(),
                c if Some(c) == end => {
                    self.next();
                    return;
                }
                _ => {
                    self.next();
                }
            }
        }
    }

    fn backtick(&mut self) {
        self.next();
        let line = self.line;
        let mut body = String::new();
        while let Some(c) = self.next() {
            match c {
                '`' => break,
                '\\' => body.extend(self.next()),
                c => body.push(c),
            }
        }
        let mut inner = Scanner::new(&body, line);
        inner.script();
        self.found.append(&mut inner.found);
    }

    /// At a `$`.
    fn dollar(&mut self) {
        self.next();
        match self.peek(0) {
            Some('(') if self.peek(1) == Some('(') => {
                let command = self.command;
                self.arithmetic();
                self.command = command;
            }
            Some('(') => self.substitution(),
            Some('{') => {
                self.next();
                let mut depth = 1;
                while depth > 0 {
                    match self.peek(0) {
                        None => return,
                        Some('\\') => {
                            self.next();
                            self.next();
                        }
                        Some('{') => {
                            depth += 1;
                            self.next();
                        }
                        Some('}') => {
                            depth -= 1;
                            self.next();
                        }
                        Some('$') => self.dollar(),
                        Some('`') => self.backtick(),
                        Some(_) => {
                            self.next();
                        }
                    }
                }
            }
            Some('\'') => {
                self.next();
                while let Some(c) = self.next() {
                    match c {
                        '\\' => {
                            self.next();
                        }
                        '\'' => break,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }

    fn word(&mut self) {
        let (start, line) = (self.at, self.line);
        let mut literal = String::new();
        let mut plain = true;
        while let Some(c) = self.peek(0) {
            match c {
                '\\' => {
                    self.next();
                    // A continued line is no end of a word.
                    if self.next() != Some('\n') {
                        plain = false;
                    }
                }
                '\'' => {
                    plain = false;
                    self.next();
                    while self.next().is_some_and(|c| c != '\'') {}
                }
                '"' => {
                    plain = false;
                    self.next();
                    self.text_with_substitutions(Some('"'));
                }
                '$' => {
                    plain = false;
                    self.dollar();
                }
                '`' => {
                    plain = false;
                    self.backtick();
                }
                '(' if literal.ends_with('=') => {
                    self.next();
                    self.levels.push(Level::Array);
                    self.command = false;
                    return;
                }
                c if c.is_whitespace() || ";&|()<>".contains(c) => break,
                c => {
                    literal.push(c);
                    self.next();
                }
            }
        }
        if self.at == start {
            self.next();
        }
        if !self.command || (plain && literal.is_empty()) {
            return;
        }
        if plain && KEYWORDS.contains(&literal.as_str()) || assignment(&literal) {
            return;
        }
        self.command = false;
        // With a star it is a pattern of `case`.
        if plain && literal.starts_with("bb-") && !literal.contains('*') && !self.definition() {
            self.found.push((line, literal));
        }
    }

    /// Whether `()` follows.
    fn definition(&self) -> bool {
        let mut rest = self
            .text
            .iter()
            .skip(self.at)
            .filter(|c| !matches!(c, ' ' | '\t'));
        rest.next() == Some(&'(') && rest.next() == Some(&')')
    }
}

fn assignment(word: &str) -> bool {
    let Some((name, _)) = word.split_once('=') else {
        return false;
    };
    let name = name.trim_end_matches('+');
    let name = name.split('[').next().unwrap_or(name);
    name.chars()
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests;
