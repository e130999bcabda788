//! The interface is a promise: a checked-in descriptor makes an incompatible change fail.
//!
//! Additions are fine: run with `UPDATE_DESCRIPTOR=1` and commit the new file. A removed or renumbered field, a changed
//! type or a renamed method is not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use prost::Message;
use std::collections::BTreeMap;

fn facts(set: &prost_types::FileDescriptorSet) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    for f in &set.file {
        for m in &f.message_type {
            for x in &m.field {
                out.insert(
                    format!("{}.{}", m.name(), x.name()),
                    format!(
                        "{} {:?} {:?} {}",
                        x.number(),
                        x.label(),
                        x.r#type(),
                        x.type_name()
                    ),
                );
            }
        }
        for e in &f.enum_type {
            for v in &e.value {
                out.insert(format!("{}.{}", e.name(), v.name()), v.number().to_string());
            }
        }
        for s in &f.service {
            for m in &s.method {
                out.insert(
                    format!("{}.{}", s.name(), m.name()),
                    format!(
                        "{} {} {} {}",
                        m.input_type(),
                        m.output_type(),
                        m.client_streaming(),
                        m.server_streaming()
                    ),
                );
            }
        }
    }
    out
}

#[test]
fn nothing_was_removed_or_changed_since_the_checked_in_descriptor() {
    let root = env!("CARGO_MANIFEST_DIR");
    let now = protox::compile(["os/agent/v1/agent.proto"], [format!("{root}/proto")]).unwrap();
    let path = format!("{root}/proto/agent.desc");
    if std::env::var_os("UPDATE_DESCRIPTOR").is_some() {
        let mut bare = now.clone();
        for f in &mut bare.file {
            f.source_code_info = None;
        }
        std::fs::write(&path, bare.encode_to_vec()).unwrap();
    }
    let before = prost_types::FileDescriptorSet::decode(&*std::fs::read(&path).unwrap()).unwrap();
    let (before, now) = (facts(&before), facts(&now));
    assert!(before.len() > 200, "the descriptor looks empty");
    for (k, v) in &before {
        assert_eq!(
            now.get(k),
            Some(v),
            "{k} changed or vanished: callers in the field rely on it"
        );
    }
    assert_eq!(
        now.len(),
        before.len(),
        "new items: run with UPDATE_DESCRIPTOR=1 and commit proto/agent.desc"
    );
}
