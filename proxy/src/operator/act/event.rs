//! Events: the same cause makes one, whoever finds it.

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Api;
use kube::api::PostParams;
use sha2::{Digest, Sha256};

use crate::api::OPERATOR_MANAGER;
use crate::clock;
use crate::operator::decide::EventNote;

use super::{Actor, code};

/// Causes of Events remembered, so that one cause makes one request.
const CAUSES: usize = 10_000;

impl Actor {
    pub(super) async fn event(&mut self, note: &EventNote) {
        let hash = hex(&Sha256::digest(format!("{}/{}", note.os.uid, note.cause)));
        if !self.sent.insert(hash.clone()) {
            return;
        }
        if self.sent.len() > CAUSES {
            self.sent.clear();
        }
        let now = Time(clock::now());
        let mut message = note.message.clone();
        let mut end = message.len().min(1000);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
        let event = Event {
            metadata: ObjectMeta {
                // The same cause has the same name: a successor's attempt to send it again is refused.
                name: Some(format!(
                    "{}.{}",
                    note.os
                        .name
                        .chars()
                        .take(200)
                        .collect::<String>()
                        .trim_end_matches(['.', '-']),
                    &hash[..16]
                )),
                namespace: Some(note.os.namespace.clone()),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: Some("upgrade.openeuler.org/v1alpha1".into()),
                kind: Some("OS".into()),
                name: Some(note.os.name.clone()),
                namespace: Some(note.os.namespace.clone()),
                uid: Some(note.os.uid.clone()),
                ..ObjectReference::default()
            },
            type_: Some(if note.warning { "Warning" } else { "Normal" }.into()),
            reason: Some(note.reason.clone()),
            message: Some(message),
            source: Some(EventSource {
                component: Some(OPERATOR_MANAGER.into()),
                ..EventSource::default()
            }),
            reporting_component: Some(OPERATOR_MANAGER.into()),
            reporting_instance: Some(self.instance.clone()),
            first_timestamp: Some(now.clone()),
            last_timestamp: Some(now),
            count: Some(1),
            ..Event::default()
        };
        self.pace.wait().await;
        let api: Api<Event> = Api::namespaced(self.client.clone(), &note.os.namespace);
        match api.create(&PostParams::default(), &event).await {
            Ok(_) => {}
            Err(e) if code(&e) == 409 => {}
            Err(error) => tracing::warn!(%error, "cannot send an Event"),
        }
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
