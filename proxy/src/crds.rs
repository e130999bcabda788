//! The two CustomResourceDefinitions as YAML. Generated from `api`, kept in `deploy/crds.yaml` and tested equal. Valid on
//! Kubernetes 1.28 and without CEL.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, CustomResourceDefinition,
};
use kube::CustomResourceExt;
use serde_json::{Value, json};

use crate::api::{OS, OSInstance};

/// A printer column; priority 1 is shown with `-o wide` only.
fn column(name: &str, type_: &str, path: &str, priority: i32) -> CustomResourceColumnDefinition {
    CustomResourceColumnDefinition {
        name: name.into(),
        type_: type_.into(),
        json_path: path.into(),
        priority: (priority > 0).then_some(priority),
        ..Default::default()
    }
}

fn os_columns() -> Vec<CustomResourceColumnDefinition> {
    vec![
        column("VERSION", "string", ".spec.osversion", 0),
        column("PROGRESS", "string", ".status.progress", 0),
        column("UPDATING", "integer", ".status.counts.updating", 0),
        column("FAILED", "integer", ".status.counts.failed", 0),
        column("STATE", "string", ".status.state", 0),
        column("AGE", "date", ".metadata.creationTimestamp", 0),
        // KubeOS's own columns.
        column("OS VERSION", "string", ".spec.osversion", 1),
        column("SYSCONFIG VERSION", "string", ".spec.sysconfigs.version", 1),
        column(
            "UPGRADECONFIG VERSION",
            "string",
            ".spec.upgradeconfigs.version",
            1,
        ),
    ]
}

fn instance_columns() -> Vec<CustomResourceColumnDefinition> {
    vec![
        column("PHASE", "string", ".status.phase", 0),
        column("SINCE", "date", ".status.phaseSince", 0),
        column("VERSION", "string", ".status.agent.osVersion", 0),
        column("TARGET", "string", ".spec.target.version", 0),
        column("OS", "string", ".spec.namespacedname.name", 0),
        column("ATTEMPT", "integer", ".spec.attempt", 0),
        column("REASON", "string", ".status.failure.reason", 0),
        column("AGE", "date", ".metadata.creationTimestamp", 0),
        column("FALLBACK", "string", ".status.agent.previousVersion", 1),
        column("BLOCKED-BY", "string", ".status.drain.blockedBy[*].pod", 1),
        // KubeOS's own columns.
        column("NODESTATUS", "string", ".spec.nodestatus", 1),
        column(
            "SYSCONFIG-VERSION-CURRENT",
            "string",
            ".status.sysconfigs.version",
            1,
        ),
        column(
            "SYSCONFIG-VERSION-DESIRED",
            "string",
            ".spec.sysconfigs.version",
            1,
        ),
        column(
            "UPGRADECONFIG-VERSION-CURRENT",
            "string",
            ".status.upgradeconfigs.version",
            1,
        ),
        column(
            "UPGRADECONFIG-VERSION-DESIRED",
            "string",
            ".spec.upgradeconfigs.version",
            1,
        ),
    ]
}

/// apiVersion of both kinds.
pub const API_VERSION: &str = "upgrade.openeuler.org/v1alpha1";

/// Fields of an OS manifest that the definition does not have, as paths.
pub fn unknown_fields(manifest: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let all = crds();
    let schema = all
        .first()
        .and_then(|c| c.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec"));
    if let (Some(schema), Some(spec)) = (schema, manifest.get("spec")) {
        look_for_unknown("spec", spec, schema, &mut found);
    }
    found
}

fn look_for_unknown(path: &str, value: &Value, schema: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            // Without listed properties anything may stand here: maps of labels, values of settings.
            let Some(known) = schema.get("properties") else {
                return;
            };
            for (name, inner) in fields {
                let path = format!("{path}.{name}");
                match known.get(name) {
                    Some(s) => look_for_unknown(&path, inner, s, found),
                    None => found.push(path),
                }
            }
        }
        Value::Array(items) => {
            let Some(schema) = schema.get("items") else { return };
            for (i, item) in items.iter().enumerate() {
                look_for_unknown(&format!("{path}[{i}]"), item, schema, found);
            }
        }
        _ => {}
    }
}

/// The two definitions.
pub fn crds() -> Vec<Value> {
    let mut os = finished(OS::crd(), os_columns());
    let spec = os.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/spec");
    if let Some(spec) = spec {
        spec["required"] = json!(["maxunavailable", "opstype", "osversion"]);
        // What KubeOS's own definition refuses at once is refused at once here too; the rest is said in conditions.
        for (field, words) in [
            ("opstype", json!(["upgrade", "config", "rollback"])),
            ("imagetype", json!(["", "docker", "disk", "containerd"])),
            ("executionmode", json!(["serial", "parallel"])),
        ] {
            spec["properties"][field]["enum"] = words;
        }
    }
    vec![os, finished(OSInstance::crd(), instance_columns())]
}

fn finished(mut crd: CustomResourceDefinition, columns: Vec<CustomResourceColumnDefinition>) -> Value {
    for version in &mut crd.spec.versions {
        version.additional_printer_columns = Some(columns.clone());
    }
    let mut value = serde_json::to_value(crd).unwrap_or_default();
    if let Some(schema) = value.pointer_mut("/spec/versions/0/schema/openAPIV3Schema") {
        tidy(schema);
    }
    value
}

/// Takes out what the server would act on or refuse: `default` (it would be stored into users' objects) and the integer
/// formats and titles of Rust.
fn tidy(schema: &mut Value) {
    let Some(map) = schema.as_object_mut() else { return };
    map.remove("default");
    map.remove("title");
    if map
        .get("format")
        .and_then(Value::as_str)
        .is_some_and(|f| f.starts_with("uint"))
    {
        map.remove("format");
    }
    for key in ["properties", "patternProperties", "definitions"] {
        if let Some(Value::Object(inner)) = map.get_mut(key) {
            inner.values_mut().for_each(tidy);
        }
    }
    for key in ["items", "additionalProperties", "not"] {
        if let Some(inner) = map.get_mut(key) {
            tidy(inner);
        }
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        if let Some(Value::Array(inner)) = map.get_mut(key) {
            inner.iter_mut().for_each(tidy);
        }
    }
}

/// Both definitions as one YAML stream.
pub fn yaml() -> Result<String, serde_saphyr::ser::Error> {
    let mut text =
        String::from("# Generated by `os-operator --print-crds`. Do not edit; a test keeps it equal.\n");
    for crd in crds() {
        text.push_str("---\n");
        text.push_str(&serde_saphyr::to_string(&crd)?);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_in_deploy_is_what_the_code_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/crds.yaml");
        assert_eq!(
            std::fs::read_to_string(path).unwrap(),
            yaml().unwrap(),
            "run: os-operator --print-crds > proxy/deploy/crds.yaml"
        );
    }

    #[test]
    fn the_yaml_reads_back_as_what_was_written() {
        let documents: Vec<Value> = serde_saphyr::from_multiple(&yaml().unwrap()).unwrap();
        assert_eq!(documents, crds());
    }

    /// Structural and free of what Kubernetes 1.28 or a server without CEL does not know.
    #[test]
    fn schemas_are_structural() {
        fn walk(path: &str, v: &Value) {
            let map = v.as_object().unwrap_or_else(|| panic!("{path}"));
            let open = map.get("x-kubernetes-preserve-unknown-fields") == Some(&json!(true));
            let either = map.get("x-kubernetes-int-or-string") == Some(&json!(true));
            assert!(
                open || either || map.get("type").is_some_and(Value::is_string),
                "{path}: no type in {v}"
            );
            for key in map.keys() {
                let known = [
                    "type",
                    "description",
                    "properties",
                    "items",
                    "required",
                    "enum",
                    "format",
                    "nullable",
                    "additionalProperties",
                    "x-kubernetes-preserve-unknown-fields",
                    "x-kubernetes-int-or-string",
                    "minimum",
                    "maximum",
                ];
                assert!(known.contains(&key.as_str()), "{path}: {key}");
            }
            for (k, inner) in map
                .get("properties")
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
            {
                walk(&format!("{path}.{k}"), inner);
            }
            for key in ["items", "additionalProperties"] {
                if let Some(inner) = map.get(key) {
                    walk(&format!("{path}[{key}]"), inner);
                }
            }
        }
        for crd in crds() {
            let schema = crd.pointer("/spec/versions/0/schema/openAPIV3Schema").unwrap();
            walk(crd["spec"]["names"]["kind"].as_str().unwrap(), schema);
            assert!(crd.pointer("/spec/versions/0/subresources/status").is_some());
        }
    }

    #[test]
    fn every_field_of_kubeos_is_there_under_its_name() {
        let all = crds();
        let spec = all[0]
            .pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties")
            .unwrap();
        for field in [
            "osversion",
            "opstype",
            "imagetype",
            "imageurl",
            "checksum",
            "containerimage",
            "flagSafe",
            "mtls",
            "evictpodforce",
            "maxunavailable",
            "cacert",
            "clientcert",
            "clientkey",
            "nodeselector",
            "executionmode",
            "timeinterval",
            "timewindow",
            "sysconfigs",
            "upgradeconfigs",
        ] {
            assert!(spec.get(field).is_some(), "{field}");
        }
        let spec = all[1]
            .pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties")
            .unwrap();
        for field in ["nodestatus", "namespacedname", "sysconfigs", "upgradeconfigs"] {
            assert!(spec.get(field).is_some(), "{field}");
        }
    }

    fn deployed(file: &str) -> Vec<Value> {
        let path = format!("{}/deploy/{file}", env!("CARGO_MANIFEST_DIR"));
        serde_saphyr::from_multiple(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    /// Names, selectors and containers of KubeOS: applied over its manifests, one operator and one proxy per node are left.
    #[test]
    fn manifests_replace_those_of_kubeos() {
        let all = deployed("manager.yaml");
        for (kind, name, container, command) in [
            ("Deployment", "upgrade-operator", "operator", "/operator"),
            ("DaemonSet", "upgrade-proxy", "proxy", "/proxy"),
        ] {
            let o = all.iter().find(|o| o["kind"] == kind).unwrap();
            assert_eq!(
                (&o["metadata"]["name"], &o["metadata"]["namespace"]),
                (&json!(name), &json!("upgrade-system"))
            );
            assert_eq!(
                o["spec"]["selector"],
                json!({"matchLabels": {"control-plane": name}}),
                "a selector cannot be changed"
            );
            assert_eq!(
                o["spec"]["template"]["metadata"]["labels"],
                json!({"control-plane": name})
            );
            let containers = o["spec"]["template"]["spec"]["containers"].as_array().unwrap();
            assert_eq!(containers.len(), 1);
            assert_eq!(
                (&containers[0]["name"], &containers[0]["command"]),
                (&json!(container), &json!([command]))
            );
            assert_eq!(o["spec"]["template"]["spec"]["serviceAccountName"], name);
        }
        let rbac = deployed("rbac.yaml");
        let old = rbac
            .iter()
            .find(|o| o["metadata"]["name"] == "upgrade-manager-role")
            .unwrap();
        assert_eq!(old["rules"], json!([]), "the shared account loses its rights");
    }

    /// KF-S1: what a proxy must never be allowed.
    #[test]
    fn kf_s1_a_proxy_can_write_nothing_but_its_own_affairs() {
        let rbac = deployed("rbac.yaml");
        let role = rbac
            .iter()
            .find(|o| o["kind"] == "ClusterRole" && o["metadata"]["name"] == "upgrade-proxy")
            .unwrap();
        let mut writes: Vec<String> = Vec::new();
        for rule in role["rules"].as_array().unwrap() {
            for verb in rule["verbs"].as_array().unwrap() {
                for resource in rule["resources"].as_array().unwrap() {
                    let (verb, resource) = (verb.as_str().unwrap(), resource.as_str().unwrap());
                    assert!(verb != "*" && resource != "*");
                    if !["get", "list", "watch"].contains(&verb) {
                        writes.push(format!("{verb} {resource}"));
                    }
                }
            }
        }
        writes.sort_unstable();
        assert_eq!(
            writes,
            [
                "create events",
                "create pods/eviction",
                "patch events",
                "patch nodes",
                "patch osinstances/status"
            ]
        );
    }
}
