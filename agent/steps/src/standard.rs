//! The standard bundle: what a worker node needs, as templates of our own. `os-agent steps render --standard` renders them;
//! they are the example for bundles of one's own, too.

use crate::render::Template;

macro_rules! assets {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../assets/standard/", $name, ".sh.tpl")))),*]
    };
}

/// Name and text of each template, in order.
const STEPS: [(&str, &str); 9] = assets![
    "000_node_users",
    "001_ca_certificates",
    "002_opt_bin_on_path",
    "003_api_proxy",
    "010_packages",
    "015_kernel",
    "020_containerd",
    "030_kubelet",
    "099_reboot_if_needed",
];

/// Every key that the templates read, with example values. YAML.
pub const EXAMPLE: &str = include_str!("../assets/standard/context.example.yaml");

/// The templates.
pub fn templates() -> Vec<Template> {
    STEPS
        .iter()
        .map(|(name, text)| Template {
            file: format!("{name}.sh.tpl"),
            step: format!("{name}.sh"),
            text: (*text).to_owned(),
        })
        .collect()
}

#[cfg(test)]
mod tests;
