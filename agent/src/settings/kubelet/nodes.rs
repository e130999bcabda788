//! PURE: where the nodes of a YAML text stand.

use granit_parser::{Event, Parser, ScalarStyle, Span, StructureStyle};

/// Deepest nesting that is read.
const DEPTH: usize = 64;

/// A node with its place in the text, in bytes.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) start: usize,
    pub(super) end: usize,
}

#[derive(Debug)]
pub(super) enum Kind {
    Scalar {
        text: String,
        /// A value that is not written at all (`key:`).
        absent: bool,
        /// `|` or `>`.
        block: bool,
    },
    Map {
        flow: bool,
        entries: Vec<(Node, Node)>,
    },
    Seq {
        flow: bool,
        items: Vec<Node>,
    },
    Alias,
}

impl Node {
    /// Behind the last byte of content; unlike `end` without what follows a block collection.
    pub(super) fn content_end(&self) -> usize {
        match &self.kind {
            Kind::Map { flow: false, entries } => {
                entries.last().map_or(
                    self.start,
                    |(k, v)| {
                        if v.absent() { k.end } else { v.content_end() }
                    },
                )
            }
            Kind::Seq { flow: false, items } => items.last().map_or(self.start, Node::content_end),
            _ => self.end,
        }
    }

    pub(super) fn absent(&self) -> bool {
        matches!(self.kind, Kind::Scalar { absent: true, .. })
    }

    /// Whether it is null: not written, `null` or `~`.
    pub(super) fn null(&self, text: &str) -> bool {
        match &self.kind {
            Kind::Scalar { absent: true, .. } => true,
            Kind::Scalar { block: false, .. } => {
                matches!(
                    text.get(self.start..self.end),
                    Some("~" | "null" | "Null" | "NULL")
                )
            }
            _ => false,
        }
    }

    /// Whether it spans lines of its own below its key.
    pub(super) fn block_collection(&self) -> bool {
        matches!(
            self.kind,
            Kind::Map { flow: false, .. } | Kind::Seq { flow: false, .. }
        )
    }

    pub(super) fn get(&self, key: &str) -> Option<&(Node, Node)> {
        match &self.kind {
            Kind::Map { entries, .. } => entries
                .iter()
                .find(|(k, _)| matches!(&k.kind, Kind::Scalar { text, .. } if text == key)),
            _ => None,
        }
    }
}

/// The root node; `None` = the text holds none.
///
/// # Errors
/// Texts that are no YAML, and several documents in one.
pub(super) fn root(text: &str) -> Result<Option<Node>, String> {
    let mut parser = Parser::new_from_str(text);
    let mut root = None;
    loop {
        let Some((event, span)) = next(&mut parser)? else {
            return Ok(root);
        };
        match event {
            Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
            Event::StreamEnd => return Ok(root),
            _ if root.is_some() => return Err("the file holds several YAML documents".into()),
            e => root = Some(node(&mut parser, text, e, span, 0)?).filter(|n| !n.absent()),
        }
    }
}

type P<'a> = Parser<'a, granit_parser::StrInput<'a>>;

fn next<'a>(parser: &mut P<'a>) -> Result<Option<(Event<'a>, Span)>, String> {
    loop {
        match parser.next() {
            None => return Ok(None),
            Some(Err(e)) => return Err(format!("the file is not valid YAML: {e}")),
            Some(Ok((Event::Comment(..) | Event::Anchor(..), _))) => {}
            Some(Ok(pair)) => return Ok(Some(pair)),
        }
    }
}

fn place(span: &Span) -> Result<(usize, usize), String> {
    match (span.start.byte_offset(), span.end.byte_offset()) {
        (Some(a), Some(b)) => Ok((a, b)),
        _ => Err("the YAML reader does not say where things stand".into()),
    }
}

fn node<'a>(
    parser: &mut P<'a>,
    source: &str,
    event: Event<'a>,
    span: Span,
    depth: usize,
) -> Result<Node, String> {
    if depth > DEPTH {
        return Err(format!("the file nests deeper than {DEPTH} levels"));
    }
    let (start, mut end) = place(&span)?;
    let more = |parser: &mut P<'a>| next(parser)?.ok_or_else(|| "the YAML text ends early".to_owned());
    let kind = match event {
        Event::Scalar(text, style, ..) => Kind::Scalar {
            // The reader gives "~" for what is not there, at the place of the colon or at none.
            absent: style == ScalarStyle::Plain
                && (start == end || (text == "~" && source.get(start..end) != Some("~"))),
            block: matches!(style, ScalarStyle::Literal | ScalarStyle::Folded),
            text: text.into_owned(),
        },
        Event::Alias(_) => Kind::Alias,
        Event::SequenceStart(style, ..) => {
            let mut items = Vec::new();
            loop {
                let (e, s) = more(parser)?;
                if matches!(e, Event::SequenceEnd) {
                    end = place(&s)?.1;
                    break;
                }
                items.push(node(parser, source, e, s, depth + 1)?);
            }
            Kind::Seq {
                flow: style == StructureStyle::Flow,
                items,
            }
        }
        Event::MappingStart(style, ..) => {
            let mut entries = Vec::new();
            loop {
                let (e, s) = more(parser)?;
                if matches!(e, Event::MappingEnd) {
                    end = place(&s)?.1;
                    break;
                }
                let key = node(parser, source, e, s, depth + 1)?;
                let (e, s) = more(parser)?;
                entries.push((key, node(parser, source, e, s, depth + 1)?));
            }
            Kind::Map {
                flow: style == StructureStyle::Flow,
                entries,
            }
        }
        other => return Err(format!("unexpected YAML event {other:?}")),
    };
    Ok(Node { kind, start, end })
}
