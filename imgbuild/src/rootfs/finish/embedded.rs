//! The files of `systemd/`, carried in this program, and where they go.

use super::super::{io_error, write_new};
use super::{in_root, link};
use crate::error::Result;
use crate::recipe::Recipe;
use camino::Utf8Path;

/// A file: name below `systemd/`, path in the root, mode, content.
type Row = (&'static str, &'static str, u32, &'static str);

macro_rules! rows {
    ($($from:literal => $to:literal, $mode:literal;)*) => {
        &[$(($from, $to, $mode, include_str!(concat!("../../../../systemd/", $from)))),*]
    };
}

pub(super) const FILES: &[Row] = rows! {
    "system/os-agent.service" => "/usr/lib/systemd/system/os-agent.service", 0o644;
    "system/os-agent-steps.service" => "/usr/lib/systemd/system/os-agent-steps.service", 0o644;
    "system/os-agent-api-proxy.service" => "/usr/lib/systemd/system/os-agent-api-proxy.service", 0o644;
    "system/os-agent-grow-persist.service" => "/usr/lib/systemd/system/os-agent-grow-persist.service", 0o644;
    "system/os-agent-host-keys.service" => "/usr/lib/systemd/system/os-agent-host-keys.service", 0o644;
    "system/os-agent-trial-deadline.timer" => "/usr/lib/systemd/system/os-agent-trial-deadline.timer", 0o644;
    "system/os-agent-trial-deadline.service" => "/usr/lib/systemd/system/os-agent-trial-deadline.service", 0o644;
    "system/os-agent-trial-emergency.service" => "/usr/lib/systemd/system/os-agent-trial-emergency.service", 0o644;
    "system/trial-emergency.conf" => "/usr/lib/systemd/system/emergency.target.d/10-slipway.conf", 0o644;
    "system/trial-emergency.conf" => "/usr/lib/systemd/system/rescue.target.d/10-slipway.conf", 0o644;
    "system/boot-complete.conf" => "/usr/lib/systemd/system/boot-complete.target.d/10-slipway.conf", 0o644;
    "system/sysusers-always.conf" => "/usr/lib/systemd/system/systemd-sysusers.service.d/10-slipway.conf", 0o644;
    "system/stay-mounted.conf" => "/usr/lib/systemd/system/persist.mount.d/10-slipway.conf", 0o644;
    "system/stay-mounted.conf" => "/usr/lib/systemd/system/etc.mount.d/10-slipway.conf", 0o644;
    "system/stay-mounted.conf" => "/usr/lib/systemd/system/var.mount.d/10-slipway.conf", 0o644;
    "system/stay-mounted.conf" => "/usr/lib/systemd/system/opt.mount.d/10-slipway.conf", 0o644;
    "system/kubelet.conf" => "/usr/lib/systemd/system/kubelet.service.d/10-slipway.conf", 0o644;
    "system/tmp.mount" => "/usr/lib/systemd/system/tmp.mount", 0o644;
    "system/boot-efi.mount" => "/usr/lib/systemd/system/boot-efi.mount", 0o644;
    "system/boot-efi.automount" => "/usr/lib/systemd/system/boot-efi.automount", 0o644;
    "slipway.preset" => "/usr/lib/systemd/system-preset/10-slipway.preset", 0o644;
    "slipway.system.conf" => "/usr/lib/systemd/system.conf.d/10-slipway.conf", 0o644;
    "slipway.tmpfiles" => "/usr/lib/tmpfiles.d/slipway.conf", 0o644;
    "slipway.sysusers" => "/usr/lib/sysusers.d/slipway.conf", 0o644;
    "90-slipway.rules" => "/usr/lib/udev/rules.d/90-slipway.rules", 0o644;
    "dracut/95slipway/module-setup.sh" => "/usr/lib/dracut/modules.d/95slipway/module-setup.sh", 0o755;
    "dracut/95slipway/slipway-pstore.sh" => "/usr/lib/dracut/modules.d/95slipway/slipway-pstore.sh", 0o755;
    "dracut/95slipway/slipway-watchdog.sh" => "/usr/lib/dracut/modules.d/95slipway/slipway-watchdog.sh", 0o755;
    "dracut/95slipway/slipway-pre-pivot.sh" => "/usr/lib/dracut/modules.d/95slipway/slipway-pre-pivot.sh", 0o755;
    "dracut/95slipway/slipway-mounts.sh" => "/usr/lib/dracut/modules.d/95slipway/slipway-mounts.sh", 0o755;
};

/// Links: path in the root, target.
pub(super) const LINKS: &[(&str, &str)] = &[
    (
        "/usr/lib/systemd/system/multi-user.target.wants/os-agent.service",
        "../os-agent.service",
    ),
    (
        "/usr/lib/systemd/system/multi-user.target.wants/os-agent-grow-persist.service",
        "../os-agent-grow-persist.service",
    ),
    (
        "/usr/lib/systemd/system/multi-user.target.wants/os-agent-host-keys.service",
        "../os-agent-host-keys.service",
    ),
    (
        "/usr/lib/systemd/system/sysinit.target.wants/os-agent-trial-deadline.timer",
        "../os-agent-trial-deadline.timer",
    ),
    (
        "/usr/lib/systemd/system/local-fs.target.wants/tmp.mount",
        "../tmp.mount",
    ),
    (
        "/usr/lib/systemd/system/local-fs.target.wants/boot-efi.automount",
        "../boot-efi.automount",
    ),
];

/// Puts all of them into the root.
pub(super) fn install(root: &Utf8Path) -> Result<()> {
    for (_, path, mode, text) in FILES {
        write_new(&in_root(root, path)?, text.as_bytes(), *mode)?;
    }
    for (path, target) in LINKS {
        link(root, path, target)?;
    }
    for dir in [
        "usr/lib/os-agent/health.d",
        "usr/lib/os-agent/config.d",
        "etc/os-agent/health.d",
        "etc/os-agent/config.d",
    ] {
        fs_err::create_dir_all(in_root(root, dir)?).map_err(|e| io_error("cannot make a directory", &e))?;
    }
    Ok(())
}

/// `[trial] deadline_secs`: for the timer, which works without the agent, and for the agent.
pub(super) fn trial_deadline(recipe: &Recipe, root: &Utf8Path) -> Result<()> {
    let Some(secs) = recipe.trial_deadline_secs else {
        return Ok(());
    };
    let timer = format!("[Timer]\nOnActiveSec=\nOnActiveSec={secs}\n");
    let at = "usr/lib/systemd/system/os-agent-trial-deadline.timer.d/20-recipe.conf";
    write_new(&in_root(root, at)?, timer.as_bytes(), 0o644)?;
    let agent = format!("[trial]\ndeadline_secs = {secs}\n");
    write_new(
        &in_root(root, "usr/lib/os-agent/config.d/20-recipe.toml")?,
        agent.as_bytes(),
        0o644,
    )
}
