//! Settings as they are ordered from a node.

use crate::api::Configs;

use super::{Notes, expected};

const MODELS: [&str; 7] = [
    "kernel.sysctl",
    "kernel.sysctl.persist",
    "grub.cmdline.current",
    "grub.cmdline.next",
    "kubernetes.kubelet",
    "container.containerd",
    "pam.limits",
];

/// A copy with KubeOS's known misspelling put right. With `swap` the two grub models are exchanged: they were written as
/// seen from the running system, and the settings are applied after the slots have changed places.
pub(super) fn ordered(configs: Option<&Configs>, field: &str, swap: bool, n: &mut Notes) -> Option<Configs> {
    let mut configs = configs?.clone();
    for (i, c) in configs.configs.iter_mut().enumerate() {
        let model = match c.model.as_deref() {
            None | Some("") => continue,
            Some("kuberntes.kubelet") => {
                n.warn(format!(
                    "{field}.configs[{i}].model: kuberntes.kubelet is read as kubernetes.kubelet"
                ));
                "kubernetes.kubelet"
            }
            Some("grub.cmdline.current") if swap => "grub.cmdline.next",
            Some("grub.cmdline.next") if swap => "grub.cmdline.current",
            Some(m) => m,
        };
        if !MODELS.contains(&model) {
            n.wrong(
                format!("{field}.configs[{i}].model"),
                expected(&MODELS.join(", "), model),
            );
        }
        c.model = Some(model.to_owned());
    }
    Some(configs)
}
