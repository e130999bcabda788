//! Whatever the file and whatever the entry: what is not touched stays byte for byte, and applying again changes nothing.

use super::*;
use proptest::prelude::*;

/// Whether the lines of `part` stand in `whole` in this order.
fn subsequence(part: &[&str], whole: &str) -> bool {
    let mut lines = whole.lines();
    part.iter().all(|p| lines.any(|l| l == *p))
}

fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("a"),
        Just("b"),
        Just("c"),
        Just("no"),
        Just("x y"),
        Just("1"),
        Just("#h"),
        Just("é")
    ]
    .prop_map(str::to_owned)
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[ -~]{0,8}".prop_map(Value::from),
        "[a-z:#'\"\\\\\\n%@é]{0,6}".prop_map(Value::from),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        3 => scalar(),
        1 => prop::collection::vec(scalar(), 0..4).prop_map(Value::from),
        1 => prop::collection::btree_map(word(), scalar(), 0..3).prop_map(|m| json!(m)),
    ]
}

/// A block of YAML under a key, one comment above it.
#[derive(Debug, Clone)]
enum Block {
    Scalar(Value),
    List(Vec<Value>, bool),
    Map(Vec<(String, Value)>),
}

fn block() -> impl Strategy<Value = Block> {
    let plain = || {
        prop_oneof![
            any::<i16>().prop_map(Value::from),
            "[a-z]{1,5}".prop_map(Value::from)
        ]
    };
    prop_oneof![
        scalar().prop_map(Block::Scalar),
        (prop::collection::vec(plain(), 1..4), any::<bool>()).prop_map(|(l, f)| Block::List(l, f)),
        prop::collection::btree_map("[a-d]", plain(), 1..4).prop_map(|m| Block::Map(m.into_iter().collect())),
    ]
}

fn document(blocks: &[(String, Block)]) -> String {
    let mut out = String::from("# head\n\n");
    for (i, (key, b)) in blocks.iter().enumerate() {
        out.push_str(&format!("# comment {i}\n"));
        match b {
            Block::Scalar(v) => out.push_str(&format!("{key}: {v} # end {i}\n")),
            Block::List(l, true) => out.push_str(&format!("{key}: {} # end {i}\n", Value::from(l.clone()))),
            Block::List(l, false) => {
                out.push_str(&format!("{key}: # end {i}\n"));
                l.iter().for_each(|v| out.push_str(&format!("  - {v}\n")));
            }
            Block::Map(m) => {
                out.push_str(&format!("{key}: # end {i}\n"));
                m.iter()
                    .for_each(|(k, v)| out.push_str(&format!("    {k}: {v} # in {i}\n")));
            }
        }
    }
    out.push_str("# foot\n");
    out
}

fn changed(b: &Bench, path: &str, configs: &[v1::Config]) -> Option<String> {
    let p = b.plan(configs).unwrap();
    let text = |f: &plan::FileChange| String::from_utf8(f.new.clone()).unwrap();
    p.error()
        .is_none()
        .then(|| p.files.first().map_or_else(|| b.text(path), text))
}

/// Whether a line belongs to the entry.
type Own = Box<dyn Fn(&str) -> bool>;

proptest! {
    #[test]
    fn yaml_keeps_comments_and_order(
        blocks in prop::collection::btree_map("[k-q]", block(), 0..6),
        top in "[k-q]", below in prop::option::of("[a-e]"), v in value(), delete: bool,
    ) {
        let blocks: Vec<(String, Block)> = blocks.into_iter().collect();
        let text = document(&blocks);
        let b = Bench::file(KUBELET, &text);
        let key = below.map_or(top.clone(), |s| format!("{top}.{s}"));
        let call = [config("kubernetes.kubelet", "", &[(&key, v, if delete { "delete" } else { "" })])];
        let Some(now) = changed(&b, KUBELET, &call) else { return Ok(()) };
        // Every comment above a key, and every line that belongs to other keys.
        let mut stay: Vec<&str> = Vec::new();
        let mut own = false;
        for l in text.lines() {
            if l.starts_with('#') {
                own = false;
            } else if !l.starts_with(' ') {
                own = l.starts_with(&format!("{top}:"));
            }
            if !own {
                stay.push(l);
            }
        }
        prop_assert!(subsequence(&stay, &now), "{key}\n{text}\n=>\n{now}");
        let again = Bench::file(KUBELET, &now).plan(&call).unwrap();
        prop_assert!(again.error().is_none() && again.files.is_empty(), "{key}: again\n{now}\n{again:?}");
    }

    #[test]
    fn yaml_that_can_be_changed_is_changed(
        blocks in prop::collection::btree_map("[k-q]", block(), 0..6), top in "[k-z]", v in scalar(),
    ) {
        let blocks: Vec<(String, Block)> = blocks.into_iter().collect();
        let free = !blocks.iter().any(|(k, b)| *k == top && !matches!(b, Block::Scalar(_)));
        let b = Bench::file(KUBELET, &document(&blocks));
        let p = b.plan(&[config("kubernetes.kubelet", "", &[(&top, v, "")])]).unwrap();
        prop_assert_eq!(p.error().is_none(), free, "{:?}", p.error());
    }

    #[test]
    fn toml_keeps_comments_and_order(
        keys in prop::collection::btree_map("[k-q]", any::<i32>(), 0..5),
        table in prop::collection::btree_map("[a-d]", any::<i16>(), 0..4),
        top in "[k-t]", below in prop::option::of("[a-e]"), v in scalar(), delete: bool,
    ) {
        let mut text = String::from("# head\n");
        for (k, n) in &keys {
            text.push_str(&format!("# about {k}\n{k} = {n} # end {k}\n"));
        }
        text.push_str("\n# table\n[t]\n");
        for (k, n) in &table {
            text.push_str(&format!("  # about t.{k}\n  {k} = {n} # end t.{k}\n"));
        }
        text.push_str("# foot\n");
        let b = Bench::file(CONTAINERD, &text);
        let key = match &below {
            Some(s) => format!("t.{s}"),
            None => top.clone(),
        };
        if key == "t" {
            return Ok(());
        }
        let call = [config("container.containerd", "", &[(&key, v, if delete { "delete" } else { "" })])];
        let Some(now) = changed(&b, CONTAINERD, &call) else { return Ok(()) };
        let own = format!("# end {key}");
        let stay: Vec<&str> = text.lines().filter(|l| !l.ends_with(&own)).collect();
        prop_assert!(subsequence(&stay, &now), "{key}\n{text}\n=>\n{now}");
        let again = Bench::file(CONTAINERD, &now).plan(&call).unwrap();
        prop_assert!(again.error().is_none() && again.files.is_empty(), "{key}: again\n{now}");
    }

    #[test]
    fn line_files_keep_every_other_line(
        lines in prop::collection::vec(prop_oneof![
            Just("# comment".to_owned()), Just(String::new()), Just("; odd".to_owned()), Just("junk".to_owned()),
            ("[a-c]", "[x-z]", 0..9u32, "[ \t]{0,2}").prop_map(|(a, b, n, s)| format!("{a}.{b}{s}={s}{n}")),
            ("[a-c]", prop_oneof![Just("soft"), Just("hard"), Just("-")], prop_oneof![Just("nofile"), Just("core")], 0..9u32)
                .prop_map(|(d, t, i, n)| format!("{d}\t{t}  {i} {n} # why")),
        ], 0..12),
        which: bool, d in "[a-d]", i in "[x-z]", n in 0..9u32, delete: bool,
    ) {
        let text = lines.iter().map(|l| format!("{l}\n")).collect::<String>();
        let op = if delete { "delete" } else { "" };
        let (path, call, own): (_, _, Own) = if which {
            let key = format!("{d}.{i}");
            let k = key.clone();
            (SYSCTL, config("kernel.sysctl.persist", "", &[(&key, json!(n), op)]), Box::new(move |l: &str| l.trim_start().starts_with(&k)))
        } else {
            let dom = d.clone();
            (LIMITS, config("pam.limits", "", &[(&d, json!(format!("hard.nofile.{n}")), op)]),
             Box::new(move |l: &str| l.split_whitespace().take(3).eq([dom.as_str(), "hard", "nofile"])))
        };
        let b = Bench::file(path, &text);
        let call = [call];
        let Some(now) = changed(&b, path, &call) else { return Ok(()) };
        let stay: Vec<&str> = text.lines().filter(|l| !own(l)).collect();
        prop_assert!(subsequence(&stay, &now), "{text}\n=>\n{now}");
        let again = Bench::file(path, &now).plan(&call).unwrap();
        prop_assert!(again.error().is_none() && again.files.is_empty(), "again\n{now}");
    }

    #[test]
    fn arguments_keep_their_order(
        old in prop::collection::vec("[a-d](=[x-z]{1,2})?", 0..8), key in "[a-e]", v in prop::option::of("[x-z]"), delete: bool,
    ) {
        let mut b = Bench::default();
        b.files.insert(Target::Arguments(Slot::A), os_proto::kernel_args::user_env(&old).unwrap());
        let call = [config("grub.cmdline.current", "", &[(&key, json!(v), if delete { "delete" } else { "" })])];
        let p = b.plan(&call).unwrap();
        prop_assume!(p.error().is_none());
        for f in &p.files {
            b.files.insert(f.target.clone(), f.new.clone());
        }
        let others = |list: &[String]| -> Vec<String> {
            list.iter().filter(|a| a.split('=').next() != Some(key.as_str())).cloned().collect()
        };
        prop_assert_eq!(others(&old), others(&b.args(Slot::A)));
        let again = b.plan(&call).unwrap();
        prop_assert!(again.error().is_none() && again.files.is_empty());
    }

    #[test]
    fn no_text_makes_a_reader_panic(text in "[a-c:\\-\\[\\]{}#&*!|>'\"%@` \n\t=.?,]{0,60}", key in "[a-c.'\"]{0,6}", v in value()) {
        for (path, model) in [(KUBELET, "kubernetes.kubelet"), (CONTAINERD, "container.containerd"), (SYSCTL, "kernel.sysctl.persist"), (LIMITS, "pam.limits")] {
            for op in ["", "delete"] {
                let _ = Bench::file(path, &text).plan(&[config(model, "", &[(&key, v.clone(), op)])]);
            }
        }
        let _ = super::document::parse(&text, None);
    }
}
