//! Labels, annotations and other fixed names. Those of KubeOS are marked; dashboards and scripts read them.

/// API group.
pub const GROUP: &str = "upgrade.openeuler.org";
/// API version.
pub const VERSION: &str = "v1alpha1";
/// Namespace in which every `OSInstance` lives (KubeOS).
pub const INSTANCE_NAMESPACE: &str = "default";
/// Namespace of the deployed parts (KubeOS).
pub const SYSTEM_NAMESPACE: &str = "upgrade-system";

/// Label on a Node while a grant of kind upgrade, rollback or reboot is acted on; empty value (KubeOS).
pub const LABEL_UPGRADING: &str = "upgrade.openeuler.org/upgrading";
/// Label on a Node while a config grant is acted on; empty value (KubeOS).
pub const LABEL_CONFIGURING: &str = "upgrade.openeuler.org/configuring";
/// Label on a Node that works in serial mode; empty value (KubeOS).
pub const LABEL_SERIAL: &str = "upgrade.openeuler.org/serial";
/// Label by which users group nodes for `spec.nodeselector` (KubeOS).
pub const LABEL_NODE_SELECTOR: &str = "upgrade.openeuler.org/node-selector";
/// Label on an OSInstance, only where the node's name is a legal label value (KubeOS).
pub const LABEL_INSTANCE_NODE: &str = "upgrade.openeuler.org/osinstance-node";
/// A Node with this label is never selected.
pub const LABEL_CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

/// Node annotation, written in the same patch as the cordon: `<OS uid>/<attempt>`. Only its owner may uncordon.
pub const ANN_CORDONED_BY: &str = "upgrade.openeuler.org/cordoned-by";
/// Node annotation by users: no grant, and an abort before Boot.
pub const ANN_HOLD: &str = "upgrade.openeuler.org/hold";
/// Node annotation by users: this node's being down is expected and does not count.
pub const ANN_IGNORE_UNAVAILABLE: &str = "upgrade.openeuler.org/ignore-unavailable";
/// Prefix of Node annotations `gate.<name>` with the values `ok` and `blocked`.
pub const ANN_GATE_PREFIX: &str = "upgrade.openeuler.org/gate.";
/// OSInstance annotation by users: the digest (or `any`) that may be tried again; removed by the operator once honoured.
pub const ANN_RETRY: &str = "upgrade.openeuler.org/retry";
/// OS annotation by users: the generation for which a latched halt is lifted.
pub const ANN_RESUME: &str = "upgrade.openeuler.org/resume";
/// OS annotation by users: the generation for which the same version with another digest is installed all the same.
pub const ANN_REINSTALL: &str = "upgrade.openeuler.org/reinstall";

/// Finalizer of an `OS` that has claims or grants.
pub const FINALIZER_OS: &str = "upgrade.openeuler.org/rollout";
/// Finalizer of an `OSInstance` while its node holds a grant.
pub const FINALIZER_INSTANCE: &str = "upgrade.openeuler.org/grant";

/// Field manager of the operator.
pub const OPERATOR_MANAGER: &str = "os-operator";
/// Field manager of the proxy (server-side apply of `OSInstance.status`).
pub const PROXY_MANAGER: &str = "os-proxy";
/// Name of the Lease that elects the leading operator, in the operator's namespace.
pub const LEASE_NAME: &str = "os-operator";

/// The value of [`ANN_CORDONED_BY`].
pub fn cordon_owner(os_uid: &str, attempt: u32) -> String {
    format!("{os_uid}/{attempt}")
}

/// Whether `value` may stand as a label value (at most 63 characters of `[A-Za-z0-9._-]`, alphanumeric at both ends).
pub fn is_label_value(value: &str) -> bool {
    let edge = |c: Option<u8>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let bytes = value.as_bytes();
    value.is_empty()
        || (bytes.len() <= 63
            && edge(bytes.first().copied())
            && edge(bytes.last().copied())
            && bytes
                .iter()
                .all(|c| c.is_ascii_alphanumeric() || b"._-".contains(c)))
}
